// `linear_cross_entropy`: output head and cross-entropy fused in one op, over chunks of rows. The full logits are never
// stored, and no GEMM is recomputed.
//
//   z[t,v]       = sum over c of x[t,c] * weight[v,c] + bias[v]
//   logits[t,v]  = softcap * tanh(z[t,v] / softcap)                                (z[t,v] if softcap is 0)
//   lse[t]       = log sum over v of exp(logits[t,v])
//   loss_sum    += sum over t with labels[t] >= 0 of (lse[t] - logits[t,labels[t]])
//   g[t,v]       = (exp(logits[t,v] - lse[t]) - [v == labels[t]]) * scale          (0 if labels[t] < 0)
//                  * (1 - (logits[t,v] / softcap)^2)                               (with a softcap)
//   dx[t,c]      = sum over v of g[t,v] * weight[v,c]
//   dweight[v,c] (+)= sum over t of g[t,v] * x[t,c]                                (+= with accumulate_weight)
//   dbias[v]     (+)= sum over t of g[t,v]                                         (+= with accumulate_bias)
//
// x [T, C], weight [V, C], bias [V] (optional) act, one dtype. softcap >= 0, finite.
// labels [T] int32: < 0 is ignored, >= V throws on the stream.
// loss_sum [2] float32, added to: the high and the low part of a sum of 48 bits, since float32 would lose digits over
// the micro-batches of a long step. The op's own sum is float64.
// scale [1] float32, read when the kernel runs: 1 / (valid tokens of the global batch), times any loss scale.
// dx [T, C], dweight [V, C], dbias [V] (only with a bias): float32, or bf16 if act is bf16; each optional. All empty:
// forward only; then scale may be empty. A bf16 dweight or dbias is rounded once: if there are several chunks, it is
// summed in float32 in the workspace.
// Bias, cap and softmax are float32; with bf16 weights, g is rounded to bf16 before it is multiplied and summed.
// Aliasing: dx may be x (the same view); all other views are disjoint.
// chunk_rows 0: chosen by loss_chunks. It changes the order of the sums in dweight and dbias, and the shapes of the
// GEMMs.
// CUDA: V is at most kCudaMaxVocabulary.
// Source: the idea of Liger-Kernel's fused_linear_cross_entropy and llmq's fused_classifier; written from scratch.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

// 442,368: a kernel has a row of logits in the shared memory of 8 SMs. plan::check_loss rejects more in time.
constexpr std::int64_t kCudaMaxVocabulary = 8 * 55296;

struct LinearCrossEntropy {
  TensorView x, weight, bias, labels;
  TensorView scale;
  TensorView loss_sum;
  TensorView dx;
  TensorView dweight, dbias;
  bool accumulate_weight = false, accumulate_bias = false;
  double softcap = 0;  // 0: none
  std::int64_t chunk_rows = 0;
  TensorView workspace;  // u8 [linear_cross_entropy_workspace(...)]
};

void linear_cross_entropy(Stream& stream, const LinearCrossEntropy& args);
// gemm_prepare (ops/gemm/gemm.h) for the op's GEMMs. Overwrites all of its tensors except labels, scale and loss_sum.
void linear_cross_entropy_prepare(Stream& stream, const LinearCrossEntropy& args);

// The chunks of a call: all of `rows` rows but the last. With sums_dweight, or sums_dbias, the workspace holds dweight,
// or dbias, in float32.
struct LossChunks {
  std::int64_t rows = 0;
  bool sums_dweight = false, sums_dbias = false;
};
// chunk_rows 0: equal chunks of at most 256 MiB of float32 logits; on CUDA 2 GiB, or 1 GiB with sums_dweight (GEMMs of
// a few thousand rows reach a GPU's full rate). The limit is at least 32 rows.
LossChunks loss_chunks(const LinearCrossEntropy& call, DeviceKind target);
// The call computes more than the loss.
inline bool has_gradients(const LinearCrossEntropy& call) {
  return !call.dx.empty() || !call.dweight.empty() || !call.dbias.empty();
}
// Bytes for the call. Only shapes and dtypes of its views are used; the workspace may be empty.
std::int64_t linear_cross_entropy_workspace(const LinearCrossEntropy& call, DeviceKind target);

HAWSER_BACKENDS_OF(linear_cross_entropy, LinearCrossEntropy);

}  // namespace hawser::ops
