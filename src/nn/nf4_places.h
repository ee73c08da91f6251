// `Nf4Places`: the places of a flat's blocks (ops/quantize/quantize_nf4.h), of which groups and scales are found.
//
// Example: a flat has q_proj [4096, 4096] and k_proj [1024, 4096], of 262,144 and 65,536 blocks. They have 1,024 and 256
// groups. Block 5 of row 2 of k_proj has place 256 * 1024 + 2 * 64 + 5. On each tensor rank it is the same.
//
// A tensor has its groups once, however many segments of the flat are parts of it. The order of its blocks is that of
// its rows in the file (FileForm::row_order), in the form [out, in], as bitsandbytes counts them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/flat.h"

namespace hawser::nn {

class Nf4Places {
 public:
  // A global tensor of the flat, complete.
  struct Tensor {
    std::string name;
    std::int64_t first_group = 0, blocks = 0;
    std::int64_t groups() const;
  };

  // The flat is double_quantized() and outlives this.
  explicit Nf4Places(const Flat& flat);

  const std::vector<Tensor>& tensors() const { return tensors_; }
  std::int64_t groups() const { return groups_; }
  // Of the blocks of elements [begin, begin + count) of the flat: -1 for gaps.
  std::vector<std::int32_t> of_blocks(std::int64_t begin, std::int64_t count) const;
  // Of the first block of each row of all parameters, one parameter after another.
  std::vector<std::int32_t> of_rows() const;

 private:
  const Flat& flat_;
  std::vector<Tensor> tensors_;
  std::vector<std::vector<int>> tensor_of_;  // by parameter and segment
  std::int64_t groups_ = 0;
};

// The number of those rows before a parameter, or of all: `param` is then the number of parameters.
std::int64_t rows_before(const Flat& flat, std::size_t param);

}  // namespace hawser::nn
