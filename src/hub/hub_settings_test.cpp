// Settings from the environment, and the checksums that name files.
#include "hub/hub_settings.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "hub/checksum.h"

namespace hawser::hub {
namespace hub_settings_test {

class HubSettings : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) ::unsetenv(name);
    ::setenv("HF_HOME", folder_.path("hf").c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : kNames) ::unsetenv(name);
  }
  static std::string error_of() {
    try {
      read_settings();
      return "";
    } catch (const UserError& error) {
      return error.what();
    }
  }

  static constexpr const char* kNames[] = {"HF_ENDPOINT",
                                           "HF_TOKEN",
                                           "HUGGING_FACE_HUB_TOKEN",
                                           "HF_TOKEN_PATH",
                                           "HF_HOME",
                                           "HF_HUB_CACHE",
                                           "HF_HUB_OFFLINE",
                                           "TRANSFORMERS_OFFLINE",
                                           "HF_HUB_DISABLE_IMPLICIT_TOKEN",
                                           "HF_HUB_DOWNLOAD_TIMEOUT"};
  TemporaryFolder folder_;
};

TEST_F(HubSettings, TheFirstTokenThatIsSetCounts) {
  EXPECT_EQ(read_settings().token, "");
  EXPECT_EQ(read_settings().token_place, "");
  folder_.write("hf/token", "hf_file\n");
  EXPECT_EQ(read_settings().token, "hf_file");
  EXPECT_EQ(read_settings().token_place, folder_.path("hf/token"));
  ::setenv("HF_TOKEN_PATH", folder_.write("mine", "hf_mine").c_str(), 1);
  EXPECT_EQ(read_settings().token, "hf_mine");
  ::setenv("HUGGING_FACE_HUB_TOKEN", "hf_older", 1);
  EXPECT_EQ(read_settings().token, "hf_older");
  ::setenv("HF_TOKEN", " hf_variable ", 1);
  EXPECT_EQ(read_settings().token, "hf_variable");
  EXPECT_EQ(read_settings().token_place, "HF_TOKEN");
  ::setenv("HF_TOKEN", "two words", 1);
  EXPECT_EQ(error_of(), "HF_TOKEN: not a token of the Hub (expected one word); try `hf auth login`");
  ::setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1", 1);
  EXPECT_EQ(read_settings().token, "");
}

TEST_F(HubSettings, NameTheServerAndTheCache) {
  EXPECT_EQ(read_settings().endpoint, "https://huggingface.co");
  EXPECT_EQ(read_settings().cache, folder_.path("hf/hub"));
  EXPECT_FALSE(read_settings().offline);
  ::setenv("HF_ENDPOINT", "http://localhost:8000/", 1);
  ::setenv("HF_HUB_OFFLINE", "on", 1);
  ::setenv("HF_HUB_DOWNLOAD_TIMEOUT", "5", 1);
  EXPECT_EQ(read_settings().endpoint, "http://localhost:8000");
  EXPECT_TRUE(read_settings().offline);
  EXPECT_EQ(read_settings().stalled, std::chrono::seconds(5));
  ::setenv("HF_ENDPOINT", "mirror.org", 1);
  EXPECT_EQ(error_of(), "HF_ENDPOINT: not a URL (expected https://HOST, got mirror.org); try https://mirror.org");
}

TEST(HubChecksum, IsThatOfSha256sumAndGit) {
  const auto checksum_of = [](const std::string& text, const std::string& etag) {
    auto checksum = Checksum::of_etag(etag, static_cast<std::int64_t>(text.size()));
    for (const char c : text) checksum->add({&c, 1});
    return checksum->finish();
  };
  const std::string sha256(64, '0'), git(40, '0');
  EXPECT_EQ(checksum_of("abc", sha256), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(checksum_of("", sha256), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(checksum_of("hello\n", git), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(checksum_of("", git), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_FALSE(Checksum::of_etag("abc-2", 3));
  EXPECT_FALSE(Checksum::of_etag(git, std::nullopt)) << "git's checksum has the size in it";
  EXPECT_TRUE(Checksum::of_etag(sha256, std::nullopt));
}

}  // namespace hub_settings_test
}  // namespace hawser::hub
