// `LayoutChoices`, `Layout`: all settings that determine a rank's step. `LayoutChoices` are
// chosen, by a recipe, the planner or a test. `derive` computes from them and the model what follows, once.
//
// A recipe of two sequences of 4096 tokens a step (data.pack: chunks), on two ranks that share each sequence (context
// parallelism):
//
//   LayoutChoices choices = layout_choices(recipe, model, /*world=*/2, DType::bf16, threads, DeviceKind::cuda);
//     // chosen: mesh.context 2; batch_sizes of 1 sequence and 2 chunks for each rank; micro_batches 2; ...
//   choices.policies[0].checkpointing = Checkpointing::full;
//   const Layout layout = derive(choices, model);
//     // follows: bounds.rows 2048; batch.masks {causal}; the labels and tables that the model reads; ...
//
// The plan (on meta) and the session (on a device) build their executors from the same Layout, so the plan predicts the
// session.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batches/micro_batch.h"
#include "comm/mesh.h"
#include "config/recipe.h"
#include "models/model.h"
#include "optim/adamw_optimizer.h"
#include "step/batch.h"
#include "step/executor.h"
#include "step/host_placement.h"
#include "step/schedule.h"

namespace hawser::plan {

// The order of the passes of all pipeline stages (step/pass.h), as data. Any order is allowed in which
// - each model chunk of the stage has one forward and one backward pass of each micro-batch, in this order, and one of
//   weight gradients after these if a layer of it delays them (otherwise that pass may be absent);
// - the two stages of a lane (comm::Mesh::lane) send and receive in the same order;
// - no stages wait for each other in a circle: a stage sends in the order of its passes, and receives in it, on two
//   streams (program::StreamId), and a send or a receive may wait for its peer's;
// - if layers add losses (nn::AuxiliaryLoss), all model chunks of a stage run forward of a micro-batch before one of
//   them runs backward of it, and the stages end forward in one order of micro-batches.
// step::make_program checks the list of one stage, check_plans (plan/plan.h) those of all stages together.
struct Schedule {
  std::string name;  // as parallel.pipeline_schedule has it
  // The passes of a stage, for any number of micro-batches: the forecast also plans shorter steps than the run's. If
  // there is no function, micro-batches run in groups (step::grouped_passes).
  std::function<std::vector<step::Pass>(int stage, int micro_batches)> passes;
  int group = 1;                // micro-batches of a group: forward of all precedes backward of the first
  bool delays_weights = false;  // weight gradients are passes of their own in all blocks (nn::SavePolicy)

  std::vector<step::Pass> of_stage(const models::PipelinePartition& partition, int stage, int micro_batches) const;
  // The largest number of micro-batches of a stage that are in flight: a pass has run, and another has not.
  int in_flight(int stages, int micro_batches) const;
};

// How the ranks of a run divide a model. A rank's Model, with its slices of tensors and its experts, follows from it.
struct Parallelism {
  comm::MeshSizes mesh;  // derive() completes it: `pipeline` of several stages, `interleaved`, `tied`, `kv_copies`
  models::PipelinePartition partition;   // over pipeline stages
  models::TensorModules tensor_modules;  // which layers tensor ranks divide
  bool sequence_parallel = false;        // tensor ranks divide the residual's rows (nn::Redistribute)
  bool ring_attention = false;           // of the ranks with different rows of the same heads; false: all-gather
  Schedule schedule;                     // of the stages
};

// A pass of generation (step::Purpose::logits): new tokens of some sequences, which attend to the cached keys and
// values of the tokens before them (nn/kv_cache.h).
struct CachedPass {
  std::int64_t rows = 1;        // new tokens of all sequences
  std::int64_t sequences = 1;   // with new tokens: each has logits for the last of them
  std::int64_t cache_rows = 1;  // of each attention layer: those of all sequences
  std::int64_t positions = 1;   // the most tokens of a sequence
};

// What a recipe, the planner or a test chooses of a rank's step. Fields may be set in any order.
struct LayoutChoices : Parallelism {
  DeviceKind device = DeviceKind::cpu;  // the device it is planned for, or runs on
  int threads = 1;                      // CPU threads of the compute stream
  batches::BatchSizes batch_sizes;      // of a micro-batch on one data rank
  int micro_batches = 1;                // per rank and step
  // Of a step of Purpose::loss: with several, pipeline stages work at the same time (step::forward_passes).
  int forward_micro_batches = 1;
  int head_groups = 1;                   // of KV heads: one group is gathered at a time
  std::vector<nn::SavePolicy> policies;  // by layer; an empty list is as one of defaults
  int prefetch = 1;
  int offload_window = 1;  // step::ScheduleOptions::offload_window
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  ShardPolicy shard_policy = ShardPolicy::parameters;
  DType compute = DType::f32;
  DType reduce_dtype = DType::f32;     // of a micro-batch's gradients (step::ExecutorSetup::reduce_dtype)
  DType kv_reduce_dtype = DType::f32;  // of gradients of K and V between context ranks
  bool gathers_quantized = true;       // tensor ranks gather rounded rows (parallel::SequenceParallel)
  bool deterministic = false;          // two runs give the same bits on CUDA, too; on the CPU they always do
  std::shared_ptr<const optim::Optimizer> optimizer = optim::make_adamw();
  std::shared_ptr<const nn::Quantizer> quantizer;  // of SavePolicy::formats and of flats with scales, if any
  step::HostPlacement host;                        // docs/design/offload.md says what is shipped of it
  // The steps whose number is a multiple of it are verified (engine::Session::enqueue_verified).
  std::optional<std::int64_t> verify_every;
  // With expert ranks: limits the rows that a rank has buffers for (nn::TokenExchange::Sizes::row_bound). Without it
  // there are buffers for all rows that there can be. On all ranks, a step in which one has more is refused and runs
  // again in the layout of_refused_steps(), whose bound is expert_row_fallback. If that is not enough, the run ends on
  // all ranks. No token is dropped, and the results are those without a bound. Purpose::logits has no bound.
  std::optional<double> expert_row_bound, expert_row_fallback;
  std::optional<double> gradient_clip;  // step::ExecutorSetup::gradient_clip
  ops::LossScaling loss_scaling;
  // Without it, a pass attends to its own rows only, and a step of Purpose::logits has logits for one row.
  std::optional<CachedPass> cached;
  std::uint64_t seed = 0;  // of the random numbers that layers draw in training

  // Tests hand in the exchange of expert parallelism, which has no implementation yet (parallel::SeamChoices).
  std::function<std::shared_ptr<nn::TokenExchange>(comm::Group& expert)> token_exchange;

  bool may_refuse() const { return mesh.expert > 1 && expert_row_bound.has_value(); }
  // Shards of master weights, moments and reduced gradients of the flats in Domain::sliced.
  int parts() const { return mesh.shard_ranks(); }
  bool shards() const { return parts() > 1 || mesh.tensor > 1; }  // copies on tensor ranks are sharded over them
  bool gathers_weights() const { return shards() && shard_policy == ShardPolicy::parameters; }
  int data_ranks() const { return mesh.shard * mesh.replicate; }  // ranks with sequences of their own
};

// The choices, completed (Parallelism::mesh, policies), and what follows from them. Only derive() makes one;
// calibrating(), verified() and of_refused_steps() return the layouts of other steps. To change a choice, change
// LayoutChoices and derive again.
struct Layout : LayoutChoices {
  Layout() = default;  // of no model yet

  batches::BatchShape batch;  // `batch_sizes`, with the model's masks, tables and labels, and padding of rows
  step::BatchBounds bounds;   // of the buffers of a micro-batch
  // Of the layouts that calibrating(), verified() and of_refused_steps() return.
  bool calibrates = false;  // step::ExecutorSetup::calibrates
  step::Verification verification = step::Verification::none;
  bool runs_refused = false;

  std::optional<double> row_bound() const { return runs_refused ? expert_row_fallback : expert_row_bound; }

 private:
  friend Layout derive(LayoutChoices choices, const models::Model& model);
  explicit Layout(LayoutChoices choices) : LayoutChoices(std::move(choices)) {}
};

// The layout of these choices, for a rank with this model.
Layout derive(LayoutChoices choices, const models::Model& model);

// Two: attention of one group runs while the other is gathered. With more, each attention call would fill less of a
// GPU.
constexpr int kCudaHeadGroups = 2;

// The choices of a recipe, which must have passed config's checks for `world` ranks. UserError for FP8 weights that a
// GPU cannot multiply. activation_checkpointing: auto is treated as none; Forecaster::forecast() chooses the policies.
LayoutChoices layout_choices(const Recipe& recipe, const models::Model& model, int world, DType compute, int threads,
                             DeviceKind device = DeviceKind::cpu);

// The same with other ranks than those of the recipe's keys. `model`: as a rank has it.
LayoutChoices layout_choices(const Recipe& recipe, const models::Model& model, const Parallelism& parallelism,
                             DType compute, int threads, DeviceKind device);

// The layout of the recipe's choices.
Layout make_layout(const Recipe& recipe, const models::Model& model, int world, DType compute, int threads,
                   DeviceKind device = DeviceKind::cpu);

// UserError if the device cannot compute the loss of the model's head: on CUDA, of more than ops::kCudaMaxVocabulary
// columns of logits, unless tensor ranks slice them. Generation has no loss.
void check_loss(const Recipe& recipe, const models::Model& model, DeviceKind device);

// optimizer.gradient_clip, if the recipe clips.
std::optional<double> gradient_clip_of(const Recipe& recipe);

// The parallelism of the recipe's keys, with context_form() and partition_of().
Parallelism parallelism_of(const Recipe& recipe, const models::Model& model, int world);

// "tensor 8, sequence parallel", or "tensor 8 of mlp and vocabulary, sequence parallel"; "" without tensor ranks.
std::string tensor_text(const Parallelism& parallelism);

// What a rank has of the model, as the keys say it. Tensor ranks have consecutive numbers in every world.
models::RankShare share_of(const ParallelRecipe& recipe, int rank);

// run.deterministic if it is set; otherwise true on the CPU and false on CUDA, where it costs time and, in attention's
// backward, memory quadratic in the length, and supports no lengths beyond ops::kDeterministicBytes.
bool deterministic_of(const Recipe& recipe, DeviceKind device);

// Default reduce_dtype of gradients: bf16 on CUDA if layers compute in bf16, float32 otherwise.
DType default_reduce_dtype(DeviceKind device, DType compute);

// Whether training steps need a history of amaxes (nn::Quantizer::calibrates), and so a first step that begins one:
// calibrating().
bool needs_calibration(const Layout& layout);
Layout calibrating(Layout layout);
// The layout in which a step runs again that this one refuses: LayoutChoices::expert_row_fallback, and full activation
// checkpointing, which needs the least memory and has the same bits. The first step of a history and the steps of a
// verification have its bound, too: they are not refused if there is none.
Layout of_refused_steps(Layout layout);
// The layout of one of the two steps of a verification (step::Verification). The reference saves inputs in the compute
// dtype: the gradients that it compares with are of inputs that are not rounded.
Layout verified(Layout layout, step::Verification verification);

// The checkpointing policy of a block; that of auto is none.
Checkpointing checkpointing_of(const MemoryRecipe& memory, int block);

// Chooses the formats of the Linears and experts whose weights are in FP8 (nn::with_fp8_weights, or with
// Fp8Scaling::block nn::with_weights_quantized_on_use), their quantizer, and how often they are verified.
void set_formats(LayoutChoices& choices, const models::Model& model, const Fp8Recipe& fp8);

// Micro-batches of a step: LayoutChoices::forward_micro_batches of Purpose::loss, and one of Purpose::logits.
int micro_batches_of(const Layout& layout, step::Purpose purpose);

// Rows that a step of Purpose::logits has logits for.
std::int64_t logit_rows(const Layout& layout);

step::ScheduleOptions schedule_options(const Layout& layout, step::Purpose purpose, int stage = 0);

// The operands whose scales the state keeps: those with a delayed format in `policies`.
std::vector<step::ScaledSite> scaled_sites(const Layout& layout);

// Sharding and contents of a rank's state.
step::StateOptions state_options(const Layout& layout, comm::Mesh& mesh, bool optimizer);

// The seams of this layout over the mesh's groups; `mesh` outlives them.
nn::Seams make_seams(const Layout& layout, comm::Mesh& mesh);

// An executor's setup with all fields that follow from the layout; the caller adds device, state and buffers.
// InternalError if the model has attention that is not causal (nn::AttentionConfig::causal) and the layout a KV cache,
// if a step of Purpose::logits is over pipeline stages or may be refused (expert_row_bound), if the model's layers have
// another part of their experts than MeshSizes::expert says, or if the domain of a parameter or its
// FlatSpec::partial_gradient does not fit the mesh; nn::common_domain does not with tensor or expert ranks.
step::ExecutorSetup executor_setup(const Layout& layout, const models::Model& model, const program::Program& program,
                                   comm::Mesh& mesh, step::Purpose purpose);

}  // namespace hawser::plan
