// `BlockPool`: encodes blocks of source files on several threads and returns the results in input order. Internal to
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

#include "prepare/block_encoder.h"
#include "prepare/block_reader.h"

namespace hawser::prepare {

class BlockPool {
 public:
  // `encoder` must outlive the pool. std::system_error if a thread cannot be created.
  BlockPool(int threads, const BlockEncoder& encoder);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  void put(Block block);
  EncodedBlock take();  // result of the oldest block not yet taken; blocks; rethrows exceptions of its thread
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

}  // namespace hawser::prepare
