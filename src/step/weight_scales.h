// `scale_weights`: the scales of quantized weights from their maxima (nn/quantizer.h). `quantize_loaded`: the frozen
// weights of a flat in FP8. Both are collective. `all_reduce`: the reduction that they and the executor enqueue.
#pragma once

#include <functional>

#include "comm/mesh.h"
#include "step/state.h"

namespace hawser::step {

// A buffer of u8 [bytes] that the stream may use until it has completed the call.
using Workspace = std::function<TensorView(std::int64_t bytes)>;

// Enqueues the all-reduction of a view over a group; does nothing for a group of one.
void all_reduce(comm::Group& group, const TensorView& data, comm::Reduction reduction, Stream& stream,
                const Workspace& workspace, std::int64_t label = 0);

// Enqueues, for all quantized flats, whose shards ModelState::measure has measured: the MAX of the amaxes over the
// ranks that have other parts of the same parameters, and the scales. Does not quantize the weights.
void scale_weights(const ModelState& state, comm::Mesh& mesh, Stream& stream, const Workspace& workspace);

// Enqueues, for one flat of FlatState::quantized_on_load in FP8: its scales, from the amaxes of all ranks' shards, and
// this rank's shard in FP8 with them. The bits are those of the quantized gathered weights on every mesh. `values` [count], float32 or bf16: this rank's shard, in memory of the
// device. `compute`: FlatState::compute, or memory of the device for it. All ranks that have parts of the flat call it.
// Does not gather FlatState::unsharded.
void quantize_loaded(const ModelState& state, const models::Model& model, comm::Mesh& mesh, int flat,
                     const TensorView& values, const TensorView& compute, Stream& stream, const Workspace& workspace);

}  // namespace hawser::step
