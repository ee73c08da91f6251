// Which documents are held out for validation.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace hawser::data {

// The share `fraction` of `documents`, at least one and not all, chosen by the seed alone: each document has a random
// number, and those with the smallest are held out. Memory does not depend on how many there are.
class HeldOut {
 public:
  HeldOut() = default;  // none
  HeldOut(std::int64_t documents, double fraction, std::uint64_t seed);

  bool operator()(std::int64_t document) const { return any_ && stream_.bits(document) <= max_; }

 private:
  bool any_ = false;
  std::uint64_t max_ = 0;  // the largest number of a document that is held out
  RandomStream stream_{0, "data/validation"};
};

}  // namespace hawser::data
