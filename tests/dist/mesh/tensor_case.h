// Training of the toy model on tensor ranks and on one rank, for tests that compare both.
#pragma once

#include "nn/testing/context.h"
#include "support/tensor_parallel.h"
#include "support/toy_slices.h"
#include "toy_training.h"

namespace hawser::testing {

// Without the states of frozen parameters.
inline Tensors trainable(const models::Model& model, const Tensors& all) {
  Tensors out;
  for (const nn::Flat& flat : model.flats()) {
    if (!flat.spec().trainable) continue;
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) {
        for (const auto& [name, values] : all) {
          if (name.find(segment.name) != std::string::npos) out[name] = values;
        }
      }
    }
  }
  return out;
}

// The same steps on a mesh and on one rank.
struct OnMeshAndAlone {
  Trained mesh;
  Tensors alone;  // the states of one rank after the steps
};

// Trains on a mesh of the whole world and on one rank, with the same sequences, and expects equal results.
inline OnMeshAndAlone expect_like_one_rank(const models::ModelDescription& whole, const nn::FlatSpecOf& spec,
                                           const comm::MeshSizes& mesh, const nn::SavePolicy& policy = {},
                                           const std::shared_ptr<const optim::Optimizer>& optimizer = toy_adamw(),
                                           const Division& division = {}, Training training = {}) {
  const std::string text =
      cat("tensor ", mesh.tensor, " context ", mesh.context, " shard ", mesh.shard, " replicate ", mesh.replicate,
          division.sequence_parallel ? " sequence parallel " : "", nn::testing::text(policy));
  const models::Model one(whole, [&](const nn::Param& param) {
    nn::FlatSpec of_one = nn::common_domain(param);
    of_one.trainable = spec(param).trainable;
    of_one.group = spec(param).group;
    of_one.gathered = spec(param).gathered;
    return of_one;
  });
  const int part = comm::coordinate_of(the_world->rank().value(), mesh).tensor;
  const models::Model model(mesh.tensor == 1 ? whole : part_of(whole, part, mesh.tensor, division),
                            division.sequence_parallel ? nn::with_sequence_parallelism(spec) : spec);
  plan::LayoutChoices layout = toy_layout(mesh, model);
  layout.sequence_parallel = division.sequence_parallel;
  layout.policies.assign(layout.policies.size(), policy);
  layout.optimizer = optimizer;
  if (policy.delay_weight_gradients) layout.schedule.group = 2;
  if (mesh.tensor > 1) {
    layout.replace_seams = [&](nn::Seams& seams, comm::Mesh& groups) {
      if (division.sequence_parallel) {
        seams.redistribute = std::make_shared<SequenceParallel>(groups.tensor());
      } else {
        seams.redistribute = std::make_shared<TensorParallel>(groups.tensor());
      }
      seams.tensor_reduce = std::make_shared<TensorSums>(groups.tensor());
    };
  }
  training.replay = !division.one_plan;
  const Trained cut = train(model, layout, training);

  plan::LayoutChoices alone = toy_layout({}, one);
  alone.optimizer = optimizer;
  const Tensors after = expect_one_ranks_training(one, alone, 2LL * layout.data_ranks() * 2, cut, text);
  EXPECT_LT(difference(trainable(one, cut.after), trainable(one, after)), 1e-5) << text;
  return {cut, after};
}

// The gradients of a training of one clipped step, tensor by tensor: the first moment is one tenth of them.
inline void expect_first_gradients(const OnMeshAndAlone& trained, const std::string& text) {
  const std::string prefix = "optimizer/exp_avg/";
  double all = 0;
  for (const auto& [name, values] : trained.alone) {
    if (!name.starts_with(prefix)) continue;
    for (const float value : values) all += double{value} * value;
  }
  ASSERT_GT(all, 0);
  for (const auto& [name, values] : trained.alone) {
    if (!name.starts_with(prefix)) continue;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{trained.mesh.after.at(name)[i]} - values[i], 2);
      norm += std::pow(double{values[i]}, 2);
    }
    EXPECT_LT(std::sqrt(difference) / std::max(std::sqrt(norm), 1e-3 * std::sqrt(all)), 1e-5) << text << ": " << name;
  }
}

// Megatron's tensor parallelism: all weights but norms, biases of sums and positions are sliced, the vocabulary of 67
// too. Sequences of 61 tokens are padded until the tensor ranks can divide their rows.
inline const Division kVocabulary{.vocabulary = true}, kSequence{.vocabulary = true, .sequence_parallel = true};

inline void expect_divided(const models::ModelDescription& whole, const comm::MeshSizes& mesh,
                           const nn::SavePolicy& policy, const Division& division,
                           const nn::FlatSpecOf& spec = nn::FlatSpecOf([](const nn::Param& param) {
                             return param.flat;
                           })) {
  expect_like_one_rank(whole, spec, mesh, policy, toy_adamw(), division);
}

// Two tensor ranks and as many shards as there are ranks for; one rank has the whole model.
inline comm::MeshSizes divided_mesh() {
  const int world = the_world->size(), tensor = std::min(world, 2);
  return {.tensor = tensor, .shard = world / tensor};
}

}  // namespace hawser::testing
