#include "ops/activation/gated.h"

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/activation/gated_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

void gated_forward(const GatedForward& args) {
  dispatch_float(args.y.dtype(), [&](auto tag) {
    const auto gate_up = rows_of<decltype(tag)>(args.gate_up);
    const auto y = rows_of<decltype(tag)>(args.y);
    dispatch_gate(args.kind, [&](auto kind) {
      constexpr Gate kKind = decltype(kind)::value;
      parallel_pieces(y.count, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          HAWSER_DISPATCH(gated_forward_row<kKind>, gate_up.row(t), y.row(t), y.columns);
        }
      });
    });
  });
}

void gated_backward(const GatedBackward& args) {
  dispatch_float(args.dy.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto gate_up = rows_of<Act>(args.gate_up);
    const auto dy = rows_of<Act>(args.dy);
    const auto dgate_up = rows_of<Act>(args.dgate_up);
    const auto y = rows_of<Act>(args.y);
    dispatch_gate(args.kind, [&](auto kind) {
      constexpr Gate kKind = decltype(kind)::value;
      parallel_pieces(dy.count, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          Act* const y_row = y.data != nullptr ? y.row(t) : nullptr;
          HAWSER_DISPATCH(gated_backward_row<kKind>, gate_up.row(t), dy.row(t), dgate_up.row(t), y_row, dy.columns);
        }
      });
    });
  });
}

}  // namespace hawser::ops::cpu
