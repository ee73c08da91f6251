#include "device/power_meter.h"

#include <algorithm>

namespace hawser {

namespace {

using Clock = PowerMeter::Clock;

constexpr auto kReach = std::chrono::seconds(1);  // how far outside of an interval its power is looked for

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// A move of the energy counter.
struct Move {
  Clock::time_point at;
  std::uint64_t mj = 0;
};

std::optional<double> watts_of(const std::vector<Move>& moves, Clock::time_point begin, Clock::time_point end) {
  if (moves.size() < 2) return std::nullopt;
  const auto watts = [](const Move& from, const Move& to) -> std::optional<double> {
    if (to.mj <= from.mj) return std::nullopt;  // the driver was loaded again
    return static_cast<double>(to.mj - from.mj) / 1e3 / seconds_between(from.at, to.at);
  };
  const auto first = std::ranges::find_if(moves, [&](const Move& move) { return move.at >= begin; });
  const auto after = std::find_if(first, moves.end(), [&](const Move& move) { return move.at > end; });
  if (after - first >= 2 && 2 * seconds_between(first->at, (after - 1)->at) >= seconds_between(begin, end)) {
    return watts(*first, *(after - 1));
  }
  auto from = first == moves.begin() ? first : first - 1;
  const auto to = after == moves.end() ? after - 1 : after;
  if (from == to) from == moves.begin() ? ++from : --from;  // all moves are before the interval, or after it
  return from < to ? watts(*from, *to) : watts(*to, *from);
}

void add_clocks(const std::vector<const PowerSample*>& inside, PowerUse& use) {
  double clocks = 0, sum = 0, reasons = 0;
  std::map<std::string, double> counts;
  for (const PowerSample* sample : inside) {
    if (sample->sm_clock_mhz) {
      sum += *sample->sm_clock_mhz;
      ++clocks;
      use.min_sm_clock_mhz = std::min(use.min_sm_clock_mhz.value_or(*sample->sm_clock_mhz), *sample->sm_clock_mhz);
    }
    if (!sample->reasons) continue;
    ++reasons;
    for (const std::string& name : clock_reason_names(*sample->reasons)) ++counts[name];
  }
  if (clocks > 0) use.sm_clock_mhz = sum / clocks;
  if (reasons == 0) return;
  for (auto& [name, count] : counts) count /= reasons;
  use.clock_reasons = std::move(counts);
}

}  // namespace

PowerUse power_between(const std::deque<PowerSample>& samples, Clock::time_point begin, Clock::time_point end) {
  PowerUse use{.seconds = seconds_between(begin, end), .gpus = samples.empty() ? 0 : 1};
  const auto at = [](const PowerSample& sample) { return sample.at; };
  const auto from = std::ranges::lower_bound(samples, begin - kReach, {}, at);
  const auto to = std::ranges::upper_bound(samples, end + kReach, {}, at);
  std::vector<Move> moves;
  std::vector<const PowerSample*> inside;
  const PowerSample* before = nullptr;
  std::optional<std::uint64_t> last;
  for (auto sample = from; sample < to; ++sample) {
    if (sample->energy_mj) {
      if (last && *last != *sample->energy_mj) moves.push_back({sample->at, *sample->energy_mj});
      last = sample->energy_mj;
    }
    if (sample->at < begin) before = &*sample;
    if (sample->at >= begin && sample->at <= end) inside.push_back(&*sample);
  }
  if (inside.empty() && before != nullptr) inside.push_back(before);  // the interval is shorter than the period
  use.watts = watts_of(moves, begin, end);
  if (use.watts) use.joules = *use.watts * use.seconds;
  add_clocks(inside, use);
  return use;
}

PowerUse combined(const std::vector<PowerUse>& uses) {
  PowerUse out;
  double joules = 0, watts = 0, clock = 0, measured = 0, clocks = 0, reasons = 0;
  std::map<std::string, double> shares;
  for (const PowerUse& use : uses) {
    if (use.gpus == 0) continue;
    out.gpus += use.gpus;
    out.seconds = std::max(out.seconds, use.seconds);
    const double gpus = use.gpus;
    if (use.joules && use.watts) {
      measured += gpus;
      joules += *use.joules;
      watts += gpus * *use.watts;
    }
    if (use.sm_clock_mhz) {
      clocks += gpus;
      clock += gpus * *use.sm_clock_mhz;
    }
    if (use.min_sm_clock_mhz) {
      out.min_sm_clock_mhz = std::min(out.min_sm_clock_mhz.value_or(*use.min_sm_clock_mhz), *use.min_sm_clock_mhz);
    }
    if (!use.clock_reasons) continue;
    reasons += gpus;
    for (const auto& [name, share] : *use.clock_reasons) shares[name] += gpus * share;
  }
  if (measured > 0 && measured == out.gpus) {
    out.joules = joules;
    out.watts = watts / measured;
  }
  if (clocks > 0) out.sm_clock_mhz = clock / clocks;
  if (reasons > 0) {
    for (auto& [name, share] : shares) share /= reasons;
    out.clock_reasons = std::move(shares);
  }
  return out;
}

PowerMeter::PowerMeter(std::unique_ptr<NvmlGpu> gpu, std::chrono::milliseconds period)
    : gpu_(std::move(gpu)), period_(period) {
  if (gpu_ != nullptr) thread_ = std::thread([this] { run(); });
}

PowerMeter::~PowerMeter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void PowerMeter::run() {
  std::unique_lock lock(mutex_);
  for (Clock::time_point next = Clock::now(); !end_;) {
    lock.unlock();  // the driver may take its time
    const auto real = std::chrono::system_clock::now().time_since_epoch();
    PowerSample sample{.at = Clock::now(),
                       .real_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(real).count(),
                       .energy_mj = gpu_->energy_mj(),
                       .watts = gpu_->watts(),
                       .sm_clock_mhz = gpu_->sm_clock_mhz(),
                       .reasons = gpu_->clock_reasons()};
    lock.lock();
    samples_.push_back(sample);
    if (samples_.size() > kMaxSamples) samples_.pop_front();
    next = std::max(next + period_, Clock::now());
    ended_.wait_until(lock, next, [this] { return end_; });
  }
}

PowerUse PowerMeter::between(Clock::time_point begin, Clock::time_point end) const {
  const std::lock_guard lock(mutex_);
  return power_between(samples_, begin, end);
}

std::vector<PowerSample> PowerMeter::samples(Clock::time_point begin, Clock::time_point end) const {
  const std::lock_guard lock(mutex_);
  std::vector<PowerSample> out;
  for (const PowerSample& sample : samples_) {
    if (sample.at >= begin - period_ && sample.at <= end + period_) out.push_back(sample);
  }
  return out;
}

}  // namespace hawser
