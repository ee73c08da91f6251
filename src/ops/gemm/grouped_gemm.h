// `grouped_gemm`, `grouped_weight_gradient`: one GEMM for each group of consecutive rows, with group sizes that only
// the device knows (experts of a mixture).
//
// Group g has rows [offsets[g], offsets[g + 1]); G groups.
//   grouped_gemm, for each row r of group g:
//     C[r,:] = round(A[r,:] op(B[g]) + (accumulate ? C[r,:] : 0))
//       A [R, K], C [R, N];  B [G, K, N], or transpose_b: [G, N, K]
//   grouped_weight_gradient, for each group g:
//     C[g] = round(sum over the rows r of group g of A[r,:]^T B[r,:] + (accumulate ? C[g] : 0))
//       A [R, M], B [R, N], C [G, M, N];  a group without rows: zeros, or C as it was
//
// A, B act, one dtype, or FP8: B E4M3, A E4M3 or E5M2, in grouped_weight_gradient E5M2. C float32 or bf16. Rows of A
// and C, and of B in grouped_weight_gradient, may be padded; other tensors are dense. Sums are float32, in an order
// that depends on the shapes and the group's rows alone; C is rounded once. C overlaps no other view. FP8: the sums are
// multiplied by scale_a[0] * scale_b[g] before C is added; scale_b of one element is that of all groups. Tensor cores
// read both operands along the sums. So grouped_gemm needs transpose_b, and grouped_weight_gradient reads A and B with
// rows and columns exchanged, A^T [M, R] and B^T [N, R]. Other dtypes have no scales. offsets [G + 1] int32, on the
// device, read when the kernel runs: offsets[0] = 0, ascending, multiples of kGroupRows, offsets[G] <= R; otherwise the
// stream throws at its next check() or synchronize(). Rows from offsets[G] on are not read, and those of C are not
// written. Every other row of A and B is finite: a caller that has fewer rows in a group fills the rest with zeros.
// CUDA uses tensor cores for bf16 A and B if the rows of A, B and C start at multiples of 16 bytes and C of
// grouped_gemm is bf16, and otherwise a slow kernel. FP8 has no slow kernel, and needs such rows and no dim of 0,
// InternalError; with R = 0 there is no work, but for grouped_weight_gradient the error. Sums of FP8 go to float32
// accumulators as those of gemm.h do. `flops`: recorded for the call; the caller knows how many rows it expects. The
// plain linear layer y = x W^T with W [G, out, in] and its gradients:
//   grouped_gemm             {.a = x,  .b = w, .c = y, .transpose_b = true}
//   grouped_gemm             {.a = dy, .b = w, .c = dx}
//   grouped_weight_gradient  {.a = dy, .b = x, .c = dw}
// In FP8, with the transposes w^T [G, in, out], dy^T and x^T:
//   grouped_gemm             {.a = x,    .b = w,   .c = y,  .transpose_b = true}
//   grouped_gemm             {.a = dy,   .b = w^T, .c = dx, .transpose_b = true}
//   grouped_weight_gradient  {.a = dy^T, .b = x^T, .c = dw}
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

constexpr std::int64_t kGroupRows = 128;

struct GroupedGemm {
  TensorView a, b, c;
  TensorView offsets;
  bool transpose_b = false;
  bool accumulate = false;
  double flops = 0;
  TensorView scale_a, scale_b;  // float32 [1], and [1] or [G]; empty: 1
  TensorView workspace;         // u8 [grouped_gemm_workspace(args)]
};
void grouped_gemm(Stream& stream, const GroupedGemm& args);

struct GroupedWeightGradient {
  TensorView a, b, c;
  TensorView offsets;
  bool accumulate = false;
  double flops = 0;
  TensorView scale_a, scale_b;  // float32 [1], and [1] or [G]; empty: 1
  TensorView workspace;         // u8 [grouped_gemm_workspace(args)]
};
void grouped_weight_gradient(Stream& stream, const GroupedWeightGradient& args);

// Upper bounds in bytes, computed from shapes and dtypes alone. 0 on CUDA, where the stream's scratch is used.
std::int64_t grouped_gemm_workspace(const GroupedGemm& args, DeviceKind target = DeviceKind::cpu);
std::int64_t grouped_gemm_workspace(const GroupedWeightGradient& args, DeviceKind target = DeviceKind::cpu);

// CPU: each group is one or more GEMMs of gemm.h, of at most 1024 rows.
HAWSER_BACKENDS_OF(grouped_gemm, GroupedGemm);
HAWSER_BACKENDS_OF(grouped_weight_gradient, GroupedWeightGradient);

}  // namespace hawser::ops
