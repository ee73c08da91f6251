#include "nn/seams/attention_exchange.h"

#include "nn/layer.h"

namespace hawser::nn {

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

}  // namespace

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

std::unique_ptr<AttentionExchange::Call> AttentionExchange::begin(LayerContext& ctx, const AttentionMask& mask,
                                                                  const AttentionTensors& tensors) {
  return std::make_unique<LocalCall>(ctx, mask, tensors);
}

}  // namespace hawser::nn
