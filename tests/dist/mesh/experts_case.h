// A model with experts over the ranks of a mesh, with combinations of options, for tests.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "models/weights.h"
#include "nn/testing/context.h"
#include "ops/moe/router.h"
#include "outcome.h"
#include "support/pieces_exchange.h"
#include "support/tensor_parallel.h"
#include "support/toy_slices.h"
#include "toy_training.h"

namespace hawser::testing {

constexpr std::int64_t kExperts = 8;

struct Experts {
  comm::MeshSizes mesh;
  nn::SavePolicy policy = {};
  int micro_batches = 1;
  int pieces = 1;
  GradientAccumulation accumulation = GradientAccumulation::sharded;
  bool sequence_parallel = false;
  std::optional<double> row_bound = {}, row_fallback = {};

  bool in_flight() const { return policy.delay_weight_gradients && micro_batches > 1; }
  std::int64_t sequences() const { return 2LL * mesh.shard * mesh.replicate; }
  std::string text() const {
    return cat("expert ", mesh.expert, mesh.expert_over_tensor ? " (over tensor)" : "", " of tensor ", mesh.tensor,
               " context ", mesh.context, " shard ", mesh.shard, " replicate ", mesh.replicate, ", ",
               nn::testing::text(policy), ", micro-batches ", micro_batches, ", pieces ", pieces,
               accumulation == GradientAccumulation::local ? ", local" : "",
               sequence_parallel ? ", sequence parallel" : "");
  }
};

// What this rank has of the model.
inline std::unique_ptr<models::Model> part_of(models::ModelDescription d, const Experts& o) {
  const comm::MeshCoordinate place = comm::coordinate_of(the_world->rank().value(), o.mesh);
  for (models::BlockDescription& block : d.blocks) {
    block.moe->experts_shard = {.index = comm::expert_part(place, o.mesh), .count = o.mesh.expert};
  }
  if (o.mesh.tensor > 1) d = half_of(std::move(d), place.tensor, {.vocabulary = true});
  const nn::FlatSpecOf own([](const nn::Param& param) { return param.flat; });
  return std::make_unique<models::Model>(std::move(d), o.sequence_parallel ? nn::with_sequence_parallelism(own) : own);
}

inline plan::LayoutChoices layout_of(const Experts& o, const models::Model& model) {
  plan::LayoutChoices layout = toy_layout(o.mesh, model);
  layout.sequence_parallel = o.sequence_parallel;
  layout.accumulation = o.accumulation;
  layout.expert_row_bound = o.row_bound;
  layout.expert_row_fallback = o.row_fallback;
  layout.policies.assign(layout.policies.size(), o.policy);
  layout.schedule.group = o.in_flight() ? 2 : 1;
  layout.replace_seams = [o](nn::Seams& seams, comm::Mesh& groups) {
    if (o.mesh.expert > 1) seams.tokens = std::make_shared<PiecesExchange>(groups.expert(), o.pieces);
    if (o.mesh.tensor == 1) return;
    seams.tensor_reduce = std::make_shared<TensorSums>(groups.tensor());
    if (o.sequence_parallel) {
      seams.redistribute = std::make_shared<SequenceParallel>(groups.tensor());
    } else {
      seams.redistribute = std::make_shared<TensorParallel>(groups.tensor());
    }
  };
  return layout;
}

// Sets weights of a session by name and element of the tensor; NaN: as it was.
using Weights = std::function<float(const std::string& name, std::int64_t element)>;

inline void set_weights(engine::Session& session, const models::Model& model, const Weights& weights) {
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    const step::FlatState& state = session.state().flat(f);
    for (const models::SegmentRange& piece : models::segment_ranges(flat, state.begin, state.count)) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(piece.param)];
      const std::string& name = param.segments[static_cast<std::size_t>(piece.segment)].name;
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const float value = weights(name, piece.first + i);
        if (!std::isnan(value)) state.stored.data<float>()[piece.at + i] = value;
      }
    }
  }
  session.parameters_changed();
}

// One rank, whose micro-batch has the rows of all ranks' together: the auxiliary loss is of each micro-batch.
inline plan::LayoutChoices alone_layout(const Experts& o, const models::Model& one) {
  plan::LayoutChoices layout = toy_layout({}, one);
  layout.batch_sizes.sequences = o.sequences();
  return layout;
}

inline std::vector<float> counts_of(const std::vector<float>& statistics) {
  std::vector<float> counts;
  const auto size = static_cast<std::size_t>(ops::router_statistics_size(kExperts));
  for (std::size_t layer = 0; layer < statistics.size() / size; ++layer) {
    const auto begin = statistics.begin() + static_cast<std::ptrdiff_t>(layer * size);
    counts.insert(counts.end(), begin, begin + kExperts);
  }
  return counts;
}

inline Outcome outcome_of_one_rank(const models::ModelDescription& whole, const Experts& o,
                                   const Weights& weights = {}) {
  return on_one_rank([&] {
    const models::Model one(whole);
    const auto self = comm::make_self_mesh();
    return run(one, alone_layout(o, one), *self, o.sequences() * o.micro_batches, 0, nullptr,
               [&](engine::Session& session) {
                 if (weights) set_weights(session, one, weights);
               });
  });
}

inline Outcome on_the_mesh(const models::ModelDescription& whole, const Experts& o, const Weights& weights = {}) {
  const auto model = part_of(whole, o);
  const auto mesh = rank_mesh(o.mesh);
  return run(*model, layout_of(o, *model), *mesh, o.sequences() * o.micro_batches, 2e-4, nullptr,
             [&](engine::Session& session) {
               if (weights) set_weights(session, *model, weights);
             });
}

// Routing first: with other experts, everything else differs.
inline void expect_gradients_of(const Outcome& one, const Outcome& many, const Experts& o) {
  ASSERT_EQ(counts_of(many.statistics), counts_of(one.statistics)) << o.text();
  EXPECT_NEAR(many.loss, one.loss, 1e-5 * one.loss) << o.text();
  EXPECT_NEAR(many.auxiliary_loss, one.auxiliary_loss, 1e-6 * one.auxiliary_loss) << o.text();
  compare_shards({.context = o.mesh.context,
                  .shard = o.mesh.shard,
                  .replicate = o.mesh.replicate,
                  .checkpointing = o.policy.checkpointing,
                  .delay_weight_gradients = o.policy.delay_weight_gradients},
                 many, one, 1e-5);
}

}  // namespace hawser::testing
