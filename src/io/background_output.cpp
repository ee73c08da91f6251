#include "io/background_output.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace hawser::io {

struct BackgroundOutput::Queue {
  explicit Queue(int to) : file(to) {}

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return closed || !text.empty(); });
      if (closed) return;
      const std::string part = text.substr(0, 4096);
      lock.unlock();
      const ssize_t size = ::write(file, part.data(), part.size());
      const bool failed = size <= 0 && errno != EINTR;  // no reader; the run continues
      lock.lock();
      if (failed) {
        text.clear();
      } else if (size > 0) {
        text.erase(0, static_cast<std::size_t>(size));
      }
      changed.notify_all();
    }
  }

  const int file;
  std::mutex mutex;
  std::condition_variable changed;
  std::string text;  // not written yet
  bool closed = false;
};

BackgroundOutput::BackgroundOutput(int file) : queue_(std::make_shared<Queue>(file)) {
  // Signals go to the other threads, which act on them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([queue = queue_] { queue->run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

BackgroundOutput::~BackgroundOutput() {
  const std::lock_guard lock(queue_->mutex);
  queue_->closed = true;
  queue_->changed.notify_all();
}

void BackgroundOutput::put(std::string_view text) {
  const std::lock_guard lock(queue_->mutex);
  queue_->text += text;
  queue_->changed.notify_all();
}

std::size_t BackgroundOutput::pending() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->text.size();
}

bool BackgroundOutput::wait(std::chrono::milliseconds limit) {
  std::unique_lock lock(queue_->mutex);
  return queue_->changed.wait_for(lock, limit, [this] { return queue_->text.empty(); });
}

}  // namespace hawser::io
