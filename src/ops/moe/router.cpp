#include "ops/moe/router.h"

#include <algorithm>

#include "base/units.h"

namespace hawser::ops {

namespace {

struct RouterSizes {
  std::int64_t tokens, experts, per_token;
};

// Checks the views that the ops share.
RouterSizes check_router(const char* op, const TensorView& logits, const TensorView& chosen) {
  HAWSER_CHECK(logits.rank() == 2 && chosen.rank() == 2, op, ": logits ", logits.shape().text(), ", experts ",
               chosen.shape().text());
  const RouterSizes s{logits.size(0), logits.size(1), chosen.size(1)};
  HAWSER_CHECK(s.per_token >= 1 && s.per_token <= s.experts && s.experts <= kMaxExperts, op, ": ", s.per_token, " of ",
               s.experts, " experts");
  expect(op, "logits", logits, {DType::f32}, {s.tokens, s.experts});
  expect(op, "experts", chosen, {DType::i32}, {s.tokens, s.per_token});
  return s;
}

double per_logit(const TensorView& logits, double flops) {
  return flops * static_cast<double>(logits.elements());
}

}  // namespace

void router_top_k(Stream& stream, const RouterTopK& args) {
  constexpr auto kOp = "router_top_k";
  const RouterSizes s = check_router(kOp, args.logits, args.experts);
  expect(kOp, "weights", args.weights, {DType::f32}, {s.tokens, s.per_token});
  if (!args.mask.empty()) expect(kOp, "mask", args.mask, {DType::i32}, {s.tokens});
  for (const TensorView& view : {args.logits, args.mask, args.weights}) expect_apart(kOp, args.experts, view);
  for (const TensorView& view : {args.logits, args.mask}) expect_apart(kOp, args.weights, view);
  run(stream, {kOp, OpKind::elementwise}, {args.logits, args.mask}, {args.experts, args.weights},
      per_logit(args.logits, 4), args, HAWSER_BACKENDS(router_top_k));
}

std::int64_t router_statistics_workspace(std::int64_t tokens, std::int64_t experts) {
  return std::clamp<std::int64_t>(ceil_div(tokens, 256), 1, 64) * router_statistics_size(experts) * size_of(DType::f32);
}

void router_statistics(Stream& stream, const RouterStatistics& args) {
  constexpr auto kOp = "router_statistics";
  const RouterSizes s = check_router(kOp, args.logits, args.experts);
  expect(kOp, "statistics", args.statistics, {DType::f32}, {router_statistics_size(s.experts)});
  expect_workspace(kOp, args.workspace, router_statistics_workspace(s.tokens, s.experts));
  for (const TensorView& view : {args.logits, args.experts, args.workspace}) expect_apart(kOp, args.statistics, view);
  for (const TensorView& view : {args.logits, args.experts}) expect_apart(kOp, args.workspace, view);
  run(stream, {kOp, OpKind::elementwise}, {args.logits, args.experts}, {args.statistics, args.workspace},
      per_logit(args.logits, 5), args, HAWSER_BACKENDS(router_statistics));
}

void router_loss(Stream& stream, const RouterLoss& args) {
  constexpr auto kOp = "router_loss";
  HAWSER_CHECK(args.statistics.rank() == 2 && args.statistics.size(1) >= router_statistics_size(1) &&
                   args.statistics.size(1) % 2 == 0,
               kOp, ": statistics ", args.statistics.shape().text());
  const std::int64_t layers = args.statistics.size(0), experts = experts_of_statistics(args.statistics.size(1));
  HAWSER_CHECK(experts <= kMaxExperts, kOp, ": ", experts, " experts");
  expect(kOp, "statistics", args.statistics, {DType::f32}, {layers, router_statistics_size(experts)});
  if (!args.factors.empty()) {
    expect(kOp, "factors", args.factors, {DType::f32}, {layers, router_factors_size(experts)});
  }
  if (!args.scale.empty()) expect(kOp, "scale", args.scale, {DType::f32}, {1});
  expect(kOp, "loss", args.loss, {DType::f32}, {1});
  for (const TensorView& view : {args.statistics, args.scale, args.factors}) expect_apart(kOp, args.loss, view);
  for (const TensorView& view : {args.statistics, args.scale}) expect_apart(kOp, args.factors, view);
  run(stream, {kOp, OpKind::elementwise}, {args.statistics, args.scale, args.accumulate ? args.loss : TensorView()},
      {args.factors, args.loss}, static_cast<double>(args.statistics.elements()), args, HAWSER_BACKENDS(router_loss));
}

void router_top_k_backward(Stream& stream, const RouterTopKBackward& args) {
  constexpr auto kOp = "router_top_k_backward";
  const RouterSizes s = check_router(kOp, args.logits, args.experts);
  expect(kOp, "weights", args.weights, {DType::f32}, {s.tokens, s.per_token});
  expect(kOp, "dweights", args.dweights, {DType::f32}, {s.tokens, s.per_token});
  expect(kOp, "dlogits", args.dlogits, {DType::f32}, {s.tokens, s.experts});
  if (!args.factors.empty()) expect(kOp, "factors", args.factors, {DType::f32}, {router_factors_size(s.experts)});
  for (const TensorView& view : {args.logits, args.experts, args.weights, args.dweights, args.factors}) {
    expect_apart(kOp, args.dlogits, view);
  }
  run(stream, {kOp, OpKind::elementwise}, {args.logits, args.experts, args.weights, args.dweights, args.factors},
      {args.dlogits}, per_logit(args.logits, 8), args, HAWSER_BACKENDS(router_top_k_backward));
}

}  // namespace hawser::ops
