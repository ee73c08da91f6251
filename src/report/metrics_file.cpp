#include "report/metrics_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "base/error.h"
#include "io/files.h"

namespace hawser::report {
namespace {

// Calls `use` for each line of the file until it returns false; `complete`: the line ends with a line feed. Nothing for
// a missing file, or for a pipe of this name, which would block. IoError if the file cannot be read: its steps are not
// to be lost.
void each_line(const std::string& path, const std::function<bool(const std::string& line, bool complete)>& use) {
  if (!io::is_file(path)) return;
  const auto check = [&](bool ok) {
    if (!ok) throw io::IoError(io::io_problem(path, "cannot read", errno != 0 ? errno : EIO));
  };
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  check(in.is_open());
  for (std::string line; std::getline(in, line);) {
    if (!use(line, !in.eof())) return;
  }
  check(!in.bad());
}

constexpr std::chrono::seconds kSyncEvery{1};

}  // namespace

namespace {

// Copies the file to METRICS.edited-N.jsonl; returns that path.
std::string copy_aside(const std::string& path) {
  const std::filesystem::path file(path);
  int number = 1;
  const auto copy = [&] {
    return (file.parent_path() / cat(file.stem().string(), ".edited-", number, file.extension().string())).string();
  };
  while (io::exists(copy())) ++number;
  io::write_text_atomically(copy(), io::read_text(path, INT64_MAX));
  return copy();
}

}  // namespace

// The leading lines whose steps are at most `last`. Lines that cannot be read are removed from them. Complete ones
// after them may hold kept steps too (a file that was reformatted).
MetricsFile::Kept MetricsFile::lines_to_keep(const std::string& path, std::int64_t last) {
  Kept kept;
  if (last <= 0) return kept;
  std::int64_t read = 0;
  bool later = false, mixed = false, unread = false, broken = false;
  each_line(path, [&](const std::string& line, bool complete) {
    read += static_cast<std::int64_t>(line.size()) + (complete ? 1 : 0);
    const auto metrics = from_json(line);
    if (!metrics) {
      unread |= complete && line.find_first_not_of(" \t\r") != std::string::npos;
      return true;
    }
    later |= metrics->step > last;
    if (later) {
      mixed |= metrics->step <= last;
    } else {
      broken |= std::exchange(unread, false);
      kept = {.bytes = read, .last_step = std::max(kept.last_step, metrics->step), .needs_newline = !complete};
    }
    return !mixed;
  });
  if (!mixed && !unread && !broken) return kept;
  const std::string copy = copy_aside(path);
  kept.note = cat(path, mixed ? ": steps are not in order" : ": lines that are not one step each", "; ",
                  broken ? "what is not of the steps that were kept" : "what follows the steps that were kept",
                  " is only in ", copy);
  if (!broken) return kept;
  std::string steps;
  std::int64_t at = 0;
  each_line(path, [&](const std::string& line, bool complete) {
    at += static_cast<std::int64_t>(line.size()) + (complete ? 1 : 0);
    if (at <= kept.bytes && from_json(line)) steps.append(line).append("\n");
    return at < kept.bytes;
  });
  io::write_text_atomically(path, steps);
  kept.bytes = static_cast<std::int64_t>(steps.size());
  kept.needs_newline = false;
  return kept;
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t resumed_step)
    : MetricsFile(path, lines_to_keep(path, resumed_step)) {}

MetricsFile::MetricsFile(const std::string& path, Kept kept)
    : file_(path, kept.bytes),
      note_(std::move(kept.note)),
      last_step_(kept.last_step),
      synced_(std::chrono::steady_clock::now()) {
  if (kept.needs_newline) file_.append("\n");
}

void MetricsFile::step(const StepMetrics& metrics) {
  HAWSER_CHECK(metrics.step > last_step_, "metrics of step ", metrics.step, " after step ", last_step_);
  if (waiting_.empty()) {
    file_.append(to_json(metrics) + "\n");
  } else {
    StepMetrics all = metrics;
    all.findings.insert(all.findings.begin(), waiting_.begin(), waiting_.end());
    file_.append(to_json(all) + "\n");
    waiting_.clear();
  }
  last_step_ = metrics.step;
  if (std::chrono::steady_clock::now() - synced_ >= kSyncEvery) sync();
}

void MetricsFile::sync() {
  file_.sync();
  synced_ = std::chrono::steady_clock::now();
}

void read_metrics(const std::string& path, const std::function<void(const StepMetrics&)>& use) {
  std::set<std::int64_t> seen;
  each_line(path, [&](const std::string& line, bool) {
    const auto metrics = from_json(line);
    if (metrics && seen.insert(metrics->step).second) use(*metrics);
    return true;
  });
}

}  // namespace hawser::report
