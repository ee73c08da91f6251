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
    if (state.flat(f).quantized_after_updates()) state.weight_scales(f, stream);
  }
}

void quantize_loaded(const ModelState& state, const models::Model& model, comm::Mesh& mesh, int flat,
                     const TensorView& values, const TensorView& compute, Stream& stream, const Workspace& workspace) {
  HAWSER_CHECK(state.flat(flat).quantized_on_load(), model.flat(flat).name(), ": not quantized as it is loaded");
  // Shards begin at blocks, whose scales follow from their own weights.
  if (model.flat(flat).spec().packed()) return state.refresh_compute(flat, values, compute, stream);
  const Domain domain = model.flat(flat).spec().domain;
  const TensorView& amax = state.flat(flat).amax;
  state.measure(flat, values, stream);
  all_reduce_max(mesh.shard(domain), amax, stream, workspace);
  if (domain == Domain::sliced || domain == Domain::kv_copies) {
    all_reduce_max(mesh.tensor(), amax, stream, workspace);
  }
  state.weight_scales(flat, stream);
  state.refresh_compute(flat, values, compute, stream);
}

}  // namespace hawser::step
