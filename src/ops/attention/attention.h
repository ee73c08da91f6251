// `attention_forward`, `attention_backward`, `attention_combine`: scaled dot-product attention over segments, with
// O(length) memory.
//
// A call is a list of segments. Segment s lets query rows [q_begin, q_begin + q_count) attend to key rows
// [k_begin, k_begin + k_count). Query row q_begin + i has position p = q_position + i, key row k_begin + j has position
// r = k_position + j. The key is visible if (not causal or r <= p) and (window == 0 or r > p - window).
//
// forward, with g = h / (Hq / Hkv) for grouped heads:
//   s[i,j]   = scale * sum over d of q[i,h,d] * k[j,g,d]
//   lse[h,i] = log sum over visible j of exp(s[i,j])
//   o[i,h,:] = sum over visible j of exp(s[i,j] - lse[h,i]) * v[j,g,:]
// A query row that no segment covers, or that sees no key, gets o = 0 and lse = -inf. At most one segment of a call
// covers a query row (otherwise the work throws on the CPU); any number of segments may share key rows.
//
// Examples: one causal sequence is the single segment {0, T, 0, T, 0, 0}; packed documents are one segment each. A
// chunk of a sequence with keys before it needs two calls: the diagonal block (causal) and the off-diagonal block (the
// keys before it, not causal). attention_combine merges their results:
//   lse = log(exp(lse_a) + exp(lse_b))
//   o   = exp(lse_a - lse) * o_a + exp(lse_b - lse) * o_b          (-inf counts as zero)
//
// backward, with the combined `lse` and `o`, so that the gradients of the parts add up exactly:
//   p[i,j]   = exp(s[i,j] - lse[i])
//   delta[i] = sum over d of d_o[i,:] * o[i,:]
//   ds       = p * (d_o v^T - delta)
//   dq       = scale * ds k
//   dk       = scale * ds^T q          (summed over the query heads of the group)
//   dv       = p^T d_o                 (likewise)
// accumulate_q, accumulate_kv: add to dq, or to dk and dv. Otherwise every row is written, zero if nothing covers it.
//
// q, o, d_o, dq [Tq, Hq, D]; k, v, dk, dv [Tk, Hkv, D]; rows may be padded. q, k, v, d_o act, one dtype; o, dq, dk, dv
// each float32 or bf16. lse [Hq, Tq] float32, natural logarithm. Hq % Hkv == 0; D <= 256.
// segments [N, 6] int32 {q_begin, q_count, k_begin, k_count, q_position, k_position}; segment_count [1] int32, at most
// N. Both are on the device and are read when the kernel runs. `flops`: the FLOPs to record for the call; the caller
// sets it, since the work depends on the segments.
// Scores are float32. Tiles without a visible pair are skipped.
//
// GPU: bf16 calls use cuDNN if one of its forms supports them; all others use a plain kernel, which is correct and
// slow. attention_implementation() returns which one, and why.
// - cuDNN multiplies probabilities rounded to bf16 and returns bf16 gradients; with grouped heads it computes dk and dv
//   of each query head and then adds them.
// - If dq, dk or dv is float32, accumulated, or the sum over several batches or over segments that share keys, the bf16
//   result of each cuDNN call is added in float32 and the sum is rounded once per batch or cuDNN call.
// - cuDNN's backward accumulates dq in an order that differs between runs, unless `deterministic` is set. Everything
//   else repeats bit for bit.
// - A segment outside the tensors, or a count above N, writes nothing and throws at the stream's next check() or
//   synchronize().
// - SegmentForm and batches are not checked.
// - Unused rows of the segment table cost time: in backward up to 5 % for 64 of them and 11 % for 256 (16K rows, H200),
//   unless host_segments excludes them.
// Source: Dao, "FlashAttention-2", 2023 (online softmax, recompute); combination as in ring attention (Liu et al.,
// 2023).
#pragma once

#include <vector>

#include "ops/common.h"

namespace hawser::ops {

constexpr std::int64_t kSegmentFields = 6;

// A guarantee by the caller about all segments of a call. The CPU backend throws if it does not hold; the CUDA backend
// relies on it to choose a faster kernel.
enum class SegmentForm {
  any,
  apart,     // no key row is in two segments
  diagonal,  // apart, and q_count == k_count and q_position == k_position
};

// Blocks of one size at equal distances. Entry e, 0 <= e < entries, is query rows [q_begin + e * q_step, + q_rows) and
// key rows [k_begin + e * k_step, + k_rows).
struct SegmentBatch {
  std::int64_t entries = 0;
  std::int64_t q_begin = 0, q_rows = 0, q_step = 0;
  std::int64_t k_begin = 0, k_rows = 0, k_step = 0;

  bool operator==(const SegmentBatch&) const = default;
};
// The diagonal blocks of rows / length sequences of one padded length.
SegmentBatch equal_diagonal_blocks(std::int64_t rows, std::int64_t length);

struct AttentionForward {
  TensorView q, k, v;
  TensorView segments, segment_count;
  SegmentForm form = SegmentForm::any;
  // Optional guarantee: every segment is inside an entry of these batches and starts where the entry starts; each entry
  // has at most one segment; its rows that no segment covers hold finite numbers; no two entries share a query row.
  // Causal: entries are diagonal blocks, form is diagonal, and a segment has at most the entry's rows. Not causal: a
  // segment has at most the entry's query rows, and all of its key rows. Typical: sequences of one padded length, and
  // the keys before a chunk at the same position of each sequence.
  std::vector<SegmentBatch> batches;
  // The used rows of the segment table, if the host knows them at the call; otherwise null. Read during the call. The
  // GPU then plans for these segments only. They must equal what the device reads.
  const std::vector<std::int32_t>* host_segments = nullptr;
  bool causal = true;
  std::int64_t window = 0;  // maximum number of keys each query sees, including itself; 0: all
  double scale = 1.0;
  TensorView o;
  TensorView lse;
  TensorView workspace;  // u8 [attention_forward_workspace(...)]
  double flops = 0.0;
};

void attention_forward(Stream& stream, const AttentionForward& args);

struct AttentionBackward {
  TensorView q, k, v, o, d_o, lse;
  TensorView segments, segment_count;
  SegmentForm form = SegmentForm::any;
  std::vector<SegmentBatch> batches;
  const std::vector<std::int32_t>* host_segments = nullptr;
  bool causal = true;
  std::int64_t window = 0;
  double scale = 1.0;
  TensorView dq, dk, dv;
  bool accumulate_q = false, accumulate_kv = false;
  // The result is the same bit for bit in every run. On the GPU, cuDNN then stores a matrix of length x length per head
  // in the workspace. Throws UserError if it exceeds kDeterministicBytes for one key-value head. Packed documents use
  // the plain kernel, and throw UserError above kDeterministicRows rows. The CPU is always deterministic.
  bool deterministic = false;
  TensorView workspace;  // u8 [attention_backward_workspace(...)]
  double flops = 0.0;
};

void attention_backward(Stream& stream, const AttentionBackward& args);

// Merges part b into o_a and lse_a. o_a, o_b [Tq, Hq, D] float32 or bf16, rows may be padded; lse_a, lse_b [Hq, Tq]
// float32.
struct AttentionCombine {
  TensorView o_a, lse_a;
  TensorView o_b, lse_b;
};

void attention_combine(Stream& stream, const AttentionCombine& args);

constexpr std::int64_t kDeterministicBytes = std::int64_t{2304} << 20;  // 16K rows, 4 query heads per key-value head
constexpr std::int64_t kDeterministicRows = 8192;

// Determines the workspace of the CPU backend: sizes, never data.
struct AttentionSizes {
  std::int64_t query_rows = 0, key_rows = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t segments = 1;  // N, the rows of the table
  DType dtype = DType::f32;   // backward: of dq (bf16 dq is summed as float32 in the workspace); forward: unused
  int threads = 1;            // of the stream that runs it (CpuOptions::threads); a call uses as many as fit
};

std::int64_t attention_forward_workspace(const AttentionSizes& sizes);
std::int64_t attention_backward_workspace(const AttentionSizes& sizes);

// Workspace of a call on a kind of device (Stream::target()). Only the shapes, strides and dtypes of the views are
// used; the workspace may be empty. Upper bounds that need no GPU: cuDNN's actual request is checked against them when
// the call first runs. threads: CPU only, see above.
std::int64_t attention_workspace(const AttentionForward& args, DeviceKind device, int threads = 1);
std::int64_t attention_workspace(const AttentionBackward& args, DeviceKind device, int threads = 1);
// Workspace that a call uses if `bytes` are available: it processes fewer heads at a time if needed to stay within
// them. A call with smaller entries than those its workspace was sized for may otherwise need more, since it would
// process more heads at a time.
std::int64_t attention_workspace_within(const AttentionBackward& args, DeviceKind device, std::int64_t bytes);

// The kernel of a call on a device, and why no faster one is used; for logs and plans. Depends on shapes, strides,
// dtypes, form and batches alone.
struct AttentionImplementation {
  enum Kernel {
    cpu,           // tiles on the CPU
    cudnn_dense,   // cuDNN over batches of equal blocks
    cudnn_ragged,  // cuDNN over segments, in one call
    cudnn_shared,  // backward: cuDNN over segments that may share keys, with separate key gradients for each
    plain,         // fallback: one warp per row
  };
  Kernel kernel = cpu;
  std::string reason;  // empty: no faster kernel exists
  const char* name() const;
};
AttentionImplementation attention_implementation(const AttentionForward& args, DeviceKind device);
AttentionImplementation attention_implementation(const AttentionBackward& args, DeviceKind device);

// FLOPs of a forward call: 4 D Hq per visible (query, key) pair. Backward takes 2.5 times as many.
double attention_flops(const AttentionSizes& sizes, double visible_pairs);
// Visible pairs of one segment of q_count x k_count rows with offset = q_position - k_position.
double visible_pairs(std::int64_t q_count, std::int64_t k_count, std::int64_t offset, bool causal, std::int64_t window);

}  // namespace hawser::ops
