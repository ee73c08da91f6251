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

std::string on_rank_zero(comm::Channel* world, const std::function<std::string()>& work) {
  if (world == nullptr) return work();
  std::string answer;
  take_time(world, [&] {
    if (world->rank().value() != 0) return;
    try {
      answer = "+" + work();
    } catch (const Error& error) {
      answer = cat(static_cast<int>(error.code()), " ", error.what());
    }
  });
  answer = world->broadcast_bytes(answer);
  if (answer.front() == '+') return answer.substr(1);
  const auto space = answer.find(' ');
  throw Error(static_cast<ExitCode>(std::stoi(answer.substr(0, space))), answer.substr(space + 1));
}

}  // namespace hawser::engine
