// Weight decomposition of a low-rank adapter (DoRA, arXiv 2402.09353): each row of W + s B A is divided by its norm and
// multiplied by its magnitude.
//
//   y = f * (W + s B A) x        f[r] = m[r] / sqrt(n[r])        n[r] = sum over c of (W + s B A)[r,c]^2
//
// Gradients treat n as a constant, as the paper proposes and PEFT does.
//
// dora_row_squares, without forming B A:
//   n[r] = sum over c of W[r,c]^2 + 2 s sum over k of B[r,k] P[r,k] + s^2 sum over k, l of B[r,k] Q[k,l] B[r,l]
//   P = W A^T [R, K], Q = A A^T [K, K]        (the caller's GEMMs)
// scale_by_norms:
//   y[t,r] (+)= (f[r] - minus) x[t,r]
// dora_magnitude_gradient:
//   dm[r] (+)= 1 / sqrt(n[r]) * sum over t of dy[t,r] u[t,r]        u = (W + s B A) x
//
// R rows of W, C columns, K the adapter's rank. W [R, C], B [R, K] float32 or bf16; P, Q, n [R] float32; m [R] float32
// or bf16; x, y, dy, u [T, R] act, rows may be padded; dm [R] float32 or bf16. x and y are the same view, or apart;
// other views are apart from those that are written. Sums are in float32 (of squares in float64 over rows on the CPU),
// in an order that depends on shapes alone. A row of zeros has the norm 0; its factor is 0.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct DoraRowSquares {
  TensorView w, b, p, q, n;
  double scale = 1;
};
void dora_row_squares(Stream& stream, const DoraRowSquares& args);

struct ScaleByNorms {
  TensorView x, m, n, y;
  double minus = 0;
  bool accumulate = false;
};
void scale_by_norms(Stream& stream, const ScaleByNorms& args);

struct DoraMagnitudeGradient {
  TensorView dy, u, n, dm;
  bool accumulate = false;
};
void dora_magnitude_gradient(Stream& stream, const DoraMagnitudeGradient& args);

HAWSER_BACKENDS_OF(dora_row_squares, DoraRowSquares);
HAWSER_BACKENDS_OF(scale_by_norms, ScaleByNorms);
HAWSER_BACKENDS_OF(dora_magnitude_gradient, DoraMagnitudeGradient);

}  // namespace hawser::ops
