#include "engine/rank_sync.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "base/error.h"

namespace hawser::engine {

void take_time(comm::Channel* world, const std::function<void()>& work) {
  if (world == nullptr) return work();
  std::atomic<bool> done = false;
  std::exception_ptr error;
  std::thread worker([&] {
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    done = true;
  });
  // Short first pauses detect the end of short work at once; longer ones keep polling cheap during long work.
  constexpr std::chrono::microseconds kFirst{200}, kLongest{20000};
  for (auto pause = kFirst; world->any(!done); pause = std::min(pause * 3 / 2, kLongest)) {
    std::this_thread::sleep_for(pause);
  }
  worker.join();
  if (error) std::rethrow_exception(error);
}

namespace {

// The result or the Error of `work`.
std::string outcome_of(const std::function<std::string()>& work) {
  try {
    return "+" + work();
  } catch (const Error& error) {
    return cat(static_cast<int>(error.code()), " ", error.what());
  }
}

// The result of an outcome, or throws its Error.
std::string result_of(const std::string& outcome) {
  if (outcome.front() == '+') return outcome.substr(1);
  const auto space = outcome.find(' ');
  throw Error(static_cast<ExitCode>(std::stoi(outcome.substr(0, space))), outcome.substr(space + 1));
}

}  // namespace

std::string on_rank_zero(comm::Channel* world, const std::function<std::string()>& work) {
  if (world == nullptr) return work();
  std::string outcome;
  take_time(world, [&] {
    if (world->rank() == Rank(0)) outcome = outcome_of(work);
  });
  return result_of(world->broadcast_bytes(outcome));
}

std::string short_work_on_rank_zero(comm::Channel* world, const std::function<std::string()>& work) {
  if (world == nullptr) return work();
  return result_of(world->broadcast_bytes(world->rank() == Rank(0) ? outcome_of(work) : ""));
}

std::vector<std::string> on_each_rank(comm::Channel* world, const std::function<std::string()>& work) {
  if (world == nullptr) return {work()};
  std::string mine;
  take_time(world, [&] { mine = outcome_of(work); });
  std::vector<std::string> results;
  for (const std::string& outcome : world->all_gather_strings(mine)) results.push_back(result_of(outcome));
  return results;
}

}  // namespace hawser::engine
