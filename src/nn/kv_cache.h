// `KvCacheExchange`: attention over a KV cache, for generation. Forward only.
//
// A pass computes some new rows of one or several sequences. K and V of each row are written to a slot of the layer's
// KV cache (LayerContext::kv_cache, BatchViews::slot_mapping). Then one call of the attention op has all slots as keys.
// A segment is a sequence's new rows against all of its cached rows, the new ones included:
//   {q_begin, q_count, k_begin, k_count, q_position, 0}   with k_count = q_position + q_count, causal
// No key is in two segments. With a window, the op skips the tiles of keys that no query sees; they stay in the cache.
// Padding rows are not written and are in no segment.
#pragma once

#include "nn/seams.h"

namespace hawser::nn {

// k, v [T, kv_heads, D] in the compute dtype, of the layer that is running; its KV cache is [rows, kv_heads, D].
// InternalError if the context has no KV cache, and on backward.
class KvCacheExchange : public AttentionExchange {
 public:
  std::unique_ptr<Call> begin(LayerContext&, const AttentionMask& mask, const AttentionTensors& tensors) override;
};

}  // namespace hawser::nn
