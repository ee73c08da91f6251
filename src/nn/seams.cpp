#include "nn/seams.h"

#include "nn/layer.h"
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
              .query_ids = ctx.batch().row_ids,
              .key_ids = ctx.batch().row_ids,
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
  explicit LocalSum(const TensorView& y) : y_(y) {}
  int pieces() const override { return 1; }
  RowPiece target(int) override { return {y_, 0}; }
  void written(int) override {}
  void finish() override {}

 private:
  TensorView y_;
};

}  // namespace

std::unique_ptr<Redistribute::Gather> Redistribute::gather(LayerContext&, const Scaled& x) {
  return std::make_unique<LocalRows>(x);
}

std::unique_ptr<Redistribute::Sum> Redistribute::sum(LayerContext&, const TensorView& y, Order) {
  return std::make_unique<LocalSum>(y);
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

std::int64_t TokenExchange::max_expert_rows(std::int64_t tokens, std::int64_t per_token, std::int64_t experts,
                                            std::int64_t local_experts) {
  return ops::expert_rows(experts / local_experts * tokens, std::min(per_token, local_experts), local_experts);
}

void TokenExchange::route(LayerContext&, const Routing& routing) {
  HAWSER_CHECK(routing.counts.empty(), "experts on several ranks need an implementation of TokenExchange");
}

TensorView TokenExchange::dispatch(LayerContext&, const Routing&, const TensorView& rows) {
  return rows;
}

TensorView TokenExchange::combine(LayerContext&, const Routing&, const TensorView& rows) {
  return rows;
}

std::unique_ptr<AttentionExchange::Call> AttentionExchange::forward(LayerContext& ctx, const AttentionMask& mask,
                                                                    const AttentionTensors& tensors) {
  return std::make_unique<LocalCall>(ctx, mask, tensors);
}

std::unique_ptr<AttentionExchange::Call> AttentionExchange::backward(LayerContext& ctx, const AttentionMask& mask,
                                                                     const AttentionTensors& tensors) {
  return std::make_unique<LocalCall>(ctx, mask, tensors);
}

}  // namespace hawser::nn
