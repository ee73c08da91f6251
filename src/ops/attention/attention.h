// Scaled dot-product attention in parts, O(length) memory.
//
// A call is a list of segments. Segment s lets query rows [q_begin, q_begin + q_count) attend to key rows
// [k_begin, k_begin + k_count). Query row q_begin + i stands at position p = q_position + i, key row k_begin + j at
// position r = k_position + j; the key is visible iff  (not causal or r <= p)  and  (window == 0 or r > p - window).
//
//   s[i,j] = scale * sum over d of q[i,h,d] * k[j,g,d]           g = h / (Hq / Hkv): grouped heads
//   lse[h,i] = log sum over visible j of exp(s[i,j]);  o[i,h,:] = sum over visible j of exp(s[i,j] - lse[h,i]) *
//   v[j,g,:]
// A query row that no segment covers, or that sees no key, gets o = 0 and lse = -inf. A query row is covered by at most
// one segment of a call (else the work throws); key rows may be shared by any number of segments. One causal sequence
// is the one segment {0, T, 0, T, 0, 0}; packed documents are one each; a chunk of a sequence that sits behind other
// keys is two calls, a diagonal block (causal) and an off-diagonal block (the keys before it, not causal), put together by
// attention_combine:
//
//   lse = log(exp(lse_a) + exp(lse_b));  o = exp(lse_a - lse) * o_a + exp(lse_b - lse) * o_b      (-inf counts as zero)
//
// backward, with `lse` and `o` of the whole (after combine), so that the gradients of parts add up exactly:
//   p[i,j] = exp(s[i,j] - lse[i]);  delta[i] = sum over d of d_o[i,:] * o[i,:]
//   ds = p * (d_o v^T - delta);  dq = scale * ds k;  dk = scale * ds^T q;  dv = p^T d_o      (dk, dv summed over the
//   group) accumulate_q / accumulate_kv: add to dq / to dk and dv; else these are written whole, zero where nothing is
//   covered.
//
//   q, o, d_o, dq [Tq, Hq, D]; k, v, dk, dv [Tk, Hkv, D]; rows may be padded. q, k, v, d_o act, one dtype; o, dq, dk,
//   dv float32 or bf16 each by itself. lse [Hq, Tq] float32, natural log. Hq % Hkv == 0; D <= 256. segments [N, 6]
//   int32 {q_begin, q_count, k_begin, k_count, q_position, k_position}; segment_count [1] int32, read when the work
//   runs, at most N. Both lie on the device. No view that is written shares a byte with another view. `flops` is what
//   the caller records for the call (the work depends on the segments, which the host does not see).
// Scores are float32; tiles that no visible pair touches are skipped.
//
// On the GPU bf16 goes through cuDNN where one of its forms computes the call, everything else through a plain kernel
// that is right and slow: attention_implementation() says which, and why. cuDNN multiplies probabilities rounded to
// bf16 and gives gradients in bf16, with grouped heads dk and dv of each query head, which are then added up; where dq,
// dk or dv are float32, added to, or made of several batches or of segments that share keys, that bf16 share (of the
// call, of a batch, of a segment) is added in float32 and the sum rounded once a batch or call of cuDNN. Its backward
// adds up dq in an order that differs from run to run, unless `deterministic` is set; all else repeats to the bit. A
// segment that leaves the tensors, or a count above N, is thrown when the stream is next waited for, and touches
// nothing; promises are not checked there. Rows of a table that are not used cost time there, in backward up to 5 % for
// 64 of them and 11 % for 256 (16K rows, H200), unless host_segments says that they are not.
// Source: Dao, "FlashAttention-2", 2023 (online softmax, recomputation); the combination as in ring attention (Liu et
// al., 2023).
#pragma once

#include <vector>

#include "ops/common.h"

namespace hawser::ops {

constexpr std::int64_t kSegmentFields = 6;

// What the caller knows of all segments of a call before they are seen. A promise: the CPU backend throws where it is
// broken, the CUDA backend takes a faster kernel at its word.
enum class SegmentForm {
  any,
  apart,     // no key row lies in two segments
  diagonal,  // and q_count == k_count, q_position == k_position
};

// Places of one size at equal distances: place e, 0 <= e < entries, is query rows [q_begin + e * q_step, + q_rows) and
// key rows [k_begin + e * k_step, + k_rows).
struct SegmentBatch {
  std::int64_t entries = 0;
  std::int64_t q_begin = 0, q_rows = 0, q_step = 0;
  std::int64_t k_begin = 0, k_rows = 0, k_step = 0;

  bool operator==(const SegmentBatch&) const = default;
};
// Sequences of one padded length, each against itself: rows / length places.
SegmentBatch equal_diagonal_blocks(std::int64_t rows, std::int64_t length);

struct AttentionForward {
  TensorView q, k, v;
  TensorView segments, segment_count;
  SegmentForm form = SegmentForm::any;
  // Not empty: every segment lies in a place of these, no two in one, and begins where it begins; rows of places that
  // no segment covers hold finite numbers. Causal: places are diagonal blocks, and with them the form; a segment has at most
  // their rows. Not causal: a segment has at most the place's query rows, and all of its key rows. Places share no
  // query row. So sequences of one padded length, and the keys before a chunk at the same place of each.
  std::vector<SegmentBatch> batches;
  // The rows of the table that count, where the host knows them when it calls; else null. Read during the call: the GPU
  // then gets no more places than there is work for. They must be those that the device finds.
  const std::vector<std::int32_t>* host_segments = nullptr;
  bool causal = true;
  std::int64_t window = 0;  // keys each query sees at most, itself included; 0: all
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
  // The same bits in every run. On the GPU cuDNN then keeps a matrix of length x length for each head in the workspace:
  // lengths where one key-value head's exceeds kDeterministicBytes are rejected (UserError), as are packed documents of
  // more than kDeterministicRows rows, which take the plain kernel below that. The CPU always repeats.
  bool deterministic = false;
  TensorView workspace;  // u8 [attention_backward_workspace(...)]
  double flops = 0.0;
};

void attention_backward(Stream& stream, const AttentionBackward& args);

// o_a and lse_a become the whole. o_a, o_b [Tq, Hq, D] float32 or bf16, rows may be padded; lse_a, lse_b [Hq, Tq]
// float32.
struct AttentionCombine {
  TensorView o_a, lse_a;
  TensorView o_b, lse_b;
};

void attention_combine(Stream& stream, const AttentionCombine& args);

constexpr std::int64_t kDeterministicBytes = std::int64_t{2304} << 20;  // 16K rows, 4 query heads a key-value head
constexpr std::int64_t kDeterministicRows = 8192;

// What the workspace of the CPU backend depends on: bounds, never data.
struct AttentionSizes {
  std::int64_t query_rows = 0, key_rows = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t segments = 1;  // N, the rows of the table
  DType dtype = DType::f32;   // backward: of dq (a bf16 dq is summed in float32 in the workspace); forward: unused
  int threads = 1;            // of the stream that will run it (CpuOptions::threads); a call uses as many as fit
};

std::int64_t attention_forward_workspace(const AttentionSizes& sizes);
std::int64_t attention_backward_workspace(const AttentionSizes& sizes);

// The same for a call on a kind of device (Stream::target()); the views give shapes, strides and dtypes, and the
// workspace may be missing. Upper bounds, known without a GPU: cuDNN's share is checked against what cuDNN asks for
// when the work first runs. threads: CPU, see above.
std::int64_t attention_workspace(const AttentionForward& args, DeviceKind device, int threads = 1);
std::int64_t attention_workspace(const AttentionBackward& args, DeviceKind device, int threads = 1);
// What a call asks for that finds `bytes` of workspace: no more than that where fewer heads at a time do. A call's
// places may be smaller than those that its workspace was made for, and yet want more of it: then more heads at a time
// pay.
std::int64_t attention_workspace_within(const AttentionBackward& args, DeviceKind device, std::int64_t bytes);

// Which kernel a call takes on a device, and why it is not a faster one; for logs and plans. Depends on shapes,
// strides, dtypes and promises alone.
struct AttentionImplementation {
  enum Kernel {
    cpu,           // tiles on the CPU
    cudnn_dense,   // cuDNN over batches of equal places
    cudnn_ragged,  // cuDNN over segments, all in one call
    cudnn_shared,  // backward: cuDNN over segments whose keys may overlap, each with key gradients of its own
    plain,         // a warp for each row
  };
  Kernel kernel = cpu;
  std::string reason;  // empty: nothing faster is known
  const char* name() const;
};
AttentionImplementation attention_implementation(const AttentionForward& args, DeviceKind device);
AttentionImplementation attention_implementation(const AttentionBackward& args, DeviceKind device);

// Pairs of (query, key) that the segments make visible, times 4 D Hq: FLOPs of a forward call; backward is 2.5 times
// that.
double attention_flops(const AttentionSizes& sizes, double visible_pairs);
// Visible pairs of one segment of q_count x k_count rows with offset = q_position - k_position.
double visible_pairs(std::int64_t q_count, std::int64_t k_count, std::int64_t offset, bool causal, std::int64_t window);

}  // namespace hawser::ops
