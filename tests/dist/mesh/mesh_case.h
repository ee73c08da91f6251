// `MeshCase`: a mesh of all ranks with one combination of options. A test that loops over cases is a TEST_P whose
// parameter is a case, so that a failure names one case:
//
//   using Mesh = testing::CaseTest<MeshCase>;
//   TEST_P(Mesh, EqualsOneRank) { expect_gradients_of_one_rank(GetParam()); }
//   INSTANTIATE_TEST_SUITE_P(Meshes, Mesh, ::testing::ValuesIn(testing::meshes()), testing::CaseName());
//
//   mpirun -n 4 build/cpu/mesh_test --gtest_filter='*/Mesh.EqualsOneRank/context2_shard2'
//
// `--gtest_list_tests` lists the cases of the world's size. A suite that has none with some number of ranks is marked
// with GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST. What one rank computes stays in a static map for the next cases.
//
// The files of this folder use these words:
//   mesh         comm::MeshSizes of the world: all ranks of mpirun have one place in it
//   case         a mesh and options; its name says what differs from the defaults, as in context2_shard2_full
//   one rank     what a case is compared with: the same sequences, which rank 0 runs alone (on_one_rank, one_rank.h)
//   Outcome      loss and gradients of one step (outcome.h)
//   Trained      losses and states of some steps (toy_training.h)
//   the bits of  memcmp finds no difference; otherwise results are near to each other
//
// A case with an option that only one file has is a struct of that file with a MeshCase, name() and PrintTo().
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/cat.h"
#include "mesh_world.h"
#include "models/pipeline_partition.h"
#include "optim/optimizer.h"
#include "plan/layout.h"
#include "plan/pipeline_form.h"
#include "support/pieces_exchange.h"
#include "support/toy_slices.h"
#include "support/toy_steps.h"

namespace hawser::testing {

// Of pipeline stages; grouped: MeshCase::in_flight micro-batches go forward before they go backward.
enum class Schedule { grouped, one_forward_one_backward, zero_bubble, interleaved };

struct MeshCase {
  comm::MeshSizes mesh = {};                 // of one pipeline stage
  models::PipelinePartition partition = {};  // of the blocks over pipeline stages
  Schedule schedule = Schedule::grouped;
  nn::SavePolicy policy = {};  // of all layers
  int micro_batches = 1;       // of a data rank
  int in_flight = 1;           // micro-batches whose passes alternate
  std::int64_t missing = 0;    // sequences that the last micro-batches lack
  bool packed = true;          // else a sequence is one document
  bool by_work = false;        // SequenceSplit::by_work; else zigzag
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  ShardPolicy shard_policy = ShardPolicy::parameters;
  DType compute = DType::f32, reduce_dtype = DType::f32, kv_reduce_dtype = DType::f32;
  Division division = {};  // of the model over tensor ranks
  int head_groups = 1;
  int prefetch = 1;
  int pieces = 1;                                           // of the exchange of expert ranks
  std::optional<double> row_bound = {}, row_fallback = {};  // of the rows of an expert rank
  bool tied = true;                                         // embedding and head
  AttentionMask mask = {};                                  // of the second block
  double random_delay_s = 0;

  int data_ranks() const { return mesh.shard * mesh.replicate; }
  std::int64_t batch_size() const { return 2LL * data_ranks() * micro_batches - missing; }  // sequences of a step
  std::string name() const;
};

// Letters, digits and underscores of the parts that are not empty: "context2_shard2" and "full" give
// "context2_shard2_full".
template <class... Parts>
std::string joined(const Parts&... parts) {
  std::string out;
  for (const std::string& part : {std::string(parts)...}) {
    if (!part.empty()) out += (out.empty() ? "" : "_") + part;
  }
  for (char& c : out) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return out;
}

inline std::string name_if(bool differs, const std::string& name) {
  return differs ? name : "";
}
template <class Value>
std::string name_if_not(Value usual, Value value, const std::string& name) {
  return value == usual ? "" : cat(name, value);
}

inline std::string name_of_bound(const std::optional<double>& bound, const std::string& name) {
  return bound ? cat(name, *bound) : "";
}

inline std::string name_of(const comm::MeshSizes& mesh) {
  const std::string name =
      joined(name_if_not(1, mesh.tensor, "tensor"), name_if_not(1, mesh.kv_copies, "kv_copies"),
             name_if_not(1, mesh.context, "context"), name_if_not(1, mesh.context_heads, "heads"),
             name_if_not(1, mesh.shard, "shard"), name_if_not(1, mesh.replicate, "replicate"),
             name_if_not(1, mesh.expert, "expert"), name_if(mesh.expert_over_tensor, "over_tensor"),
             name_if(!mesh.shard_context, "unsharded"));
  return name.empty() ? "shard1" : name;
}

inline std::string name_of(Checkpointing checkpointing) {
  constexpr const char* kNames[] = {"none", "selective", "gate_up", "qkv", "projections", "full", "block"};
  return kNames[static_cast<int>(checkpointing)];
}

inline std::string name_of(const nn::SavePolicy& policy) {
  return joined(name_if(policy.checkpointing != Checkpointing::none, name_of(policy.checkpointing)),
                name_if(policy.delay_weight_gradients, "delayed_weights"), name_if(policy.offload, "offload"));
}

inline std::string name_of(const models::PipelinePartition& partition) {
  if (partition.model_chunks() == 1) return "";
  std::string name = cat("stages", partition.stages, "_ends");
  for (const int end : partition.ends) name += cat("_", end);
  return name;
}

inline std::string name_of(Schedule schedule) {
  constexpr const char* kNames[] = {"", "1f1b", "zero_bubble", "interleaved"};
  return kNames[static_cast<int>(schedule)];
}

inline std::string name_of(const Division& division) {
  return joined(name_if(division.vocabulary, "vocabulary"), name_if(division.sequence_parallel, "sequence_parallel"),
                name_if(division.one_plan, "one_plan"), name_if_not(-1, division.whole_attention, "whole_attention"),
                name_if_not(-1, division.whole_mlp, "whole_mlp"));
}

inline std::string name_of(const AttentionMask& mask) {
  return joined(name_if(!mask.causal, "not_causal"), name_if_not(std::int64_t{0}, mask.window, "window"),
                name_if(mask.distances, "alibi"));
}

inline std::string MeshCase::name() const {
  return joined(name_of(mesh), name_of(partition), name_of(schedule), name_of(policy),
                name_if_not(1, micro_batches, "micro_batches"), name_if_not(1, in_flight, "in_flight"),
                name_if_not(std::int64_t{0}, missing, "missing"), name_if(!packed, "unpacked"),
                name_if(by_work, "by_work"), name_if(accumulation == GradientAccumulation::local, "local"),
                name_if(shard_policy == ShardPolicy::optimizer, "sharded_optimizer"),
                name_if(compute == DType::bf16, "bf16"), name_if(reduce_dtype == DType::bf16, "reduce_bf16"),
                name_if(kv_reduce_dtype == DType::bf16, "kv_reduce_bf16"), name_of(division),
                name_if_not(1, head_groups, "head_groups"), name_if_not(1, prefetch, "prefetch"),
                name_if_not(1, pieces, "pieces"), name_of_bound(row_bound, "row_bound"),
                name_of_bound(row_fallback, "row_fallback"), name_if(!tied, "untied"), name_of(mask),
                name_if(random_delay_s > 0, "delays"));
}

inline void PrintTo(const MeshCase& c, std::ostream* out) {
  *out << c.name();
}

// What is saved in one case and loaded in another.
struct TwoMeshes {
  MeshCase from, to;

  std::string name() const { return joined(from.name(), "to", to.name()); }
  friend void PrintTo(const TwoMeshes& c, std::ostream* out) { *out << c.name(); }
};

// Each case to the one after it, and the last to the first.
inline std::vector<TwoMeshes> each_to_next(const std::vector<MeshCase>& cases) {
  std::vector<TwoMeshes> out;
  for (std::size_t i = 0; i < cases.size(); ++i) out.push_back({cases[i], cases[(i + 1) % cases.size()]});
  return out;
}

// For tests with a parameter of type C, which has name().
template <class C>
class CaseTest : public ::testing::TestWithParam<C> {};

struct CaseName {
  template <class C>
  std::string operator()(const ::testing::TestParamInfo<C>& of) const {
    return of.param.name();
  }
};

// All factorisations of the world into context x shard x replicate, and an unsharded one per context degree.
inline std::vector<MeshCase> meshes() {
  std::vector<MeshCase> out;
  const int world = the_world->size();
  for (int context = 1; context <= world; context *= 2) {
    for (int shard = 1; context * shard <= world; shard *= 2) {
      out.push_back({.mesh = {.context = context, .shard = shard, .replicate = world / (context * shard)}});
    }
    out.push_back({.mesh = {.context = context, .replicate = world / context, .shard_context = false}});
  }
  return out;
}

// The sharded ones. Pairwise: each mesh has one dtype and one accumulation policy, and each combination of these has
// meshes.
inline std::vector<MeshCase> sharded_meshes() {
  std::vector<MeshCase> out;
  const int world = the_world->size();
  for (const MeshCase& c : meshes()) {
    if (!c.mesh.shard_context || (c.mesh.shard_ranks() == 1 && world > 1)) continue;
    const std::size_t i = out.size() + static_cast<std::size_t>(world);
    out.push_back(c);
    out.back().compute = i % 2 == 0 ? DType::f32 : DType::bf16;
    out.back().accumulation = i / 2 % 2 == 0 ? GradientAccumulation::sharded : GradientAccumulation::local;
  }
  return out;
}

inline MeshCase last_mesh_in_bf16() {
  MeshCase c = sharded_meshes().back();
  c.compute = DType::bf16;
  return c;
}

// The device of the ranks, on which equal steps have equal bits.
inline plan::LayoutChoices rank_layout(const comm::MeshSizes& mesh) {
  plan::LayoutChoices layout;
  layout.mesh = mesh;
  layout.device = kRankDevice;
  layout.deterministic = kRankDevice == DeviceKind::cuda;
  return layout;
}

// Micro-batches of two sequences on each data rank.
inline plan::LayoutChoices layout_of(const MeshCase& c, const models::Model& model) {
  plan::LayoutChoices layout = rank_layout(c.mesh);
  layout.batch_sizes = toy_batch(c.mesh.context, c.packed, c.mesh.context_heads);
  if (c.by_work && layout.batch_sizes.ring() > 1) {
    layout.batch_sizes.chunks_per_rank = 4, layout.batch_sizes.together = 2;
  }
  if (c.by_work) layout.batch_sizes.split = batches::SequenceSplit::by_work;
  layout.micro_batches = c.micro_batches;
  layout.policies.assign(static_cast<std::size_t>(model.layers()), c.policy);
  layout.partition = c.partition;
  layout.schedule.group = c.in_flight;
  const auto passes_by = [&](PipelineSchedule schedule) {
    const int stages = c.partition.stages;
    layout.schedule.passes = plan::schedule_of(schedule, stages, c.partition.model_chunks() / stages).passes;
  };
  if (c.schedule == Schedule::one_forward_one_backward) passes_by(PipelineSchedule::one_forward_one_backward);
  if (c.schedule == Schedule::zero_bubble) passes_by(PipelineSchedule::zero_bubble);
  if (c.schedule == Schedule::interleaved) passes_by(PipelineSchedule::interleaved);
  layout.accumulation = c.accumulation;
  layout.shard_policy = c.shard_policy;
  layout.compute = c.compute;
  layout.reduce_dtype = c.reduce_dtype;
  layout.kv_reduce_dtype = c.kv_reduce_dtype;
  layout.sequence_parallel = c.division.sequence_parallel;
  layout.head_groups = c.head_groups;
  layout.prefetch = c.prefetch;
  layout.expert_row_bound = c.row_bound;
  layout.expert_row_fallback = c.row_fallback;
  layout.token_exchange = exchange_in_pieces(c.pieces);
  return layout;
}

// With active clipping.
inline plan::LayoutChoices clipped_layout(const MeshCase& c, const models::Model& model) {
  plan::LayoutChoices layout = layout_of(c, model);
  layout.gradient_clip = 0.02;
  return layout;
}

// AdamW divides by the size of gradients, some of which cancel to rounding noise, and moves these weights as far as any
// other. An epsilon of the size of small gradients leaves the noise of another order of sums out of the weights.
inline std::shared_ptr<const optim::Optimizer> toy_adamw() {
  return optim::make_adamw({.epsilon = 1e-5});
}

// With active clipping and toy_adamw().
inline plan::LayoutChoices toy_layout(const MeshCase& c, const models::Model& model) {
  plan::LayoutChoices layout = clipped_layout(c, model);
  layout.optimizer = toy_adamw();
  return layout;
}

}  // namespace hawser::testing
