// `gemm`: general matrix multiplication. `bias_gradient`: column sums.
//
// gemm:
//   C = round( (scale_a * scale_b) * (op(A) op(B)) + bias + (accumulate ? C : 0) )
//
//   op(A) [M, K]  float32, bf16 or FP8; transpose_a: A is stored [K, M]
//   op(B) [K, N]  float32, bf16 or FP8; transpose_b: B is stored [N, K]
//   C [M, N]      float32 or bf16
//   bias [N]      optional, float32 or bf16, added to every row
//   scale_a, scale_b
//                 optional float32: the values of A are scale_a * a, those of B scale_b * b. scaling_a, scaling_b:
//                 which elements share a scale, and the shape of the scales of the matrix as it is stored
//                 (ops/quantize/scale_kind.h)
// The sum over k, its product with the scales, the bias and C are added in float32; C is rounded once. With scales of
// blocks, the sum is that of the terms with their scales:
//   C = round( sum over k of (scale_a a)[m,k] (scale_b b)[k,n] + ... )
// A and B may have different dtypes. On CUDA, InternalError unless both are float32, both are bf16, or both are FP8, of
// which at most one is E5M2; scales belong to FP8 alone. There, FP8 needs transpose_b without transpose_a, so that both
// matrices have their K contiguous (the tensor cores read no other form), rows of a and b and scales that start at
// multiples of 16 bytes, and N a multiple of 8. Scales of blocks belong to both matrices then, 128 x 128 ones to one of
// them at most, and M is a multiple of 8, too; only GPUs of compute capability 9.0 have such GEMMs.
// Rows of a, b and c may be padded. c shares no byte with the others. K = 0: C = bias, or C += bias.
//
// A linear layer y = x W^T with W [out, in], and its gradients dx = dy W and dW += dy^T x:
//   {.a = x,  .b = w, .c = y,  .transpose_b = true}
//   {.a = dy, .b = w, .c = dx}
//   {.a = dy, .b = x, .c = dw, .transpose_a = true, .accumulate = true}
//
// bias_gradient:
//   db[n] (+)= scale * sum over t of dy[t,n]
// dy [T, N] act, rows may be padded; db [N] float32 or bf16; scale [1] optional float32. Summed
// in float32, in a fixed order; db is rounded once.
//
// CPU: oneDNN (dnnl_sgemm; the matmul primitive for bf16, cached by shape). On a processor without bf16 units, or with
// two dtypes, bf16 operands are first widened in the workspace, and so is FP8, times its scales if these are of blocks.
// With one scale, the sums are written there.
// C is divided into tiles by its sizes alone and one thread computes each tile, so that the number of threads does not
// change a bit.
// CUDA: cuBLASLt with float32 accumulation; float32 operands do not use TF32, and sums of FP8 products go from the
// tensor cores' accumulators to float32 ones every few terms (no fast accumulation). Algorithms that add with atomics
// are not used: one choice of algorithm always gives the same bits.
#pragma once

#include "ops/quantize/scale_kind.h"
#include "ops/run_op.h"

namespace hawser::ops {

struct Gemm {
  TensorView a, b, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  TensorView bias;
  TensorView scale_a, scale_b;  // empty: 1
  ScaleKind scaling_a = ScaleKind::one, scaling_b = ScaleKind::one;
  TensorView workspace;  // u8, at least gemm_workspace() bytes; may be empty if that is 0
};

void gemm(Stream& stream, const Gemm& args);

// Upper bound in bytes, computed from shapes, dtypes and transposes alone (data pointers and workspace may be empty).
// 0 for float32 without scales, and on CUDA, where GEMMs use the stream's scratch.
std::int64_t gemm_workspace(const Gemm& args, DeviceKind target = DeviceKind::cpu);

// CUDA: measures cuBLASLt's algorithms for this GEMM on this stream and stores one for all later calls with the same
// sizes, strides, dtypes, forms of scales, transposes and accumulate, on all streams of the device
// (ops/gemm/gemm_choice.h): short GEMMs with a cold cache, long ones at the clock of sustained load, which takes about
// three seconds each. cuBLASLt's own first choice is kept unless another algorithm is at least 0.5 % faster in both of
// two rounds. Overwrites a, b and c with random numbers. Blocks the host; do not call it inside a step. Other devices:
// no effect. A GEMM that was not prepared uses cuBLASLt's first choice.
void gemm_prepare(Stream& stream, const Gemm& args);
// The choices of the stream's device as text, one line each; empty if the device has none. They are valid for one GPU
// model and one version of cuBLASLt, named in the first line. A line that starts with # is a GEMM that cuBLASLt does
// not support, with the kernel that is used instead and the reason.
std::string gemm_choices(Stream& stream);
// Restores choices from such text, those that the library accepts. Returns the number of choices restored: 0 if the GPU
// model or the version differs. keep: not of GEMMs whose choice was measured or restored before.
std::int64_t gemm_take_choices(Stream& stream, const std::string& text, bool keep = false);

struct BiasGradient {
  TensorView dy, db;
  bool accumulate = false;
  TensorView scale;  // empty: 1
};

void bias_gradient(Stream& stream, const BiasGradient& args);

}  // namespace hawser::ops
