#include "report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>

#include "base/clock.h"
#include "io/files.h"
#include "report/crc32.h"
#include "report/protobuf.h"

namespace hawser::report {
namespace {

constexpr const char* kEventsPrefix = "events.out.tfevents.";
constexpr const char* kSuffix = ".hawser";

std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8U;
}

// Field numbers of event.proto, summary.proto, tensor.proto and types.proto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr int kValue = 1;
constexpr int kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;  // of a value
constexpr int kPluginData = 1, kPluginName = 1;
}  // namespace summary
namespace tensor {
constexpr int kType = 1, kString = 8, kTypeString = 7;
}
constexpr int kSessionStatus = 1, kSessionStart = 1;

Message event_of(std::int64_t step, double time = unix_time()) {
  Message out;
  out.real64(event::kWallTime, time);
  if (step > 0) out.whole(event::kStep, step);
  return out;
}

// A new file's path in `folder`. Readers take files in the order of their names: this one is the last of this
// program's, also if the clock of an earlier start was ahead.
std::string file_name(const std::string& folder) {
  std::array<char, 256> host{};
  const bool named = gethostname(host.data(), host.size() - 1) == 0 && host[0] != 0;
  const std::string machine = named ? host.data() : "host";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  for (const std::string& name : io::list_folder(folder)) {
    if (!name.starts_with(kEventsPrefix) || !name.ends_with(kSuffix)) continue;
    decltype(seconds) earlier = 0;
    const char* const digits = name.data() + std::strlen(kEventsPrefix);
    if (std::from_chars(digits, name.data() + name.size(), earlier).ec == std::errc())
      seconds = std::max(seconds, earlier + 1);
  }
  std::string path;
  do {
    path = fmt::format("{}/{}{:010}.{}.{}{}", folder, kEventsPrefix, seconds++, machine, getpid(), kSuffix);
  } while (io::exists(path));
  return path;
}

// Prepares the folder for a new file and returns its path. Other files stay: several runs may share a folder by links.
std::string make_folder(const std::string& folder) {
  io::make_folders(folder);
  return file_name(folder);
}

// A table cell: one line, with `|` escaped.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string markdown_table(const Table& table) {
  std::string out = "| | |\n| --- | --- |\n";
  for (const Fact& fact : table) out += "| " + cell(fact.name) + " | " + cell(exact_value(fact)) + " |\n";
  return out;
}

}  // namespace

std::string tfrecord(std::string_view data) {
  std::string out;
  put_little_endian(out, static_cast<std::uint64_t>(data.size()));
  put_little_endian(out, masked_crc(out));
  out += data;
  put_little_endian(out, masked_crc(data));
  return out;
}

TensorBoard::TensorBoard(const std::string& folder, const RunFacts& facts, std::int64_t resumed_step)
    : file_(make_folder(folder)) {
  file_.append(tfrecord(event_of(0).text(event::kFileVersion, "brain.Event:2").bytes()));
  if (resumed_step > 0) {
    const Message start = Message().whole(kSessionStatus, kSessionStart);
    file_.append(tfrecord(event_of(resumed_step + 1).inner(event::kSessionLog, start).bytes()));
  }
  std::string recipe = "| key | value | |\n| --- | --- | --- |\n";
  for (const RecipeEntry& entry : facts.recipe) {
    recipe += "| " + entry.key + " | " + cell(entry.value) + " | " + (entry.given ? "" : "default") + " |\n";
  }
  write_text("recipe", resumed_step, recipe);
  write_text("environment", resumed_step, markdown_table(facts.environment));
  if (!facts.data.empty()) write_text("data", resumed_step, markdown_table(facts.data));
}

void TensorBoard::write_text(const char* tag, std::int64_t step, const std::string& markdown) {
  const Message plugin = Message().text(summary::kPluginName, "text");
  const Message metadata = Message().inner(summary::kPluginData, plugin);
  const Message text = Message().whole(tensor::kType, tensor::kTypeString).text(tensor::kString, markdown);
  const Message value =
      Message().text(summary::kTag, tag).inner(summary::kTensor, text).inner(summary::kMetadata, metadata);
  const Message all = Message().inner(summary::kValue, value);
  file_.append(tfrecord(event_of(step).inner(event::kSummary, all).bytes()));
}

void TensorBoard::step(const StepMetrics& m) {
  std::map<std::int64_t, Message> values;  // by step
  for (const Scalar& point : scalars(m)) {
    const auto value = static_cast<float>(point.value);
    values[point.step].inner(summary::kValue,
                             Message().text(summary::kTag, point.name).real32(summary::kSimpleValue, value));
  }
  for (const auto& [step, of_step] : values) {
    file_.append(tfrecord(event_of(step, m.time).inner(event::kSummary, of_step).bytes()));
  }
  for (const Finding& one : m.findings) finding(one);
}

void TensorBoard::finding(const Finding& finding) {
  write_text("findings", finding.step, "**" + finding.rule + "** " + finding.text);
}

}  // namespace hawser::report
