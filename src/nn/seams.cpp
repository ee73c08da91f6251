#include "nn/seams.h"

#include <cmath>

#include "nn/layer.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/moe/dispatch.h"

namespace hawser::nn {

std::vector<ops::StridedBlocks> diagonal_blocks(const BatchViews& batch, const AttentionMask& mask, std::int64_t rows) {
  if (batch.uniform_diagonal == 0 || !mask.causal) return {};
  return {ops::equal_diagonal_blocks(rows, batch.uniform_diagonal)};
}

std::optional<AttentionMask> striped_mask(const AttentionMask& mask, int ring, int rank, int source) {
  if (mask.window == 0) return mask;
  HAWSER_CHECK(mask.causal, "a window without a causal mask in a striped sequence");
  const std::int64_t distance = mask.window + source - rank - (source > rank ? ring : 0);
  if (distance <= 0) return std::nullopt;
  return AttentionMask{.causal = true, .window = (distance + ring - 1) / ring};
}

const MaskViews& BatchViews::with_mask(const AttentionMask& mask) const {
  for (const MaskViews& views : masks) {
    if (views.mask == mask) return views;
  }
  HAWSER_CHECK(false, "the batch has no tables for ", mask.causal ? "" : "no causal mask, ", "window ", mask.window);
}

namespace {

// One part: this rank's own keys, each piece of a document against itself.
class LocalCall : public AttentionExchange::Call {
 public:
  LocalCall(const LayerContext& ctx, const AttentionMask& mask, const AttentionTensors& tensors)
      : part_{.tensors = tensors,
              .segments = ctx.batch().diagonal,
              .segment_count = ctx.batch().diagonal_count,
              .form = ops::SegmentForm::diagonal,
              .blocks = diagonal_blocks(ctx.batch(), mask, tensors.k.size(0)),
              .host_segments = ctx.batch().host_diagonal,
              .mask = mask,
              .query_ids = ctx.batch().attention_row_ids,
              .key_ids = ctx.batch().attention_row_ids,
              .visible = ctx.batch().with_mask(mask).diagonal_pairs} {}
  int parts() const override { return 1; }
  AttentionPart wait(int) override { return part_; }

 private:
  AttentionPart part_;
};

class LocalRows : public Redistribute::Gather {
 public:
  explicit LocalRows(const Scaled& x) : x_(x) {}
  int pieces() const override { return 1; }
  RowPiece wait(int) override { return {x_, 0}; }
  Scaled all() override { return x_; }

 private:
  Scaled x_;
};

class LocalSum : public Redistribute::Sum {
 public:
  LocalSum(LayerContext& ctx, const TensorView& y, const TensorView& residual)
      : ctx_(ctx), y_(y), residual_(residual) {}
  int pieces() const override { return 1; }
  RowPiece target(int) override { return {y_, 0}; }
  void written(int) override {}
  void finish() override {
    if (!residual_.empty()) ops::add(ctx_.compute(), {.a = y_, .b = residual_, .y = y_});
  }

 private:
  LayerContext& ctx_;
  TensorView y_, residual_;
};

}  // namespace

std::unique_ptr<Redistribute::Gather> Redistribute::gather(LayerContext&, const Scaled& x) {
  return std::make_unique<LocalRows>(x);
}

std::unique_ptr<Redistribute::Sum> Redistribute::sum(LayerContext& ctx, const TensorView& y, const TensorView& residual,
                                                     Order) {
  return std::make_unique<LocalSum>(ctx, y, residual);
}

AttentionTensors AttentionTensors::kv_heads(std::int64_t begin, std::int64_t count) const {
  const std::int64_t group = query_heads_per_kv_head();
  const auto heads = [](const TensorView& x, std::int64_t first, std::int64_t number) {
    HAWSER_CHECK(x.empty() || x.stride(1) == x.size(2), "heads of ", x.text(), " are not adjacent");
    return x.empty() ? x : x.slice(1, first, number);
  };
  const auto of_queries = [&](const TensorView& x) { return heads(x, begin * group, count * group); };
  const auto of_keys = [&](const TensorView& x) { return heads(x, begin, count); };
  return {.q = of_queries(q),
          .k = of_keys(k),
          .v = of_keys(v),
          .o = of_queries(o),
          .lse = lse.rows(begin * group, count * group),
          .d_o = of_queries(d_o),
          .dq = of_queries(dq),
          .dk = of_keys(dk),
          .dv = of_keys(dv)};
}

std::int64_t TokenExchange::Sizes::rows() const {
  return ops::expert_rows(tokens, per_token, experts, capacity);
}

// A token has its experts only once.
std::int64_t TokenExchange::Sizes::piece_rows() const {
  const std::int64_t of = piece_experts();
  const std::int64_t most = ops::expert_rows(ranks() * tokens, std::min(per_token, of), of, ranks() * capacity);
  if (row_bound <= 0) return most;
  const double mean = static_cast<double>(tokens * per_token) / options.pieces;
  const auto bound = static_cast<std::int64_t>(std::ceil(row_bound * mean));
  return std::min(most, round_up(bound, ops::kGroupRows) + of * ops::kGroupRows);
}

std::int64_t TokenExchange::Sizes::max_sent_to_expert() const {
  return std::min({tokens, piece_rows(), capacity > 0 ? capacity : tokens});
}

std::int64_t TokenExchange::Sizes::max_sent() const {
  const std::int64_t most = tokens * std::min(per_token, piece_experts());
  return std::min({most, piece_rows(), capacity > 0 ? capacity * piece_experts() : most});
}

double TokenExchange::Sizes::expected_sent() const {
  return static_cast<double>(tokens * per_token) / static_cast<double>(ranks() * options.pieces);
}

TensorView TokenExchange::Routing::piece_offsets(int p) const {
  return expert_offsets.reshape({sizes.options.pieces, sizes.piece_experts() + 1})
      .rows(p, 1)
      .reshape({sizes.piece_experts() + 1});
}

TensorView TokenExchange::Routing::piece_rows(const TensorView& of_experts, int p) const {
  const std::int64_t rows = sizes.piece_rows();
  return of_experts.rows(p * rows, rows);
}

namespace {

class LocalDispatch : public TokenExchange::Dispatch {
 public:
  explicit LocalDispatch(std::vector<TensorView> rows) : rows_(std::move(rows)) {}
  std::vector<TensorView> wait(int) override { return rows_; }

 private:
  std::vector<TensorView> rows_;
};

class LocalCombine : public TokenExchange::Combine {
 public:
  LocalCombine(LayerContext& ctx, std::int64_t rows, std::vector<TokenExchange::Columns> columns)
      : ctx_(ctx), rows_(rows), columns_(std::move(columns)) {}
  std::vector<TensorView> target(int) override {
    for (const TokenExchange::Columns& of : columns_) results_.push_back(ctx_.temp(of.dtype, {rows_, of.columns}));
    return results_;
  }
  void written(int) override {}
  std::vector<TensorView> finish() override { return results_; }

 private:
  LayerContext& ctx_;
  std::int64_t rows_;
  std::vector<TokenExchange::Columns> columns_;
  std::vector<TensorView> results_;
};

void expect_one_rank(const TokenExchange::Routing& routing) {
  HAWSER_CHECK(routing.counts.empty(), "experts on several ranks need an implementation of TokenExchange");
}

}  // namespace

void TokenExchange::route(LayerContext&, const Routing& routing) {
  expect_one_rank(routing);
}

std::unique_ptr<TokenExchange::Dispatch> TokenExchange::dispatch(LayerContext&, const Routing& routing,
                                                                 std::vector<TensorView> rows) {
  expect_one_rank(routing);
  return std::make_unique<LocalDispatch>(std::move(rows));
}

std::unique_ptr<TokenExchange::Combine> TokenExchange::combine(LayerContext& ctx, const Routing& routing,
                                                               std::vector<Columns> columns) {
  expect_one_rank(routing);
  return std::make_unique<LocalCombine>(ctx, routing.sizes.rows(), std::move(columns));
}

std::unique_ptr<AttentionExchange::Call> AttentionExchange::forward(LayerContext& ctx, const AttentionMask& mask,
                                                                    const AttentionTensors& tensors) {
  return std::make_unique<LocalCall>(ctx, mask, tensors);
}

std::unique_ptr<AttentionExchange::Call> AttentionExchange::backward(LayerContext& ctx, const AttentionMask& mask,
                                                                     const AttentionTensors& tensors) {
  return std::make_unique<LocalCall>(ctx, mask, tensors);
}

void TensorReduce::gather(LayerContext& ctx, const TensorView& part, const TensorView& all) {
  ops::copy(ctx.compute(), {.x = part, .y = all});
}

}  // namespace hawser::nn
