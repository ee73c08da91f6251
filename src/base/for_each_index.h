// `for_each_index`: independent work on several threads.
//
//   std::vector<Plan> plans(stages);
//   for_each_index(plans.size(), [&](std::size_t stage) { plans[stage] = plan_of(stage); });
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace hawser {

// Calls work(i) for each i < count, on at most as many threads as the machine has cores; the calling thread is one of
// them. Rethrows the exception of the smallest i, when all calls have ended.
template <class Work>
void for_each_index(std::size_t count, const Work& work) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> threads;
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  try {
    for (std::size_t t = 1; t < std::min(count, cores); ++t) threads.emplace_back(run);
  } catch (const std::system_error&) {  // no more threads: those that there are do the work
  }
  run();
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace hawser
