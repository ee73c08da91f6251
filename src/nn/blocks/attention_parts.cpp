#include "nn/blocks/attention_parts.h"

namespace hawser::nn {

namespace {

ops::AttentionCall& shared(ops::AttentionCall& call) {
  return call;
}
ops::AttentionCall& shared(ops::AttentionBackward& backward) {
  return backward.call;
}

// A call's workspace, of the same size on all ranks.
template <class Call>
TensorView workspace_of(LayerContext& ctx, Call call, const AttentionPart& part) {
  if (!part.largest.empty()) shared(call).blocks = part.largest;
  return ctx.workspace(ops::attention_workspace(call, ctx.compute().target(), ctx.threads()));
}

}  // namespace

ops::AttentionCall operands_of(const AttentionPart& part) {
  const AttentionTensors& t = part.tensors;
  return {.q = t.q,
          .k = t.k,
          .v = t.v,
          .segments = part.segments,
          .segment_count = part.segment_count,
          .form = part.form,
          .blocks = part.blocks,
          .host_segments = part.host_segments,
          .causal = part.mask.causal,
          .window = part.mask.window,
          .window_halves = part.window_halves,
          .o = t.o,
          .lse = t.lse};
}

void attend(LayerContext& ctx, AttentionExchange::Call& call, const CallOfPart& call_of) {
  for (int p = 0; p < call.parts(); ++p) {
    const AttentionPart part = call.wait(p);
    ops::AttentionCall forward = call_of(part);
    forward.accumulate = part.accumulate_o;
    const bool combine = !part.first && !part.accumulate_o;
    if (combine) {
      forward.o = ctx.temp(ctx.dtype(), forward.q.shape());
      forward.lse = ctx.temp(DType::f32, part.tensors.lse.shape());
    }
    forward.workspace = workspace_of(ctx, forward, part);
    ops::attention_forward(ctx.compute(), forward);
    if (combine) {
      ops::attention_combine(
          ctx.compute(), {.o_a = part.tensors.o, .lse_a = part.tensors.lse, .o_b = forward.o, .lse_b = forward.lse});
    }
    call.computed(p);
  }
}

void attend_backward(LayerContext& ctx, AttentionExchange::Call& call, const CallOfPart& call_of) {
  for (int p = 0; p < call.parts(); ++p) {
    const AttentionPart part = call.wait(p);
    ops::AttentionBackward backward{.call = call_of(part),
                                    .d_o = part.tensors.d_o,
                                    .dq = part.tensors.dq,
                                    .dk = part.tensors.dk,
                                    .dv = part.tensors.dv,
                                    .accumulate_q = !part.first,
                                    .accumulate_kv = part.accumulate_kv,
                                    .deterministic = ctx.deterministic()};
    backward.call.flops *= 2.5;
    backward.call.workspace = workspace_of(ctx, backward, part);
    ops::attention_backward(ctx.compute(), backward);
    call.computed(p);
  }
}

}  // namespace hawser::nn
