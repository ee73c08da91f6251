#include "report/wandb.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/clock.h"
#include "io/files.h"
#include "io/json.h"
#include "report/crc32.h"
#include "report/metrics_file.h"

namespace hawser::report {
namespace {

using nlohmann::json;

constexpr std::int64_t kBlockBytes = 32768, kPieceHeader = 7;
constexpr std::string_view kFileHeader{":W&B\xE1\xBE\0", 7};  // u16 0xBEE1, version 0
constexpr const char* kOfflinePrefix = "offline-run-";
constexpr const char* kFolderFile = "hawser-folder";  // the run's folder, in the W&B run's
constexpr std::int64_t kSummaryEvery = 100;           // steps: the summary of a killed run is at most so old

// Field numbers of wandb_internal.proto.
namespace record {
constexpr int kNumber = 1, kHistory = 2, kSummary = 3, kRun = 17, kExit = 18, kHeader = 21, kEnvironment = 26;
}
namespace run {
constexpr int kId = 1, kProject = 3, kConfig = 4, kDisplayName = 8, kHost = 13, kStartTime = 17;
}
namespace environment {
constexpr int kSystem = 1, kStartedAt = 3, kProgram = 6, kRoot = 11, kHost = 12, kGpu = 18, kWriter = 199;
}
constexpr int kVersionInfo = 1, kProducer = 1, kMinConsumer = 2;
constexpr int kHistoryItem = 1, kHistoryStep = 2, kStepNumber = 1;
constexpr int kUpdate = 1, kNestedKey = 2, kValueJson = 16;  // of config and summary; items of the history are alike
constexpr int kSeconds = 1, kNanos = 2;                      // Timestamp
constexpr int kExitCode = 1, kExitRuntime = 2;

Message timestamp(double time) {
  const double seconds = std::floor(time);
  return Message()
      .whole(kSeconds, static_cast<std::int64_t>(seconds))
      .whole(kNanos, static_cast<std::int64_t>((time - seconds) * 1e9));
}

std::string text_json(const std::string& text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

// "9" and "true" as they are, other text as a string.
std::string value_json(const std::string& text) {
  const json value = text.size() < 1000 ? io::json_or_null(text) : json();
  return value.is_number() || value.is_boolean() ? value.dump() : text_json(text);
}

Message item(const std::vector<std::string>& key, const std::string& value) {
  Message out;
  for (const std::string& part : key) out.text(kNestedKey, part);
  return out.text(kValueJson, value);
}

std::vector<std::pair<std::string, std::string>> values_of(const StepMetrics& metrics, double start) {
  std::vector<std::pair<std::string, std::string>> out = {{"_step", cat(metrics.step)}};
  if (metrics.time > 0) {
    out.emplace_back("_timestamp", fmt::format("{:.3f}", metrics.time));
    out.emplace_back("_runtime", fmt::format("{:.3f}", std::max(0.0, metrics.time - start)));
  }
  for (const Scalar& point : scalars(metrics)) {
    // A line of history has one step: the loss before any training is a value of step 1.
    constexpr std::string_view kValidation = "loss/validation";
    const std::string name =
        point.step == metrics.step ? point.name : cat("loss/initial_validation", point.name.substr(kValidation.size()));
    if (std::isfinite(point.value)) out.emplace_back(name, json(point.value).dump());
  }
  return out;
}

std::string fact(const Table& table, const char* name) {
  const auto found = std::ranges::find(table, name, &Fact::name);
  return found == table.end() ? "" : exact_value(*found);
}

Message config(const RunFacts& facts) {
  Message out;
  const auto add = [&](const std::vector<std::string>& key, const std::string& value) {
    out.inner(kUpdate, item(key, value));
  };
  for (const RecipeEntry& entry : facts.recipe) {
    const std::size_t dot = entry.key.find('.');
    if (dot == std::string::npos) {
      add({entry.key}, value_json(entry.value));
    } else {
      add({entry.key.substr(0, dot), entry.key.substr(dot + 1)}, value_json(entry.value));
    }
  }
  for (const Fact& one : facts.environment) add({"environment", one.name}, text_json(exact_value(one)));
  for (const Fact& one : facts.data) add({"dataset", one.name}, value_json(exact_value(one)));
  add({"hawser_version"}, text_json(facts.version));
  return out;
}

std::vector<std::string> runs_in(const std::string& folder) {
  std::vector<std::string> out = io::list_folder(folder);
  std::erase_if(out, [](const std::string& name) { return !name.starts_with(kOfflinePrefix); });
  return out;
}

// The folder that a run's folder is a copy of: the one that the W&B run was made in, if it is another and still has the
// run; else "".
std::string original_of(const std::string& wandb, const std::string& run, const std::string& folder) {
  const std::string file = cat(wandb, "/", run, "/", kFolderFile);
  if (!io::is_file(file)) return "";
  const std::string original = io::read_text(file, 1 << 16);
  return original != folder && io::exists(cat(original, "/wandb/", run)) ? original : "";
}

// The run in `wandb` that a resumed run with this folder continues, or "" with the reason in `trouble`, if there is
// one. Runs of other programs, and of other run folders behind a link, are not its own.
std::string run_to_continue(const std::string& wandb, const std::string& folder, std::string& trouble) {
  std::string moved, copied;
  const std::vector<std::string> runs = runs_in(wandb);
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const std::string file = cat(wandb, "/", *run, "/", kFolderFile);
    if (!io::is_file(file)) continue;
    if (io::read_text(file, 1 << 16) == folder) return *run;
    const std::string original = original_of(wandb, *run, folder);
    if (original.empty() && moved.empty()) moved = *run;
    if (!original.empty() && copied.empty()) copied = original;
  }
  if (moved.empty() && !copied.empty()) {
    trouble = cat("this run's folder is a copy of ", copied, "; it gets a run of its own");
  }
  return moved;
}

std::string new_name() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 32> text{};
  if (localtime_r(&now, &parts) != nullptr) std::strftime(text.data(), text.size(), "%Y%m%d_%H%M%S", &parts);
  return cat(kOfflinePrefix, text.data(), "-", io::make_nonce().substr(0, 8));
}

}  // namespace

std::string wandb_pieces(std::int64_t at, std::string_view record) {
  std::string out;
  bool first = true;
  do {
    std::int64_t space = kBlockBytes - (at + static_cast<std::int64_t>(out.size())) % kBlockBytes;
    if (space < kPieceHeader) {
      out.append(static_cast<std::size_t>(space), '\0');
      space = kBlockBytes;
    }
    const std::string_view part = record.substr(0, static_cast<std::size_t>(space - kPieceHeader));
    record.remove_prefix(part.size());
    const bool last = record.empty();
    std::string checked(1, static_cast<char>(first ? (last ? 1 : 2) : (last ? 4 : 3)));
    checked += part;
    put_little_endian(out, crc32(checked));
    put_little_endian(out, static_cast<std::uint16_t>(part.size()));
    out += checked;
    first = false;
  } while (!record.empty());
  return out;
}

Wandb::Wandb(const WandbOptions& options, const RunFacts& facts) : start_(unix_time()) {
  std::string name = new_name();
  if (options.resumed_step > 0) {
    std::int64_t known = 0;
    read_metrics(options.metrics_file, [&](const StepMetrics& metrics) {
      if (known++ == 0 && metrics.time > 0) start_ = metrics.time - metrics.step_seconds;
    });
    // Without all its steps, writing the run again would lose the others: it stays, and a new one begins.
    if (known >= options.resumed_step) {
      const std::string own = run_to_continue(options.folder, facts.folder, trouble_);
      if (!own.empty()) name = own;
    }
  }
  id_ = name.substr(name.rfind('-') + 1);
  path_ = options.folder + "/" + name;
  const std::string file = cat(path_, "/run-", id_, ".wandb");
  // With them, `wandb sync` would skip the steps of this process.
  for (const char* mark : {".synced", ".syncstate"}) io::remove_tree(file + mark);
  io::make_folders(path_ + "/files");  // `wandb sync` writes what it uploads there
  const std::string origin = cat(path_, "/", kFolderFile);
  if (!io::exists(origin)) io::write_text_atomically(origin, facts.folder);
  file_.emplace(file);
  file_->append(kFileHeader);
  bytes_ = static_cast<std::int64_t>(kFileHeader.size());
  write_start(options, facts);
  if (options.resumed_step > 0) read_metrics(options.metrics_file, [&](const StepMetrics& metrics) { step(metrics); });
}

void Wandb::append(int kind, const Message& record) {
  const Message full = Message().whole(record::kNumber, records_ + 1).inner(kind, record);
  const std::string pieces = wandb_pieces(bytes_, full.bytes());
  file_->append(pieces);
  bytes_ += static_cast<std::int64_t>(pieces.size());
  ++records_;
}

void Wandb::write_start(const WandbOptions& options, const RunFacts& facts) {
  const Message version = Message().text(kProducer, "hawser " + facts.version).text(kMinConsumer, "0.70.0");
  append(record::kHeader, Message().inner(kVersionInfo, version));
  append(record::kRun, Message()
                           .text(run::kId, id_)
                           .text(run::kProject, options.project)
                           .inner(run::kConfig, config(facts))
                           .text(run::kDisplayName, facts.name)
                           .text(run::kHost, fact(facts.environment, "host"))
                           .inner(run::kStartTime, timestamp(start_)));
  append(record::kEnvironment, Message()
                                   .text(environment::kSystem, fact(facts.environment, "system"))
                                   .inner(environment::kStartedAt, timestamp(start_))
                                   .text(environment::kProgram, "hawser")
                                   .text(environment::kRoot, facts.folder)
                                   .text(environment::kHost, fact(facts.environment, "host"))
                                   .text(environment::kGpu, fact(facts.environment, "GPU"))
                                   .text(environment::kWriter, id_));
}

void Wandb::write_summary(const StepMetrics& metrics) {
  Message out;
  for (const auto& [name, value] : values_of(metrics, start_)) out.inner(kUpdate, item({name}, value));
  append(record::kSummary, out);
}

void Wandb::step(const StepMetrics& metrics) {
  Message out;
  for (const auto& [name, value] : values_of(metrics, start_)) out.inner(kHistoryItem, item({name}, value));
  append(record::kHistory, out.inner(kHistoryStep, Message().whole(kStepNumber, metrics.step)));
  last_ = metrics;
  // Values that later steps lack stay in the summary.
  if (metrics.step % kSummaryEvery == 1 || metrics.validation_loss) write_summary(metrics);
  for (const Finding& one : metrics.findings) finding(one);
}

void Wandb::finding(const Finding& finding) {
  const std::string text = text_json(cat("step ", finding.step, ": ", finding.text));
  append(record::kSummary, Message().inner(kUpdate, item({"finding", finding.rule}, text)));
}

void Wandb::finish(Ending ending) {
  if (last_.step > 0) write_summary(last_);
  const double seconds = last_.time > 0 ? std::max(0.0, last_.time - start_) : 0;
  append(record::kExit, Message()
                            .whole(kExitCode, ending == Ending::done          ? 0
                                              : ending == Ending::interrupted ? 130
                                                                              : 1)
                            .whole(kExitRuntime, static_cast<std::int64_t>(seconds)));
  file_->sync();
}

}  // namespace hawser::report
