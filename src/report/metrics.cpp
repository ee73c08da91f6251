#include "report/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/storage/posix.h"

namespace hawser::report {
namespace {

constexpr std::chrono::seconds kSyncEvery{1};

using Json = nlohmann::ordered_json;

Json finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

[[noreturn]] void fail(const std::string& path, const char* doing, int error, std::int64_t needed = 0) {
  throw UserError(checkpoint::io_problem(path, doing, error, needed));
}

// The step of a whole line that this writer wrote; -1 for any other.
std::int64_t step_of(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return -1;
  return json["step"].get<std::int64_t>();
}

struct Kept {
  std::int64_t bytes = 0, last_step = 0;
};

// The lines from the beginning on whose steps grow and are not beyond `last`.
Kept lines_to_keep(const std::string& path, std::int64_t last) {
  Kept kept;
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {  // eof: the last line has no end
    const std::int64_t step = step_of(line);
    if (step <= kept.last_step || step > last) break;
    kept = {kept.bytes + static_cast<std::int64_t>(line.size()) + 1, step};
  }
  return kept;
}

}  // namespace

std::string to_json(const StepMetrics& m) {
  Json json = {{"step", m.step},
               {"loss", finite(m.loss)},
               {"gradient_norm", finite(m.gradient_norm)},
               {"learning_rate", finite(m.learning_rate)},
               {"tokens_per_second", finite(m.tokens_per_second)},
               {"model_flops_per_second", finite(m.model_flops_per_second)},
               {"step_seconds", finite(m.step_seconds)},
               {"peak_arena_bytes", m.peak_arena_bytes},
               {"attention_imbalance", finite(m.attention_imbalance)},
               {"data_position", {{"sequences", m.data_position.sequences}, {"epoch", finite(m.data_position.epoch)}}}};
  if (!m.checkpointing.empty()) json["activation_checkpointing"] = m.checkpointing;
  if (m.validation_loss) json["validation_loss"] = finite(*m.validation_loss);
  return json.dump();
}

MetricsWriter::MetricsWriter(const std::string& path, std::int64_t resumed_step)
    : path_(path), synced_(std::chrono::steady_clock::now()) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (!parent.empty()) checkpoint::make_folders(parent);
  const Kept kept = resumed_step > 0 ? lines_to_keep(path, resumed_step) : Kept{};
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail(path, "cannot write", errno);
  try {
    if (::ftruncate(file_, kept.bytes) != 0) fail(path, "cannot cut", errno);
    if (::fsync(file_) != 0) fail(path, "cannot write", errno);
    checkpoint::sync_folder(parent.empty() ? "." : parent);
  } catch (...) {
    ::close(file_);
    throw;
  }
  bytes_ = kept.bytes;
  last_step_ = kept.last_step;
}

MetricsWriter::~MetricsWriter() {
  if (dirty_) ::fdatasync(file_);
  ::close(file_);
}

void MetricsWriter::write(const StepMetrics& metrics) {
  HAWSER_CHECK(metrics.step > last_step_, "metrics of step ", metrics.step, " after step ", last_step_);
  const std::string line = to_json(metrics) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(file_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : EIO;
      // Best effort: a torn line that stays is cut off by the next resume.
      if (::ftruncate(file_, bytes_) != 0) dirty_ = true;
      fail(path_, "cannot write", error, static_cast<std::int64_t>(line.size()));
    }
    done += static_cast<std::size_t>(count);
  }
  bytes_ += static_cast<std::int64_t>(line.size());
  last_step_ = metrics.step;
  dirty_ = true;
  if (std::chrono::steady_clock::now() - synced_ >= kSyncEvery) sync();
}

void MetricsWriter::sync() {
  if (!dirty_) return;
  if (::fdatasync(file_) != 0) fail(path_, "cannot write", errno);
  dirty_ = false;
  synced_ = std::chrono::steady_clock::now();
}

}  // namespace hawser::report
