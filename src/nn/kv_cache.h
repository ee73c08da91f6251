// Attention over keys and values that are kept from pass to pass: what a model goes on from when it generates.
//
// A pass computes some new rows of one or several sequences. Each row's K and V go to a row of the layer's kept ones
// (LayerContext::kv_cache, BatchViews::slot_mapping); then one call of the attention op has all kept rows as keys. A
// segment is a sequence's new rows against its kept ones, those included: {q_begin, q_count, k_begin, k_count,
// q_position, 0} with k_count = q_position + q_count, causal. No key lies in two segments. Rows that are padding go
// nowhere and lie in no segment. Forward only.
#pragma once

#include "nn/seams.h"

namespace hawser::nn {

// k, v [T, kv_heads, D] in the compute dtype, of the layer that is running; its kept ones are [rows, kv_heads, D].
// InternalError where the context keeps none, and where a backward pass asks.
class KvCacheExchange : public AttentionExchange {
 public:
  std::unique_ptr<Session> forward(LayerContext&, const TensorView& k, const TensorView& v) override;
  std::unique_ptr<Session> backward(LayerContext&, const TensorView& k, const TensorView& v, const TensorView& dk,
                                    const TensorView& dv) override;
};

}  // namespace hawser::nn
