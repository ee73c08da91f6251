#include "ops/moe/dispatch.h"

#include <cstring>
#include <vector>

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/moe/dispatch_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

// Throws unless all of `values` are in [0, end) or `none`.
void check_indices(const char* op, const char* what, const TensorView& values, std::int32_t none, std::int64_t end) {
  const auto* const v = values.data<std::int32_t>();
  for (std::int64_t i = 0; i < values.elements(); ++i) {
    HAWSER_CHECK(v[i] == none || (v[i] >= 0 && v[i] < end), op, ": ", what, " ", v[i], " at ", i, " is outside [0, ",
                 end, ")");
  }
}

// Rows of a piece: a thread must have enough work.
std::int64_t row_grain(std::int64_t columns) {
  return std::max<std::int64_t>(16, 8192 / std::max<std::int64_t>(columns, 1));
}

const float* weights_of(const TensorView& weights) {
  return weights.empty() ? nullptr : weights.data<float>();
}

}  // namespace

void expert_plan(const ExpertPlan& args) {
  const auto* const expert = args.experts.data<std::int32_t>();
  auto* const offsets = args.offsets.data<std::int32_t>();
  auto* const rows = args.rows.data<std::int32_t>();
  auto* const assignments = args.assignments.data<std::int32_t>();
  const std::int64_t experts = args.offsets.size(0) - 1, count = args.experts.elements();
  check_indices("expert_plan", "expert", args.experts, -1, experts);
  std::vector<std::int32_t> next(static_cast<std::size_t>(experts));
  for (std::int64_t a = 0; a < count; ++a) {
    if (expert[a] >= 0) ++next[static_cast<std::size_t>(expert[a])];
  }
  offsets[0] = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    auto& rows_of_expert = next[static_cast<std::size_t>(e)];
    offsets[e + 1] = offsets[e] + static_cast<std::int32_t>(round_up(rows_of_expert, kGroupRows));
    rows_of_expert = offsets[e];
  }
  std::fill_n(assignments, args.assignments.elements(), -1);
  for (std::int64_t a = 0; a < count; ++a) {
    rows[a] = kNoRow;
    if (expert[a] < 0) continue;
    rows[a] = next[static_cast<std::size_t>(expert[a])]++;
    assignments[rows[a]] = static_cast<std::int32_t>(a);
  }
}

void dispatch_rows(const DispatchRows& args) {
  const auto* const assignments = args.assignments.data<std::int32_t>();
  const std::int64_t used = args.offsets.data<std::int32_t>()[args.offsets.size(0) - 1];
  HAWSER_CHECK(used >= 0 && used <= args.y.size(0), "dispatch_rows: ", used, " rows of ", args.y.size(0));
  check_indices("dispatch_rows", "assignment", args.assignments, -1, args.x.size(0) * args.per_token);
  const float* const weights = weights_of(args.weights);
  dispatch_float(args.x.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows_of<Act>(args.x), y = rows_of<Act>(args.y);
    const auto bytes = static_cast<std::size_t>(x.columns) * sizeof(Act);
    parallel_pieces(used, row_grain(x.columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t a = assignments[r];
        if (a < 0) {
          std::memset(static_cast<void*>(y.row(r)), 0, bytes);
        } else if (weights == nullptr) {
          std::memcpy(static_cast<void*>(y.row(r)), x.row(a / args.per_token), bytes);
        } else {
          HAWSER_DISPATCH(scale_row, x.row(a / args.per_token), y.row(r), weights[a], x.columns);
        }
      }
    });
  });
}

void combine_rows(const CombineRows& args) {
  const auto* const rows = args.rows.data<std::int32_t>();
  const std::int64_t per_token = args.rows.size(1);
  check_indices("combine_rows", "row", args.rows, kNoRow, args.x.size(0));
  const float* const weights = weights_of(args.weights);
  dispatch_float(args.x.dtype(), [&](auto x_tag) {
    dispatch_float(args.residual.empty() ? DType::f32 : args.residual.dtype(), [&](auto residual_tag) {
      dispatch_float(args.y.dtype(), [&](auto y_tag) {
        const auto x = rows_of<decltype(x_tag)>(args.x);
        const auto residual = rows_of<decltype(residual_tag)>(args.residual);
        const auto y = rows_of<decltype(y_tag)>(args.y);
        parallel_pieces(y.count, row_grain(x.columns), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t t = begin; t < end; ++t) {
            const float* const of_token = weights != nullptr ? weights + t * per_token : nullptr;
            const auto* const add = residual.data != nullptr ? residual.row(t) : nullptr;
            HAWSER_DISPATCH(combine_row, x.data, x.stride, rows + t * per_token, of_token, per_token, add, y.row(t),
                            y.columns);
          }
        });
      });
    });
  });
}

void weighted_rows_backward(const WeightedRowsBackward& args) {
  const auto* const rows = args.rows.data<std::int32_t>();
  const float* const weights = args.weights.data<float>();
  float* const dweights = args.dweights.data<float>();
  check_indices("weighted_rows_backward", "row", args.rows, kNoRow, args.x.size(0));
  dispatch_float(args.x.dtype(), [&](auto tag) {
    const auto x = rows_of<decltype(tag)>(args.x), dx = rows_of<decltype(tag)>(args.dx);
    parallel_pieces(args.rows.elements(), row_grain(x.columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t a = begin; a < end; ++a) {
        if (rows[a] < 0) {
          dweights[a] = 0;
        } else {
          dweights[a] = HAWSER_DISPATCH(dot_and_scale_row, x.row(rows[a]), dx.row(rows[a]), weights[a], x.columns);
        }
      }
    });
  });
}

}  // namespace hawser::ops::cpu
