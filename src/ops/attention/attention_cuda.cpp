#include "ops/attention/attention_cuda.h"

#include "ops/attention/attention_graph_cuda.h"
#include "ops/attention/attention_kernels_cuda.h"

namespace hawser::ops::cuda {

namespace {

using Kernel = AttentionImplementation::Kernel;

class Workspace {
 public:
  explicit Workspace(const TensorView& view) : base_(view.raw()) {
    HAWSER_CHECK(reinterpret_cast<std::uintptr_t>(base_) % 256 == 0, "attention: the workspace is not aligned to 256");
  }
  template <class T = std::byte>
  T* at(std::int64_t offset) const {
    return offset < 0 ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }
  TablePointers tables(const SegmentTables& t) const {
    return {at<std::int32_t>(t.query_segment), at<std::int32_t>(t.key_covered), at<std::int32_t>(t.query_length),
            at<std::int32_t>(t.key_length), at<std::int64_t>(t.offsets)};
  }

 private:
  std::byte* base_;
};

// Heads [begin, ...) of [T, heads, D].
std::byte* head(const TensorView& view, std::int64_t begin) {
  return view.raw() + begin * view.size(2) * size_of(view.dtype());
}

// Tables for the entries from `segment` on.
void point_at(AttentionBuffers& b, const TablePointers& tables, std::int64_t segments, std::int64_t segment) {
  const auto offset = [&](OffsetTable t) { return tables.offsets + t * (segments + 1) + segment; };
  b.query_length = tables.query_length + segment;
  b.key_length = tables.key_length + segment;
  b.q_offset = offset(kOffsetQ);
  b.k_offset = offset(kOffsetK);
  b.v_offset = offset(kOffsetV);
  b.o_offset = offset(kOffsetO);
  b.stats_offset = offset(kOffsetStats);
  b.d_o_offset = offset(kOffsetDo);
  b.dq_offset = offset(kOffsetDq);
  b.dkv_offset = offset(kOffsetDkv);
}

template <class Args>
AttentionGraph graph_of(const Args& args, const AttentionDims& n, bool dense) {
  return {.ragged = !dense,
          .causal = args.causal,
          .window = args.window,
          .scale = static_cast<float>(args.scale),
          .batch = dense ? n.tq / args.uniform : n.segments,
          .query_rows = dense ? args.uniform : n.tq,
          .key_rows = dense ? args.uniform : n.tk,
          .query_heads = n.hq,
          .kv_heads = n.hkv,
          .head_dim = n.d,
          .q_row = args.q.stride(0),
          .k_row = args.k.stride(0),
          .v_row = args.v.stride(0),
          .o_row = args.o.stride(0)};
}

// dq, dk or dv of one kind of head, and what cuDNN writes instead where it cannot write it.
struct Gradient {
  const TensorView& view;
  void* partial;
  bool accumulate;

  void* target(std::int64_t begin) const { return partial != nullptr ? partial : head(view, begin); }
  std::int64_t row(std::int64_t heads) const { return partial != nullptr ? heads * view.size(2) : view.stride(0); }
  TensorView part(std::int64_t begin, std::int64_t heads) const { return view.slice(1, begin, heads); }
};

void backward_through_cudnn(const CudaNative& native, const AttentionBackward& args, Kernel kernel) {
  const AttentionDims n = dims_of(args);
  const BackwardMemory memory = backward_memory(args, kernel);
  const Workspace workspace(args.workspace);
  const TablePointers tables = workspace.tables(memory.tables);
  const bool dense = kernel == Kernel::cudnn_dense, each = kernel == Kernel::cudnn_each;
  const std::int64_t kv = memory.kv_heads, heads = kv * n.group();
  const Gradient dq{args.dq, workspace.at(memory.dq), args.accumulate_q};
  const Gradient dk{args.dk, workspace.at(memory.dk), args.accumulate_kv};
  const Gradient dv{args.dv, workspace.at(memory.dv), args.accumulate_kv};

  AttentionGraph graph = graph_of(args, n, dense);
  graph.backward = true;
  graph.deterministic = args.deterministic;
  graph.batch = each ? 1 : graph.batch;
  graph.query_heads = heads;
  graph.kv_heads = kv;
  void* const packed_q = workspace.at(memory.q);
  if (packed_q != nullptr) graph.q_row = heads * n.d;
  graph.d_o_row = args.d_o.stride(0);
  graph.dq_row = dq.row(heads);
  graph.dk_row = dk.row(kv);
  graph.dv_row = dv.row(kv);
  const std::int64_t rows[kOffsetTables] = {graph.q_row, graph.k_row,   graph.v_row,  graph.o_row,
                                            heads,       graph.d_o_row, graph.dq_row, graph.dk_row};
  make_tables(native, args.segments, args.segment_count, n.tq, n.tk, tables, rows);
  float* const stats = workspace.at<float>(memory.stats);
  lse_to_stats(native, args.lse, {.heads = heads, .group = memory.stats_group, .entry = dense ? args.uniform : 0},
               tables.query_segment, stats);
  if (each) {
    for (const Gradient* g : {&dq, &dk, &dv}) {
      if (!g->accumulate) clear(native, g->view);
    }
  }
  for (std::int64_t begin = 0; begin < n.hkv; begin += kv) {
    const std::int64_t first = begin * n.group();
    if (packed_q != nullptr) pack_rows(native, args.q.slice(1, first, heads), packed_q);
    AttentionBuffers b{.q = packed_q != nullptr ? packed_q : head(args.q, first),
                       .k = head(args.k, begin),
                       .v = head(args.v, begin),
                       .d_o = head(args.d_o, first),
                       .o = head(args.o, first),
                       .stats = stats + begin / kv * memory.stats_group,
                       .dq = dq.target(first),
                       .dk = dk.target(begin),
                       .dv = dv.target(begin),
                       .workspace = workspace.at(memory.cudnn)};
    for (std::int64_t s = 0; s < (each ? n.segments : 1); ++s) {
      if (!dense) point_at(b, tables, n.segments, s);
      run_attention(native, graph, b, memory.cudnn_bytes);
      if (!each) continue;
      add_partial_of(native, dq.partial, args.segments, args.segment_count, s, false, dq.part(first, heads));
      add_partial_of(native, dk.partial, args.segments, args.segment_count, s, true, dk.part(begin, kv));
      add_partial_of(native, dv.partial, args.segments, args.segment_count, s, true, dv.part(begin, kv));
    }
    if (each) continue;
    const auto finish = [&](const Gradient& g, const TensorView& part, const std::int32_t* covered,
                            std::int32_t least) {
      if (g.partial != nullptr) add_partial(native, g.partial, covered, least, g.accumulate, part);
    };
    finish(dq, dq.part(first, heads), tables.query_segment, 0);
    finish(dk, dk.part(begin, kv), tables.key_covered, 1);
    finish(dv, dv.part(begin, kv), tables.key_covered, 1);
  }
}

}  // namespace

void attention_forward(const CudaNative& native, const AttentionForward& args) {
  const AttentionDims n = dims_of(args);
  const Kernel kernel = attention_implementation(args, DeviceKind::cuda).kernel;
  const ForwardMemory memory = forward_memory(args, kernel);
  if (n.tq == 0) return;
  const Workspace workspace(args.workspace);
  const TablePointers tables = workspace.tables(memory.tables);
  const bool dense = kernel == Kernel::cudnn_dense;
  const std::int64_t rows[kOffsetTables] = {args.q.stride(0), args.k.stride(0), args.v.stride(0), args.o.stride(0),
                                            n.hq};
  make_tables(native, args.segments, args.segment_count, n.tq, n.tk, tables, rows);
  if (kernel == Kernel::plain) return plain_forward(native, args, tables.query_segment);

  float* const stats = memory.stats >= 0 ? workspace.at<float>(memory.stats) : args.lse.data<float>();
  AttentionBuffers b{.q = args.q.raw(),
                     .k = args.k.raw(),
                     .v = args.v.raw(),
                     .o = args.o.raw(),
                     .stats = stats,
                     .workspace = workspace.at(memory.cudnn)};
  if (!dense) point_at(b, tables, n.segments, 0);
  run_attention(native, graph_of(args, n, dense), b, memory.cudnn_bytes);
  stats_to_lse(native, stats, {.heads = n.hq, .entry = dense ? args.uniform : 0}, tables.query_segment, args.lse);
  clear_rows(native, args.o, tables.query_segment, 0);
}

void attention_backward(const CudaNative& native, const AttentionBackward& args) {
  const AttentionDims n = dims_of(args);
  const Kernel kernel = attention_implementation(args, DeviceKind::cuda).kernel;
  if (kernel != Kernel::plain) return backward_through_cudnn(native, args, kernel);
  const BackwardMemory memory = backward_memory(args, kernel);
  const Workspace workspace(args.workspace);
  const TablePointers tables = workspace.tables(memory.tables);
  const std::int64_t rows[kOffsetTables] = {};
  make_tables(native, args.segments, args.segment_count, n.tq, n.tk, tables, rows);
  plain_backward(native, args, tables.query_segment, workspace.at<float>(memory.delta));
}

}  // namespace hawser::ops::cuda
