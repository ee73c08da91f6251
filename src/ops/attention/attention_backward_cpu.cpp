#include <atomic>
#include <limits>
#include <thread>

#include "ops/attention/attention_bf16_cpu.h"
#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/attention/backward_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops {

namespace {

// Workspace: shared memory, then one scratch per thread. In floats (counters have the same size).
struct Layout {
  std::int64_t width, delta, sums, counters;

  explicit Layout(const AttentionSizes& n)
      : width(round_up(n.head_dim, cpu::kHeadPad)),
        delta(round_up(n.query_heads * n.query_rows, 16)),
        sums(by_float(n.dtype, false, true) ? round_up(n.query_rows * n.query_heads * n.head_dim, 16) : 0),
        counters(round_up(n.query_heads * (ceil_div(n.query_rows, cpu::kGradientRows) + n.segments), 16)) {}
  std::int64_t keys() const { return cpu::kKeyBlock * width; }
  std::int64_t queries() const { return cpu::kGradientRows * width; }
  std::int64_t scores() const { return cpu::kGradientRows * cpu::kKeyBlock; }
  std::int64_t shared() const { return delta + sums + counters; }
  std::int64_t thread() const {
    return std::max(5 * keys() + 3 * queries() + 2 * scores() + 2 * round_up(cpu::kGradientRows, 16),
                    Bf16Scratch(width).floats());
  }

  // Scratch of one thread on the bf16 units, in floats. Pairs are as large as a float.
  struct Bf16Scratch {
    std::int64_t width;

    explicit Bf16Scratch(std::int64_t head_dim) : width(round_up(head_dim, cpu::kBf16Tile)) {}
    std::int64_t keys() const { return cpu::kKeyBlock * width; }             // dK, dV; K, V and K transposed: half
    std::int64_t queries() const { return cpu::kBf16GradientRows * width; }  // dQ; five copies of Q and dO: half
    std::int64_t scores() const {
      return cpu::kBf16Tile * cpu::kBf16GradientRows;
    }  // S, dP; the parts of P and dS: half
    std::int64_t pairs() const { return cpu::kKeyBlock / 2 * cpu::kBf16GradientRows; }  // dS
    std::int64_t floats() const {
      return 7 * keys() / 2 + 7 * queries() / 2 + 4 * scores() + 2 * pairs() + cpu::kBf16Tile * width +
             2 * cpu::kBf16GradientRows;
    }
  };
};

}  // namespace

std::int64_t cpu_attention_backward_workspace(const AttentionSizes& sizes) {
  const Layout layout(sizes);
  return 4 * (layout.shared() + sizes.threads * layout.thread());
}

namespace cpu {

namespace {

// Backward over all segments. The multiply-adds of the vector units bound it: five GEMMs for each block of query rows
// and keys, those of S, dP, dQ, dK and dV. A work item is a block of kKeyBlock key rows of one key-value head. K and V
// are copied once for it, and transposed where a GEMM needs that. dK and dV stay in the thread's scratch while the item
// passes over the blocks of query rows that see one of its keys, for all query heads of the group. So no other item
// adds to dK and dV.
// Many items add to a row of dQ, in float32: each waits until those of earlier keys have added theirs. The order of all
// sums thus depends on the sizes and the segments, not on the number of threads. work_bf16() does the same on the bf16
// units.
template <class Act>
class Backward {
 public:
  explicit Backward(const AttentionBackward& args)
      : args_(args),
        query_rows_(args.call.q.size(0)),
        key_rows_(args.call.k.size(0)),
        heads_(args.call.q.size(1)),
        kv_heads_(args.call.k.size(1)),
        group_(heads_ / kv_heads_),
        head_dim_(args.call.q.size(2)),
        bf16_(
            !needs_float32(args.call) &&
            uses_bf16_units({args.call.q.dtype(), args.dq.dtype(), args.dk.dtype(), args.dv.dtype()}, args.call.scale)),
        block_rows_(bf16_ ? kBf16GradientRows : kGradientRows),
        layout_({.query_rows = query_rows_,
                 .key_rows = key_rows_,
                 .query_heads = heads_,
                 .kv_heads = kv_heads_,
                 .head_dim = head_dim_,
                 .segments = args.call.segments.size(0),
                 .dtype = args.dq.dtype()}),
        delta_(reinterpret_cast<float*>(args.call.workspace.raw())),
        sums_(args.dq.dtype() == DType::f32 ? args.dq.data<float>() : delta_ + layout_.delta),
        sums_row_(args.dq.dtype() == DType::f32 ? args.dq.stride(0) : heads_ * head_dim_),
        turns_(reinterpret_cast<std::atomic<std::int32_t>*>(delta_ + layout_.delta + layout_.sums)),
        segments_(read_segments("attention_backward", args.call)) {
    static_assert(sizeof(std::atomic<std::int32_t>) == sizeof(float));
  }

  void run() {
    blocks_before_.assign(1, 0);
    for (const Segment& segment : segments_) {
      blocks_before_.push_back(blocks_before_.back() + ceil_div(segment.q_count, block_rows_));
    }
    prepare();
    const std::int64_t items = ceil_div(key_rows_, kKeyBlock) * kv_heads_;
    const std::int64_t fitting = (args_.call.workspace.bytes() / 4 - layout_.shared()) / layout_.thread();
    const auto threads = static_cast<int>(std::min<std::int64_t>(omp_get_max_threads(), fitting));
    float* const scratch = delta_ + layout_.shared();
    std::atomic<std::int64_t> next = 0;
    // Items start in ascending order and wait only for lower ones, so the lowest running item never waits.
#pragma omp parallel
    if (const int thread = omp_get_thread_num(); thread < threads) {
      const Bf16Tiles tiles(bf16_);
      for (std::int64_t i = next++; i < items; i = next++) {
        float* const own = scratch + thread * layout_.thread();
        if constexpr (std::is_same_v<Act, Bf16>) {
          if (bf16_) {
            work_bf16(i / kv_heads_, i % kv_heads_, own);
            continue;
          }
        }
        work(i / kv_heads_, i % kv_heads_, own);
      }
    }
    if (args_.dq.dtype() != DType::f32) round_queries();
  }

 private:
  // Computes delta, zeroes the sums and the counters.
  void prepare() {
    for (std::int64_t i = 0; i < blocks_before_.back() * heads_; ++i) turns_[i].store(0, std::memory_order_relaxed);
    dispatch_float(args_.call.o.dtype(), [&](auto tag) {
      const auto o = rows_of<decltype(tag)>(args_.call.o);
      const auto d_o = rows_of<Act>(args_.d_o);
      parallel_pieces(query_rows_, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t) {
          for (std::int64_t h = 0; h < heads_; ++h) {
            delta_[h * query_rows_ + t] =
                HAWSER_DISPATCH(dot_run, o.row(t) + h * head_dim_, d_o.row(t) + h * head_dim_, head_dim_);
          }
          if (!args_.accumulate_q || args_.dq.dtype() != DType::f32) {
            std::fill_n(sums_ + t * sums_row_, heads_ * head_dim_, 0.0f);
          }
        }
      });
    });
  }

  void round_queries() {
    Bf16* const dq = args_.dq.data<Bf16>();
    parallel_pieces(query_rows_, 16, [&](std::int64_t begin, std::int64_t end) {
      const float* const none = nullptr;
      HAWSER_DISPATCH(store_rows, sums_ + begin * sums_row_, sums_row_, none, dq + begin * args_.dq.stride(0),
                      args_.dq.stride(0), end - begin, heads_ * head_dim_, args_.accumulate_q);
    });
  }

  // Waits until `turn` contributions have been added to the counter's block of dQ.
  static void await(const std::atomic<std::int32_t>& counter, std::int32_t turn) {
    for (int spins = 0; counter.load(std::memory_order_acquire) != turn; ++spins) {
      if (spins < 1000) {
        __builtin_ia32_pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void work(std::int64_t key_block, std::int64_t kv_head, float* scratch) {
    const std::int64_t key_row = key_block * kKeyBlock, keys = std::min(kKeyBlock, key_rows_ - key_row);
    const std::int64_t width = layout_.width;
    float* const k = scratch;
    float* const k_panels = k + layout_.keys();
    float* const v_panels = k_panels + layout_.keys();
    float* const dk = v_panels + layout_.keys();
    float* const dv = dk + layout_.keys();
    float* const q = dv + layout_.keys();
    float* const d_o = q + layout_.queries();
    float* const dq = d_o + layout_.queries();
    float* const p = dq + layout_.queries();
    float* const ds = p + layout_.scores();
    float* const lse = ds + layout_.scores();
    float* const delta = lse + round_up(kGradientRows, 16);
    const auto kv_rows = rows_of<Act>(args_.call.k), v_rows = rows_of<Act>(args_.call.v);
    const auto q_rows = rows_of<Act>(args_.call.q), d_o_rows = rows_of<Act>(args_.d_o);

    // Only the transposed V is needed: V is loaded into dV's memory first.
    HAWSER_DISPATCH(load_rows, v_rows.row(key_row) + kv_head * head_dim_, v_rows.stride, keys, head_dim_, 1.0f, dv,
                    kKeyBlock, width);
    HAWSER_DISPATCH(transpose_rows, dv, width, v_panels);
    HAWSER_DISPATCH(load_rows, kv_rows.row(key_row) + kv_head * head_dim_, kv_rows.stride, keys, head_dim_, 1.0f, k,
                    kKeyBlock, width);
    HAWSER_DISPATCH(transpose_rows, k, width, k_panels);
    std::fill_n(dk, 2 * layout_.keys(), 0.0f);

    for_each_block(key_block, kv_head, [&](const Block& b) {
      HAWSER_DISPATCH(load_rows, q_rows.row(b.at) + b.head * head_dim_, q_rows.stride, b.rows, head_dim_, 1.0f, q,
                      kGradientRows, width);
      HAWSER_DISPATCH(load_rows, d_o_rows.row(b.at) + b.head * head_dim_, d_o_rows.stride, b.rows, head_dim_, 1.0f, d_o,
                      kGradientRows, width);
      load_statistics(b, lse, delta);
      const BackwardBlock block{.q = q,
                                .d_o = d_o,
                                .k = k,
                                .k_panels = k_panels,
                                .v_panels = v_panels,
                                .lse = lse,
                                .delta = delta,
                                .p = p,
                                .ds = ds,
                                .dq = dq,
                                .dk = dk,
                                .dv = dv,
                                .width = width,
                                .scale = static_cast<float>(args_.call.scale),
                                .band = b.band,
                                .change = b.change,
                                .dropout = b.dropout};
      HAWSER_DISPATCH(backward_block, block);
      add_queries(b, dq, width);
    });
    put(dk, width, args_.dk, key_row, keys, kv_head);
    put(dv, width, args_.dv, key_row, keys, kv_head);
  }

  // work() on the bf16 units.
  void work_bf16(std::int64_t key_block, std::int64_t kv_head, float* scratch) {
    const std::int64_t key_row = key_block * kKeyBlock, keys = std::min(kKeyBlock, key_rows_ - key_row);
    const Layout::Bf16Scratch sizes(head_dim_);
    const std::int64_t width = sizes.width, half_queries = sizes.queries() / 2;
    float* const dk = scratch;
    float* const dv = dk + sizes.keys();
    float* const dq = dv + sizes.keys();
    float* const dq_columns = dq + sizes.queries();
    float* const scores = dq_columns + kBf16Tile * width;
    float* const dp = scores + sizes.scores();
    float* const lse = dp + sizes.scores();
    float* const delta = lse + kBf16GradientRows;
    auto* const ds_pairs = reinterpret_cast<Bf16Pair*>(delta + kBf16GradientRows);
    Bf16Pair* const q = ds_pairs + 2 * sizes.pairs();
    Bf16Pair* const d_o = q + half_queries;
    Bf16Pair* const q_columns = d_o + half_queries;
    Bf16Pair* const d_o_columns = q_columns + half_queries;
    auto* const loaded = reinterpret_cast<Bf16*>(d_o_columns + half_queries);
    Bf16* const k = loaded + sizes.queries();
    Bf16* const v = k + sizes.keys();
    Bf16* const k_columns = v + sizes.keys();
    Bf16* const p = k_columns + sizes.keys();
    Bf16* const ds = p + 2 * sizes.scores();
    const auto k_rows = rows_of<Act>(args_.call.k), v_rows = rows_of<Act>(args_.call.v);
    const auto q_rows = rows_of<Act>(args_.call.q), d_o_rows = rows_of<Act>(args_.d_o);

    // Rows that are in no segment may be undefined: they stay zero.
    std::fill_n(k, 2 * sizes.keys(), Bf16(0.0f));
    for (const Segment& segment : segments_) {
      const std::int64_t begin = std::max(segment.k_begin, key_row);
      const std::int64_t count = std::min(segment.k_begin + segment.k_count, key_row + keys) - begin;
      const std::int64_t at = (begin - key_row) * width;
      if (count <= 0) continue;
      bf16_copy_rows(k_rows.row(begin) + kv_head * head_dim_, k_rows.stride, count, head_dim_, k + at, count, width);
      bf16_copy_rows(v_rows.row(begin) + kv_head * head_dim_, v_rows.stride, count, head_dim_, v + at, count, width);
    }
    bf16_transpose(k, kKeyBlock, width, k_columns, kKeyBlock);
    std::fill_n(dk, 2 * sizes.keys(), 0.0f);

    for_each_block(key_block, kv_head, [&](const Block& b) {
      const std::int64_t rows = round_up(b.rows, kBf16Tile);
      const auto load = [&](const RowsOf<Act>& from, Bf16Pair* pairs, Bf16Pair* columns) {
        bf16_copy_rows(from.row(b.at) + b.head * head_dim_, from.stride, b.rows, head_dim_, loaded, rows, width);
        bf16_pair_rows(loaded, rows, width, pairs);
        bf16_pair_columns(loaded, rows, width, columns, kBf16GradientRows);
      };
      load(q_rows, q, q_columns);
      load(d_o_rows, d_o, d_o_columns);
      load_statistics(b, lse, delta);
      bf16_backward_block({.k = k,
                           .v = v,
                           .k_columns = k_columns,
                           .q = q,
                           .d_o = d_o,
                           .q_columns = q_columns,
                           .d_o_columns = d_o_columns,
                           .lse = lse,
                           .delta = delta,
                           .scores = scores,
                           .dp = dp,
                           .p = p,
                           .p_low = p + sizes.scores(),
                           .ds = ds,
                           .ds_low = ds + sizes.scores(),
                           .ds_pairs = ds_pairs,
                           .ds_pairs_low = ds_pairs + sizes.pairs(),
                           .dq_columns = dq_columns,
                           .dq = dq,
                           .dk = dk,
                           .dv = dv,
                           .rows = rows,
                           .width = width,
                           .scale = static_cast<float>(args_.call.scale),
                           .band = b.band});
      add_queries(b, dq, width);
    });
    put(dk, width, args_.dk, key_row, keys, kv_head);
    put(dv, width, args_.dv, key_row, keys, kv_head);
  }

  // A block of query rows of one head that sees keys of a block of keys.
  struct Block {
    std::int64_t head, at, rows;  // at: first query row
    std::int64_t counter;         // of the head's query blocks
    std::int32_t turn;            // contributions to its dQ from earlier key blocks
    Band band;
    ScoreChange change;
    DropoutBlock dropout;
  };

  template <class Body>
  void for_each_block(std::int64_t key_block, std::int64_t kv_head, const Body& body) const {
    const std::int64_t key_row = key_block * kKeyBlock, keys = std::min(kKeyBlock, key_rows_ - key_row);
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Segment& segment = segments_[s];
      if (segment.k_begin >= key_row + keys || segment.k_begin + segment.k_count <= key_row) continue;
      const Visible visible{segment, args_.call.causal, args_.call.window};
      for (std::int64_t row = 0; row < segment.q_count; row += block_rows_) {
        const std::int64_t rows = std::min(block_rows_, segment.q_count - row);
        const std::int64_t begin = visible.begin(row), end = visible.end(row + rows - 1);
        if (begin >= end) continue;
        const std::int64_t first = (segment.k_begin + begin) / kKeyBlock;
        const std::int64_t last = (segment.k_begin + end - 1) / kKeyBlock;
        if (key_block < first || key_block > last) continue;
        for (std::int64_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
          body(Block{
              .head = head,
              .at = segment.q_begin + row,
              .rows = rows,
              .counter = blocks_before_[s] + row / block_rows_,
              .turn = static_cast<std::int32_t>(key_block - first),
              .band = band_of(segment, args_.call.causal, args_.call.window, row, key_row - segment.k_begin, keys),
              .change = change_of(args_.call, head, segment, row, key_row - segment.k_begin),
              .dropout = dropout_of(args_.call, head, segment.q_begin + row, rows, key_row)});
        }
      }
    }
  }

  // lse and delta of the block's rows, padded to block_rows_.
  void load_statistics(const Block& b, float* lse, float* delta) const {
    const float* const all_lse = args_.call.lse.data<float>() + b.head * args_.call.lse.stride(0) + b.at;
    for (std::int64_t r = 0; r < block_rows_; ++r) {
      const float natural = r < b.rows ? all_lse[r] : 0.0f;
      const bool counts = r < b.rows && natural != -std::numeric_limits<float>::infinity();
      lse[r] = counts ? natural * 1.44269504f : std::numeric_limits<float>::infinity();
      delta[r] = counts ? delta_[b.head * query_rows_ + b.at + r] : 0.0f;
    }
  }

  // Adds the block's dq [rows, width] to the sums, when it is its turn.
  void add_queries(const Block& b, const float* dq, std::int64_t width) {
    const float* const none = nullptr;
    auto& turn = turns_[b.head * blocks_before_.back() + b.counter];
    await(turn, b.turn);
    HAWSER_DISPATCH(store_rows, dq, width, none, sums_ + b.at * sums_row_ + b.head * head_dim_, sums_row_, b.rows,
                    head_dim_, true);
    turn.store(b.turn + 1, std::memory_order_release);
  }

  void put(const float* from, std::int64_t width, const TensorView& to, std::int64_t key_row, std::int64_t keys,
           std::int64_t kv_head) {
    const float* const none = nullptr;
    dispatch_float(to.dtype(), [&](auto tag) {
      const auto rows = rows_of<decltype(tag)>(to);
      HAWSER_DISPATCH(store_rows, from, width, none, rows.row(key_row) + kv_head * head_dim_, rows.stride, keys,
                      head_dim_, args_.accumulate_kv);
    });
  }

  const AttentionBackward& args_;
  std::int64_t query_rows_, key_rows_, heads_, kv_heads_, group_, head_dim_;
  bool bf16_;  // runs on the bf16 units
  std::int64_t block_rows_;
  Layout layout_;
  float* delta_;
  float* sums_;  // dQ in float32: the output itself, or the workspace
  std::int64_t sums_row_;
  std::atomic<std::int32_t>* turns_;  // [heads, query blocks]
  std::vector<Segment> segments_;
  std::vector<std::int64_t> blocks_before_;  // query blocks before each segment
};

}  // namespace

void attention_backward(const AttentionBackward& args) {
  dispatch_float(args.call.q.dtype(), [&](auto act) { Backward<decltype(act)>(args).run(); });
}

}  // namespace cpu
}  // namespace hawser::ops
