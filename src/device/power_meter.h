// `PowerMeter`: samples a GPU's energy counter, power, SM clock and clock-event reasons on a thread of its own, and
// says what an interval of the past used. It takes no time of the thread that enqueues work.
//
//   PowerMeter meter(NvmlGpu::open(device.bus_id()));
//   const auto begin = std::chrono::steady_clock::now();
//   ...
//   PowerUse use = meter.between(begin, std::chrono::steady_clock::now());
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "device/nvml.h"

namespace hawser {

struct PowerSample {
  std::chrono::steady_clock::time_point at;
  std::int64_t real_ns = 0;  // the same moment in ns since the epoch
  std::optional<std::uint64_t> energy_mj;
  std::optional<double> watts, sm_clock_mhz;
  std::optional<std::uint64_t> reasons;
};

// What one GPU used in an interval, or several of them did. Figures that the driver does not report are absent.
struct PowerUse {
  double seconds = 0;
  int gpus = 0;                                          // 0: no GPU was measured, and all figures are absent
  std::optional<double> joules;                          // sum over the GPUs
  std::optional<double> watts;                           // mean of a GPU: its joules over the seconds
  std::optional<double> sm_clock_mhz, min_sm_clock_mhz;  // of the samples: mean and minimum
  // By name (clock_reason_names): the share of samples in which it limited the clock. Reasons that never did are left
  // out; nullopt: not reported.
  std::optional<std::map<std::string, double>> clock_reasons;
};

// The use of one GPU from `begin` to `end`. `samples`: in the order of time.
//
// The energy counter moves about ten times a second. Power is the mean between the first and the last move inside the
// interval, if these are at least half of the interval apart; otherwise between the last move before and the first one
// after it, or the nearest two if one side has none. Joules are this power times the interval.
PowerUse power_between(const std::deque<PowerSample>& samples, std::chrono::steady_clock::time_point begin,
                       std::chrono::steady_clock::time_point end);

// Of several GPUs, or ranks. Those that were not measured are left out; joules and watts are absent unless each of the
// others has them.
PowerUse combined(const std::vector<PowerUse>& uses);

class PowerMeter {
 public:
  using Clock = std::chrono::steady_clock;

  // `gpu` null: samples nothing, and between() has no figures.
  explicit PowerMeter(std::unique_ptr<NvmlGpu> gpu, std::chrono::milliseconds period = std::chrono::milliseconds(20));
  ~PowerMeter();
  PowerMeter(const PowerMeter&) = delete;
  PowerMeter& operator=(const PowerMeter&) = delete;

  PowerUse between(Clock::time_point begin, Clock::time_point end) const;
  // The samples from one period before `begin` to one after `end`.
  std::vector<PowerSample> samples(Clock::time_point begin, Clock::time_point end) const;

 private:
  // Older samples are dropped: 22 minutes at the default period.
  static constexpr std::size_t kMaxSamples = std::size_t{1} << 16;
  void run();

  std::unique_ptr<NvmlGpu> gpu_;
  std::chrono::milliseconds period_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::deque<PowerSample> samples_;
  std::thread thread_;
};

}  // namespace hawser
