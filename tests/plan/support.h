// Models, layouts and steps for tests of the plan.
#pragma once

#include <memory>

#include "engine/feed.h"
#include "engine/session.h"
#include "plan/layout.h"
#include "support/counting_device.h"
#include "support/toy.h"

namespace hawser::testing {

using Sizes = ToySizes;

inline Sizes smollm2_sizes() {
  return {.width = 576, .heads = 9, .kv_heads = 3, .head_dim = 64, .inner = 1536, .vocabulary = 49152, .blocks = 30};
}

// A layout for tests: the options that tests vary; everything else has its default.
struct LayoutOptions {
  comm::MeshSizes mesh;
  std::int64_t length = 96, sequences = 1, documents = 4;
  Checkpointing checkpointing = Checkpointing::none;
  bool delay_weight_gradients = false;
  int micro_batches = 1, in_flight = 1, prefetch = 1;
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  DType compute = DType::f32, reduce_dtype = DType::f32;
};

inline plan::LayoutChoices make_test_layout(const LayoutOptions& o, const models::Model& model) {
  plan::LayoutChoices layout;
  layout.mesh = o.mesh;
  layout.compute = o.compute;
  layout.reduce_dtype = o.reduce_dtype;
  layout.batch_sizes = {.sequences = o.sequences,
                        .sequence_length = o.length,
                        .max_documents = o.documents,
                        .context = o.mesh.context,
                        .chunks_per_rank = o.mesh.context == 1 ? 1 : 2};
  layout.micro_batches = o.micro_batches;
  layout.schedule.group = o.in_flight;
  layout.prefetch = o.prefetch;
  layout.accumulation = o.accumulation;
  layout.policies.assign(static_cast<std::size_t>(model.layers()),
                         {.checkpointing = o.checkpointing, .delay_weight_gradients = o.delay_weight_gradients});
  return layout;
}

// Every factorization of a world into context x shard x replicate, and the unsharded mesh of each context degree.
inline std::vector<comm::MeshSizes> all_meshes(int world) {
  std::vector<comm::MeshSizes> out;
  for (int context = 1; context <= world; context *= 2) {
    for (int shard = 1; context * shard <= world; shard *= 2) {
      out.push_back({.context = context, .shard = shard, .replicate = world / (context * shard)});
    }
    out.push_back({.context = context, .replicate = world / context, .shard_context = false});
  }
  return out;
}

inline constexpr Checkpointing kPolicies[] = {Checkpointing::none, Checkpointing::selective,   Checkpointing::gate_up,
                                              Checkpointing::qkv,  Checkpointing::projections, Checkpointing::full,
                                              Checkpointing::block};

// The policies that change a step's program.
inline std::vector<LayoutOptions> all_policies() {
  std::vector<LayoutOptions> out;
  for (const auto checkpointing : kPolicies) {
    out.push_back({.checkpointing = checkpointing});
    out.push_back({.checkpointing = checkpointing, .micro_batches = 3, .accumulation = GradientAccumulation::local});
    out.push_back({.checkpointing = checkpointing, .delay_weight_gradients = true, .micro_batches = 2, .in_flight = 2});
  }
  out.push_back({.checkpointing = Checkpointing::projections, .micro_batches = 3, .prefetch = 3});
  out.push_back({.prefetch = 0});
  out.push_back({.micro_batches = 2, .compute = DType::bf16, .reduce_dtype = DType::bf16});
  return out;
}

inline std::string text_of(const LayoutOptions& o) {
  return cat("context ", o.mesh.context, " shard ", o.mesh.shard, " replicate ", o.mesh.replicate,
             o.mesh.shard_context ? "" : " unsharded", " checkpointing ", static_cast<int>(o.checkpointing),
             o.delay_weight_gradients ? " delayed" : "", " micro-batches ", o.micro_batches, " prefetch ", o.prefetch);
}

// Steps of a session on toy sequences.
class Steps {
 public:
  explicit Steps(engine::Session& session)
      : session_(session),
        layout_(session.layout()),
        loader_(std::make_shared<ToySequences>(batch_size(), layout_.batch.sequence_length, layout_.batch.max_documents,
                                               5, layout_.batch.tables, layout_.batch.labels),
                layout_.batch,
                {.data_rank =
                     session.mesh().coordinate().shard + layout_.mesh.shard * session.mesh().coordinate().replicate,
                 .data_ranks = layout_.data_ranks(),
                 .context_rank = session.mesh().coordinate().context,
                 .context_ranks = layout_.mesh.context},
                {.global_batch_size = batch_size(), .shuffle = false}) {
    session.initialise(1);
  }

  // Runs one step to its end and returns its mean loss.
  double run(step::Purpose purpose) {
    const step::StepOutput output = enqueue(purpose);
    session_.synchronize();
    return output.result->loss_sum.value() / static_cast<double>(loader_.step_targets(0));
  }

  step::StepOutput enqueue(step::Purpose purpose) {
    step::StepInput input;
    input.record = {.learning_rate = 1e-3f, .inverse_targets = 1.0f / static_cast<float>(loader_.step_targets(0))};
    const int count = plan::micro_batches_of(layout_, purpose);
    for (int m = 0; m < count; ++m) input.batches.push_back(engine::to_host_batch(loader_.load(0, m), layout_.batch));
    return session_.enqueue(purpose, input);
  }

 private:
  std::int64_t batch_size() const { return layout_.data_ranks() * layout_.batch.sequences * layout_.micro_batches; }

  engine::Session& session_;
  const plan::Layout& layout_;
  batches::BatchLoader loader_;
};

}  // namespace hawser::testing
