#include "ops/attention/attention_cpu.h"

#include <atomic>
#include <cmath>
#include <limits>

#include "ops/attention/attention_bf16_cpu.h"
#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/attention/forward_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops {

namespace {

// Query rows of a work item, 24 to 192. With all heads of a group of 2 to 12 heads they are about 288, to amortize the
// transposition of K.
std::int64_t block_rows(std::int64_t group) {
  return std::clamp<std::int64_t>(288 / group / 12 * 12, 24, 192);
}

// Scratch of one thread, in floats, in memory order.
struct Scratch {
  std::int64_t rows, width;  // rows of all heads of a group; padded head dim

  Scratch(std::int64_t group, std::int64_t head_dim)
      : rows(group * block_rows(group)), width(round_up(head_dim, cpu::kHeadPad)) {}
  std::int64_t keys() const { return cpu::kKeyBlock * width; }  // K, V and transposed K: one each
  std::int64_t queries() const { return rows * width; }         // Q and O
  std::int64_t floats() const {
    return round_up(3 * keys() + 2 * queries() + rows * (2 + cpu::kHeadPad) + 12 * cpu::kKeyBlock, 16);
  }
};

// The same on the bf16 units. `pairs` are as large as a float.
std::int64_t bf16_block_rows(std::int64_t group) {
  return std::clamp<std::int64_t>(288 / group / cpu::kBf16Tile * cpu::kBf16Tile, cpu::kBf16Tile, 192);
}

struct Bf16Scratch {
  std::int64_t rows, width;

  Bf16Scratch(std::int64_t group, std::int64_t head_dim)
      : rows(group * bf16_block_rows(group)), width(round_up(head_dim, cpu::kBf16Tile)) {}
  std::int64_t keys() const { return cpu::kKeyBlock * width / 2; }         // rows of K or V; K; V: one each
  std::int64_t queries() const { return rows * width; }                    // O; Q is half as large
  std::int64_t scores() const { return cpu::kBf16Tile * cpu::kKeyBlock; }  // S; both parts of P are half as large
  std::int64_t floats() const {
    return round_up(3 * keys() + 2 * queries() + rows * (2 + cpu::kHeadPad) + 2 * scores(), 16);
  }
};

std::int64_t scratch_floats(std::int64_t group, std::int64_t head_dim) {
  return std::max(Scratch(group, head_dim).floats(), Bf16Scratch(group, head_dim).floats());
}

}  // namespace

std::int64_t cpu_attention_forward_workspace(const AttentionSizes& sizes) {
  return sizes.threads * scratch_floats(sizes.query_heads / sizes.kv_heads, sizes.head_dim) * 4;
}

namespace cpu {

namespace {

// The weights of two results of one row (attention_combine). lse is -inf if neither sees a key.
struct Weights {
  double lse;
  float by_a, by_b;
};
Weights weights_of(double a, double b) {
  const double max = std::max(a, b);
  if (max == -std::numeric_limits<double>::infinity()) return {max, 0.0f, 0.0f};
  const double lse = max + std::log(std::exp(a - max) + std::exp(b - max));
  return {lse, static_cast<float>(std::exp(a - lse)), static_cast<float>(std::exp(b - lse))};
}

// Forward over all segments. The multiply-adds of the vector units bound it. A work item is a block of query rows of
// one segment and all query heads of one key-value head, which share K and V: each block of kKeyBlock keys is copied to
// the thread's scratch, K transposed, and is then used for about 288 rows. The scratch of a thread is about 300 KiB at
// head dim 64, to stay in an L2 cache; the scores of a strip of rows stay in the L1 cache.
// Threads take items one by one. An item computes its rows completely, over their keys in order, so that the number of
// threads changes no bit. work_bf16() does the same on the bf16 units. If all segments have one query row (decoding), a
// row of one head is an item, and work_row() reads K and V in place.
template <class Act, class Out>
class Forward {
 public:
  explicit Forward(const AttentionCall& args)
      : args_(args),
        q_(args.q.data<Act>()),
        k_(args.k.data<Act>()),
        v_(args.v.data<Act>()),
        o_(args.o.data<Out>()),
        lse_(args.lse.data<float>()),
        query_rows_(args.q.size(0)),
        lse_row_(args.lse.stride(0)),
        kv_heads_(args.k.size(1)),
        group_(args.q.size(1) / kv_heads_),
        head_dim_(args.q.size(2)),
        bf16_(!needs_float32(args) && uses_bf16_units({args.q.dtype(), args.o.dtype()}, args.scale)),
        rows_(bf16_ ? bf16_block_rows(group_) : block_rows(group_)),
        scratch_(group_, head_dim_),
        segments_(read_segments("attention_forward", args)) {}

  void run() {
    if (!args_.accumulate) clear_uncovered();
    const bool rows = std::all_of(segments_.begin(), segments_.end(), [](const Segment& s) { return s.q_count == 1; });
    if (rows)
      return for_each(static_cast<std::int64_t>(segments_.size()) * kv_heads_ * group_,
                      [&](std::int64_t i, float* scratch) {
                        const std::int64_t heads = kv_heads_ * group_;
                        work_row(segments_[static_cast<std::size_t>(i / heads)], i % heads, scratch);
                      });
    std::vector<Item> items;
    for (const Segment& segment : segments_) {
      for (std::int64_t row = 0; row < segment.q_count; row += rows_) items.push_back({&segment, row});
    }
    const auto count = static_cast<std::int64_t>(items.size()) * kv_heads_;
    // With a causal mask, late rows see the most keys: they run first.
    for_each(count, [&](std::int64_t i, float* scratch) {
      const Item& item = items[static_cast<std::size_t>((count - 1 - i) / kv_heads_)];
      if constexpr (std::is_same_v<Act, Bf16>) {
        if (bf16_) return work_bf16(item, i % kv_heads_, scratch);
      }
      work(item, i % kv_heads_, scratch);
    });
  }

 private:
  struct Item {
    const Segment* segment;
    std::int64_t row;  // in the segment
  };

  // Calls body(i, scratch) for each i below count; each thread has its own scratch.
  template <class Body>
  void for_each(std::int64_t count, const Body& body) const {
    const std::int64_t scratch_size = scratch_floats(group_, head_dim_);
    const std::int64_t fitting = args_.workspace.bytes() / (scratch_size * 4);
    const auto threads = static_cast<int>(std::min<std::int64_t>(omp_get_max_threads(), fitting));
    auto* const scratch = reinterpret_cast<float*>(args_.workspace.raw());
    std::atomic<std::int64_t> next = 0;
#pragma omp parallel
    if (const int thread = omp_get_thread_num(); thread < threads) {
      const Bf16Tiles tiles(bf16_);
      for (std::int64_t i = next++; i < count; i = next++) body(i, scratch + thread * scratch_size);
    }
  }

  void clear_uncovered() {
    std::int64_t at = 0;
    const auto clear = [&](std::int64_t end) {
      for (std::int64_t t = at; t < end; ++t) {
        Out* const o = o_ + t * args_.o.stride(0);
        std::fill(o, o + group_ * kv_heads_ * head_dim_, Out(0.0f));
        for (std::int64_t h = 0; h < group_ * kv_heads_; ++h) {
          lse_[h * lse_row_ + t] = -std::numeric_limits<float>::infinity();
        }
      }
    };
    for (const Segment& segment : segments_) {
      clear(segment.q_begin);
      at = segment.q_begin + segment.q_count;
    }
    clear(query_rows_);
  }

  // A segment of one query row, for one head: decoding with the KV cache.
  void work_row(const Segment& s, std::int64_t head, float* scratch) const {
    const std::int64_t width = scratch_.width, kv_head = head / group_;
    float* const q = scratch;
    float* const o = q + width;
    float* const sums = o + width;
    float* const scores = sums + kHeadPad;
    float max = -std::numeric_limits<float>::infinity(), factor = 0;
    const auto scale = static_cast<float>(args_.scale * 1.4426950408889634);  // exponentials are powers of two
    HAWSER_DISPATCH(load_rows, q_ + s.q_begin * args_.q.stride(0) + head * head_dim_, args_.q.stride(0), 1, head_dim_,
                    scale, q, 1, width);
    std::fill_n(o, width, 0.0f);
    std::fill_n(sums, kHeadPad, 0.0f);
    const Visible visible{s, args_.causal, args_.window};
    const std::int64_t end = visible.end(0);
    for (std::int64_t key = visible.begin(0); key < end; key += kKeyBlock) {
      const std::int64_t row = s.k_begin + key;
      HAWSER_DISPATCH(forward_row, q, k_ + row * args_.k.stride(0) + kv_head * head_dim_, args_.k.stride(0),
                      v_ + row * args_.v.stride(0) + kv_head * head_dim_, args_.v.stride(0),
                      std::min(kKeyBlock, end - key), head_dim_, o, &max, sums, scores,
                      change_of(args_, head, s, 0, key), dropout_of(args_, head, s.q_begin, 1, row));
    }
    put_rows(s.q_begin, 1, head, o, width, &max, sums, &factor);
  }

  void work(const Item& item, std::int64_t kv_head, float* scratch) const {
    const Segment& s = *item.segment;
    const std::int64_t width = scratch_.width, rows = std::min(rows_, s.q_count - item.row);
    float* const k = scratch;
    float* const v = k + scratch_.keys();
    float* const panels = v + scratch_.keys();
    float* const q = panels + scratch_.keys();
    float* const o = q + scratch_.queries();
    float* const sums = o + scratch_.queries();
    float* const max = sums + scratch_.rows * kHeadPad;
    float* const factor = max + scratch_.rows;
    float* const scores = factor + scratch_.rows;
    const std::int64_t first_row = s.q_begin + item.row;
    const auto scale = static_cast<float>(args_.scale * 1.4426950408889634);  // exponentials are powers of two

    for (std::int64_t g = 0; g < group_; ++g) {
      const Act* from = q_ + first_row * args_.q.stride(0) + (kv_head * group_ + g) * head_dim_;
      HAWSER_DISPATCH(load_rows, from, args_.q.stride(0), rows, head_dim_, scale, q + g * rows_ * width, rows_, width);
    }
    std::fill_n(o, scratch_.queries(), 0.0f);
    std::fill_n(sums, scratch_.rows * kHeadPad, 0.0f);
    std::fill_n(max, scratch_.rows, -std::numeric_limits<float>::infinity());

    const Visible visible{s, args_.causal, args_.window};
    const std::int64_t end = visible.end(item.row + rows - 1);
    for (std::int64_t key = visible.begin(item.row); key < end; key += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, end - key), key_row = s.k_begin + key;
      const Act* k_from = k_ + key_row * args_.k.stride(0) + kv_head * head_dim_;
      const Act* v_from = v_ + key_row * args_.v.stride(0) + kv_head * head_dim_;
      HAWSER_DISPATCH(load_rows, k_from, args_.k.stride(0), keys, head_dim_, 1.0f, k, kKeyBlock, width);
      HAWSER_DISPATCH(load_rows, v_from, args_.v.stride(0), keys, head_dim_, 1.0f, v, kKeyBlock, width);
      HAWSER_DISPATCH(transpose_rows, k, width, panels);
      for (std::int64_t g = 0; g < group_; ++g) {
        const std::int64_t at = g * rows_;
        const ForwardBlock block{.q = q + at * width,
                                 .panels = panels,
                                 .v = v,
                                 .o = o + at * width,
                                 .max = max + at,
                                 .sums = sums + at * kHeadPad,
                                 .scores = scores,
                                 .rows = round_up(rows, 12),
                                 .width = width,
                                 .band = band_of(s, args_.causal, args_.window, item.row, key, keys),
                                 .change = change_of(args_, kv_head * group_ + g, s, item.row, key),
                                 .dropout = dropout_of(args_, kv_head * group_ + g, first_row, rows, key_row)};
        HAWSER_DISPATCH(forward_block, block);
      }
    }
    finish(item, kv_head, o, width, max, sums, factor);
  }

  // work() on the bf16 units.
  void work_bf16(const Item& item, std::int64_t kv_head, float* scratch) const {
    const Segment& s = *item.segment;
    const Bf16Scratch sizes(group_, head_dim_);
    const std::int64_t width = sizes.width, rows = std::min(rows_, s.q_count - item.row);
    auto* const loaded = reinterpret_cast<Bf16*>(scratch);
    auto* const k = reinterpret_cast<Bf16Pair*>(scratch) + sizes.keys();
    Bf16Pair* const v = k + sizes.keys();
    auto* const q = reinterpret_cast<Bf16*>(v + sizes.keys());
    float* const o = reinterpret_cast<float*>(q) + sizes.queries();
    float* const sums = o + sizes.queries();
    float* const max = sums + sizes.rows * kHeadPad;
    float* const factor = max + sizes.rows;
    float* const scores = factor + sizes.rows;
    auto* const p = reinterpret_cast<Bf16*>(scores + sizes.scores());
    const std::int64_t first_row = s.q_begin + item.row;

    for (std::int64_t g = 0; g < group_; ++g) {
      const Act* from = q_ + first_row * args_.q.stride(0) + (kv_head * group_ + g) * head_dim_;
      bf16_copy_rows(from, args_.q.stride(0), rows, head_dim_, q + g * rows_ * width, rows_, width);
    }
    std::fill_n(o, sizes.queries(), 0.0f);
    std::fill_n(sums, sizes.rows * kHeadPad, 0.0f);
    std::fill_n(max, sizes.rows, -std::numeric_limits<float>::infinity());

    const Visible visible{s, args_.causal, args_.window};
    const std::int64_t end = visible.end(item.row + rows - 1);
    for (std::int64_t key = visible.begin(item.row); key < end; key += kKeyBlock) {
      const std::int64_t keys = std::min(kKeyBlock, end - key), padded = round_up(keys, kBf16Tile);
      const std::int64_t key_row = s.k_begin + key;
      const Act* k_from = k_ + key_row * args_.k.stride(0) + kv_head * head_dim_;
      const Act* v_from = v_ + key_row * args_.v.stride(0) + kv_head * head_dim_;
      bf16_copy_rows(k_from, args_.k.stride(0), keys, head_dim_, loaded, padded, width);
      bf16_pair_columns(loaded, padded, width, k, kKeyBlock);
      bf16_copy_rows(v_from, args_.v.stride(0), keys, head_dim_, loaded, padded, width);
      bf16_pair_rows(loaded, padded, width, v);
      for (std::int64_t g = 0; g < group_; ++g) {
        const std::int64_t at = g * rows_;
        bf16_forward_block({.q = q + at * width,
                            .k = k,
                            .v = v,
                            .o = o + at * width,
                            .max = max + at,
                            .sums = sums + at * kHeadPad,
                            .scores = scores,
                            .p = p,
                            .p_low = p + sizes.scores(),
                            .rows = round_up(rows, kBf16Tile),
                            .width = width,
                            .scale = static_cast<float>(args_.scale * 1.4426950408889634),
                            .band = band_of(s, args_.causal, args_.window, item.row, key, keys)});
      }
    }
    finish(item, kv_head, o, width, max, sums, factor);
  }

  // Writes o and lse of an item. o, max, sums: of rows_ rows of each head of the group.
  void finish(const Item& item, std::int64_t kv_head, const float* o, std::int64_t width, float* max, const float* sums,
              float* factor) const {
    const std::int64_t rows = std::min(rows_, item.segment->q_count - item.row);
    const std::int64_t first_row = item.segment->q_begin + item.row;
    for (std::int64_t g = 0; g < group_; ++g) {
      const std::int64_t at = g * rows_;
      put_rows(first_row, rows, kv_head * group_ + g, o + at * width, width, max + at, sums + at * kHeadPad, factor);
    }
  }

  // Writes o and lse of some rows of a head, or merges the result into them. Overwrites max then.
  void put_rows(std::int64_t first_row, std::int64_t rows, std::int64_t head, const float* o, std::int64_t width,
                float* max, const float* sums, float* factor) const {
    float* const lse = lse_ + head * lse_row_ + first_row;
    Out* const to = o_ + first_row * args_.o.stride(0) + head * head_dim_;
    float* const own = args_.accumulate ? max : lse;
    HAWSER_DISPATCH(finish_rows, max, sums, rows, factor, own);
    if (!args_.accumulate) {
      HAWSER_DISPATCH(store_rows, o, width, factor, to, args_.o.stride(0), rows, head_dim_, false);
      return;
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      if (own[r] == -std::numeric_limits<float>::infinity()) continue;
      const Weights weights = weights_of(lse[r], own[r]);
      HAWSER_DISPATCH(blend_run, to + r * args_.o.stride(0), o + r * width, weights.by_a, weights.by_b * factor[r],
                      head_dim_);
      lse[r] = static_cast<float>(weights.lse);
    }
  }

  const AttentionCall& args_;
  const Act *q_, *k_, *v_;
  Out* o_;
  float* lse_;
  std::int64_t query_rows_, lse_row_, kv_heads_, group_, head_dim_;
  bool bf16_;  // runs on the bf16 units
  std::int64_t rows_;
  Scratch scratch_;
  std::vector<Segment> segments_;
};

}  // namespace

void attention_forward(const AttentionCall& args) {
  dispatch_float(args.q.dtype(), [&](auto act) {
    dispatch_float(args.o.dtype(), [&](auto out) { Forward<decltype(act), decltype(out)>(args).run(); });
  });
}

void attention_combine(const AttentionCombine& args) {
  const std::int64_t rows = args.o_a.size(0), heads = args.o_a.size(1), head_dim = args.o_a.size(2);
  const std::int64_t row_a = args.lse_a.stride(0), row_b = args.lse_b.stride(0);
  float* const lse_a = args.lse_a.data<float>();
  const float* const lse_b = args.lse_b.data<float>();
  dispatch_float(args.o_a.dtype(), [&](auto a_tag) {
    dispatch_float(args.o_b.dtype(), [&](auto b_tag) {
      const auto a = rows_of<decltype(a_tag)>(args.o_a);
      const auto b = rows_of<decltype(b_tag)>(args.o_b);
      parallel_pieces(rows, 16, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t t = begin; t < end; ++t) {
            const Weights weights = weights_of(lse_a[h * row_a + t], lse_b[h * row_b + t]);
            if (weights.lse == -std::numeric_limits<double>::infinity()) continue;  // neither sees a key: o_a is zero
            lse_a[h * row_a + t] = static_cast<float>(weights.lse);
            HAWSER_DISPATCH(blend_run, a.row(t) + h * head_dim, b.row(t) + h * head_dim, weights.by_a, weights.by_b,
                            head_dim);
          }
        }
      });
    });
  });
}

}  // namespace cpu
}  // namespace hawser::ops
