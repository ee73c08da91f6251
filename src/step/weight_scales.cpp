#include "step/weight_scales.h"

namespace hawser::step {

void all_reduce(comm::Group& group, const TensorView& data, comm::Reduction reduction, Stream& stream,
                const Workspace& workspace, std::int64_t label) {
  if (group.size() == 1) return;
  const std::int64_t bytes = comm::all_reduce_workspace(data.elements(), data.dtype(), group.size(), stream.target());
  group.all_reduce(stream, data, reduction, bytes > 0 ? workspace(bytes) : TensorView(), label);
}

void scale_weights(const ModelState& state, comm::Mesh& mesh, Stream& stream, const Workspace& workspace) {
  for (const AmaxGroup& group : state.amax_groups()) {
    all_reduce(mesh.shard(group.domain), group.amax, comm::Reduction::max, stream, workspace);
    if (group.tensor_ranks) all_reduce(mesh.tensor(), group.amax, comm::Reduction::max, stream, workspace);
  }
  for (int f = 0; f < state.flats(); ++f) {
    if (state.flat(f).quantized_after_updates()) state.weight_scales(f, stream);
  }
}

void quantize_loaded(const ModelState& state, const models::Model& model, comm::Mesh& mesh, int flat,
                     const TensorView& values, const TensorView& compute, Stream& stream, const Workspace& workspace) {
  HAWSER_CHECK(state.flat(flat).quantized_on_load(), model.flat(flat).name(), ": not quantized as it is loaded");
  const Domain domain = model.flat(flat).spec().domain;
  const TensorView& amax = state.flat(flat).amax;
  state.measure(flat, values, stream);
  all_reduce(mesh.shard(domain), amax, comm::Reduction::max, stream, workspace);
  if (domain == Domain::sliced || domain == Domain::kv_copies) {
    all_reduce(mesh.tensor(), amax, comm::Reduction::max, stream, workspace);
  }
  state.weight_scales(flat, stream);
  state.refresh_compute(flat, values, compute, stream);
}

}  // namespace hawser::step
