#include "report/bar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/units.h"

namespace hawser::report {
namespace {

constexpr int kWidestBar = 30, kNarrowestBar = 8;

constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kBold = "\x1b[1m";
constexpr const char* kReset = "\x1b[0m";

std::string styled(const BarState& state, const char* style, const std::string& text) {
  return state.colour ? style + text + kReset : text;
}

std::string number(double value, const char* format) {
  return std::isfinite(value) ? fmt::format(fmt::runtime(format), value)
                              : std::string(std::isnan(value) ? "nan" : "inf");
}

std::string loss_text(double loss) {
  return "loss " + number(loss, "{:.4f}");
}

// format_seconds without the fraction, which an estimate does not have.
std::string time_left(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const double whole = std::max(0.0, std::round(seconds));
  return whole < 60 ? fmt::format("{:.0f} s", whole) : format_seconds(whole);
}

double fraction(const BarState& state) {
  if (state.total <= 0) return 0;
  return std::clamp(static_cast<double>(state.step) / static_cast<double>(state.total), 0.0, 1.0);
}

std::string bar(const BarState& state, int width) {
  const int full = static_cast<int>(fraction(state) * width);
  std::string done, rest;
  if (!state.unicode) {
    done.assign(static_cast<std::size_t>(full), '#');
    rest.assign(static_cast<std::size_t>(width - full), '.');
    return "[" + styled(state, kGreen, done) + rest + "]";
  }
  for (int i = 0; i < width; ++i) (i < full ? done : rest) += i < full ? "━" : "─";
  return styled(state, kGreen, done) + styled(state, kDim, rest);
}

// Fields that may be dropped; the last is dropped first.
enum Field { kLoss, kLeft, kRate, kEpoch, kMemory, kBar, kPercent, kLr, kGradNorm, kFields };

std::string compose(const BarState& state, const std::array<bool, kFields>& shown, int bar_width) {
  if (state.total == 0 && !state.phase.empty()) return state.phase;  // the number of steps is not known yet
  const std::string total = fmt::format("{}", state.total);
  std::string line = styled(state, kBold, fmt::format("step {:>{}}/{}", state.step, total.size(), total));
  if (shown[kBar]) line += "  " + bar(state, bar_width);
  if (shown[kPercent]) line += fmt::format("  {:>3}%", static_cast<int>(fraction(state) * 100));
  // Padded, so that the bar keeps its width while the numbers change theirs.
  if (state.measured) {
    if (shown[kLoss]) line += "  " + styled(state, kBold, loss_text(state.loss));
    if (shown[kLr]) line += "  lr " + number(state.lr, "{:.2e}");
    if (shown[kGradNorm]) line += fmt::format("  grad_norm {:<6}", number(state.grad_norm, "{:.3g}"));
    const std::string epoch = epoch_text(state.epoch, state.step, state.total);
    if (shown[kEpoch] && !epoch.empty()) line += "  epoch " + epoch;
    if (shown[kRate]) line += fmt::format("  {:>5} tok/s", format_count(state.tokens_per_second));
    if (shown[kMemory]) line += fmt::format("  {:>8}", format_bytes(Bytes(state.memory_bytes)));
  }
  if (!shown[kLeft]) return line;
  if (!state.phase.empty()) {
    line += "  " + state.phase;
  } else if (state.measured && state.step < state.total) {
    line += fmt::format("  ETA {:<7}", time_left(state.seconds_left));
  }
  return line;
}

}  // namespace

int cells(const std::string& text) {
  int count = 0;
  bool colour = false;
  for (const char c : text) {
    if (c == '\x1b') colour = true;
    const bool continues = (static_cast<unsigned char>(c) & 0xc0) == 0x80;
    if (!colour && !continues) ++count;
    if (colour && c == 'm') colour = false;
  }
  return count;
}

std::string epoch_text(double epoch, std::int64_t step, std::int64_t total) {
  if (step <= 0 || epoch <= 0) return "";
  const double all = epoch * static_cast<double>(total) / static_cast<double>(step);
  if (all < 0.1) return "";
  std::string end = fmt::format("{:.1f}", all);
  if (end.ends_with(".0")) end.resize(end.size() - 2);
  return fmt::format("{:.1f}/{}", epoch, end);
}

std::string bar_line(const BarState& state, int columns) {
  std::array<bool, kFields> shown;
  shown.fill(true);
  for (int dropped = kFields; dropped >= 0; --dropped) {
    if (dropped < kFields) shown[static_cast<std::size_t>(dropped)] = false;
    std::string line = compose(state, shown, kNarrowestBar);
    const int space = columns - cells(line);
    if (space < 0) continue;
    if (shown[kBar]) line = compose(state, shown, std::min(kWidestBar, kNarrowestBar + space));
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }
  BarState plain = state;
  plain.colour = false;
  return compose(plain, shown, 0).substr(0, static_cast<std::size_t>(std::max(columns, 0)));
}

std::string plain_line(const StepMetrics& m, std::int64_t total, double seconds_left) {
  const std::string epoch = epoch_text(m.data_position.epoch, m.step, total);
  std::string line =
      fmt::format("step {}/{}  {}{}  grad_norm {}  lr {}  {} tokens/s  {}", m.step, total,
                  epoch.empty() ? "" : "epoch " + epoch + "  ", m.targets == 0 ? "no target tokens" : loss_text(m.loss),
                  m.overflow       ? "overflow"
                  : m.targets == 0 ? "-"
                                   : number(m.grad_norm, "{:.4g}"),
                  number(m.lr, "{:.2e}"), format_count(m.tokens_per_second), format_bytes(Bytes(m.peak_arena_bytes)));
  if (m.step < total) line += fmt::format("  ETA {}", time_left(seconds_left));
  return line;
}

}  // namespace hawser::report
