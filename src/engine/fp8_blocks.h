// `Fp8Blocks`: the transformer blocks whose Linears and experts a recipe puts in FP8.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "config/block_range.h"
#include "config/recipe.h"

namespace hawser::engine {

class Fp8Blocks {
 public:
  // Those of precision.fp8.layers (config/block_range.h). Entries that are none, which config rejects, are left out.
  explicit Fp8Blocks(const Recipe& recipe);

  bool contains(int block) const;
  // A Problem for each entry with a block that a model of `blocks` blocks has not.
  void check(int blocks, Problems& problems) const;

 private:
  struct Entry {
    std::string text;
    BlockRange range;
  };
  Problem place_;  // of the key
  std::vector<Entry> ranges_;
};

}  // namespace hawser::engine
