#include "engine/gradient_norms.h"

#include <bit>
#include <sstream>

#include "comm/mpi/world.h"
#include "models/weights.h"

namespace hawser::engine {

namespace {

// Of the ranks that have all experts together, once.
bool sends_experts(const comm::MeshCoordinate& place, const comm::MeshSizes& sizes) {
  return place.replicate == 0 && place.pipeline == 0 && (place.tensor == 0 || sizes.expert_over_tensor) &&
         comm::expert_rank(place, sizes) < sizes.expert;
}

}  // namespace

std::vector<TensorNorm> gradient_norms(Session& session, const step::StepOutput& output) {
  const models::Model& model = session.model();
  const std::vector<models::HfTensor> tensors = models::hf_tensors(model);
  HAWSER_CHECK(output.parameter_norms && output.parameter_norms->size() == tensors.size(), "a step without norms");
  std::vector<TensorNorm> norms;
  std::ostringstream experts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const nn::FlatSpec& spec = model.flat(tensors[i].flat).spec();
    norms.push_back({tensors[i].name, (*output.parameter_norms)[i], spec.trainable});
    if (spec.domain != Domain::expert) continue;
    experts << tensors[i].name << ' ' << std::bit_cast<std::uint32_t>(norms.back().norm) << ' ' << spec.trainable
            << '\n';
  }
  comm::Mesh& mesh = session.mesh();
  if (mesh.sizes().expert == 1 || mesh.channel() == nullptr) return norms;
  // Rank 0 has part 0 of the experts: its experts stay where its model has them, also on the other ranks.
  const bool sends = sends_experts(mesh.coordinate(), mesh.sizes());
  std::vector<TensorNorm> all;
  for (const std::string& text : mesh.channel()->all_gather_strings(sends ? experts.str() : "")) {
    std::istringstream in(text);
    std::string name;
    std::uint32_t bits = 0;
    for (bool trainable = false; in >> name >> bits >> trainable;) {
      all.push_back({name, std::bit_cast<float>(bits), trainable});
    }
  }
  std::vector<TensorNorm> out;
  std::size_t next = 0;  // of `all`
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const bool of_experts = model.flat(tensors[i].flat).spec().domain == Domain::expert;
    out.push_back(of_experts ? all.at(next++) : norms[i]);
  }
  out.insert(out.end(), all.begin() + static_cast<std::ptrdiff_t>(next), all.end());
  return out;
}

}  // namespace hawser::engine
