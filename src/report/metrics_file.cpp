#include "report/metrics_file.h"

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace hawser::report {
namespace {

// Opening a pipe of this name would block.
std::ifstream open_regular(const std::string& path) {
  std::error_code ignored;
  std::ifstream in;
  if (std::filesystem::is_regular_file(path, ignored)) in.open(path, std::ios::binary);
  return in;
}

constexpr std::chrono::seconds kSyncEvery{1};

}  // namespace

// The leading lines whose steps increase and are at most `last`; lines that cannot be read stay among them.
MetricsFile::Kept MetricsFile::lines_to_keep(const std::string& path, std::int64_t last) {
  Kept kept;
  if (last <= 0) return kept;
  std::ifstream in = open_regular(path);
  std::int64_t read = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {  // eof: the last line has no newline
    read += static_cast<std::int64_t>(line.size()) + 1;
    const auto metrics = from_json(line);
    if (!metrics) continue;
    if (metrics->step <= kept.last_step || metrics->step > last) break;
    kept = {read, metrics->step};
  }
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
  std::ifstream in = open_regular(path);
  for (std::string line; std::getline(in, line);) {
    if (const auto metrics = from_json(line)) use(*metrics);
  }
}

}  // namespace hawser::report
