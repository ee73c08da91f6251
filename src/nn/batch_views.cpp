#include "nn/batch_views.h"

namespace hawser::nn {

std::vector<ops::StridedBlocks> diagonal_blocks(const BatchViews& batch, const AttentionMask& mask, std::int64_t rows) {
  if (batch.uniform_diagonal == 0 || !mask.causal) return {};
  return {ops::equal_diagonal_blocks(rows, batch.uniform_diagonal)};
}

const MaskViews& BatchViews::with_mask(const AttentionMask& mask) const {
  for (const MaskViews& views : masks) {
    if (views.mask == mask) return views;
  }
  HAWSER_CHECK(false, "the batch has no tables for ", mask.causal ? "" : "no causal mask, ", "window ", mask.window,
               mask.distances ? ", distances" : "");
}

const TensorView& BatchViews::table(std::string_view name, DType dtype) const {
  const auto found = tables.find(name);
  HAWSER_CHECK(found != tables.end(), "a layer reads table ", name, ", which the model does not declare");
  HAWSER_CHECK(found->second.dtype() == dtype, "a layer reads table ", name, " as ", to_string(dtype), ", not as ",
               to_string(found->second.dtype()));
  return found->second;
}
}  // namespace hawser::nn
