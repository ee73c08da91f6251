#include "report/metrics_file.h"

#include <filesystem>
#include <fstream>

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

// The leading lines whose steps increase and are at most `last`; lines that cannot be read stay among them.
MetricsFile::Kept MetricsFile::lines_to_keep(const std::string& path, std::int64_t last) {
  Kept kept;
  if (last <= 0) return kept;
  std::int64_t read = 0;
  each_line(path, [&](const std::string& line, bool complete) {
    if (!complete) return false;
    read += static_cast<std::int64_t>(line.size()) + 1;
    const auto metrics = from_json(line);
    if (!metrics) return true;
    if (metrics->step <= kept.last_step || metrics->step > last) return false;
    kept = {read, metrics->step};
    return true;
  });
  return kept;
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t resumed_step)
    : MetricsFile(path, lines_to_keep(path, resumed_step)) {}

MetricsFile::MetricsFile(const std::string& path, Kept kept)
    : file_(path, kept.bytes), last_step_(kept.last_step), synced_(std::chrono::steady_clock::now()) {}

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
  each_line(path, [&](const std::string& line, bool) {
    if (const auto metrics = from_json(line)) use(*metrics);
    return true;
  });
}

}  // namespace hawser::report
