// A model with experts over the ranks of a mesh, with combinations of options, for tests.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "models/weights.h"
#include "ops/moe/router.h"
#include "outcome.h"
#include "toy_training.h"

namespace hawser::testing {

constexpr std::int64_t kExperts = 8;

// What this rank has of the model.
inline std::unique_ptr<models::Model> part_of(models::ModelDescription d, const MeshCase& c) {
  const comm::MeshCoordinate place = comm::coordinate_of(the_world->rank().value(), c.mesh);
  for (models::BlockDescription& block : d.blocks) {
    block.moe->experts_shard = {.index = comm::expert_part(place, c.mesh), .count = c.mesh.expert};
  }
  if (c.mesh.tensor > 1) d = half_of(std::move(d), place.tensor, c.division);
  const nn::FlatSpecOf own([](const nn::Param& param) { return param.flat; });
  return std::make_unique<models::Model>(std::move(d),
                                         c.division.sequence_parallel ? nn::with_sequence_parallelism(own) : own);
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

// A micro-batch of one rank has the rows of all ranks' together: the auxiliary loss is of each micro-batch.
inline plan::LayoutChoices layout_of_one_rank(const MeshCase& c, const models::Model& one) {
  plan::LayoutChoices layout = toy_layout({}, one);
  layout.batch_sizes.sequences = 2LL * c.data_ranks();
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

inline Outcome outcome_of_one_rank(const models::ModelDescription& whole, const MeshCase& c,
                                   const Weights& weights = {}) {
  return on_one_rank([&] {
    const models::Model one(whole);
    const auto self = comm::make_self_mesh();
    return run(one, layout_of_one_rank(c, one), *self, c.batch_size(), 0, nullptr, [&](engine::Session& session) {
      if (weights) set_weights(session, one, weights);
    });
  });
}

inline Outcome outcome_of_mesh(const models::ModelDescription& whole, const MeshCase& c, const Weights& weights = {}) {
  const auto model = part_of(whole, c);
  const auto mesh = rank_mesh(c.mesh);
  return run(*model, toy_layout(c, *model), *mesh, c.batch_size(), 2e-4, nullptr, [&](engine::Session& session) {
    if (weights) set_weights(session, *model, weights);
  });
}

// Routing first: with other experts, everything else differs.
inline void expect_routing_and_gradients(const MeshCase& c, const Outcome& mesh, const Outcome& one) {
  ASSERT_EQ(counts_of(mesh.statistics), counts_of(one.statistics));
  EXPECT_NEAR(mesh.loss, one.loss, 1e-5 * one.loss);
  EXPECT_NEAR(mesh.auxiliary_loss, one.auxiliary_loss, 1e-6 * one.auxiliary_loss);
  expect_gradients(c.mesh, mesh, one, 1e-5);
}

}  // namespace hawser::testing
