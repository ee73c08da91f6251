#include "ops/norm/rms_norm.h"

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/norm/rms_norm_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

void rms_norm_forward(const RmsNormForward& args) {
  dispatch_float(args.x.dtype(), [&](auto act) {
    dispatch_float(args.weight.dtype(), [&](auto weight_tag) {
      const auto x = rows_of<decltype(act)>(args.x);
      const auto y = rows_of<decltype(act)>(args.y);
      const auto* weight = args.weight.data<decltype(weight_tag)>();
      float* const rstd = args.rstd.data<float>();
      parallel_pieces(x.count, 4, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          rstd[t] = HAWSER_DISPATCH(rms_norm_row, x.row(t), weight, y.row(t), x.columns, args.epsilon);
        }
      });
    });
  });
}

namespace {

template <class Act, class Weight>
void backward(const RmsNormBackward& args) {
  const auto x = rows_of<Act>(args.x);
  const auto dy = rows_of<Act>(args.dy);
  const auto dx = rows_of<Act>(args.dx);
  const auto residual = rows_of<Act>(args.residual_gradient);
  const auto* weight = args.weight.data<Weight>();
  const float* rstd = args.rstd.data<float>();
  const std::int64_t blocks = rms_norm_row_blocks(x.count);
  const std::int64_t stride = round_up(x.columns, 16);
  float* const partials = args.dweight.empty() ? nullptr : reinterpret_cast<float*>(args.workspace.raw());

  parallel_items(blocks, [&](std::int64_t block) {
    float* const partial = partials != nullptr ? partials + block * stride : nullptr;
    if (partial != nullptr) std::fill_n(partial, stride, 0.0f);
    for (std::int64_t t = block * x.count / blocks; t < (block + 1) * x.count / blocks; ++t) {
      // dx may alias dy: add the row to dweight first.
      if (partial != nullptr) HAWSER_DISPATCH(rms_norm_dweight_row, x.row(t), dy.row(t), rstd[t], partial, x.columns);
      if (dx.data == nullptr) continue;
      const Act* const add = residual.data != nullptr ? residual.row(t) : nullptr;
      HAWSER_DISPATCH(rms_norm_dx_row, x.row(t), weight, dy.row(t), add, dx.row(t), rstd[t], x.columns);
    }
  });
  if (partials == nullptr) return;
  dispatch_float(args.dweight.dtype(), [&](auto tag) {
    auto* dweight = args.dweight.data<decltype(tag)>();
    HAWSER_DISPATCH(sum_partials, partials, blocks, stride, dweight, args.accumulate_weight, x.columns);
  });
}

}  // namespace

void rms_norm_backward(const RmsNormBackward& args) {
  dispatch_float(args.x.dtype(), [&](auto act) {
    dispatch_float(args.weight.dtype(), [&](auto weight) { backward<decltype(act), decltype(weight)>(args); });
  });
}

}  // namespace hawser::ops::cpu
