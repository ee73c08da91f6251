// A recipe and a model on a number of ranks: everything that decides what a rank will do in a step, before any device.
//
// Both the plan (on meta) and the session (on a device) build their executor from the same Layout, so that the one
// predicts the other.
#pragma once

#include <memory>
#include <vector>

#include "base/recipe.h"
#include "comm/mesh.h"
#include "data/micro_batch.h"
#include "models/model.h"
#include "step/batch.h"
#include "step/executor.h"
#include "step/schedule.h"

namespace hawser::plan {

struct Layout {
  DeviceKind device = DeviceKind::cpu;  // what it is planned for, or runs on
  MeshSizes mesh;
  DType compute = DType::f32;
  DType reduce_dtype = DType::f32;     // of a micro-batch's gradients (step::ExecutorSetup::reduce_dtype)
  DType kv_reduce_dtype = DType::f32;  // of gathered keys' gradients (parallel::AllGatherExchange)
  int threads = 1;                     // CPU threads of the compute stream
  int micro_batches = 1;               // a rank and step
  data::BatchShape batch;              // of a micro-batch on one data rank
  int head_groups = 1;                 // key-value heads are gathered in so many groups
  step::BatchBounds bounds;
  std::vector<nn::SavePolicy> policies;
  int prefetch = 1;
  int in_flight = 1;
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  step::OptimizerSettings optimizer;
  std::int64_t logit_positions = 1;  // Purpose::logits: rows whose logits are wanted
  // Rows of keys and values that each attention layer keeps from pass to pass; 0: a pass sees its own rows alone.
  std::int64_t kv_cache_rows = 0;
  bool deterministic = false;  // two runs give the same bits on CUDA too; on the CPU they always do

  int parts() const { return mesh.shard_ranks(); }
  int data_ranks() const { return mesh.shard * mesh.replicate; }  // ranks with sequences of their own
};

// Sequences at or above this length keep attention output and log-sum-exp under full checkpointing: attention's share
// of a block is then more than its other half.
constexpr std::int64_t kKeepAttentionFrom = 16384;

// Two: one is worked on while the other travels. More would leave each call of attention less to spread over a GPU.
constexpr int kCudaHeadGroups = 2;

// The recipe must have passed config's checks for `world` ranks. activation_checkpointing: auto counts as none: what it
// stands for, Forecaster::forecast() finds out.
Layout make_layout(const Recipe& recipe, const models::Model& model, int world, DType compute, int threads,
                   DeviceKind device = DeviceKind::cpu);

// run.deterministic where it is given; else true on the CPU alone: on CUDA it costs attention's backward memory that
// grows with the square of the length, time, and all lengths beyond ops::kDeterministicBytes.
bool deterministic_of(const Recipe& recipe, DeviceKind device);

// What gradients travel in by default: bf16 on CUDA where layers compute in it, float32 elsewhere.
DType default_reduce_dtype(DeviceKind device, DType compute);

// Makes `bounds` what `batch` and `mesh` say; for callers that change a layout by hand.
void set_bounds(Layout& layout);

// Gives each block the policy that the recipe says.
void set_policies(Layout& layout, const MemoryRecipe& memory);

// A forward-only purpose runs one micro-batch a step, however many a training step has.
step::ScheduleOptions schedule_options(const Layout& layout, step::Purpose purpose);

// How a rank's state is cut and what it holds.
step::StateOptions state_options(const Layout& layout, int part, bool optimizer);

// The seams of this layout, over the mesh's groups; `mesh` outlives them.
nn::Seams make_seams(const Layout& layout, comm::Mesh& mesh);

// An executor's setup with everything that follows from the layout; the caller adds device, state and buffers.
step::ExecutorSetup executor_setup(const Layout& layout, const models::Model& model, const program::Program& program,
                                   comm::Mesh& mesh, step::Purpose purpose);

}  // namespace hawser::plan
