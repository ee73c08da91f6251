// FP8 training of a model with experts, on ranks that have all of them or some, for tests.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/fp8_exclusions.h"
#include "nn/precision/fp8_scaling.h"
#include "support/pieces_exchange.h"
#include "support/toy_slices.h"
#include "toy_training.h"

namespace hawser::testing::fp8_experts {

constexpr std::int64_t kExperts = 8;

inline std::int64_t whole_batch() {
  return 2LL * the_world->size();
}

// Without losses of routers, which depend on the micro-batches.
inline models::ModelDescription description() {
  models::ModelDescription d = toy_with_experts(kExperts);
  for (models::BlockDescription& block : d.blocks) block.moe->auxiliary_loss = block.moe->router_z_loss = 0;
  return d;
}

enum class Train { all, but_experts };

// `exclusions`: of FP8; null: none.
inline nn::FlatSpecOf spec_of(const comm::MeshSizes& mesh, bool fp8, Train train,
                              const engine::Fp8Exclusions* exclusions) {
  const bool common = mesh.expert == 1 && mesh.tensor == 1;
  nn::FlatSpecOf own([common, train](const nn::Param& param) {
    nn::FlatSpec spec = common ? nn::common_domain(param) : param.flat;
    if (train == Train::but_experts && param.matrices > 0) spec.trainable = false;
    return spec;
  });
  if (mesh.tensor > 1) own = nn::with_sequence_parallelism(own);
  if (!fp8) return own;
  const nn::FlatSpecOf in_fp8 = nn::with_fp8_weights(own, [](int) { return true; });
  if (exclusions == nullptr) return in_fp8;
  return {[own, in_fp8, excludes = *exclusions](const nn::Param& param, const nn::UnitId& place) {
    return excludes.contains(param) ? own(param, place) : in_fp8(param, place);
  }};
}

// What this rank has of the model on a mesh.
inline models::Model model_of(const comm::MeshSizes& mesh, bool fp8 = true, Train train = Train::all,
                              const engine::Fp8Exclusions* exclusions = nullptr) {
  models::ModelDescription d = description();
  for (models::BlockDescription& block : d.blocks) {
    if (mesh.expert == 1) continue;
    const comm::MeshCoordinate place = comm::coordinate_of(the_world->rank().value(), mesh);
    block.moe->experts_shard = {.index = comm::expert_part(place, mesh), .count = mesh.expert};
  }
  if (mesh.tensor > 1) {
    const int part = comm::coordinate_of(the_world->rank().value(), mesh).tensor;
    d = half_of(std::move(d), part, {.vocabulary = true});
  }
  return models::Model(std::move(d), spec_of(mesh, fp8, train, exclusions));
}

// A mesh on which every rank has all experts, and others of this world. Tensor ranks have parts of a sequence.
inline std::vector<comm::MeshSizes> all_meshes() {
  const int world = the_world->size();
  std::vector<comm::MeshSizes> out = {{.shard = world}};
  if (world >= 4) out.push_back({.context = 2, .shard = world / 2, .expert = 2});
  if (world >= 4) out.push_back({.tensor = 2, .shard = world / 2, .expert = 2});
  if (world > 1) out.push_back({.shard = world, .expert = world});
  return out;
}

// Ranks that have all experts, and ranks that have half of them; of four, two have shards of the same.
inline std::vector<comm::MeshSizes> two_meshes() {
  const int world = the_world->size();
  if (world == 1) return {{}};
  return {{.shard = world}, {.shard = world, .expert = 2}};
}

inline plan::LayoutChoices layout_of(const models::Model& model, const comm::MeshSizes& mesh,
                                     const Fp8Recipe& recipe = {.saturation_limit = 1}, int pieces = 1,
                                     bool quantized_rows = false) {
  plan::LayoutChoices layout = toy_layout({.mesh = mesh}, model);
  layout.gradient_clip.reset();
  layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::f32;
  plan::set_formats(layout, model, recipe);
  layout.sequence_parallel = mesh.tensor > 1;
  layout.token_exchange = exchange_in_pieces(pieces, quantized_rows);
  return layout;
}

// A session of the world, or of one rank, for on_one_rank().
class ExpertRun {
 public:
  ExpertRun(const models::Model& model, const plan::LayoutChoices& layout, bool one_rank = false,
            std::int64_t sequences = whole_batch())
      : layout_(layout),
        mesh_(one_rank ? comm::make_self_mesh() : rank_mesh(layout.mesh)),
        steps_(model, layout_, mesh_->coordinate(), sequences),
        device_(rank_device(one_rank ? CpuOptions{} : CpuOptions{.random_delay_s = 2e-4, .delay_seed = 5})),
        session_(model, plan::derive(layout_, model), *device_, *mesh_, {step::Purpose::train}, std::nullopt,
                 {.replay = !one_rank}) {
    session_.initialise(3);
  }
  double step(std::int64_t which) {
    take_steps(session_, steps_, {.inputs = {which}}, trained_);
    return trained_.losses.back();
  }
  // AdamW's first moments after one step: its gradients times a constant.
  Tensors gradients(bool one_rank = false) {
    Tensors out;
    for (const auto& [name, values] : one_rank ? states_of(session_) : assembled(session_)) {
      if (name.starts_with("optimizer/exp_avg/")) out[name] = values;
    }
    return out;
  }
  engine::Session& session() { return session_; }
  step::StepInput input(std::int64_t which) const { return steps_.input(which); }

 private:
  plan::LayoutChoices layout_;
  std::shared_ptr<comm::Mesh> mesh_;
  ToySteps steps_;
  std::shared_ptr<Device> device_;
  engine::Session session_;
  Trained trained_;
};

}  // namespace hawser::testing::fp8_experts
