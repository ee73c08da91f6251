#include "nn/seams/token_exchange.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "nn/layer.h"
#include "ops/moe/dispatch.h"

namespace hawser::nn {

std::int64_t TokenExchange::Sizes::rows() const {
  return ops::expert_rows(tokens, per_token, experts);
}

// A token has its experts only once.
std::int64_t TokenExchange::Sizes::piece_rows() const {
  const std::int64_t of = piece_experts();
  const std::int64_t most = ops::expert_rows(ranks() * tokens, std::min(per_token, of), of);
  if (!row_bound) return most;
  const double mean = static_cast<double>(tokens * per_token) / options.pieces;
  const auto bound = static_cast<std::int64_t>(std::ceil(*row_bound * mean));
  return std::min(most, round_up(bound, ops::kGroupRows) + of * ops::kGroupRows);
}

std::int64_t TokenExchange::Sizes::max_sent_to_expert() const {
  return std::min(tokens, piece_rows());
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

}  // namespace hawser::nn
