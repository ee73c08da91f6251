#include "cli/pull_progress.h"

#include <chrono>
#include <deque>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "base/units.h"
#include "cli/exit.h"
#include "cli/progress_line.h"

namespace hawser::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(Bytes(bytes));
}

// The rate of the last seconds: that of the start has the first requests in it.
class Rate {
 public:
  // Bytes a second; none until there is something to measure.
  std::optional<double> add(std::int64_t received) {
    const auto now = Clock::now();
    samples_.emplace_back(now, received);
    while (now - samples_.front().first > std::chrono::seconds(5)) samples_.pop_front();
    const double seconds = std::chrono::duration<double>(now - samples_.front().first).count();
    const std::int64_t bytes = received - samples_.front().second;
    constexpr std::int64_t kFew = std::int64_t{1} << 20;
    if (seconds < 0.5 || bytes < kFew) return std::nullopt;
    return static_cast<double>(bytes) / seconds;
  }

 private:
  std::deque<std::pair<Clock::time_point, std::int64_t>> samples_;
};

std::string line_of(const std::string& name, const hub::PullProgress& progress, std::optional<double> rate) {
  const std::string line = cat(name, ": ", bytes_text(progress.bytes_complete), " of ", bytes_text(progress.bytes),
                               ", ", progress.files_complete, " of ", progress.files, " files");
  if (!rate || progress.files == progress.files_complete) return line;
  const double left = static_cast<double>(progress.bytes - progress.bytes_complete) / *rate;
  return cat(line, ", ", bytes_text(static_cast<std::int64_t>(*rate)), "/s, ", format_estimate(left), " left");
}

}  // namespace

hub::Pulled pull_and_show(hub::PullRequest request) {
  const bool terminal = user_terminal().is_terminal;
  const std::string name = request.repo.name.text();
  Rate rate;
  ProgressLine progress(std::chrono::seconds(30));
  request.progress = [&](const hub::PullProgress& now) {
    const auto bytes_a_second = rate.add(now.received);
    if (progress.due(now.files == now.files_complete)) progress.show(line_of(name, now, bytes_a_second));
  };
  request.file_done = [&](const hub::PulledFile& file) {
    if (!terminal && file.transferred) print("", cat("pulled ", name, ": ", file.name, ", ", bytes_text(file.bytes)));
  };
  hub::Pulled pulled = hub::pull(request);
  progress.erase();
  return pulled;
}

}  // namespace hawser::cli
