// `HeldOut`: the documents held out for validation.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace hawser::prepare {

// A `fraction` of `documents`, at least one and not all, chosen by the seed only: each document has a random number,
// and those with the smallest numbers are held out. Memory use does not depend on the number of documents. With fewer
// than two documents or a fraction of 0, none is held out.
class HeldOut {
 public:
  HeldOut() = default;  // none
  HeldOut(std::int64_t documents, double fraction, std::uint64_t seed);

  bool operator()(std::int64_t document) const { return any_ && stream_.bits(document) <= max_; }

 private:
  bool any_ = false;
  std::uint64_t max_ = 0;  // largest number of a held-out document
  RandomStream stream_{0, "data/validation"};
};

}  // namespace hawser::prepare
