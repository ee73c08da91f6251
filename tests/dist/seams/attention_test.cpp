// AttentionExchange over two ranks with a zig-zag split of a line of packed documents: rank 0 has chunks 0 and 3, rank
// 1 has 1 and 2. Two implementations: all-gather of all keys, and a ring. Both must equal one rank.
#include <gtest/gtest.h>

#include <algorithm>

#include "nn/blocks/attention_layer.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"
#include "seams.h"

namespace hawser::testing {
namespace attention_test {

using nn::AttentionPart;
using nn::AttentionTensors;
using nn::LayerContext;
using nn::testing::Documents;
using nn::testing::LayerResult;
using nn::testing::LayerRun;
using nn::testing::normals;
using nn::testing::TestContext;
using nn::testing::TestSink;

// Four chunks of the line; rank r holds chunks r and 3 - r, in that order.
struct Line {
  Documents documents;

  std::int64_t chunk() const { return documents.rows() / 4; }
  std::int64_t rows() const { return documents.rows() / 2; }  // per rank
  static std::int64_t chunk_of(int rank, int which) { return which == 0 ? rank : 3 - rank; }
  std::vector<std::size_t> rows_of_rank(int rank) const {
    const auto begin = [&](int which) { return static_cast<std::size_t>(chunk_of(rank, which) * chunk()); };
    const auto size = static_cast<std::size_t>(chunk());
    return range(begin(0), begin(0) + size) + range(begin(1), begin(1) + size);
  }

  // One segment for every piece of a document in this rank's queries: against those keys of the document that are in
  // [k_begin, k_end) of the line and are stored from row 0 on.
  std::vector<double> segments(int rank, std::int64_t k_begin, std::int64_t k_end) const {
    std::vector<double> out;
    for (int which = 0; which < 2; ++which) {
      const std::int64_t begin = chunk_of(rank, which) * chunk(), end = begin + chunk();
      std::int64_t document = 0;
      for (const std::int64_t length : documents.lengths) {
        const std::int64_t q0 = std::max(begin, document), q1 = std::min(end, document + length);
        const std::int64_t k0 = std::max(k_begin, document), k1 = std::min(k_end, document + length);
        if (q0 < q1 && k0 < k1) {
          for (const std::int64_t field :
               {which * chunk() + q0 - begin, q1 - q0, k0 - k_begin, k1 - k0, q0 - document, k0 - document}) {
            out.push_back(static_cast<double>(field));
          }
        }
        document += length;
      }
    }
    return out;
  }
};

struct Table {
  TensorView segments, count;
};

Table table(TestContext& ctx, std::vector<double> segments) {
  const auto count = static_cast<std::int64_t>(segments.size()) / 6;
  if (count == 0) segments.assign(6, 0.0);  // a table has at least one row, even if it is not used
  return {ctx.make(DType::i32, {std::max<std::int64_t>(count, 1), 6}, segments),
          ctx.make(DType::i32, {1}, {static_cast<double>(count)})};
}

// Packs rows of K and V next to each other: [T, 2 K D].
TensorView packed(LayerContext& ctx, const TensorView& k, const TensorView& v, DType dtype) {
  const std::int64_t rows = k.size(0), width = k.size(1) * k.size(2);
  const TensorView out = ctx.temp(dtype, {rows, 2 * width});
  ops::cast(ctx.exchange(), {.x = k, .y = out.columns(0, width).split_last(k.size(1), k.size(2))});
  ops::cast(ctx.exchange(), {.x = v, .y = out.columns(width, width).split_last(k.size(1), k.size(2))});
  return out;
}

// The K or V half of packed rows, as [rows, K, D].
TensorView half(const TensorView& rows, int which, const TensorView& like) {
  const std::int64_t width = like.size(1) * like.size(2);
  return rows.columns(which * width, width).split_last(like.size(1), like.size(2));
}

// ---- all-gather of all keys, in the order of the line

class GatherExchange : public nn::AttentionExchange {
 public:
  GatherExchange(TestContext& ctx, const Line& line, int rank)
      : table_(table(ctx, line.segments(rank, 0, 4 * line.chunk()))) {
    std::vector<double> index;  // by row of the line: its index in the gathered buffer
    for (std::int64_t row = 0; row < 4 * line.chunk(); ++row) {
      for (int r = 0; r < 2; ++r) {
        const auto rows = line.rows_of_rank(r);
        const auto it = std::find(rows.begin(), rows.end(), static_cast<std::size_t>(row));
        if (it != rows.end()) index.push_back(static_cast<double>(r * line.rows() + (it - rows.begin())));
      }
    }
    order_ = ctx.make(DType::i32, {4 * line.chunk()}, index);
  }
  std::unique_ptr<Call> forward(LayerContext& ctx, const AttentionMask& mask,
                                const AttentionTensors& tensors) override {
    return std::make_unique<Gathered>(ctx, *this, mask, tensors);
  }
  std::unique_ptr<Call> backward(LayerContext& ctx, const AttentionMask& mask,
                                 const AttentionTensors& tensors) override {
    return std::make_unique<Gathered>(ctx, *this, mask, tensors);
  }

 private:
  class Gathered : public Call {
   public:
    Gathered(LayerContext& ctx, const GatherExchange& owner, const AttentionMask& mask, const AttentionTensors& tensors)
        : ctx_(ctx), owner_(owner), mask_(mask), tensors_(tensors), dk_(tensors.dk), dv_(tensors.dv), like_(tensors.k) {
      ctx.exchange_after_compute();
      const TensorView& k = tensors.k;
      const TensorView mine = packed(ctx, k, tensors.v, k.dtype());
      const Shape all{2 * mine.size(0), mine.size(1)};
      const TensorView gathered = ctx.temp(k.dtype(), all);
      line_ = ctx.temp(k.dtype(), all);
      pair().all_gather(ctx.exchange(), mine, gathered);
      ops::gather_rows(ctx.exchange(), {.x = gathered, .index = owner.order_, .y = line_});
    }
    int parts() const override { return 1; }
    AttentionPart wait(int) override {
      ctx_.compute_after_exchange();
      if (!dk_.empty()) gradient_ = ctx_.temp(DType::f32, line_.shape());
      AttentionTensors tensors = tensors_;
      tensors.k = half(line_, 0, like_);
      tensors.v = half(line_, 1, like_);
      if (!dk_.empty()) tensors.dk = half(gradient_, 0, like_);
      if (!dk_.empty()) tensors.dv = half(gradient_, 1, like_);
      return {
          .tensors = tensors, .segments = owner_.table_.segments, .segment_count = owner_.table_.count, .mask = mask_};
    }
    void computed(int) override {
      if (dk_.empty()) return;
      ctx_.exchange_after_compute();
      const TensorView send = ctx_.temp(DType::f32, line_.shape());
      ops::scatter_rows(ctx_.exchange(), {.x = gradient_, .index = owner_.order_, .y = send});
      const TensorView mine = ctx_.temp(DType::f32, {line_.size(0) / 2, line_.size(1)});
      const std::int64_t bytes = comm::reduce_scatter_workspace(mine.elements(), DType::f32, 2, DeviceKind::cpu);
      pair().reduce_scatter(ctx_.exchange(), send, mine, false, ctx_.temp(DType::u8, {bytes}));
      ops::cast(ctx_.exchange(), {.x = half(mine, 0, like_), .y = dk_});
      ops::cast(ctx_.exchange(), {.x = half(mine, 1, like_), .y = dv_});
    }
    void finish_keys() override { ctx_.compute_after_exchange(); }

   private:
    LayerContext& ctx_;
    const GatherExchange& owner_;
    AttentionMask mask_;
    AttentionTensors tensors_;
    TensorView dk_, dv_, like_, line_, gradient_;
  };

  Table table_;
  TensorView order_;
};

// ---- ring: keys of the other rank arrive while attention runs over the local ones; one part per chunk of keys

class TwoRankRing : public nn::AttentionExchange {
 public:
  TwoRankRing(TestContext& ctx, const Line& line, int rank) : chunk_(line.chunk()) {
    for (const int owner : {rank, 1 - rank}) {
      for (int which = 0; which < 2; ++which) {
        const std::int64_t begin = Line::chunk_of(owner, which) * chunk_;
        tables_.push_back(table(ctx, line.segments(rank, begin, begin + chunk_)));
      }
    }
  }
  std::unique_ptr<Call> forward(LayerContext& ctx, const AttentionMask& mask,
                                const AttentionTensors& tensors) override {
    return std::make_unique<Round>(ctx, *this, mask, tensors);
  }
  std::unique_ptr<Call> backward(LayerContext& ctx, const AttentionMask& mask,
                                 const AttentionTensors& tensors) override {
    return std::make_unique<Round>(ctx, *this, mask, tensors);
  }

 private:
  class Round : public Call {
   public:
    Round(LayerContext& ctx, const TwoRankRing& owner, const AttentionMask& mask, const AttentionTensors& tensors)
        : ctx_(ctx),
          owner_(owner),
          mask_(mask),
          tensors_(tensors),
          k_(tensors.k),
          v_(tensors.v),
          dk_(tensors.dk),
          dv_(tensors.dv) {
      ctx.exchange_after_compute();
      other_ = swap(packed(ctx, k_, v_, k_.dtype()));
    }
    int parts() const override { return 4; }
    AttentionPart wait(int p) override {
      const Table& table = owner_.tables_[static_cast<std::size_t>(p)];
      const bool local = p < 2, backward = !dk_.empty();
      if (p == 2) {
        ctx_.compute_after_exchange();
        if (backward) gradient_ = ctx_.temp(DType::f32, other_.shape());
      }
      const auto rows = [&](const TensorView& view) { return view.rows((p % 2) * owner_.chunk_, owner_.chunk_); };
      const auto choose = [&](const TensorView& mine, const TensorView& theirs, int which) {
        return rows(local ? mine : half(theirs, which, k_));
      };
      AttentionTensors tensors = tensors_;
      tensors.k = choose(k_, other_, 0);
      tensors.v = choose(v_, other_, 1);
      if (backward) tensors.dk = choose(dk_, gradient_, 0);
      if (backward) tensors.dv = choose(dv_, gradient_, 1);
      return {
          .tensors = tensors, .segments = table.segments, .segment_count = table.count, .mask = mask_, .first = p == 0};
    }
    void computed(int p) override {
      if (p < 3 || dk_.empty()) return;
      ctx_.exchange_after_compute();
      const TensorView mine = swap(gradient_);
      ctx_.compute_after_exchange();
      ops::add(ctx_.compute(), {.a = dk_, .b = half(mine, 0, k_), .y = dk_});
      ops::add(ctx_.compute(), {.a = dv_, .b = half(mine, 1, k_), .y = dv_});
    }

   private:
    // A send may block until its receive: one rank must receive first.
    TensorView swap(const TensorView& mine) {
      const TensorView theirs = ctx_.temp(mine.dtype(), mine.shape());
      const int other = 1 - pair().index();
      if (other == 1) pair().send(ctx_.exchange(), mine, other);
      pair().receive(ctx_.exchange(), theirs, other);
      if (other == 0) pair().send(ctx_.exchange(), mine, other);
      return theirs;
    }
    LayerContext& ctx_;
    const TwoRankRing& owner_;
    AttentionMask mask_;
    AttentionTensors tensors_;
    TensorView k_, v_, dk_, dv_, other_, gradient_;
  };

  std::int64_t chunk_;
  std::vector<Table> tables_;
};

// ---- comparison with one rank

constexpr std::int64_t kWidth = 12;

nn::AttentionLayer layer(const AttentionMask& mask) {
  return nn::AttentionLayer({.width = kWidth,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 6,
                             .qkv_bias = true,
                             .output_bias = true,
                             .causal = mask.causal,
                             .window = mask.window,
                             .norm = "norm",
                             .q = "q",
                             .k = "k",
                             .v = "v",
                             .output = "o",
                             .fused = "qkv"});
}

void give_weights(TestContext& ctx, const nn::Layer& layer) {
  for (const nn::Param& param : layer.params()) {
    const bool ones = param.initial.kind == nn::Initial::Kind::ones;
    ctx.weights_.push_back(
        ctx.make(ctx.dtype(), param.shape, normals(param.name, param.elements(), ones ? 0.1 : 0.3, ones ? 1.0 : 0.0)));
  }
}

template <class Exchange>
void expect_one_ranks_results(const Documents& documents, const nn::SavePolicy& policy, double random_delay_s,
                              const AttentionMask& mask = {}) {
  const Line line{documents};
  const auto layer = attention_test::layer(mask);
  const std::vector<double> x = normals("x", documents.rows() * kWidth), dy = normals("dy", documents.rows() * kWidth);

  const auto device = make_cpu_device(
      {.threads = 1, .random_delay_s = random_delay_s, .delay_seed = static_cast<std::uint64_t>(pair().index() + 1)});
  LayerResult expected;
  {
    TestContext ctx(*device, DType::f32);
    give_weights(ctx, layer);
    nn::testing::set_batch(ctx, documents, 6, mask);
    TestSink sink(ctx, layer.params());
    LayerRun run(ctx, layer, kWidth, {}, x, dy);
    run.run(sink);
    expected = run.result(sink);
  }

  const int rank = pair().index();
  const std::vector<std::size_t> mine = line.rows_of_rank(rank);
  TestContext ctx(*device, DType::f32);
  give_weights(ctx, layer);
  nn::testing::set_batch(ctx, documents, 6, mask);  // for the frequencies
  std::vector<double> positions;
  for (const std::size_t row : mine) positions.push_back(static_cast<double>(documents.positions()[row]));
  ctx.batch_.positions = ctx.make(DType::i32, {line.rows()}, positions);
  ctx.batch_.diagonal = ctx.batch_.diagonal_count = {};  // the exchanges have their own tables
  ctx.seams_.attention = std::make_shared<Exchange>(ctx, line, rank);
  TestSink sink(ctx, layer.params());
  LayerRun run(ctx, layer, kWidth, policy, rows_of(x, kWidth, mine), rows_of(dy, kWidth, mine));
  run.run(sink);
  for (const TensorView& gradient : sink.views()) {
    const std::int64_t bytes = comm::all_reduce_workspace(gradient.elements(), DType::f32, 2, DeviceKind::cpu);
    pair().all_reduce(ctx.compute(), gradient, comm::Reduction::sum, ctx.make(DType::u8, {bytes}));
  }
  ctx.finish();
  const LayerResult got = run.result(sink);
  EXPECT_LT(nn::testing::distance(got.y, rows_of(expected.y, kWidth, mine)), 1e-5);
  EXPECT_LT(nn::testing::distance(got.dx, rows_of(expected.dx, kWidth, mine)), 1e-5);
  for (std::size_t p = 0; p < got.gradients.size(); ++p) {
    EXPECT_LT(nn::testing::distance(got.gradients[p], expected.gradients[p]), 1e-5) << layer.params()[p].name;
  }
}

template <class Exchange>
void expect_one_ranks_results_everywhere() {
  for (const Documents& documents :
       {Documents{{16}}, Documents{{5, 1, 9, 13}}, Documents{{32}}, Documents{{2, 2, 2, 2}}}) {
    for (const nn::SavePolicy& policy : nn::testing::all_policies()) {
      SCOPED_TRACE(nn::testing::text(policy));
      expect_one_ranks_results<Exchange>(documents, policy, 0.0);
    }
  }
  for (const Documents& documents : {Documents{{32}}, Documents{{5, 1, 9, 13}}}) {
    for (const std::int64_t window : {1, 7, 8, 9, 33}) {  // a chunk has 8 or 7 rows
      SCOPED_TRACE(window);
      expect_one_ranks_results<Exchange>(documents, {Checkpointing::full, true}, 0.0, {.window = window});
    }
    for (const std::int64_t window : {0, 7}) {
      SCOPED_TRACE("not causal");
      expect_one_ranks_results<Exchange>(documents, {Checkpointing::full, true}, 0.0,
                                         {.causal = false, .window = window});
    }
  }
  for (int round = 0; round < 3; ++round) {
    expect_one_ranks_results<Exchange>({{5, 1, 9, 13}}, {Checkpointing::full, true}, 0.002);
  }
}

TEST(AttentionExchange, GatheredKeysEqualOneRank) {
  expect_one_ranks_results_everywhere<GatherExchange>();
}

TEST(AttentionExchange, ARingEqualsOneRank) {
  expect_one_ranks_results_everywhere<TwoRankRing>();
}

}  // namespace attention_test
}  // namespace hawser::testing
