#include "step/weight_scales.h"

namespace hawser::step {

void all_reduce_max(comm::Group& group, const TensorView& data, Stream& stream, const Workspace& workspace) {
  if (group.size() == 1) return;
  const std::int64_t bytes = comm::all_reduce_workspace(data.elements(), data.dtype(), group.size(), stream.target());
  group.all_reduce(stream, data, comm::Reduction::max, bytes > 0 ? workspace(bytes) : TensorView());
}

void scale_weights(const ModelState& state, comm::Mesh& mesh, Stream& stream, const Workspace& workspace) {
  for (const AmaxGroup& group : state.amax_groups()) {
    all_reduce_max(mesh.shard(group.domain), group.amax, stream, workspace);
    if (group.tensor_ranks) all_reduce_max(mesh.tensor(), group.amax, stream, workspace);
  }
  for (int f = 0; f < state.flats(); ++f) {
    if (state.flat(f).quantized) state.weight_scales(f, stream);
  }
}

}  // namespace hawser::step
