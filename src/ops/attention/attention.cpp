#include "ops/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/attention/attention_cpu.h"
#ifdef HAWSER_CUDA
#include "ops/attention/attention_graph_cuda.h"
#endif
#include "ops/attention/attention_memory.h"

namespace hawser::ops {

namespace {

// Checks that forward and backward share.
void check(const char* op, const AttentionCall& args) {
  HAWSER_CHECK(args.q.rank() == 3 && args.k.rank() == 3, op, ": q ", args.q.shape().text(), " and k ",
               args.k.shape().text(), " are not [T, heads, D]");
  HAWSER_CHECK(args.segments.rank() == 2, op, ": segments is not [N, ", kSegmentFields, "]");
  const AttentionDims n = dims_of(args);
  HAWSER_CHECK(n.hkv > 0 && n.hq % n.hkv == 0, op, ": ", n.hq, " query heads over ", n.hkv, " key-value heads");
  HAWSER_CHECK(n.d >= 1 && n.d <= kAttentionMaxHeadDim, op, ": head dim ", n.d, " is not in 1 to ",
               kAttentionMaxHeadDim);
  HAWSER_CHECK(args.window >= 0, op, ": window ", args.window);
  HAWSER_CHECK(args.softcap >= 0 && std::isfinite(args.softcap), op, ": softcap ", args.softcap);
  if (!args.slopes.empty()) expect(op, "slopes", args.slopes, {DType::f32}, {n.hq});
  HAWSER_CHECK(args.dropout.probability >= 0 && args.dropout.probability < 1, op, ": dropout probability ",
               args.dropout.probability, " is not in [0, 1)");
  if (args.dropout.probability > 0) {
    HAWSER_CHECK(args.dropout.first_head >= 0, op, ": first head ", args.dropout.first_head, " of dropout");
    expect(op, "step of dropout", args.dropout.step, {DType::i32}, {1});
    expect(op, "query_ids", args.dropout.query_ids, {DType::i32}, {n.tq, 2});
    expect(op, "key_ids", args.dropout.key_ids, {DType::i32}, {n.tk, 2});
  }
  expect(op, "q", args.q, {DType::f32, DType::bf16}, args.q.shape(), Rows::padded);
  expect(op, "k", args.k, {args.q.dtype()}, {n.tk, n.hkv, n.d}, Rows::padded);
  expect(op, "v", args.v, {args.q.dtype()}, {n.tk, n.hkv, n.d}, Rows::padded);
  expect(op, "o", args.o, {DType::f32, DType::bf16}, args.q.shape(), Rows::padded);
  expect(op, "lse", args.lse, {DType::f32}, {n.hq, n.tq}, Rows::padded);
  expect(op, "segments", args.segments, {DType::i32}, {args.segments.size(0), kSegmentFields});
  expect(op, "segment_count", args.segment_count, {DType::i32}, {1});
  HAWSER_CHECK(
      !args.window_halves || (args.window > 0 && !args.causal && args.blocks.empty() && args.segments.size(0) % 2 == 0),
      op, ": window_halves needs a window, no causal mask, no blocks and an even table");
  for (const StridedBlocks& b : args.blocks) {
    const bool rows = b.count > 0 && b.q_begin >= 0 && b.q_rows > 0 && b.k_begin >= 0 && b.k_rows > 0;
    HAWSER_CHECK(rows && (b.count == 1 || (b.q_step >= b.q_rows && b.k_step >= b.k_rows)) &&
                     b.q_begin + (b.count - 1) * b.q_step + b.q_rows <= n.tq &&
                     b.k_begin + (b.count - 1) * b.k_step + b.k_rows <= n.tk,
                 op, ": ", b.count, " blocks of ", b.q_rows, " x ", b.k_rows, " rows do not fit ", n.tq, " query and ",
                 n.tk, " key rows");
    HAWSER_CHECK(!args.causal || (args.form == SegmentForm::diagonal && b.q_rows == b.k_rows), op,
                 ": blocks of causal segments must be diagonal blocks, not ", b.q_rows, " x ", b.k_rows);
  }
}

// step, query_ids and key_ids of dropout, if there is any.
std::array<TensorView, 3> ids_of(const AttentionCall& args) {
  const AttentionDropout& d = args.dropout;
  return d.probability > 0 ? std::array{d.step, d.query_ids, d.key_ids} : std::array<TensorView, 3>();
}

// Written views must not overlap each other or any view that is read.
void expect_all_apart(const char* op, std::initializer_list<TensorView> written,
                      std::initializer_list<TensorView> read) {
  for (auto a = written.begin(); a != written.end(); ++a) {
    for (auto b = written.begin(); b != a; ++b) expect_apart(op, *a, *b);
    for (const TensorView& b : read) expect_apart(op, *a, b);
  }
}

struct Planned {
  OpKind kind;
  std::string text;  // the kernel and its reason, as printed with a plan; empty unless planning for CUDA
};

Planned planned(const Stream& stream, const auto& args, OpKind usual, OpKind tiled, OpKind plain) {
  if (stream.kind() != DeviceKind::meta || stream.target() != DeviceKind::cuda) return {usual, ""};
  const AttentionImplementation how = attention_implementation(args, stream.target());
  return {how.kernel == AttentionImplementation::plain   ? plain
          : how.kernel == AttentionImplementation::tiled ? tiled
                                                         : usual,
          how.reason.empty() ? how.name() : cat(how.name(), " (", how.reason, ")")};
}

}  // namespace

StridedBlocks equal_diagonal_blocks(std::int64_t rows, std::int64_t length) {
  HAWSER_CHECK(length > 0 && rows % length == 0, rows, " rows in sequences of ", length);
  return {.count = rows / length, .q_rows = length, .q_step = length, .k_rows = length, .k_step = length};
}

void attention_forward(Stream& stream, const AttentionCall& args) {
  constexpr auto kOp = "attention_forward";
  check(kOp, args);
  expect_workspace(kOp, args.workspace, attention_workspace(args, stream.target()));
  const auto [step, query_ids, key_ids] = ids_of(args);
  expect_all_apart(kOp, {args.o, args.lse, args.workspace},
                   {args.q, args.k, args.v, args.slopes, step, query_ids, key_ids, args.segments, args.segment_count});
  const TensorView none;
  Planned plan = planned(stream, args, OpKind::attention_forward, OpKind::attention_tiled_forward,
                         OpKind::attention_plain_forward);
  run(stream, {kOp, plan.kind},
      {args.q, args.k, args.v, args.slopes, step, query_ids, key_ids, args.segments, args.segment_count,
       args.accumulate ? args.o : none, args.accumulate ? args.lse : none},
      {args.o, args.lse, args.workspace}, args.flops, args, HAWSER_BACKENDS(attention_forward), std::move(plan.text));
}

void attention_backward(Stream& stream, const AttentionBackward& args) {
  const AttentionCall& call = args.call;
  constexpr auto kOp = "attention_backward";
  check(kOp, call);
  HAWSER_CHECK(!call.accumulate, kOp, ": accumulate is forward's");
  expect(kOp, "d_o", args.d_o, {call.q.dtype()}, call.q.shape(), Rows::padded);
  expect(kOp, "dq", args.dq, {DType::f32, DType::bf16}, call.q.shape(), Rows::padded);
  expect(kOp, "dk", args.dk, {DType::f32, DType::bf16}, call.k.shape(), Rows::padded);
  expect(kOp, "dv", args.dv, {DType::f32, DType::bf16}, call.k.shape(), Rows::padded);
  expect_workspace(kOp, call.workspace, attention_workspace_within(args, stream.target(), call.workspace.bytes()));
  const auto [step, query_ids, key_ids] = ids_of(call);
  expect_all_apart(kOp, {args.dq, args.dk, args.dv, call.workspace},
                   {call.q, call.k, call.v, call.o, args.d_o, call.lse, call.slopes, step, query_ids, key_ids,
                    call.segments, call.segment_count});
  const TensorView none;
  Planned plan = planned(stream, args, OpKind::attention_backward, OpKind::attention_tiled_backward,
                         OpKind::attention_plain_backward);
  run(stream, {kOp, plan.kind},
      {call.q, call.k, call.v, call.o, args.d_o, call.lse, call.slopes, step, query_ids, key_ids, call.segments,
       call.segment_count, args.accumulate_q ? args.dq : none, args.accumulate_kv ? args.dk : none,
       args.accumulate_kv ? args.dv : none},
      {args.dq, args.dk, args.dv, call.workspace}, call.flops, args, HAWSER_BACKENDS(attention_backward),
      std::move(plan.text));
}

void attention_combine(Stream& stream, const AttentionCombine& args) {
  constexpr auto kOp = "attention_combine";
  HAWSER_CHECK(args.o_a.rank() == 3, kOp, ": o_a is not [T, heads, D]");
  const Shape heads{args.o_a.size(1), args.o_a.size(0)};
  expect(kOp, "o_a", args.o_a, {DType::f32, DType::bf16}, args.o_a.shape(), Rows::padded);
  expect(kOp, "o_b", args.o_b, {DType::f32, DType::bf16}, args.o_a.shape(), Rows::padded);
  expect(kOp, "lse_a", args.lse_a, {DType::f32}, heads, Rows::padded);
  expect(kOp, "lse_b", args.lse_b, {DType::f32}, heads, Rows::padded);
  expect_all_apart(kOp, {args.o_a, args.lse_a}, {args.o_b, args.lse_b});
  run(stream, {kOp, OpKind::attention_combine}, {args.o_a, args.lse_a, args.o_b, args.lse_b}, {args.o_a, args.lse_a},
      3.0 * static_cast<double>(args.o_a.elements()), args, HAWSER_BACKENDS(attention_combine));
}

#ifdef HAWSER_CUDA

std::vector<std::string> rejected_attention(Stream& stream) {
  return stream.kind() == DeviceKind::cuda ? cuda::rejected_graphs(*stream.native()) : std::vector<std::string>();
}

#else

std::vector<std::string> rejected_attention(Stream&) {
  return {};
}

#endif

double attention_flops(const AttentionSizes& sizes, double pairs) {
  return 4.0 * static_cast<double>(sizes.head_dim * sizes.query_heads) * pairs;
}

namespace {

// Sum over i in [0, n) of clamp(a + i, 0, k).
double clamp_sum(std::int64_t a, std::int64_t n, std::int64_t k) {
  const std::int64_t rise = std::clamp<std::int64_t>(-a, 0, n);        // first i with a + i >= 0
  const std::int64_t full = std::clamp<std::int64_t>(k - a, rise, n);  // first i with a + i >= k
  const auto slope = static_cast<double>(full - rise);
  return slope * static_cast<double>(a) + slope * (static_cast<double>(rise) + static_cast<double>(full) - 1.0) / 2.0 +
         static_cast<double>(n - full) * static_cast<double>(k);
}

}  // namespace

double visible_pairs(std::int64_t q_count, std::int64_t k_count, std::int64_t offset, bool causal,
                     std::int64_t window) {
  const double end =
      causal ? clamp_sum(offset + 1, q_count, k_count) : static_cast<double>(q_count) * static_cast<double>(k_count);
  return end - (window > 0 ? clamp_sum(offset - window + 1, q_count, k_count) : 0.0);
}

}  // namespace hawser::ops
