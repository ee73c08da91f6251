// GEMMs.
//
// gemm:           C = op(A) op(B) + bias, or C += op(A) op(B) + bias
//   op(A) [M, K]  act; transpose_a: A is stored [K, M]
//   op(B) [K, N]  act, the dtype of A; transpose_b: B is stored [N, K]
//   C [M, N]      float32 or bf16; accumulate: read, added to in float32, rounded once
//   bias [N]      optional, float32 or bf16, added to every row
//   Rows of a, b and c may be padded. c shares no byte with a, b or bias. K = 0 gives C = bias or leaves C.
//   A linear layer y = x W^T with W [out, in]: {.a = x, .b = w, .c = y, .transpose_b = true};
//   its gradients: dx = dy W {.a = dy, .b = w, .c = dx}, dW += dy^T x {.a = dy, .b = x, .c = dw, .transpose_a = true}.
//
// bias_gradient:  db[n] = sum over t of dy[t, n], or db[n] += ...
//   dy [T, N] act, rows may be padded; db [N] float32 or bf16. Summed over t in order, in float32.
//
// Source: oneDNN (dnnl_sgemm; matmul primitive for bf16, kept in a cache by shape). Where the processor has no bf16
// units, bf16 operands are widened in the workspace first. C is cut into tiles by its sizes alone and each is one
// single-threaded product: the same bits for any number of threads. CUDA: cuBLASLt, float32 sums (float32 operands
// in true float32, no TF32); no algorithm that adds with atomics, so that one choice of algorithm gives the same bits.
#pragma once

#include "ops/common.h"

namespace hawser::ops {

struct Gemm {
  TensorView a, b, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  TensorView bias;
  TensorView workspace;  // u8 [gemm_workspace()] or more; may be empty where that is 0
};

void gemm(Stream& stream, const Gemm& args);

// Upper bound, bytes; from shapes, dtypes and transposes alone (data pointers and workspace may be empty). 0 for
// float32, and on CUDA, whose products use the stream's scratch.
std::int64_t gemm_workspace(const Gemm& args, DeviceKind target = DeviceKind::cpu);

// cuda: times cuBLASLt's algorithms for this product on this stream, in turns and with cold caches, and keeps one for
// every later call of the same sizes, strides, dtypes, transposes and accumulate, on all streams of the device: the
// library's own first choice unless another is faster by a hundredth in both of two rounds. Overwrites a, b and c with
// random numbers. Blocks the host; not for use inside a step. Does nothing on the other devices. A product never
// prepared runs with the library's own first choice.
void gemm_prepare(Stream& stream, const Gemm& args);
// The choices of the stream's device as text, one line each; empty where there are none. They hold for one GPU kind and
// one version of cuBLASLt, which the first line names. A line with # is a product that cuBLASLt refused: what runs in
// its place, and why.
std::string gemm_choices(Stream& stream);
// Takes such text back. Lines of another GPU kind or version are left out; returns how many were taken.
std::int64_t gemm_take_choices(Stream& stream, const std::string& text);

struct BiasGradient {
  TensorView dy, db;
  bool accumulate = false;
};

void bias_gradient(Stream& stream, const BiasGradient& args);

}  // namespace hawser::ops
