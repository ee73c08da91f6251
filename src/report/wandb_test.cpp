// Records of an offline run, read by a decoder of the test's own; tools/check_reports.py uploads a run with `wandb
// sync`.
#include "report/wandb.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/crc32.h"
#include "report/metrics_file.h"
#include "report/testing/sample_metrics.h"
#include "report/testing/test_protobuf.h"

namespace hawser::report {
namespace wandb_test {

using nlohmann::json;

// The records of a file whose first byte is byte `at` of a log.
std::vector<std::string> records(std::string_view file, std::size_t at) {
  std::vector<std::string> out;
  bool inside = false;
  while (!file.empty()) {
    const std::size_t left = 32768 - at % 32768;
    if (left < 7) {
      EXPECT_EQ(file.substr(0, left), std::string(left, '\0').substr(0, file.size()));
      file.remove_prefix(std::min(left, file.size()));
      at += left;
      continue;
    }
    if (file.size() < 7) return ADD_FAILURE() << "torn", out;
    const std::size_t size = little_endian(file.substr(4, 2));
    if (file.size() < 7 + size) return ADD_FAILURE() << "torn", out;
    EXPECT_LE(7 + size, left);
    EXPECT_EQ(little_endian(file.substr(0, 4)), crc32(file.substr(6, 1 + size)));
    const int kind = static_cast<unsigned char>(file[6]);
    EXPECT_EQ(inside, kind == 3 || kind == 4) << kind;
    if (!inside) out.emplace_back();
    out.back() += file.substr(7, size);
    inside = kind == 2 || kind == 3;
    file.remove_prefix(7 + size);
    at += 7 + size;
  }
  EXPECT_FALSE(inside);
  return out;
}

TEST(WandbPieces, AreCutAtTheEndOfABlock) {
  for (const std::size_t at : {7u, 32700u, 32754u, 32755u, 32760u, 32761u, 32762u, 32767u, 32768u}) {
    for (const std::size_t size : {0u, 1u, 7u, 100u, 32761u, 32762u, 100000u}) {
      std::string record(size, 'x');
      for (std::size_t i = 0; i < size; ++i) record[i] = static_cast<char>(i * 7);
      const auto read = records(wandb_pieces(static_cast<std::int64_t>(at), record), at);
      ASSERT_EQ(read.size(), 1u) << at << ", " << size;
      EXPECT_EQ(read[0], record) << at << ", " << size;
    }
  }
}

RunFacts facts() {
  return {.name = "a \"name\"",
          .version = "1.2",
          .folder = "/runs/x",
          .recipe = {{"name", "a", true}, {"train.steps", "9", true}, {"report.html", "true", false}},
          .environment = {{"host", "here"}, {"system", "Linux 6"}},
          .data = {{"training tokens", "918K", "917955"}}};
}

// `wandb sync` would send the steps of both to one run.
TEST(Wandb, ACopyOfARunGetsARunOfItsOwn) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& name, std::int64_t resumed) {
    RunFacts of = facts();
    of.folder = folder.path(name);
    const std::string metrics = folder.path(name + "/metrics.jsonl");
    if (resumed == 0) MetricsFile(metrics).step(metrics_of(1));
    Wandb sink({.folder = folder.path(name + "/wandb"), .resumed_step = resumed, .metrics_file = metrics}, of);
    sink.finish(Ending::done);
    return std::pair(std::filesystem::path(sink.path()).filename().string(), sink.trouble());
  };
  const auto [original, nothing] = run("run", 0);
  EXPECT_EQ(nothing, "");
  std::filesystem::copy(folder.path("run"), folder.path("copy"), std::filesystem::copy_options::recursive);
  const auto [copied, trouble] = run("copy", 1);
  EXPECT_NE(copied, original);
  EXPECT_EQ(trouble, "this run's folder is a copy of " + folder.path("run") + "; it gets a run of its own");
  std::filesystem::rename(folder.path("run"), folder.path("moved"));
  EXPECT_EQ(run("moved", 1), std::pair(original, std::string()));
}

class WandbTest : public ::testing::Test {
 protected:
  WandbOptions options(std::int64_t resumed_step = 0) const {
    return {.folder = folder_.path("wandb"),
            .project = "austen",
            .resumed_step = resumed_step,
            .metrics_file = folder_.path("metrics.jsonl")};
  }
  // The contents of the records of field `kind`, of the only run.
  std::vector<std::string> all(int kind) const {
    std::vector<std::string> out;
    const std::string file = read_file(file_of(only_run()));
    EXPECT_EQ(file.substr(0, 7), std::string(":W&B\xE1\xBE\0", 7));
    std::int64_t number = 0;
    for (const std::string& record : records(std::string_view(file).substr(7), 7)) {
      EXPECT_EQ(little_endian(field(record, 1)), static_cast<std::uint64_t>(++number));
      if (fields(record).contains(kind)) out.push_back(field(record, kind));
    }
    return out;
  }
  std::vector<std::string> runs() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path("wandb"))) found.push_back(entry.path());
    return found;
  }
  std::string only_run() const {
    const std::vector<std::string> found = runs();
    EXPECT_EQ(found.size(), 1u);
    return found.at(0);
  }
  static std::string file_of(const std::string& run) {
    return run + "/run-" + run.substr(run.rfind('-') + 1) + ".wandb";
  }
  // Keys, joined by dots, and values of the items with field number `number`.
  static std::map<std::string, std::string> items(const std::string& record, int number) {
    std::map<std::string, std::string> out;
    for (const auto& [kind, item] : fields(record)) {
      if (kind != number) continue;
      std::string key;
      for (const auto& [part, text] : fields(item)) {
        if (part == 2) key += (key.empty() ? "" : ".") + text;
      }
      out[key] = field(item, 16);
    }
    return out;
  }
  TemporaryFolder folder_;
};

TEST_F(WandbTest, HoldsTheNumbersOfEachStep) {
  {
    Wandb wandb(options(), facts());
    StepMetrics metrics = metrics_of(1);
    metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
    metrics.initial_validation_loss = ValidationLosses(5.5, {{"support", 5.25}});
    wandb.step(metrics);
    metrics = metrics_of(2);
    metrics.loss = 0.1 + 0.2;
    metrics.validation_loss = 4.25;
    metrics.findings = {{2, "overfitting", "try \xff"}};
    wandb.step(metrics);
    wandb.step(metrics_of(3));
    wandb.finish(Ending::interrupted);
  }
  EXPECT_TRUE(std::filesystem::is_directory(only_run() + "/files"));
  const std::string run = all(17).at(0);
  EXPECT_EQ(field(run, 1), only_run().substr(only_run().size() - 8));
  EXPECT_EQ(field(run, 3), "austen");
  EXPECT_EQ(field(run, 8), "a \"name\"");
  const auto config = items(field(run, 4), 1);
  EXPECT_EQ(config.at("name"), "\"a\"");
  EXPECT_EQ(config.at("train.steps"), "9");
  EXPECT_EQ(config.at("report.html"), "true");
  EXPECT_EQ(config.at("dataset.training tokens"), "917955");

  const auto history = all(2);
  ASSERT_EQ(history.size(), 3u);
  const auto first = items(history[0], 1), second = items(history[1], 1);
  EXPECT_EQ(first.at("_step"), "1");
  EXPECT_EQ(first.at("_timestamp"), "1750000000.500");
  EXPECT_EQ(first.at("loss/train"), "3.5");
  EXPECT_EQ(first.at("loss/initial_validation"), "5.5");
  EXPECT_EQ(first.at("loss/initial_validation_support"), "5.25");
  EXPECT_FALSE(first.contains("optimizer/grad_norm"));  // it is not finite
  EXPECT_EQ(std::stod(second.at("loss/train")), 0.1 + 0.2);
  EXPECT_EQ(second.at("loss/validation"), "4.25");
  EXPECT_EQ(little_endian(field(field(history[1], 2), 1)), 2u);

  std::map<std::string, std::string> summary;
  for (const std::string& one : all(3)) {
    for (const auto& [key, value] : items(one, 1)) summary[key] = value;
  }
  EXPECT_EQ(summary.at("_step"), "3");
  EXPECT_EQ(summary.at("loss/validation"), "4.25");
  EXPECT_EQ(json::parse(summary.at("finding.overfitting")), "step 2: try \xEF\xBF\xBD");
  EXPECT_EQ(little_endian(field(all(18).at(0), 1)), 130u);
}

TEST_F(WandbTest, AResumedRunHasEachStepOnce) {
  {
    MetricsFile file(folder_.path("metrics.jsonl"));
    Wandb wandb(options(), facts());
    for (int step = 1; step <= 500; ++step) {
      file.step(metrics_of(step));
      wandb.step(metrics_of(step));
    }
    wandb.finish(Ending::done);
  }
  const std::string run = only_run();
  std::ofstream(file_of(run) + ".synced") << "";
  const MetricsFile file(folder_.path("metrics.jsonl"), 400);
  {
    Wandb wandb(options(400), facts());
    EXPECT_EQ(wandb.path(), run);
    for (int step = 401; step <= 450; ++step) wandb.step(metrics_of(step));
  }  // killed
  EXPECT_EQ(only_run(), run);
  EXPECT_FALSE(std::filesystem::exists(file_of(run) + ".synced"));
  const auto history = all(2);
  ASSERT_EQ(history.size(), 450u);
  for (std::size_t i = 0; i < history.size(); ++i) {
    const auto step = items(history[i], 1);
    EXPECT_EQ(step.at("_step"), std::to_string(i + 1));
    EXPECT_EQ(std::stod(step.at("_runtime")), 0.5 * static_cast<double>(i + 1));
  }
  EXPECT_TRUE(all(18).empty());
  EXPECT_EQ(all(17).size(), 1u);

  { Wandb(options(), facts()).step(metrics_of(1)); }
  EXPECT_EQ(runs().size(), 2u);  // a run is never deleted
}

// A folder may be shared: by a link, or with another program.
TEST_F(WandbTest, RunsOfOthersStayAndAreNotContinued) {
  const std::string others = folder_.path("wandb/offline-run-99990101_000000-abc123");
  std::filesystem::create_directories(others + "/files");
  std::ofstream(others + "/run-abc123.wandb") << "precious";
  MetricsFile(folder_.path("metrics.jsonl")).step(metrics_of(1));
  std::string own;
  {
    Wandb wandb(options(), facts());
    own = wandb.path();
    wandb.step(metrics_of(1));
  }
  { EXPECT_EQ(Wandb(options(1), facts()).path(), own); }
  EXPECT_EQ(read_file(others + "/run-abc123.wandb"), "precious");
  EXPECT_EQ(runs().size(), 2u);
}

TEST_F(WandbTest, AResumeWithoutMetricsKeepsTheEarlierRun) {
  { Wandb(options(), facts()).step(metrics_of(1)); }
  const std::string run = only_run(), before = read_file(file_of(run));
  std::string other;
  {
    Wandb wandb(options(1), facts());
    other = wandb.path();
    wandb.step(metrics_of(2));
  }
  EXPECT_NE(other, run);
  EXPECT_EQ(read_file(file_of(run)), before);
}

TEST_F(WandbTest, AFolderThatCannotBeWrittenIsTheUsersError) {
  std::ofstream(folder_.path("wandb")) << "a file";
  EXPECT_THROW(Wandb(options(), facts()), UserError);
}

}  // namespace wandb_test
}  // namespace hawser::report
