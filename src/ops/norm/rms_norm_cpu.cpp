#include "ops/norm/rms_norm.h"

#include <type_traits>

#include "ops/cpu/parallel.h"
#include "ops/quantize/quantize_rows_cpu.h"

#define HAWSER_KERNELS "ops/norm/rms_norm_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

// The rows of a view [T, C], or of the heads of [T, H, C].
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t count = 0, columns = 0, stride = 0, heads = 1;

  T* row(std::int64_t i) const {
    return heads == 1 ? data + i * stride : data + i / heads * stride + i % heads * columns;
  }
};

template <class T>
HeadRows<T> head_rows(const TensorView& view) {
  if (view.empty()) return {};
  const std::int64_t heads = view.rank() == 3 ? view.size(1) : 1;
  return {view.data<T>(), view.size(0) * heads, view.size(view.rank() - 1), view.stride(0), heads};
}

// Calls body with std::true_type or std::false_type.
template <class Body>
void dispatch_flag(bool flag, const Body& body) {
  if (flag) return body(std::true_type());
  body(std::false_type());
}

template <bool kUnitOffset, class Act, class Weight>
void forward(const RmsNormForward& args) {
  const auto x = head_rows<Act>(args.x);
  const auto y = head_rows<Act>(args.y);
  const auto* weight = args.weight.data<Weight>();
  float* const rstd = args.rstd.data<float>();
  if (!args.fp8.empty()) {
    dispatch_fp8(args.fp8.dtype(), [&](auto tag) {
      quantize_rows<Act, decltype(tag)>(x.count, x.columns, x.columns, args.fp8, [&](std::int64_t t, Act* row) {
        rstd[t] = HAWSER_DISPATCH(rms_norm_row<kUnitOffset>, x.row(t), weight, row, x.columns, args.epsilon);
        return row;
      });
    });
    return;
  }
  parallel_pieces(x.count, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      rstd[t] = HAWSER_DISPATCH(rms_norm_row<kUnitOffset>, x.row(t), weight, y.row(t), x.columns, args.epsilon);
    }
  });
}

template <bool kUnitOffset, class Act, class Weight>
void backward(const RmsNormBackward& args) {
  const auto x = head_rows<Act>(args.x);
  const auto dy = head_rows<Act>(args.dy);
  const auto dx = head_rows<Act>(args.dx);
  const auto residual = head_rows<Act>(args.residual_gradient);
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
      HAWSER_DISPATCH(rms_norm_dx_row<kUnitOffset>, x.row(t), weight, dy.row(t), add, dx.row(t), rstd[t], x.columns);
    }
  });
  if (partials == nullptr) return;
  dispatch_float(args.dweight.dtype(), [&](auto tag) {
    auto* dweight = args.dweight.data<decltype(tag)>();
    HAWSER_DISPATCH(sum_partials, partials, blocks, stride, dweight, args.accumulate_weight, x.columns);
  });
}

}  // namespace

void rms_norm_forward(const RmsNormForward& args) {
  dispatch_float(args.x.dtype(), [&](auto act) {
    dispatch_float(args.weight.dtype(), [&](auto weight) {
      dispatch_flag(args.unit_offset, [&](auto unit_offset) {
        forward<decltype(unit_offset)::value, decltype(act), decltype(weight)>(args);
      });
    });
  });
}

void rms_norm_backward(const RmsNormBackward& args) {
  dispatch_float(args.x.dtype(), [&](auto act) {
    dispatch_float(args.weight.dtype(), [&](auto weight) {
      dispatch_flag(args.unit_offset, [&](auto unit_offset) {
        backward<decltype(unit_offset)::value, decltype(act), decltype(weight)>(args);
      });
    });
  });
}

}  // namespace hawser::ops::cpu
