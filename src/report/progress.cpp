#include "report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/cat.h"
#include "base/environment.h"
#include "base/printable.h"

namespace hawser::report {
namespace {

constexpr std::chrono::milliseconds kRedraw{100};
constexpr double kSmooth = 0.1;  // weight of the newest step in the smoothed step time

constexpr const char* kToLineStart = "\r";
constexpr const char* kEraseToEnd = "\x1b[K";

// Reads the variables; setlocale would change how numbers are read and printed everywhere.
bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = environment_variable(name);
    if (value.empty()) continue;
    for (const char* utf8 : {"UTF-8", "utf-8", "UTF8", "utf8"}) {
      if (value.find(utf8) != std::string::npos) return true;
    }
    return false;
  }
  return false;
}

constexpr std::chrono::milliseconds kPatience{200};  // of a call, for a reader that stands still
constexpr std::chrono::seconds kLastPatience{3};     // of finish(), after a request to stop
constexpr std::size_t kMaxPending = 1 << 20;         // bytes

}  // namespace

double plain_interval(double elapsed, double min) {
  return min <= 0 ? 0 : std::clamp(elapsed / 20, min, std::max(min, 60.0));
}

Progress::Progress(const ProgressOptions& options) : options_(options), output_(options.file) {
  const std::string kind = environment_variable("TERM");
  if (kind.empty() || kind == "dumb") options_.terminal = false;
  bar_.step = options.first;
  bar_.total = options.total;
  bar_.colour = options_.terminal && environment_variable("NO_COLOR").empty();
  bar_.unicode = locale_is_utf8();
}

Progress::~Progress() {
  finish();
}

int Progress::columns() const {
  winsize size{};
  if (::isatty(options_.file) == 1 && ::ioctl(options_.file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  return options_.columns;
}

void Progress::write(const std::string& text) {
  const std::size_t pending = output_.pending();
  if (pending + text.size() > kMaxPending) {
    ++lost_;
    return;
  }
  if (lost_ > 0) output_.put(cat("\nhawser: ", lost_, " messages were not shown: nothing read them\n"));
  lost_ = 0;
  output_.put(text);
  if (waits_ || pending == 0) waits_ = output_.wait(kPatience);
}

void Progress::draw(bool at_once) {
  const auto now = Clock::now();
  if (output_.pending() > 0) return;
  if (!at_once && shown_ && now - last_output_ < kRedraw) return;
  last_output_ = now;
  shown_ = drawn_ = true;
  // One cell stays free: a full last column makes some terminals wrap.
  write(kToLineStart + bar_line(bar_, columns() - 1) + kEraseToEnd);
}

void Progress::write_line(bool at_once) {
  const auto now = Clock::now();
  if (last_.step == printed_step_ || last_.step == 0) return;
  const auto seconds_since = [&](Clock::time_point then) { return std::chrono::duration<double>(now - then).count(); };
  if (!at_once && shown_ && seconds_since(last_output_) < plain_interval(seconds_since(begin_), options_.plain_seconds))
    return;
  last_output_ = now;
  shown_ = true;
  printed_step_ = last_.step;
  write(plain_line(last_, options_.total, bar_.seconds_left) + "\n");
}

void Progress::set_total(std::int64_t total) {
  const std::lock_guard<std::mutex> lock(mutex_);
  options_.total = bar_.total = total;
}

void Progress::step(const StepMetrics& metrics) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_first = last_.step == 0, is_last = metrics.step >= options_.total;
  if (is_first) options_.first = metrics.step - 1;  // a resumed run learns its first step only here
  // The first step includes page faults and cache misses; the second replaces it.
  const bool settle = is_first || metrics.step == options_.first + 2;
  step_seconds_ = settle ? metrics.step_seconds : (1 - kSmooth) * step_seconds_ + kSmooth * metrics.step_seconds;
  last_ = metrics;
  bar_.step = metrics.step;
  bar_.measured = true;
  if (metrics.targets != 0) bar_.loss = metrics.loss;
  if (metrics.has_norm()) bar_.grad_norm = metrics.grad_norm;
  bar_.lr = metrics.lr;
  bar_.epoch = metrics.data_position.epoch;
  bar_.tokens_per_second = metrics.tokens_per_second;
  bar_.memory_bytes = metrics.peak_arena_bytes;
  bar_.seconds_left = step_seconds_ * static_cast<double>(std::max<std::int64_t>(options_.total - metrics.step, 0));
  bar_.phase.clear();
  if (options_.terminal) {
    draw(is_first || is_last);
  } else if (is_first || is_last || metrics.step % std::max<std::int64_t>(options_.log_every, 1) == 0) {
    write_line(is_first || is_last);
  }
}

void Progress::stage(const std::string& what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  bar_.phase = what;
  if (options_.terminal) return draw(/*at_once=*/true);
  write(what + "\n");
}

void Progress::phase(const std::string& name, std::int64_t done, std::int64_t total) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool begins = bar_.phase.empty(), ends = done >= total;
  bar_.phase = ends ? "" : cat(name, " ", done, "/", total);
  if (options_.terminal) draw(begins || ends);
}

void Progress::message(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string lines = printable(text, Newlines::keep);  // a server's answer, a file's name
  if (lines.empty() || lines.back() != '\n') lines += '\n';
  if (!drawn_) return write(lines);
  // Every line erases the rest of the bar.
  std::string wiped = kToLineStart;
  for (const char c : lines) wiped += c == '\n' ? std::string(kEraseToEnd) + c : std::string(1, c);
  write(wiped + bar_line(bar_, columns() - 1) + kEraseToEnd);
}

void Progress::finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (drawn_) {
    bar_.phase.clear();
    if (bar_.measured) {
      draw(true);
      write("\n");
    } else {
      write(std::string(kToLineStart) + kEraseToEnd);
    }
    printed_step_ = last_.step;  // this line shows it
  } else if (!options_.terminal) {
    write_line(true);
  }
  drawn_ = false;
  options_.terminal = false;
  std::optional<Clock::time_point> end;
  while (!gave_up_ && !output_.wait(kPatience)) {
    if (!end && options_.stop_requested()) end = Clock::now() + kLastPatience;
    gave_up_ = end && Clock::now() >= *end;
  }
}

}  // namespace hawser::report
