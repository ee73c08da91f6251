// Training of the toy model on tensor ranks and on one rank, for tests that compare both.
#pragma once

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

inline nn::FlatSpec own_spec(const nn::Param& param) {
  return param.flat;
}

// Adapters train and the base is frozen, also where ranks have slices.
inline nn::FlatSpec train_own_adapters(const nn::Param& param) {
  nn::FlatSpec spec = param.flat;
  spec.trainable = is_adapter(param.name);
  return spec;
}

// A model over the tensor ranks of a mesh.
struct TensorCase {
  std::string model;  // its name, and that of what trains
  MeshCase on;
  models::ModelDescription whole;
  nn::FlatSpecOf spec = nn::FlatSpecOf(own_spec);
  std::shared_ptr<const optim::Optimizer> optimizer = toy_adamw();
  bool first_step = false;  // one step, whose gradients are compared tensor by tensor; else three steps

  std::string name() const {
    const std::string update = optimizer->name() == toy_adamw()->name() ? "" : optimizer->name();
    return joined(model, update, on.name(), name_if(first_step, "first_step"));
  }
  friend void PrintTo(const TensorCase& c, std::ostream* out) { *out << c.name(); }
};

// The same steps on a mesh and on one rank.
struct MeshAndOneRank {
  Trained mesh;
  Tensors one;  // the states of one rank after the steps
};

// The gradients of a training of one clipped step, tensor by tensor: the first moment is one tenth of them.
inline void expect_first_gradients(const MeshAndOneRank& trained) {
  const std::string prefix = "optimizer/exp_avg/";
  double all = 0;
  for (const auto& [name, values] : trained.one) {
    if (!name.starts_with(prefix)) continue;
    for (const float value : values) all += double{value} * value;
  }
  ASSERT_GT(all, 0);
  for (const auto& [name, values] : trained.one) {
    if (!name.starts_with(prefix)) continue;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{trained.mesh.after.at(name)[i]} - values[i], 2);
      norm += std::pow(double{values[i]}, 2);
    }
    EXPECT_LT(std::sqrt(difference) / std::max(std::sqrt(norm), 1e-3 * std::sqrt(all)), 1e-5) << name;
  }
}

// Trains on a mesh of the whole world and on one rank, with the same sequences in two micro-batches, and expects equal
// results. Delayed weight gradients have both in flight.
inline MeshAndOneRank expect_like_one_rank(const TensorCase& c) {
  const models::ModelDescription whole = c.on.mesh.tensor > 1 ? divisible(c.whole) : c.whole;
  MeshCase on = c.on;
  on.micro_batches = 2;
  if (on.policy.delay_weight_gradients) on.in_flight = 2;
  const models::Model one(whole, [&](const nn::Param& param) {
    nn::FlatSpec of_one = nn::common_domain(param);
    of_one.trainable = c.spec(param).trainable;
    of_one.group = c.spec(param).group;
    of_one.gathered = c.spec(param).gathered;
    return of_one;
  });
  const int part = comm::coordinate_of(the_world->rank().value(), on.mesh).tensor;
  const models::Model model(on.mesh.tensor == 1 ? whole : part_of(whole, part, on.mesh.tensor, on.division),
                            on.division.sequence_parallel ? nn::with_sequence_parallelism(c.spec) : c.spec);
  plan::LayoutChoices layout = toy_layout(on, model), of_one = toy_layout({}, one);
  layout.optimizer = of_one.optimizer = c.optimizer;
  Training training{.replay = !on.division.one_plan};
  if (c.first_step) training.inputs = {0};
  MeshAndOneRank out{.mesh = train(model, layout, training)};
  out.one = expect_training_of_one_rank(one, of_one, on.batch_size(), out.mesh);
  EXPECT_LT(difference(trainable(one, out.mesh.after), trainable(one, out.one)), 1e-5);
  if (c.first_step) expect_first_gradients(out);
  return out;
}

// Megatron's tensor parallelism: all weights but norms, biases of sums and positions are sliced, the vocabulary of 67
// too. Sequences of 61 tokens are padded until the tensor ranks can divide their rows.
inline const Division kVocabulary{.vocabulary = true}, kSequence{.vocabulary = true, .sequence_parallel = true};

// Two tensor ranks and as many shards as there are ranks for; one rank has the whole model.
inline comm::MeshSizes divided_mesh() {
  const int world = the_world->size(), tensor = std::min(world, 2);
  return {.tensor = tensor, .shard = world / tensor};
}

}  // namespace hawser::testing
