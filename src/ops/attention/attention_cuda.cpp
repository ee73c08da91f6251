// cuDNN takes segments as lengths and offsets; a kernel computes these from the segment table. Separate kernels handle
// rows that no segment covers, log-sum-exps in our order, float32 gradients and sums. A segment outside the tensors, or
// a segment count above N, is reported through CudaFault: the stream throws it at its next check() or synchronize().
#include "ops/attention/attention.h"

#include <algorithm>

#include "ops/attention/attention_graph_cuda.h"
#include "ops/attention/attention_kernels_cuda.h"

namespace hawser::ops::cuda {

namespace {

using Kernel = AttentionImplementation::Kernel;

class Workspace {
 public:
  explicit Workspace(const TensorView& view) : base_(view.raw()) {
    HAWSER_CHECK(reinterpret_cast<std::uintptr_t>(base_) % 256 == 0,
                 "attention: workspace is not aligned to 256 bytes");
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

// Points the buffers at the tables of the segments from `segment` on.
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

// Fields common to all graphs of a call.
AttentionGraph graph_of(const AttentionCall& args, const AttentionDims& n) {
  return {.causal = args.causal,
          .window = args.window,
          .scale = static_cast<float>(args.scale),
          .query_heads = n.hq,
          .kv_heads = n.hkv,
          .head_dim = n.d,
          .q_row = args.q.stride(0),
          .k_row = args.k.stride(0),
          .v_row = args.v.stride(0),
          .o_row = args.o.stride(0)};
}

void lay_out(AttentionGraph& graph, const StridedBlocks& b) {
  graph.batch = b.count;
  graph.query_rows = b.q_rows;
  graph.key_rows = b.k_rows;
  // Without a causal mask, the keys of a block are the k_rows positions before its queries.
  if (graph.window > 0 && !graph.causal) graph.window = std::max<std::int64_t>(1, graph.window - b.k_rows);
  if (graph.window >= b.q_rows) graph.window = 0;  // every query sees every earlier key
  // For a single block the step has no meaning; a fixed value avoids a second plan.
  graph.query_step = b.count > 1 ? b.q_step : b.q_rows;
  graph.key_step = graph.dk_step = graph.dv_step = b.count > 1 ? b.k_step : b.k_rows;
}

struct Run {
  std::int64_t first, count;
  MaskedRows rows;  // the part of the table
};

// Sizes from what the host knows of the segments, rounded up so that few plans serve many micro-batches. After the last
// used segment of a part, the table has empty segments; after other runs, the segments of the next run.
void lay_out(AttentionGraph& graph, const AttentionDims& n, const SegmentBound& bound, const Run& run) {
  graph.ragged = true;
  const bool last = run.first + run.count == run.rows.begin + run.rows.used;
  graph.batch = last ? rounded_size(run.count, 4, run.rows.end - run.first) : run.count;
  graph.query_rows = rounded_size(bound.q_rows, 512, n.tq);
  graph.key_rows = rounded_size(bound.k_rows, 512, n.tk);
  graph.window = run.rows.window;
  if (graph.window >= graph.query_rows) graph.window = 0;  // every query sees every earlier key
}

std::int64_t query_rows_of(const std::vector<StridedBlocks>& blocks) {
  std::int64_t rows = 0;
  for (const StridedBlocks& b : blocks) rows += b.count * b.q_rows;
  return rows;
}

// The rows of x from `row` on.
std::byte* from_row(std::byte* x, std::int64_t row, std::int64_t stride, DType dtype) {
  return x + row * stride * size_of(dtype);
}

// Layout of the log-sum-exps: one StridedBlocks after another.
std::vector<StatsOrder> orders_of(const std::vector<StridedBlocks>& blocks, std::int64_t heads, std::int64_t group) {
  if (blocks.empty()) return {{.heads = heads, .group = group}};
  std::vector<StatsOrder> out;
  std::int64_t base = 0;
  for (const StridedBlocks& b : blocks) {
    out.push_back({.heads = heads, .group = group, .base = base, .blocks = b});
    base += round_up(heads * b.count * b.q_rows, kStatsAlign);
  }
  return out;
}

RowPlaces keys_of(const StridedBlocks& b) {
  return {.count = b.count, .begin = b.k_begin, .rows = b.k_rows, .step = b.k_step};
}

// dq, dk or dv, and the partial result that cuDNN writes if it cannot write the gradient in place.
struct Gradient {
  const TensorView& view;
  void* partial;
  bool accumulate;
  bool in_place() const { return !accumulate && view.dtype() == DType::bf16; }
  TensorView part(std::int64_t begin, std::int64_t heads) const { return view.slice(1, begin, heads); }
};

// One backward call of the op, as a sequence of cuDNN calls: per group of heads, one for each StridedBlocks (dense) or
// for each run of segments whose key gradients fit (ragged).
class Backward {
 public:
  Backward(const CudaNative& native, const AttentionBackward& args, Kernel kernel)
      : native_(native),
        args_(args),
        n_(dims_of(args.call)),
        dense_(kernel == Kernel::cudnn_dense),
        shared_(kernel == Kernel::cudnn_shared),
        bound_(bound_of(args.call)),
        memory_(backward_memory(args, kernel, args.call.workspace.bytes())),
        workspace_(args.call.workspace),
        tables_(workspace_.tables(memory_.tables)),
        kv_(memory_.kv_heads),
        heads_(kv_ * n_.group()),
        packed_q_(workspace_.at(memory_.q)),
        dq_{args.dq, workspace_.at(memory_.dq), args.accumulate_q},
        dk_{args.dk, workspace_.at(memory_.dk), args.accumulate_kv},
        dv_{args.dv, workspace_.at(memory_.dv), args.accumulate_kv} {
    HAWSER_CHECK(memory_.bytes <= args.call.workspace.bytes(), "attention: workspace has ", args.call.workspace.bytes(),
                 " bytes, it needs ", memory_.bytes);
    graph_ = graph_of(args.call, n_);
    graph_.backward = true;
    graph_.deterministic = args.deterministic;
    graph_.query_heads = heads_;
    graph_.kv_heads = kv_;
    if (packed_q_ != nullptr) graph_.q_row = heads_ * n_.d;
    graph_.d_o_row = args.d_o.stride(0);
    graph_.dq_row = dq_.partial != nullptr ? heads_ * n_.d : args.dq.stride(0);
    graph_.dk_row = graph_.dv_row = kv_ * n_.d;  // of partials
  }

  void run() {
    const std::int64_t rows[kOffsetTables] = {graph_.q_row, graph_.k_row,   graph_.v_row,  graph_.o_row,
                                              heads_,       graph_.d_o_row, graph_.dq_row, graph_.dk_row};
    make_tables(native_, args_.call.segments, args_.call.segment_count, n_.tq, n_.tk, tables_, rows);
    if (!dense_ && bound_.known && runs().empty()) return clear_all();
    if (!rejected().empty()) {
      return own_backward(native_, args_, tables_.query_segment, workspace_.at<float>(memory_.delta));
    }
    for (const StatsOrder& order : orders_of(args_.call.blocks, heads_, memory_.stats_group)) {
      lse_to_stats(native_, args_.call.lse, order, tables_.query_segment, stats());
    }
    for (std::int64_t begin = 0; begin < n_.hkv; begin += kv_) {
      const std::int64_t first = begin * n_.group();
      if (packed_q_ != nullptr) pack_rows(native_, args_.call.q.slice(1, first, heads_), packed_q_);
      if (dense_) {
        for (std::size_t i = 0; i < args_.call.blocks.size(); ++i) run_blocks(i, begin);
      } else {
        run_segments(begin);
      }
      const TensorView dq = dq_.part(first, heads_);
      if (dq_.partial != nullptr) {
        add_partial(native_, dq_.partial, {.rows = n_.tq}, tables_.query_segment, 0, dq_.accumulate, dq);
      } else if (query_rows_of(args_.call.blocks) < n_.tq) {
        clear_rows(native_, dq, tables_.query_segment, 0);
      }
    }
  }

 private:
  float* stats() const { return workspace_.at<float>(memory_.stats); }

  // For calls without segments, if the host knows it: zeroes the gradients that are not accumulated.
  void clear_all() {
    for (const Gradient* g : {&dq_, &dk_, &dv_}) {
      if (!g->accumulate) clear(native_, g->view);
    }
  }

  AttentionGraph blocks_graph(std::size_t index) const {
    AttentionGraph graph = graph_;
    const StridedBlocks& b = args_.call.blocks[index];
    lay_out(graph, b);
    const auto key_gradient = [&](const Gradient& g, std::int64_t& row, std::int64_t& step) {
      if (index == 0 && g.in_place()) {
        row = g.view.stride(0);
      } else {
        step = b.k_rows;
      }
    };
    key_gradient(dk_, graph.dk_row, graph.dk_step);
    key_gradient(dv_, graph.dv_row, graph.dv_step);
    return graph;
  }
  AttentionGraph segments_graph(const Run& run) const {
    AttentionGraph graph = graph_;
    lay_out(graph, n_, bound_, run);
    graph.query_total = n_.tq;
    graph.key_total = memory_.keys;
    return graph;
  }

  // The reason if cuDNN does not support the call; otherwise empty.
  std::string rejected() const {
    for (std::size_t i = 0; i < args_.call.blocks.size() && dense_; ++i) {
      if (std::string why = prepare_attention(native_, blocks_graph(i)); !why.empty()) return why;
    }
    if (dense_) return "";
    for (const Run& run : runs()) {
      if (std::string why = prepare_attention(native_, segments_graph(run)); !why.empty()) return why;
    }
    return "";
  }

  AttentionBuffers buffers(std::int64_t begin) const {
    const std::int64_t first = begin * n_.group();
    return {.q = packed_q_ != nullptr ? packed_q_ : head(args_.call.q, first),
            .k = head(args_.call.k, begin),
            .v = head(args_.call.v, begin),
            .d_o = head(args_.d_o, first),
            .o = head(args_.call.o, first),
            .stats = stats() + begin / kv_ * memory_.stats_group,
            .dq = dq_.partial != nullptr ? dq_.partial : head(args_.dq, first),
            .dk = dk_.partial,
            .dv = dv_.partial,
            .workspace = workspace_.at(memory_.cudnn)};
  }

  void run_blocks(std::size_t index, std::int64_t begin) {
    const StridedBlocks& blocks = args_.call.blocks[index];
    const AttentionGraph graph = blocks_graph(index);
    AttentionBuffers b = buffers(begin);
    const auto row = [](auto* x, std::int64_t at, std::int64_t stride) {
      return from_row(static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(x))), at, stride, DType::bf16);
    };
    b.q = row(b.q, blocks.q_begin, graph.q_row);
    b.o = row(b.o, blocks.q_begin, graph.o_row);
    b.d_o = row(b.d_o, blocks.q_begin, graph.d_o_row);
    b.dq = row(b.dq, blocks.q_begin, graph.dq_row);
    b.k = row(b.k, blocks.k_begin, graph.k_row);
    b.v = row(b.v, blocks.k_begin, graph.v_row);
    b.stats = static_cast<float*>(b.stats) + orders_of(args_.call.blocks, heads_, 0)[index].base;
    const auto place = [&](const Gradient& g, void*& to) {
      if (index == 0 && g.in_place()) to = row(head(g.view, begin), blocks.k_begin, g.view.stride(0));
    };
    place(dk_, b.dk);
    place(dv_, b.dv);
    run_attention(native_, graph, b, memory_.cudnn_bytes);
    for (const Gradient* g : {&dk_, &dv_}) {
      const TensorView part = g->part(begin, kv_);
      if (index > 0 || !g->in_place()) {
        add_partial(native_, g->partial, keys_of(blocks), tables_.key_covered, 1, index > 0 || g->accumulate, part);
      } else if (blocks.count * blocks.k_rows < n_.tk) {
        clear_outside(native_, part, keys_of(blocks));
      }
    }
  }

  // Groups consecutive segments of the table: as many per call as have space for their key gradients.
  std::vector<Run> runs() const {
    std::vector<Run> out;
    for (const MaskedRows& rows : masked_rows(args_.call, bound_)) {
      if (rows.used == 0) continue;
      if (!shared_) out.push_back({rows.begin, rows.used, rows});
      std::int64_t keys = memory_.keys;
      for (std::int64_t s = rows.begin; s < rows.begin + rows.used && shared_; ++s) {
        const std::int64_t more = bound_.known
                                      ? (*args_.call.host_segments)[static_cast<std::size_t>(s * kSegmentFields + 3)]
                                      : bound_.k_rows;
        if (s == rows.begin || keys + more > memory_.keys) {
          out.push_back({s, 0, rows});
          keys = 0;
        }
        ++out.back().count;
        keys += more;
      }
    }
    return out;
  }

  void run_segments(std::int64_t begin) {
    bool accumulate_k = dk_.accumulate, accumulate_v = dv_.accumulate;
    for (const Run& run : runs()) {
      AttentionBuffers b = buffers(begin);
      const AttentionGraph graph = segments_graph(run);
      if (shared_) key_gradient_offsets(native_, args_.call.segments, tables_, run.first, run.count, graph.dk_row);
      point_at(b, tables_, n_.segments, run.first);
      run_attention(native_, graph, b, memory_.cudnn_bytes);
      if (shared_) {
        add_key_gradients(native_, dk_.partial, args_.call.segments, tables_, run.first, run.count, accumulate_k,
                          dk_.part(begin, kv_));
        add_key_gradients(native_, dv_.partial, args_.call.segments, tables_, run.first, run.count, accumulate_v,
                          dv_.part(begin, kv_));
        accumulate_k = accumulate_v = true;
        continue;
      }
      const RowPlaces all{.rows = n_.tk};
      add_partial(native_, dk_.partial, all, tables_.key_covered, 1, dk_.accumulate, dk_.part(begin, kv_));
      add_partial(native_, dv_.partial, all, tables_.key_covered, 1, dv_.accumulate, dv_.part(begin, kv_));
    }
  }

  const CudaNative& native_;
  const AttentionBackward& args_;
  AttentionDims n_;
  bool dense_, shared_;
  SegmentBound bound_;
  BackwardMemory memory_;
  Workspace workspace_;
  TablePointers tables_;
  std::int64_t kv_, heads_;
  void* packed_q_;
  Gradient dq_, dk_, dv_;
  AttentionGraph graph_;
};

}  // namespace

namespace {

// AttentionCall::accumulate.
void merge_forward(const CudaNative& native, const AttentionCall& args) {
  if (args.host_segments != nullptr && args.host_segments->empty()) return;
  const ForwardMemory memory = forward_memory(args, attention_implementation(args, DeviceKind::cuda).kernel);
  const Workspace workspace(args.workspace);
  const AttentionCall part = partial_call(args, workspace.at(memory.part_o), workspace.at(memory.part_lse));
  attention_forward(native, part);
  combine(native, {.o_a = args.o, .lse_a = args.lse, .o_b = part.o, .lse_b = part.lse}, /*skip=*/true);
}

}  // namespace

void own_forward(const CudaNative& native, const AttentionCall& args, const std::int32_t* query_segment) {
  takes_tiles(args, {args.q, args.k, args.v}) ? tiled_forward(native, args, query_segment)
                                              : plain_forward(native, args, query_segment);
}

void own_backward(const CudaNative& native, const AttentionBackward& args, const std::int32_t* query_segment,
                  float* delta) {
  attention_delta(native, args, delta);
  takes_tiles(args.call, {args.call.q, args.call.k, args.call.v, args.d_o})
      ? tiled_backward(native, args, query_segment, delta)
      : plain_backward(native, args, query_segment, delta);
}

void attention_forward(const CudaNative& native, const AttentionCall& args) {
  if (args.accumulate) return merge_forward(native, args);
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
  if (AttentionImplementation::own(kernel)) return own_forward(native, args, tables.query_segment);

  std::vector<AttentionGraph> graphs;
  const SegmentBound bound = bound_of(args);
  for (const StridedBlocks& b : args.blocks) lay_out(graphs.emplace_back(graph_of(args, n)), b);
  std::vector<MaskedRows> parts;
  if (!dense && !(bound.known && bound.segments == 0)) parts = masked_rows(args, bound);
  for (const MaskedRows& part : parts) {
    lay_out(graphs.emplace_back(graph_of(args, n)), n, bound, {part.begin, part.used, part});
  }
  for (const AttentionGraph& graph : graphs) {
    if (!prepare_attention(native, graph).empty()) return own_forward(native, args, tables.query_segment);
  }
  float* const stats = memory.stats >= 0 ? workspace.at<float>(memory.stats) : args.lse.data<float>();
  AttentionBuffers b{.q = args.q.raw(),
                     .k = args.k.raw(),
                     .v = args.v.raw(),
                     .o = args.o.raw(),
                     .stats = stats,
                     .workspace = workspace.at(memory.cudnn)};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    point_at(b, tables, n.segments, parts[i].begin);
    run_attention(native, graphs[i], b, memory.cudnn_bytes);
  }
  const std::vector<StatsOrder> orders = orders_of(args.blocks, n.hq, 0);
  for (std::size_t i = 0; i < args.blocks.size(); ++i) {
    const StridedBlocks& blocks = args.blocks[i];
    const auto row = [](const TensorView& x, std::int64_t at) { return from_row(x.raw(), at, x.stride(0), x.dtype()); };
    b.q = row(args.q, blocks.q_begin);
    b.o = row(args.o, blocks.q_begin);
    b.k = row(args.k, blocks.k_begin);
    b.v = row(args.v, blocks.k_begin);
    b.stats = stats + orders[i].base;
    run_attention(native, graphs[i], b, memory.cudnn_bytes);
  }
  for (const StatsOrder& order : orders) {
    stats_to_lse(native, stats, order, tables.query_segment, args.lse);
  }
  if (dense && query_rows_of(args.blocks) < n.tq) clear_lse(native, tables.query_segment, args.lse);
  clear_rows(native, args.o, tables.query_segment, 0);
}

void attention_backward(const CudaNative& native, const AttentionBackward& args) {
  const AttentionDims n = dims_of(args.call);
  const Kernel kernel = attention_implementation(args, DeviceKind::cuda).kernel;
  if (!AttentionImplementation::own(kernel)) return Backward(native, args, kernel).run();
  const BackwardMemory memory = backward_memory(args, kernel);
  const Workspace workspace(args.call.workspace);
  const TablePointers tables = workspace.tables(memory.tables);
  const std::int64_t rows[kOffsetTables] = {};
  make_tables(native, args.call.segments, args.call.segment_count, n.tq, n.tk, tables, rows);
  own_backward(native, args, tables.query_segment, workspace.at<float>(memory.delta));
}

}  // namespace hawser::ops::cuda
