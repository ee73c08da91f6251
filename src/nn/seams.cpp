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

const MaskViews& BatchViews::with_mask(const AttentionMask& mask) const {
  for (const MaskViews& views : masks) {
    if (views.mask == mask) return views;
  }
  HAWSER_CHECK(false, "the batch has no tables for ", mask.causal ? "" : "no causal mask, ", "window ", mask.window,
               mask.distances ? ", distances" : "");
}

const TensorView& BatchViews::table(std::string_view name, DType dtype) const {
  const auto found = tables.find(name);
  HAWSER_CHECK(found != tables.end(), "a layer reads table ", name, ", which the model does not declare");
  HAWSER_CHECK(found->second.dtype() == dtype, "a layer reads table ", name, " as ", to_string(dtype), ", not as ",
               to_string(found->second.dtype()));
  return found->second;
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

double TokenExchange::Sizes::expected_sent() const {
  return static_cast<double>(tokens * per_token) / static_cast<double>(ranks() * options.pieces);
}

TensorView TokenExchange::Routing::piece_offsets(int p) const {
  return expert_offsets.reshape({sizes.options.pieces, sizes.piece_experts() + 1})
      .rows(p, 1)
      .reshape({sizes.piece_experts() + 1});
}

TensorView TokenExchange::Routing::piece_rows(const TensorView& of_experts, int p) const {
  const std::int64_t count = sizes.piece_rows();
  return of_experts.rows(p * count, count);
}

namespace {

using Weights = TokenExchange::Weights;

// All experts are on this rank: R rows, one for each assignment.
class LocalDispatch : public TokenExchange::Dispatch {
 public:
  explicit LocalDispatch(const TokenExchange::PieceRows& rows) : rows_(rows) {}
  TokenExchange::PieceRows wait(int) override { return rows_; }

 private:
  TokenExchange::PieceRows rows_;
};

class LocalCombine : public TokenExchange::Combine {
 public:
  LocalCombine(LayerContext& ctx, const TokenExchange::Routing& routing, DType dtype, std::int64_t columns,
               Weights weights)
      : ctx_(ctx), routing_(routing), dtype_(dtype), columns_(columns), weights_(weights) {}
  TokenExchange::PieceRows target(int) override {
    const std::int64_t rows = routing_.sizes.rows();
    written_.rows = ctx_.temp(dtype_, {rows, columns_});
    if (weights_ == Weights::sent) written_.weights = ctx_.temp(DType::f32, {rows, 1});
    return written_;
  }
  void written(int) override {}
  void finish_weights(const TensorView& values) override {
    TokenExchange::assignment_values(ctx_, routing_, written_.weights, values);
  }
  void finish(const TensorView& residual, const TensorView& y) override {
    TokenExchange::sum_assignments(ctx_, routing_, written_.rows, weights_, residual, y);
  }

 private:
  LayerContext& ctx_;
  TokenExchange::Routing routing_;
  DType dtype_;
  std::int64_t columns_;
  Weights weights_;
  TokenExchange::PieceRows written_;
};

void expect_one_rank(const TokenExchange::Routing& routing) {
  HAWSER_CHECK(routing.counts.empty(), "experts on several ranks need an implementation of TokenExchange");
}

}  // namespace

void TokenExchange::route(LayerContext&, const Routing& routing) {
  expect_one_rank(routing);
}

std::unique_ptr<TokenExchange::Dispatch> TokenExchange::dispatch(LayerContext& ctx, const Routing& routing,
                                                                 const TensorView& x, Weights weights) {
  expect_one_rank(routing);
  PieceRows rows{.rows = assignment_rows(ctx, routing, x, weights), .weights = {}};
  if (weights == Weights::sent) rows.weights = assignment_weights(ctx, routing);
  return std::make_unique<LocalDispatch>(rows);
}

std::unique_ptr<TokenExchange::Combine> TokenExchange::combine(LayerContext& ctx, const Routing& routing, DType dtype,
                                                               std::int64_t columns, Weights weights) {
  expect_one_rank(routing);
  return std::make_unique<LocalCombine>(ctx, routing, dtype, columns, weights);
}

TensorView TokenExchange::assignment_rows(LayerContext& ctx, const Routing& routing, const TensorView& x,
                                          Weights weights) {
  const TensorView rows = ctx.temp(x.dtype(), {routing.sizes.rows(), x.size(1)});
  ops::dispatch_rows(ctx.compute(), {.x = x,
                                     .assignments = routing.assignments,
                                     .offsets = routing.offsets,
                                     .weights = weights == Weights::applied ? routing.weights : TensorView(),
                                     .y = rows,
                                     .per_token = routing.sizes.per_token});
  return rows;
}

// The weights as rows of one column: an assignment is then a token with one expert.
TensorView TokenExchange::assignment_weights(LayerContext& ctx, const Routing& routing) {
  const TensorView rows = ctx.temp(DType::f32, {routing.sizes.rows(), 1});
  ops::dispatch_rows(ctx.compute(), {.x = routing.weights.reshape({routing.weights.elements(), 1}),
                                     .assignments = routing.assignments,
                                     .offsets = routing.offsets,
                                     .y = rows});
  return rows;
}

void TokenExchange::sum_assignments(LayerContext& ctx, const Routing& routing, const TensorView& rows, Weights weights,
                                    const TensorView& residual, const TensorView& y) {
  ops::combine_rows(ctx.compute(), {.x = rows,
                                    .rows = routing.rows,
                                    .weights = weights == Weights::applied ? routing.weights : TensorView(),
                                    .residual = residual,
                                    .y = y});
}

void TokenExchange::assignment_values(LayerContext& ctx, const Routing& routing, const TensorView& of_rows,
                                      const TensorView& values) {
  const Shape column{values.elements(), 1};
  ops::combine_rows(ctx.compute(), {.x = of_rows, .rows = routing.rows.reshape(column), .y = values.reshape(column)});
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
