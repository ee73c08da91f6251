// `scale_weights`: the scales of quantized weights from their maxima (nn/quantizer.h). Collective.
#pragma once

#include <functional>

#include "comm/mesh.h"
#include "step/state.h"

namespace hawser::step {

// A buffer of u8 [bytes] that the stream may use until it has completed the call.
using Workspace = std::function<TensorView(std::int64_t bytes)>;

// Enqueues the MAX of a float32 view over a group; does nothing for a group of one.
void all_reduce_max(comm::Group& group, const TensorView& data, Stream& stream, const Workspace& workspace);

// Enqueues, for all quantized flats, whose shards ModelState::measure has measured: the MAX of the amaxes over the
// ranks that have other parts of the same parameters, and the scales. Does not quantize the weights.
void scale_weights(const ModelState& state, comm::Mesh& mesh, Stream& stream, const Workspace& workspace);

}  // namespace hawser::step
