#include "prepare/block_pool.h"

namespace hawser::prepare {

BlockPool::BlockPool(int threads, const BlockEncoder& encoder) : encoder_(encoder) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    end();  // joins the threads already started
    throw;
  }
}

BlockPool::~BlockPool() {
  end();
}

void BlockPool::end() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BlockPool::put(Block block) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(put_++, std::move(block));
  }
  changed_.notify_all();
}

EncodedBlock BlockPool::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_.contains(taken_); });
  Result result = std::move(done_.extract(taken_++).mapped());
  if (result.error) std::rethrow_exception(result.error);
  return std::move(result.block);
}

void BlockPool::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    auto [number, block] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    Result result;
    try {
      result.block = encoder_.encode(block);
    } catch (...) {
      result.error = std::current_exception();
    }
    block = {};  // frees the text while the result waits to be taken
    lock.lock();
    done_.emplace(number, std::move(result));
    changed_.notify_all();
  }
}

}  // namespace hawser::prepare
