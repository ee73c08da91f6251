// Blocks of source files turned into token sequences by threads, handed back in the order they were put in. Internal to
// prepare.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "data/block_encoder.h"
#include "data/block_reader.h"

namespace hawser::data {

class BlockPool {
 public:
  // `encoder` outlives the pool. std::system_error where a thread is refused.
  BlockPool(int threads, const BlockEncoder& encoder);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void put(Block block);
  EncodedBlock take();  // the oldest put and not yet taken; waits for it, rethrows what its thread threw
  std::int64_t in_flight() const { return put_ - taken_; }

 private:
  struct Result {
    EncodedBlock block;
    std::exception_ptr error;
  };
  void work();
  void end();

  const BlockEncoder& encoder_;
  std::int64_t put_ = 0, taken_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::int64_t, Block>> waiting_;
  std::map<std::int64_t, Result> done_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hawser::data
