#include "train/slow_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "base/cat.h"
#include "base/text.h"
#include "base/units.h"
#include "plan/target.h"

namespace hawser::train {
namespace {

constexpr std::size_t kStart = 2, kLooked = 10;  // steps that are left out, and steps whose median counts
constexpr double kSlow = 2.0, kLonger = 60.0;    // times the prediction; seconds of the whole run

// Other work on this machine, in threads, that makes ours wait.
bool crowded(const Circumstances& seen, int own_threads) {
  if (!seen.load) return false;
  return *seen.load > 1.25 * seen.cores && *seen.load > 1.25 * own_threads;
}

std::string limits_of_the_clock(const PowerUse& power) {
  std::string out = fmt::format("the GPUs' SM clock is {:.0f} MHz", *power.sm_clock_mhz);
  std::string reasons;
  for (const auto& [name, share] : power.clock_reasons.value_or(std::map<std::string, double>()))
    reasons += fmt::format("{}{} in {:.0f}% of samples", reasons.empty() ? "" : ", ", name, 100 * share);
  return reasons.empty() ? out : cat(out, ", limited by ", reasons);
}

std::vector<std::string> causes(const Circumstances& seen, const SlowStepsOptions& run) {
  std::vector<std::string> out;
  if (crowded(seen, run.own_threads)) {
    out.push_back(fmt::format("other processes compute here (load {:.1f} on {}, {} of this run)", *seen.load,
                              plural(seen.cores, "core"), plural(run.own_threads, "thread")));
  }
  if (seen.power.sm_clock_mhz && seen.power.clock_reasons && !seen.power.clock_reasons->empty())
    out.push_back(limits_of_the_clock(seen.power));
  for (const std::string& line : seen.slow_kernels) out.push_back("slow kernel: " + line);
  if (run.communication > 0.1 * run.predicted) {
    out.push_back(cat("collectives are predicted to take ", format_seconds(run.communication),
                      " of a step, and the links may be slower: `hawser bench step` times them"));
  }
  if (out.empty()) {
    out.push_back(cat("no other load, no limit of a clock and no slow kernel was seen; the prediction is for ",
                      run.prediction_of, ", and `hawser bench step` shows what takes the time"));
  }
  return out;
}

}  // namespace

Circumstances circumstances_here(PowerUse power, std::vector<std::string> slow_kernels) {
  Circumstances out{
      .cores = plan::this_machine().cores, .power = std::move(power), .slow_kernels = std::move(slow_kernels)};
  std::array<double, 1> load{};
  if (getloadavg(load.data(), 1) == 1) out.load = load[0];
  return out;
}

std::optional<std::string> SlowSteps::step(double seconds, const std::function<Circumstances()>& look) {
  if (seconds_.size() == kStart + kLooked) return std::nullopt;
  seconds_.push_back(seconds);
  if (seconds_.size() < kStart + kLooked) return std::nullopt;
  std::vector<double> looked(seconds_.begin() + kStart, seconds_.end());
  const auto middle = looked.begin() + kLooked / 2;
  std::ranges::nth_element(looked, middle);
  const double predicted = options_.predicted;
  const bool long_run = (*middle - predicted) * static_cast<double>(options_.steps) > kLonger;
  if (predicted <= 0 || *middle <= kSlow * predicted || !long_run) return std::nullopt;
  std::string out = fmt::format("steps take {}, {:.1f} times the predicted {}", format_seconds(*middle),
                                *middle / predicted, format_seconds(predicted));
  const char* separator = ": ";
  for (const std::string& cause : causes(look(), options_)) out += std::exchange(separator, "; ") + cause;
  return out;
}

}  // namespace hawser::train
