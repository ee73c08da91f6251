// `Written`: the bytes of one buffer that have been written.
#pragma once

#include <cstdint>
#include <vector>

#include "device/trace.h"

namespace hawser::program {

class Written {
 public:
  explicit Written(std::uint64_t buffer) : buffer_(buffer) {}

  void add(const Access& write);
  // True if every byte of `read` has been written. Exact for strided accesses of one stride; writes with another stride
  // than the read's count as covering the gaps between their rows too.
  bool covers(const Access& read) const;

 private:
  std::uint64_t buffer_;  // address
  std::vector<Access> writes_;
};

}  // namespace hawser::program
