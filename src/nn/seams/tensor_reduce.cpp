#include "nn/seams/tensor_reduce.h"

#include "nn/layer.h"
#include "ops/copy/copy.h"

namespace hawser::nn {

void TensorReduce::gather(LayerContext& ctx, const TensorView& part, const TensorView& all) {
  if (part.raw() != all.raw()) ops::copy(ctx.compute(), {.x = part, .y = all});
}

}  // namespace hawser::nn
