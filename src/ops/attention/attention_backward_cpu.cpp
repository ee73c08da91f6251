#include <atomic>
#include <limits>
#include <thread>

#include "ops/attention/attention_cpu.h"
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
        sums(n.dtype == DType::f32 ? 0 : round_up(n.query_rows * n.query_heads * n.head_dim, 16)),
        counters(round_up(n.query_heads * (ceil_div(n.query_rows, cpu::kGradientRows) + n.segments), 16)) {}
  std::int64_t keys() const { return cpu::kKeyBlock * width; }
  std::int64_t queries() const { return cpu::kGradientRows * width; }
  std::int64_t scores() const { return cpu::kGradientRows * cpu::kKeyBlock; }
  std::int64_t shared() const { return delta + sums + counters; }
  std::int64_t thread() const {
    return 5 * keys() + 3 * queries() + 2 * scores() + 2 * round_up(cpu::kGradientRows, 16);
  }
};

}  // namespace

std::int64_t cpu_attention_backward_workspace(const AttentionSizes& sizes) {
  const Layout layout(sizes);
  return 4 * (layout.shared() + sizes.threads * layout.thread());
}

namespace cpu {

namespace {

template <class Act>
class Backward {
 public:
  explicit Backward(const AttentionBackward& args)
      : args_(args),
        query_rows_(args.q.size(0)),
        key_rows_(args.k.size(0)),
        heads_(args.q.size(1)),
        kv_heads_(args.k.size(1)),
        group_(heads_ / kv_heads_),
        head_dim_(args.q.size(2)),
        layout_({.query_rows = query_rows_,
                 .key_rows = key_rows_,
                 .query_heads = heads_,
                 .kv_heads = kv_heads_,
                 .head_dim = head_dim_,
                 .segments = args.segments.size(0),
                 .dtype = args.dq.dtype()}),
        delta_(reinterpret_cast<float*>(args.workspace.raw())),
        sums_(args.dq.dtype() == DType::f32 ? args.dq.data<float>() : delta_ + layout_.delta),
        sums_row_(args.dq.dtype() == DType::f32 ? args.dq.stride(0) : heads_ * head_dim_),
        turns_(reinterpret_cast<std::atomic<std::int32_t>*>(delta_ + layout_.delta + layout_.sums)),
        segments_(read_segments("attention_backward", args.segments, args.segment_count, query_rows_, key_rows_,
                                args.form, args.blocks, args.causal)) {
    static_assert(sizeof(std::atomic<std::int32_t>) == sizeof(float));
  }

  void run() {
    blocks_before_.assign(1, 0);
    for (const Segment& segment : segments_) {
      blocks_before_.push_back(blocks_before_.back() + ceil_div(segment.q_count, kGradientRows));
    }
    prepare();
    const std::int64_t items = ceil_div(key_rows_, kKeyBlock) * kv_heads_;
    const std::int64_t fitting = (args_.workspace.bytes() / 4 - layout_.shared()) / layout_.thread();
    const auto threads = static_cast<int>(std::min<std::int64_t>(omp_get_max_threads(), fitting));
    float* const scratch = delta_ + layout_.shared();
    std::atomic<std::int64_t> next = 0;
    // Items start in ascending order and wait only for lower ones, so the lowest running item never waits.
#pragma omp parallel
    if (const int thread = omp_get_thread_num(); thread < threads) {
      for (std::int64_t i = next++; i < items; i = next++) {
        work(i / kv_heads_, i % kv_heads_, scratch + thread * layout_.thread());
      }
    }
    if (args_.dq.dtype() != DType::f32) round_queries();
  }

 private:
  // Computes delta, zeroes the sums and the counters.
  void prepare() {
    for (std::int64_t i = 0; i < blocks_before_.back() * heads_; ++i) turns_[i].store(0, std::memory_order_relaxed);
    with_act(args_.o.dtype(), [&](auto tag) {
      const auto o = rows_of<decltype(tag)>(args_.o);
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
    const auto kv_rows = rows_of<Act>(args_.k), v_rows = rows_of<Act>(args_.v);
    const auto q_rows = rows_of<Act>(args_.q), d_o_rows = rows_of<Act>(args_.d_o);
    const float* const all_lse = args_.lse.data<float>();
    const float* const none = nullptr;

    // Only the transposed V is needed: V is loaded into dV's memory first.
    HAWSER_DISPATCH(load_rows, v_rows.row(key_row) + kv_head * head_dim_, v_rows.stride, keys, head_dim_, 1.0f, dv,
                    kKeyBlock, width);
    HAWSER_DISPATCH(transpose_rows, dv, width, v_panels);
    HAWSER_DISPATCH(load_rows, kv_rows.row(key_row) + kv_head * head_dim_, kv_rows.stride, keys, head_dim_, 1.0f, k,
                    kKeyBlock, width);
    HAWSER_DISPATCH(transpose_rows, k, width, k_panels);
    std::fill_n(dk, 2 * layout_.keys(), 0.0f);

    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Segment& segment = segments_[s];
      if (segment.k_begin >= key_row + keys || segment.k_begin + segment.k_count <= key_row) continue;
      const Visible visible{segment, args_.causal, args_.window};
      for (std::int64_t row = 0; row < segment.q_count; row += kGradientRows) {
        const std::int64_t rows = std::min(kGradientRows, segment.q_count - row);
        const std::int64_t begin = visible.begin(row), end = visible.end(row + rows - 1);
        if (begin >= end) continue;
        const std::int64_t first = (segment.k_begin + begin) / kKeyBlock;
        const std::int64_t last = (segment.k_begin + end - 1) / kKeyBlock;
        if (key_block < first || key_block > last) continue;
        const std::int64_t counter = blocks_before_[s] + row / kGradientRows;
        const std::int64_t at = segment.q_begin + row;
        for (std::int64_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
          HAWSER_DISPATCH(load_rows, q_rows.row(at) + head * head_dim_, q_rows.stride, rows, head_dim_, 1.0f, q,
                          kGradientRows, width);
          HAWSER_DISPATCH(load_rows, d_o_rows.row(at) + head * head_dim_, d_o_rows.stride, rows, head_dim_, 1.0f, d_o,
                          kGradientRows, width);
          for (std::int64_t r = 0; r < kGradientRows; ++r) {
            const float natural = r < rows ? all_lse[head * query_rows_ + at + r] : 0.0f;
            const bool counts = r < rows && natural != -std::numeric_limits<float>::infinity();
            lse[r] = counts ? natural * 1.44269504f : std::numeric_limits<float>::infinity();
            delta[r] = counts ? delta_[head * query_rows_ + at + r] : 0.0f;
          }
          const BackwardBlock block{
              .q = q,
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
              .scale = static_cast<float>(args_.scale),
              .band = band_of(segment, args_.causal, args_.window, row, key_row - segment.k_begin, keys)};
          HAWSER_DISPATCH(backward_block, block);
          auto& turn = turns_[head * blocks_before_.back() + counter];
          await(turn, static_cast<std::int32_t>(key_block - first));
          HAWSER_DISPATCH(store_rows, dq, width, none, sums_ + at * sums_row_ + head * head_dim_, sums_row_, rows,
                          head_dim_, true);
          turn.store(static_cast<std::int32_t>(key_block - first) + 1, std::memory_order_release);
        }
      }
    }
    put(dk, args_.dk, key_row, keys, kv_head);
    put(dv, args_.dv, key_row, keys, kv_head);
  }

  void put(const float* from, const TensorView& to, std::int64_t key_row, std::int64_t keys, std::int64_t kv_head) {
    const float* const none = nullptr;
    with_act(to.dtype(), [&](auto tag) {
      const auto rows = rows_of<decltype(tag)>(to);
      HAWSER_DISPATCH(store_rows, from, layout_.width, none, rows.row(key_row) + kv_head * head_dim_, rows.stride, keys,
                      head_dim_, args_.accumulate_kv);
    });
  }

  const AttentionBackward& args_;
  std::int64_t query_rows_, key_rows_, heads_, kv_heads_, group_, head_dim_;
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
  with_act(args.q.dtype(), [&](auto act) { Backward<decltype(act)>(args).run(); });
}

}  // namespace cpu
}  // namespace hawser::ops
