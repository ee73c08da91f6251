// `attention_forward`, `attention_backward`, `attention_combine`: scaled dot-product attention over segments. Memory is
// linear in the number of rows (exception: AttentionBackward::deterministic).
//
// A call has a list of segments. A segment lets query rows [q_begin, q_begin + q_count) attend to key rows
// [k_begin, k_begin + k_count). Query row q_begin + a has position q_position + a; key row k_begin + b has position
// k_position + b. With query position p and key position r, the key is visible to the query if
//   (not causal or r <= p) and (window == 0 or r > p - window)
// A query row may be in at most one segment: otherwise the op fails on the CPU (the stream throws at its next check()
// or synchronize()), and its result is undefined on the GPU. Any number of segments may share key rows.
//
// forward, for query row i, key row j, query head h and its key-value head g = h / (Hq / Hkv):
//   x[h,i,j] = scale * sum over d of q[i,h,d] * k[j,g,d]
//   s[h,i,j] = softcap * tanh(x[h,i,j] / softcap) - slope[h] * |p - r|
// Without softcap the first term is x[h,i,j], without slopes there is no second one.
//   lse[h,i] = log sum over visible j of exp(s[h,i,j])
//   f[h,i,j] = u(h,i,j) < p ? 0 : 1 / (1 - p)          with dropout of probability p (attention_dropout.h), otherwise 1
//   o[i,h,:] = sum over visible j of f[h,i,j] * exp(s[h,i,j] - lse[h,i]) * v[j,g,:]
// A query row that is in no segment, or that sees no key, gets o = 0 and lse = -inf. Keys of a segment before the first
// one that a query sees may be undefined, also NaN, on the CPU and in our own kernels.
//
// Examples: one causal sequence is the single segment {0, T, 0, T, 0, 0}. Packed documents are one segment each. New
// rows of a sequence whose earlier keys are in the same buffer (a KV cache) are one causal segment with
// q_position > k_position; on the GPU such a call uses a kernel of our own. If the earlier keys are in another buffer
// (context parallelism), two calls are needed: one for the diagonal block (causal; the keys of the query rows
// themselves) and one for the off-diagonal block (not causal; all earlier keys, or the last window - 1 of them).
// attention_combine merges their results:
//   lse = log(exp(lse_a) + exp(lse_b))
//   o   = exp(lse_a - lse) * o_a + exp(lse_b - lse) * o_b
// A call whose lse is -inf contributes nothing; if both are -inf, o = 0 and lse = -inf.
//
// backward. If several calls were combined, each call's backward gets the combined lse and o; the sums of the calls'
// gradients are then the gradients of the combined result.
//   P[h,i,j]   = exp(s[h,i,j] - lse[h,i]) if key j is visible to query i, otherwise 0
//   dP[h,i,j]  = f[h,i,j] * sum over d of d_o[i,h,d] * v[j,g,d]
//   delta[h,i] = sum over d of d_o[i,h,d] * o[i,h,d]
//   dS[h,i,j]  = P[h,i,j] * (dP[h,i,j] - delta[h,i]), with softcap times 1 - tanh(x[h,i,j] / softcap)^2
//   dq[i,h,:]  = scale * sum over j of dS[h,i,j] * k[j,g,:]
//   dk[j,g,:]  = scale * sum over i, and over the query heads h that share g: dS[h,i,j] * q[i,h,:]
//   dv[j,g,:]  = sum over i, and over the query heads h that share g: f[h,i,j] * P[h,i,j] * d_o[i,h,:]
// accumulate_q adds to dq, accumulate_kv adds to dk and dv. Without them every row is written; a row that is in no
// segment gets zero.
//
// ALiBi (Press et al., arXiv 2108.12409) is slope[h] = ops::alibi_slopes with the default distance, p - r. With a
// causal mask the bias differs from BLOOM's, slope[h] * r, by slope[h] * p, which is equal for all keys of a query: o
// and all gradients are equal, lse is smaller by slope[h] * p. Slopes are constants without a gradient. With softcap
// and slopes, scores are capped before the bias is added. Calls that are combined need equal slopes, and distances of
// the same sequence.
//
// Dropout (arXiv 1207.0580) changes o, which is linear in f, and not lse, so that calls are combined as without it, and
// delta is still sum over j of P[h,i,j] * dP[h,i,j]. Backward draws the numbers of forward again.
//
// Tensors: q, o, d_o, dq [Tq, Hq, D]; k, v, dk, dv [Tk, Hkv, D]; lse [Hq, Tq]. Hq % Hkv == 0; D <= 256. The row stride
// may exceed H * D, or Tq: a tensor may be columns of a wider matrix, such as the lse of some rows.
// Aliasing: o, lse, dq, dk, dv and the workspace overlap no other view of the call (InternalError). Columns of one
// matrix, such as dq, dk and dv in the gradient of a fused QKV, do not overlap.
// dtypes: q, k, v, d_o float32 or bf16, all the same; o, dq, dk, dv float32 or bf16, independently; lse float32 (a
// natural logarithm); slopes [Hq] float32, dense.
// segments [N, 6] int32 {q_begin, q_count, k_begin, k_count, q_position, k_position}. segment_count [1] int32: the
// number of used rows of the table, at most N. Both are on the device and are read when the kernel runs.
// `flops`: the FLOPs to record for the call. The caller sets it, since the work depends on the segments.
// Scores s are float32. Tiles without a visible pair are skipped.
//
// CPU: if the CPU has bf16 units (AVX512-BF16 or AMX), calls with bf16 operands and bf16 results use them
// (attention_bf16_cpu.h). Other calls are computed in float32; so are calls with softcap, slopes or dropout, and
// forward calls whose segments all have one query row.
//
// GPU: a bf16 call uses cuDNN if one of cuDNN's kernels supports it (see AttentionImplementation). All other bf16 calls,
// among them those with softcap, slopes or dropout, use a kernel of our own on tensor cores (attention_tiled_cuda.cu) if
// D is a multiple of 8 and rows start at multiples of 16 bytes. What is left uses the plain kernel, which is correct and
// slow.
// - cuDNN and the tiled kernel round probabilities to bf16 before the GEMM with v, and dS before those with k and q.
// - cuDNN's backward accumulates dq in an order that differs between runs, unless `deterministic` is set. All other
//   results are bitwise equal in every run.
// - If a segment is outside the tensors, or the count is outside [0, N], no kernel accesses memory outside the tensors,
//   and the stream throws at its next check() or synchronize().
// - SegmentForm and `blocks` are not checked against the segments.
// - Unused rows of the segment table cost time, unless host_segments is set: up to 5 % of backward for 64 unused rows
//   and 11 % for 256 (16K rows, H200).
//
// Rounding of gradients by cuDNN: each cuDNN call writes bf16, so that float32 gradients also have bf16 precision. The
// key-value heads are processed in sets that fit the workspace. For each set of heads a backward makes
//   `blocks` is not empty                     one cuDNN call per element of `blocks`
//   it is empty, form is any, and N > 1       one cuDNN call per batch of consecutive segments. A call writes a
//                                             separate dk and dv for each segment; a batch has as many segments as
//                                             fit the workspace
//   otherwise                                 one cuDNN call
// - dq: each row is written by one cuDNN call. With accumulate_q, the old value and the new one are added in float32,
//   and the sum is rounded once to dq's dtype.
// - dk, dv: several cuDNN calls may write gradients of one row. Each is added to the sum so far (at first zero, or with
//   accumulate_kv the old value) in float32, and the sum is rounded to the dtype of dk or dv after each call. The
//   separate gradients of a batch of segments are first added to each other in float32, in the order of the table,
//   without rounding.
// - With Hq > Hkv, cuDNN computes dk and dv for each query head, then adds those of the query heads that share a
//   key-value head.
// Source: Dao, "FlashAttention-2", 2023 (online softmax, recompute); combination as in ring attention (Liu et al.,
// 2023); softcap as in Gemma 2 (arXiv 2408.00118).
#pragma once

#include <vector>

#include "ops/attention/attention_dropout.h"
#include "ops/run_op.h"

namespace hawser::ops {

constexpr std::int64_t kSegmentFields = 6;

// A guarantee by the caller about all segments of a call. If it does not hold, the op fails on the CPU; the CUDA
// backend does not check it and uses it to choose a faster kernel.
enum class SegmentForm {
  any,            // no guarantee
  disjoint_keys,  // no key row is in two segments
  diagonal,       // disjoint_keys, and q_count == k_count and q_position == k_position in every segment
};

// `count` blocks of one size at equal distances. Block b, 0 <= b < count, is the q_rows query rows from
// q_begin + b * q_step and the k_rows key rows from k_begin + b * k_step.
struct StridedBlocks {
  std::int64_t count = 0;
  std::int64_t q_begin = 0, q_rows = 0, q_step = 0;
  std::int64_t k_begin = 0, k_rows = 0, k_step = 0;

  bool operator==(const StridedBlocks&) const = default;
};
// The diagonal blocks of `rows / length` sequences, each padded to `length` rows.
StridedBlocks equal_diagonal_blocks(std::int64_t rows, std::int64_t length);

// What forward and backward take. Forward writes o and lse; backward reads those of all combined calls.
struct AttentionCall {
  TensorView q, k, v;
  TensorView segments, segment_count;
  SegmentForm form = SegmentForm::any;
  // Optional guarantee by the caller. With it, the GPU calls cuDNN for batches of equal blocks (cudnn_dense).
  // - Every segment is in one of these blocks and starts at the block's first query row and first key row.
  // - A block has at most one segment, and no two blocks share a query row.
  // - Rows of q, k and v (in backward also of o and d_o) that are in a block but in no segment are finite.
  // - Causal calls: blocks have q_rows == k_rows, `form` is diagonal, and a segment has q_count <= q_rows.
  // - Other calls: a segment has q_count <= q_rows and k_count == k_rows. With a window, its keys end where its queries
  //   begin: k_position + k_count == q_position.
  // Examples: sequences padded to one length; chunk c of every sequence against all keys before it.
  std::vector<StridedBlocks> blocks;
  // The used rows of the segment table, 6 numbers each, if the host knows them when it makes the call; otherwise null.
  // They must equal the rows that the device reads later from `segments`. The vector is read during the call only. The
  // GPU backend then sizes its cuDNN calls for these segments instead of the complete table.
  const std::vector<std::int32_t>* host_segments = nullptr;
  bool causal = true;
  // Sliding window: a query at position p does not see keys at positions <= p - window. With `causal` it sees at most
  // `window` keys, its own included. 0: no window.
  std::int64_t window = 0;
  // Optional guarantee by the caller, for calls with a window, without a causal mask and without `blocks`. cuDNN has
  // one mask for all segments of a call; with this guarantee it takes each half of the table in a call of its own:
  // - rows [0, N / 2): q_position - k_position == window - 1. The first query sees every key, each later one a key
  //   less.
  // - rows [N / 2, N): every query sees every key.
  // N is even. Both halves may have empty segments (q_count 0). A segment has fewer keys and queries than `window`.
  bool window_halves = false;
  double scale = 1.0;
  double softcap = 0;  // positive; 0: scores are not capped
  // float32 [Hq]: a bias for the distance of query and key, of each query head. Empty: none. They are read when the
  // kernel runs.
  TensorView slopes;
  AttentionDropout dropout;  // of the probabilities
  TensorView o;
  TensorView lse;
  // Forward only. false: every row of o and lse is written. true: the result is merged into o and lse as by
  // attention_combine; rows that are in no segment or see no key do not change. So o may be a float32 accumulator of
  // several calls, which begins with o = 0 and lse = -inf. The GPU rounds the result of the call to q's dtype before it
  // merges it, so that cuDNN computes it whatever o's dtype is; the CPU merges it unrounded.
  bool accumulate = false;
  // u8 [attention_workspace(...)]; aligned to 64 bytes, on the GPU to 256. Backward: a smaller one may do, see
  // attention_workspace_within.
  TensorView workspace;
  double flops = 0.0;
};

void attention_forward(Stream& stream, const AttentionCall& call);

struct AttentionBackward {
  AttentionCall call;
  TensorView d_o;
  TensorView dq, dk, dv;
  bool accumulate_q = false, accumulate_kv = false;
  // True: the gradients are bitwise equal in every run. Those of the CPU and of our own kernels always are. With
  // cuDNN:
  // - with `blocks`, the workspace also holds a matrix of q_rows x k_rows for each block and query head of a cuDNN
  //   call. If one key-value head needs more than kDeterministicBytes, the tiled kernel replaces cuDNN.
  // - without `blocks`, the tiled kernel replaces cuDNN.
  bool deterministic = false;
};

void attention_backward(Stream& stream, const AttentionBackward& args);

// Merges o_b and lse_b into o_a and lse_a, in place. o_a, o_b [Tq, Hq, D], each float32 or bf16; lse_a, lse_b [Hq, Tq]
// float32. Rows of all of them may be padded.
struct AttentionCombine {
  TensorView o_a, lse_a;
  TensorView o_b, lse_b;
};

void attention_combine(Stream& stream, const AttentionCombine& args);

// Maximum workspace, in bytes, of a deterministic cuDNN call over one key-value head. It is the sum of two parts:
// - 2048 MiB for the matrices. They take count * (Hq / Hkv) * q_rows * k_rows * 2 bytes, with rows rounded up to
//   multiples of 128. One sequence of 16,384 rows with 4 query heads per key-value head takes exactly 2048 MiB.
// - 256 MiB for cuDNN's other buffers. The largest are one dk and one dv for each query head: in this example, with
//   D = 128, 32 MiB for all four heads together.
constexpr std::int64_t kDeterministicBytes = std::int64_t{2304} << 20;

// Sizes of a call, for the workspace on the CPU and for FLOPs.
struct AttentionSizes {
  std::int64_t query_rows = 0, key_rows = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t segments = 1;  // N, the rows of the table
  DType dtype = DType::f32;   // backward: of dq (bf16 dq is summed as float32 in the workspace); forward: unused
  int threads = 1;            // maximum number of threads; a call uses as many as its workspace has scratch memory for
};

// Bytes of the workspace on the CPU. attention_workspace calls these; they suit callers without tensors.
std::int64_t cpu_attention_forward_workspace(const AttentionSizes& sizes);
std::int64_t cpu_attention_backward_workspace(const AttentionSizes& sizes);

// Bytes of the workspace of a call on a kind of device (Stream::target()). Only the shapes, strides, dtypes and
// alignment of the views are used; args.workspace may be empty. `threads`: those of the stream (CpuOptions::threads);
// unused on the GPU. The size for the GPU is an estimate that is never below what cuDNN is known to request; a call
// throws if cuDNN requests more.
std::int64_t attention_workspace(const AttentionCall& call, DeviceKind device, int threads = 1);
std::int64_t attention_workspace(const AttentionBackward& args, DeviceKind device, int threads = 1);
// Bytes of the workspace that a backward call on the GPU uses if `bytes` are reserved. The call processes as many
// key-value heads at once as fit, at least one; if not even one fits, the result exceeds `bytes`. Use this function if
// one reservation serves calls with different blocks. (attention_workspace sizes each call alone. It chooses the
// largest number of heads at once for which cuDNN's own buffers stay below a fixed limit. The rest of the workspace has
// no limit and grows with the number of heads. With smaller blocks, cuDNN's buffers take less per head, so the call
// processes more heads at once. The rest of its workspace then grows, and the total may exceed that of a call with
// larger blocks.) On the CPU the result is the size for one thread, whatever `bytes` is, and the call then runs on one
// thread: use attention_workspace there.
std::int64_t attention_workspace_within(const AttentionBackward& args, DeviceKind device, std::int64_t bytes);

// The kernel of a call on a kind of device, and why no faster one is used; for logs and plans. It depends on the
// arguments (with shapes, strides, dtypes and alignment of the views), not on the contents of tensors. Whether
// cuDNN has a plan for a call is known only when the call first runs; if it has none, a kernel of our own runs instead.
struct AttentionImplementation {
  enum Kernel {
    cpu,           // tiles on the CPU
    cudnn_dense,   // cuDNN over `blocks`, a batch of equal blocks per cuDNN call
    cudnn_ragged,  // cuDNN over segments of any length, given by offsets and lengths
    cudnn_shared,  // backward: as cudnn_ragged, but segments may share keys: separate key gradients for each segment
    tiled,         // what cuDNN does not support, in bf16, on tensor cores
    plain,         // all else: one warp per row
  };
  static bool own(Kernel kernel) { return kernel == tiled || kernel == plain; }
  Kernel kernel = cpu;
  std::string reason;  // empty: no faster kernel exists
  const char* name() const;
};
AttentionImplementation attention_implementation(const AttentionCall& call, DeviceKind device);
AttentionImplementation attention_implementation(const AttentionBackward& args, DeviceKind device);

// The calls on the stream's device for which cuDNN had no plan, so that they ran in the plain kernel: a line for each
// plan, with cuDNN's reason. Lines may repeat. Empty on the CPU. Thread-safe.
std::vector<std::string> rejected_attention(Stream& stream);

// FLOPs of a forward call: 4 * head_dim * query_heads per visible query-key pair. Backward takes 2.5 times as many.
double attention_flops(const AttentionSizes& sizes, double visible_pairs);
// Visible query-key pairs of one segment of q_count x k_count rows, with offset = q_position - k_position.
double visible_pairs(std::int64_t q_count, std::int64_t k_count, std::int64_t offset, bool causal, std::int64_t window);

HAWSER_BACKENDS_OF(attention_forward, AttentionCall);
HAWSER_BACKENDS_OF(attention_backward, AttentionBackward);
HAWSER_BACKENDS_OF(attention_combine, AttentionCombine);

}  // namespace hawser::ops
