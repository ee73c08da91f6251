// Records and events, read by a decoder of the test's own; tools/check_reports.py reads them with the real package.
#include "report/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <optional>

#include "report/crc32.h"
#include "report/testing/sample_metrics.h"
#include "report/testing/test_protobuf.h"

namespace hawser::report {
namespace tensorboard_test {

// Inverse of the writer's mask.
void expect_crc(std::string_view stored, std::string_view bytes) {
  const std::uint32_t rotated = static_cast<std::uint32_t>(little_endian(stored)) - 0xA282EAD8U;
  EXPECT_EQ(rotated >> 17 | rotated << 15, crc32c(bytes));
}

std::vector<std::string> records(std::string_view file) {
  std::vector<std::string> out;
  while (!file.empty()) {
    if (file.size() < 16) return ADD_FAILURE() << "torn", out;
    const std::size_t size = little_endian(file.substr(0, 8));
    expect_crc(file.substr(8, 4), file.substr(0, 8));
    if (file.size() < 16 + size) return ADD_FAILURE() << "torn", out;
    out.emplace_back(file.substr(12, size));
    expect_crc(file.substr(12 + size, 4), file.substr(12, size));
    file.remove_prefix(16 + size);
  }
  return out;
}

std::map<std::string, float> scalars(const std::string& event) {
  std::map<std::string, float> out;
  const auto summary = fields(field(event, 5));
  for (const auto& [number, value] : summary) {
    const std::string real = field(value, 2);
    if (real.size() == 4) out[field(value, 1)] = std::bit_cast<float>(static_cast<std::uint32_t>(little_endian(real)));
  }
  return out;
}

TEST(Crc32, KnownAnswers) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32(""), 0u);
  EXPECT_EQ(crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  std::string up;
  for (char c = 0; c < 32; ++c) up += c;
  EXPECT_EQ(crc32c(up), 0x46DD794Eu);
}

RunFacts facts() {
  return {.name = "run",
          .recipe = {{"train.steps", "9", true}, {"name", "a|b\nc", false}},
          .environment = {{"host", "here"}}};
}

TEST(TensorBoard, EventsHoldTheNumbersOfEachStep) {
  const TemporaryFolder folder;
  StepMetrics metrics = metrics_of(300);
  metrics.validation_loss = 2.5;
  metrics.model_flops_utilization = 0.25;
  metrics.gpu_watts = 698.5;
  metrics.joules_per_token = 0.0625;
  metrics.sm_clock_mhz = 1545;
  metrics.findings = {{300, "overfitting", "try less"}};
  std::string path;
  {
    TensorBoard board(folder.path("tensorboard"), facts());
    StepMetrics initial = metrics_of(1);
    initial.initial_validation_loss = 5.5;
    board.step(initial);
    board.step(metrics);
    path = board.path();
  }
  auto events = records(read_file(path));
  ASSERT_EQ(events.size(), 7u);
  EXPECT_EQ(field(events[3], 2), "") << "step 0";
  EXPECT_EQ(scalars(events[3]), (std::map<std::string, float>{{"loss/validation", 5.5f}}));
  events.erase(events.begin() + 3);
  EXPECT_EQ(field(events[0], 3), "brain.Event:2");
  const std::string recipe = field(field(events[1], 5), 1);
  EXPECT_EQ(field(recipe, 1), "recipe");
  EXPECT_EQ(field(field(field(recipe, 9), 1), 1), "text");
  EXPECT_EQ(field(field(recipe, 8), 8),
            "| key | value | |\n| --- | --- | --- |\n| train.steps | 9 |  |\n| name | a\\|b c | default |\n");
  EXPECT_EQ(little_endian(field(events[3], 2)), 1u);
  EXPECT_EQ(std::bit_cast<double>(little_endian(field(events[3], 1))), 1750000000.5);
  auto first = scalars(events[3]), second = scalars(events[4]);
  EXPECT_EQ(first.size(), 9u);
  EXPECT_EQ(first["loss/train"], 3.5f);
  EXPECT_EQ(first["optimizer/lr"], 2e-5f);
  EXPECT_EQ(first["optimizer/grad_norm"], 1.25f);
  EXPECT_EQ(first["speed/tokens_per_second"], 12345.0f);
  EXPECT_EQ(first["memory/reserved_bytes"], 1342177280.0f);
  EXPECT_EQ(first.count("loss/validation"), 0u);
  EXPECT_EQ(little_endian(field(events[4], 2)), 300u);
  EXPECT_EQ(second["loss/validation"], 2.5f);
  EXPECT_EQ(second["speed/model_flops_utilization"], 0.25f);
  EXPECT_EQ(second["gpu/watts"], 698.5f);
  EXPECT_EQ(second["gpu/joules_per_token"], 0.0625f);
  EXPECT_EQ(second["gpu/sm_clock_mhz"], 1545.0f);
  EXPECT_EQ(field(field(field(events[5], 5), 1), 1), "findings");
}

TEST(TensorBoard, AResumedRunInvalidatesLaterSteps) {
  const TemporaryFolder folder;
  const auto files = [&] {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path("t"))) out.push_back(entry.path());
    return out;
  };
  { TensorBoard(folder.path("t"), facts()).step(metrics_of(1)); }
  std::ofstream(folder.path("t/events.out.tfevents.0000000001.host.1")) << "another program's";
  std::string second;
  {
    const TensorBoard board(folder.path("t"), facts(), 7);
    second = board.path();
  }
  EXPECT_EQ(files().size(), 3u);
  const auto events = records(read_file(second));
  EXPECT_EQ(little_endian(field(events.at(1), 2)), 8u);
  EXPECT_EQ(little_endian(field(field(events.at(1), 7), 1)), 1u);
  { const TensorBoard board(folder.path("t"), facts()); }
  EXPECT_EQ(files().size(), 4u);  // no run's file is deleted
  // A start on a host whose clock is ahead: readers take files in the order of their names.
  const std::string ahead = folder.path("t/events.out.tfevents.4000000000.host.1.hawser");
  std::ofstream(ahead) << "an earlier start's";
  const TensorBoard board(folder.path("t"), facts(), 7);
  EXPECT_GT(board.path(), ahead);
}

}  // namespace tensorboard_test
}  // namespace hawser::report
