// Rows of tokens in the order of their experts, and back. Shapes: T tokens, E experts, K per token, C columns,
// R = expert_rows(T, K, E) rows. An assignment is a pair (t, k), numbered t * K + k.
//
// `expert_plan`: a row for each assignment. The rows of expert e are [offsets[e], offsets[e + 1]), as
// ops/gemm/grouped_gemm.h needs them: the number of its assignments, rounded up to a multiple of kGroupRows. In a group
// the assignments have the first rows, in ascending order; the rows after them are padding.
//   rows[t,k]      the row of assignment (t, k), or kNoRow if experts[t,k] is negative
//   assignments[r] the assignment of row r, or -1: padding, and rows from offsets[E] on
//
// `dispatch_rows`: copies tokens to their rows. For each row r < offsets[E], with assignment (t, k):
//   y[r,:] = round((weights[t,k] or 1) * x[t,:])       padding: zeros
// Rows of y from offsets[E] on are not written. x and y may be FP8 without weights: dense, with an even C.
//
// `combine_rows`: the weighted sum of the rows of a token. In float32, k ascending, rounded once:
//   y[t,:] = residual[t,:] + sum over k of (weights[t,k] or 1) * x[rows[t,k],:]       without kNoRow
// The gradient of dispatch_rows without weights is combine_rows without weights.
//
// `weighted_rows_backward`: the gradient of y[r,:] = w[r] f(x[r,:]) for a linear f, from that of f(x)[r,:] as if the
// weight were 1. For each assignment a of row r < offsets[E]:
//   dweights[a] = sum over c of x[r,c] * dx[r,c]       in float32, an order that depends on C alone
//   dx[r,:]     = round(weights[a] * dx[r,:])          padding: dx does not change
// dweights of assignments without a row: 0.
//
// x, y, dx, residual: otherwise float32 or bf16, rows may be padded; x, y and dx have one dtype; combine_rows may also
// have y in another. weights, dweights [T, K] float32, rows i32 [T, K], assignments i32 [R], offsets i32 [E + 1], all
// dense, as expert_plan wrote them: an entry outside its range throws on the stream. y and dx overlap no other view,
// but y of combine_rows may be its residual. No op reads a row of x from offsets[E] on.
#pragma once

#include "base/units.h"
#include "ops/copy/permute_rows.h"
#include "ops/gemm/grouped_gemm.h"
#include "ops/run_op.h"

namespace hawser::ops {

// The most rows that groups of T * K assignments to E experts have together: a multiple of kGroupRows.
constexpr std::int64_t expert_rows(std::int64_t tokens, std::int64_t per_token, std::int64_t experts) {
  const std::int64_t assignments = tokens * per_token;
  return kGroupRows * (assignments <= experts ? assignments : (assignments - experts) / kGroupRows + experts);
}

struct ExpertPlan {
  TensorView experts;      // i32 [T, K], each below E
  TensorView offsets;      // i32 [E + 1], written
  TensorView rows;         // i32 [T, K], written
  TensorView assignments;  // i32 [R], written
};
void expert_plan(Stream& stream, const ExpertPlan& args);

struct DispatchRows {
  TensorView x;                // [T, C]
  TensorView assignments;      // i32 [R]
  TensorView offsets;          // i32 [E + 1]
  TensorView weights;          // float32 [T, K]; empty: 1
  TensorView y;                // [R, C]
  std::int64_t per_token = 1;  // K
};
void dispatch_rows(Stream& stream, const DispatchRows& args);

struct CombineRows {
  TensorView x;         // [R, C]
  TensorView rows;      // i32 [T, K]
  TensorView weights;   // float32 [T, K]; empty: 1
  TensorView residual;  // [T, C], float32 or bf16; empty: 0
  TensorView y;         // [T, C]
};
void combine_rows(Stream& stream, const CombineRows& args);

struct WeightedRowsBackward {
  TensorView x;         // [R, C]
  TensorView dx;        // [R, C]: read and written
  TensorView rows;      // i32 [T, K]
  TensorView weights;   // float32 [T, K]
  TensorView dweights;  // float32 [T, K], written
};
void weighted_rows_backward(Stream& stream, const WeightedRowsBackward& args);

HAWSER_BACKENDS_OF(expert_plan, ExpertPlan);
HAWSER_BACKENDS_OF(dispatch_rows, DispatchRows);
HAWSER_BACKENDS_OF(combine_rows, CombineRows);
HAWSER_BACKENDS_OF(weighted_rows_backward, WeightedRowsBackward);

}  // namespace hawser::ops
