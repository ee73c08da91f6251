// `Candidate`: what the planner may choose of a run: how its ranks divide the model and in which order pipeline stages
// compute, what each block keeps from forward to backward and where, and where weights and the optimizer's state are.
// Memory and time of a candidate come from planning it (Forecaster::forecast); estimates only decide which ones are
// planned.
//
// All else of a layout follows from the recipe and the parallelism (layout_choices), also the implementation of each
// seam (make_seams): a planner that chooses such a thing varies a key of the recipe.
#pragma once

#include <compare>
#include <memory>
#include <vector>

#include "plan/layout.h"

namespace hawser::plan {

// What backward of a block finds of its forward.
struct BlockPolicy {
  Checkpointing checkpointing = Checkpointing::none;
  bool offload =
      false;  // what is saved, and the layers' inputs, are in host memory in between (nn::SavePolicy::offload)
  bool delay_weight_gradients = false;  // nn::SavePolicy::delay_weight_gradients, as the schedule says
  auto operator<=>(const BlockPolicy&) const = default;
};

// Where the state of flats is (step::HostPlacement).
enum class StatePlace { device, host };

struct Candidate {
  Parallelism parallelism;
  std::vector<BlockPolicy> blocks;         // by block; of a model with fewer blocks the first ones
  StatePlace state = StatePlace::device;   // of flats that train: master weights and the optimizer's slots
  std::optional<int> state_flats = {};     // StatePlace::host: only of the last N of each pipeline stage
  StatePlace frozen = StatePlace::device;  // of frozen weights; on the host they are loaded before each use
  // Of flats that train: weights as layers read them; on the host they are loaded before each use.
  StatePlace weights = StatePlace::device;
  std::int64_t mlp_tile_rows = 0;  // nn::SavePolicy::tile_rows
};

// The choices that a recipe makes; memory.activation_checkpointing: auto as none.
Candidate candidate_of(const Recipe& recipe, Parallelism parallelism, int blocks);

// Flats that train, of the pipeline stage that has the most: the largest Candidate::state_flats. A flat that several
// stages compute with counts for the first of them.
int trainable_flats(const models::Model& model, const models::PipelinePartition& partition);

// Whether memory.mlp_tile_rows has an effect on the model: it has a layer that runs in tiles.
bool takes_tiles(const models::Model& model);

// Sets policies and places of the choices that layout_choices() returns for the candidate's parallelism.
void apply(const Candidate& candidate, const models::Model& model, LayoutChoices& choices);

// What a rank has of a model (models/rank_share.h).
models::RankShare share_of(const Parallelism& parallelism, int rank);

// A model as each rank has it, with its first blocks. The planner needs it for parallelisms and numbers of blocks that
// differ from the run's. It borrows the model of one rank of the run.
class RankModels {
 public:
  explicit RankModels(const models::Model& model) : model_(model) {}
  std::shared_ptr<const models::Model> of(const Parallelism& parallelism, int rank, int blocks) const;

 private:
  const models::Model& model_;
  mutable std::vector<std::shared_ptr<const models::Model>> made_;
};

}  // namespace hawser::plan
