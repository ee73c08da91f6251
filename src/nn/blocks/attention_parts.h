// Attention part by part: what an exchange gives (nn::AttentionExchange::Call) as calls of the attention ops.
//
//   const auto call = ctx.seams().attention->begin(ctx, mask, tensors);
//   attend(ctx, *call, [&](const AttentionPart& part) {
//     ops::AttentionCall of_part = operands_of(part);
//     of_part.scale = scale;                           // and what else the layer's scores have
//     return of_part;
//   });
//   call->finish_queries();
//
// Both functions enqueue on the compute stream, with temporaries and workspace of the context. `call_of` gives the call
// of a part; `flops` are those of its forward.
#pragma once

#include <functional>

#include "nn/layer_context.h"
#include "nn/seams/attention_exchange.h"

namespace hawser::nn {

using CallOfPart = std::function<ops::AttentionCall(const AttentionPart&)>;

// q, k, v, o, lse, segments and mask of a part.
ops::AttentionCall operands_of(const AttentionPart& part);

void attend(LayerContext& ctx, AttentionExchange::Call& call, const CallOfPart& call_of);
void attend_backward(LayerContext& ctx, AttentionExchange::Call& call, const CallOfPart& call_of);

}  // namespace hawser::nn
