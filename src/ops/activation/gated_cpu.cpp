#include "ops/activation/gated.h"

#include "ops/cpu/parallel.h"
#include "ops/quantize/quantize_rows_cpu.h"

#define HAWSER_KERNELS "ops/activation/gated_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

void gated_forward_fp8(const GatedForward& args) {
  dispatch_float(args.gate_up.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto gate_up = rows_of<Act>(args.gate_up);
    const std::int64_t hidden = gate_up.columns / 2;
    dispatch_gate(args.kind, [&](auto kind) {
      dispatch_fp8(args.fp8.dtype(), [&](auto q) {
        constexpr Gate kKind = decltype(kind)::value;
        quantize_rows<Act, decltype(q)>(gate_up.count, hidden, hidden, args.fp8, [&](std::int64_t t, Act* row) {
          HAWSER_DISPATCH(gated_forward_row<kKind>, gate_up.row(t), row, hidden);
          return row;
        });
      });
    });
  });
}

void gated_backward_fp8(const GatedBackward& args) {
  dispatch_float(args.dy.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto gate_up = rows_of<Act>(args.gate_up), dy = rows_of<Act>(args.dy);
    const std::int64_t hidden = dy.columns;
    dispatch_gate(args.kind, [&](auto kind) {
      constexpr Gate kKind = decltype(kind)::value;
      // A row of dgate_up and one of y; computed for each of both.
      const auto compute = [&](std::int64_t t, Act* row) {
        HAWSER_DISPATCH(gated_backward_row<kKind>, gate_up.row(t), dy.row(t), row, row + 2 * hidden, hidden);
      };
      dispatch_fp8(args.dgate_up_fp8.dtype(), [&](auto q) {
        quantize_rows<Act, decltype(q)>(dy.count, 2 * hidden, 3 * hidden, args.dgate_up_fp8,
                                        [&](std::int64_t t, Act* row) {
                                          compute(t, row);
                                          return row;
                                        });
      });
      if (args.y_fp8.empty()) return;
      dispatch_fp8(args.y_fp8.dtype(), [&](auto q) {
        quantize_rows<Act, decltype(q)>(dy.count, hidden, 3 * hidden, args.y_fp8, [&](std::int64_t t, Act* row) {
          compute(t, row);
          return row + 2 * hidden;
        });
      });
    });
  });
}

}  // namespace

void gated_forward(const GatedForward& args) {
  if (!args.fp8.empty()) return gated_forward_fp8(args);
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
  if (!args.dgate_up_fp8.empty()) return gated_backward_fp8(args);
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
