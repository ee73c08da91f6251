// The passes of a layer as the executor calls them: whole, or with SavePolicy::tile_rows in tiles of rows (tiled MLP).
//
// Example: an MLP of inner width 14,336 over 131,072 rows in bf16. gate and up of all rows take 7 GiB, SwiGLU another
// 3.5 GiB. In tiles of 8,192 rows, one after another, they take 448 and 224 MiB:
//
//   run_forward(mlp, ctx, x, x, y, saved, {.tile_rows = 8192});             // 16 times the forward of 8,192 rows
//   run_backward(mlp, ctx, dy, dy, dx, saved, sink, {.tile_rows = 8192});   // 16 times recompute and backward of them
//
// A layer in tiles saves nothing but its input and has no recompute pass: backward computes what it reads for each
// tile. Its weights' gradients are computed there, too, and summed over the tiles in float32; one that is bf16 has a
// float32 temporary and is rounded once. The result is that of the whole layer but for the order of these sums, and in
// FP8 for scales that follow from a matrix, which is then a tile's. Only layers whose rows are independent
// (Layer::has_independent_rows) have tiles; others run whole. Views and errors: those of nn::Layer. Everything
// is enqueued on the streams of the LayerContext, one tile after another.
// Source: TiledMLP of arXiv 2506.13996.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

// The layer runs in tiles under this policy.
bool in_tiles(const Layer& layer, const SavePolicy& policy);

// Layer::saved_specs. In tiles nothing is saved, but the number of tensors is the same.
std::vector<SavedSpec> saved_specs_of(const Layer& layer, const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                      const TrainableParams& trainable, const Seams& seams);

// Layer::forward.
void run_forward(const Layer& layer, LayerContext&, const TensorView& x, const TensorView& residual,
                 const TensorView& y, const Saved&, const SavePolicy&);

// Layer::backward. In tiles, Saved::x is all that is read of Saved. InternalError in tiles with delayed gradients of
// weights.
void run_backward(const Layer& layer, LayerContext&, const TensorView& dy, const TensorView& dresidual,
                  const TensorView& dx, const Saved&, GradientSink&, const SavePolicy&);

}  // namespace hawser::nn
