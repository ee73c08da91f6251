// `NamedState`: checkpointed state as boxes of global tensors, independent of the layout over ranks.
//
// Example: a weight [4, 6], of which a rank's shard has the elements 4 to 19. boxes_of_range() gives three boxes: the
// end of row 0 {offset {0, 4}, extent {1, 2}}, rows 1 and 2 {{1, 0}, {2, 6}}, and the begin of row 3 {{3, 0}, {1, 2}}.
#pragma once

#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace hawser {

// An axis-aligned box of a global tensor: offset and extent per dim. Its elements are row-major and dense in `view`.
struct Box {
  Shape offset;
  Shape extent;
  TensorView view;  // any shape with extent.elements() elements
};

// One global tensor and the boxes of it that this rank holds (possibly none).
struct NamedState {
  std::string name;  // "model.layers.0.mlp.down_proj.weight", "optimizer/exp_avg/model.norm.weight"
  Shape shape;       // global
  DType dtype = DType::f32;
  std::vector<Box> boxes;
  // In checkpoints of earlier versions: where there is no `name`, the first of these that there is is read.
  std::vector<std::string> former_names = {};
};

// The boxes that cover elements [begin, begin + count) of a row-major tensor, in order: at most 2 * rank - 1.
// `flat` holds those elements, dense.
std::vector<Box> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t count, const TensorView& flat);

}  // namespace hawser
