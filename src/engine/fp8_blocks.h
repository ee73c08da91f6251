// `Fp8Blocks`: the transformer blocks whose Linears and experts a recipe puts in FP8.
#pragma once

#include <utility>
#include <vector>

#include "base/error.h"
#include "config/recipe.h"

namespace hawser::engine {

class Fp8Blocks {
 public:
  // Reads precision.fp8.layers: "all", numbers of blocks from 0, ranges "2-29". A Problem for each entry that is none.
  Fp8Blocks(const Recipe& recipe, Problems& problems);

  bool contains(int block) const;
  // A Problem for each entry with a block that a model of `blocks` blocks has not.
  void check(int blocks, Problems& problems) const;

 private:
  struct Range {
    std::string entry;
    int first = 0, last = 0;
  };
  Problem place_;  // of the key
  bool all_ = false;
  std::vector<Range> ranges_;
};

}  // namespace hawser::engine
