// Which bytes of one buffer have been written.
#pragma once

#include <cstdint>
#include <vector>

#include "device/trace.h"

namespace hawser::program {

class Written {
 public:
  explicit Written(std::uint64_t buffer) : buffer_(buffer) {}

  void add(const Access& write);
  // True where every byte of `read` has been written. Exact while combs of rows have one period; writes of another
  // period than the read's count with all between their rows.
  bool covers(const Access& read) const;

 private:
  std::uint64_t buffer_;  // address
  std::vector<Access> writes_;
};

}  // namespace hawser::program
