#include "base/hub_name.h"

#include <gtest/gtest.h>

namespace hawser {
namespace hub_name_test {

TEST(HubName, HasOneSlashAndAnOptionalRevision) {
  const auto name = parse_hub_name("HuggingFaceTB/SmolLM2-135M");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->model, "HuggingFaceTB/SmolLM2-135M");
  EXPECT_EQ(name->revision, "");
  EXPECT_EQ(hub_folder(*name), "models--HuggingFaceTB--SmolLM2-135M");
  EXPECT_EQ(download_command(*name), "hawser pull HuggingFaceTB/SmolLM2-135M");
  const auto pinned = parse_hub_name("meta-llama/Llama-3.2-1B@refs/pr/7");
  ASSERT_TRUE(pinned);
  EXPECT_EQ(pinned->model, "meta-llama/Llama-3.2-1B");
  EXPECT_EQ(pinned->revision, "refs/pr/7");
  EXPECT_EQ(pinned->text(), "meta-llama/Llama-3.2-1B@refs/pr/7");
  EXPECT_EQ(download_command(*pinned), "hawser pull meta-llama/Llama-3.2-1B@refs/pr/7");
  for (const char* path : {"", "model", "/a/b", "/b", "a/", "a/b/c", "./a", "../a", "a/..", "a/.b", "~/a", "a b/c",
                           "a/b@", "a/b@x/../y", "a/b@/x", "a--b/c", "s3://a/b", "a/*.json", "@x"}) {
    EXPECT_FALSE(parse_hub_name(path)) << path;
  }
}

TEST(HubName, IsInTheFoldersOfTheCache) {
  const auto file = hub_name_of("/home/user/.cache/huggingface/hub/models--a-b--c.d/snapshots/1f2e/config.json");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->model, "a-b/c.d");
  EXPECT_EQ(file->revision, "1f2e");
  const auto model = hub_name_of("hub/models--a-b--c.d");
  ASSERT_TRUE(model);
  EXPECT_EQ(model->text(), "a-b/c.d");
  for (const char* path : {"", "/a/snapshots/b", "models/a--b", "models--a", "hub/datasets--a--b/snapshots/c"}) {
    EXPECT_FALSE(hub_name_of(path)) << path;
  }
}

TEST(HubName, ReportsTheErrorOfADownload) {
  const HubName name{.model = "a/b"};
  EXPECT_EQ(not_downloaded(name, "hub/models--a--b").line(),
            "a/b: no such folder, and no such model in the Hugging Face cache (expected hub/models--a--b); try hawser "
            "pull a/b");
  set_not_downloaded("hub/models--a--b", "a/b: a gated model (got no token); try its terms");
  Problem problem = not_downloaded(name, "hub/models--a--b");
  problem.at = "--model";
  EXPECT_EQ(problem.line(), "a/b: a gated model (got no token) at --model; try its terms");
  set_not_downloaded("hub/models--a--b", "x: first; try y\nz: second");
  EXPECT_EQ(not_downloaded(name, "hub/models--a--b").line(), "x: first; try y z: second");
}

}  // namespace hub_name_test
}  // namespace hawser
