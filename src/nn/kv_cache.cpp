#include "nn/kv_cache.h"

#include "nn/layer.h"
#include "ops/copy/permute_rows.h"

namespace hawser::nn {
namespace {

class KvCacheCall : public AttentionExchange::Call {
 public:
  KvCacheCall(LayerContext& ctx, const AttentionMask& mask, const AttentionTensors& tensors) {
    const KvCache cache = ctx.kv_cache();
    HAWSER_CHECK(mask.causal, "a KV cache has no later keys");
    HAWSER_CHECK(!cache.k.empty() && !cache.v.empty(), "the layer has no KV cache");
    const BatchViews& batch = ctx.batch();
    ops::scatter_rows(ctx.compute(), {.x = tensors.k, .index = batch.slot_mapping, .y = cache.k});
    ops::scatter_rows(ctx.compute(), {.x = tensors.v, .index = batch.slot_mapping, .y = cache.v});
    part_ = {.tensors = tensors,
             .segments = batch.diagonal,
             .segment_count = batch.diagonal_count,
             .form = ops::SegmentForm::disjoint_keys,
             .host_segments = batch.host_diagonal,
             .mask = mask,
             .visible = batch.with_mask(mask).diagonal_pairs};
    part_.tensors.k = cache.k;
    part_.tensors.v = cache.v;
  }
  int parts() const override { return 1; }
  AttentionPart wait(int) override { return part_; }

 private:
  AttentionPart part_;
};

}  // namespace

std::unique_ptr<AttentionExchange::Call> KvCacheExchange::begin(LayerContext& ctx, const AttentionMask& mask,
                                                                const AttentionTensors& tensors) {
  HAWSER_CHECK(!tensors.backward(), "the KV cache has no gradient");
  return std::make_unique<KvCacheCall>(ctx, mask, tensors);
}

}  // namespace hawser::nn
