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
  // The default is three steps. `first_step`: one step, whose gradients are compared tensor by tensor. `second_step`:
  // two steps, whose first moments are compared tensor by tensor. B of LoRA is 0 in the first step, and A has its first
  // gradient in the second.
  bool first_step = false, second_step = false;

  std::string name() const {
    const std::string update = optimizer->name() == toy_adamw()->name() ? "" : optimizer->name();
    return joined(model, update, on.name(), name_if(first_step, "first_step"), name_if(second_step, "second_step"));
  }
  friend void PrintTo(const TensorCase& c, std::ostream* out) { *out << c.name(); }
};

// The same steps on a mesh and on one rank.
struct MeshAndOneRank {
  Trained mesh;
  Tensors one;  // the states of one rank after the steps
};

// The first moments of a training of one or two clipped steps, tensor by tensor, differ by less than `max` of their
// norms. After one step they are one tenth of the gradients.
inline void expect_first_moments(const MeshAndOneRank& trained, double max) {
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
    EXPECT_LT(std::sqrt(difference) / std::max(std::sqrt(norm), 1e-3 * std::sqrt(all)), max) << name;
  }
}

// The same steps in two micro-batches, which delayed weight gradients have both in flight.
inline MeshCase with_two_micro_batches(MeshCase on) {
  on.micro_batches = 2;
  if (on.policy.delay_weight_gradients) on.in_flight = 2;
  return on;
}

inline models::ModelDescription whole_model(const TensorCase& c) {
  return c.on.mesh.tensor > 1 ? divisible(c.whole) : c.whole;
}

// Trains on a mesh of the whole world.
inline Trained train_on_mesh(const TensorCase& c) {
  const models::ModelDescription whole = whole_model(c);
  const MeshCase on = with_two_micro_batches(c.on);
  const int part = comm::coordinate_of(the_world->rank().value(), on.mesh).tensor;
  const models::Model model(on.mesh.tensor == 1 ? whole : part_of(whole, part, on.mesh.tensor, on.division),
                            on.division.sequence_parallel ? nn::with_sequence_parallelism(c.spec) : c.spec);
  plan::LayoutChoices layout = toy_layout(on, model);
  layout.optimizer = c.optimizer;
  Training training{.replay = !on.division.one_plan};
  if (c.first_step) training.inputs = {0};
  if (c.second_step) training.inputs = {0, 1};
  return train(model, layout, training);
}

// Trains on a mesh of the whole world and on one rank, with the same sequences, and expects equal results.
inline MeshAndOneRank expect_like_one_rank(const TensorCase& c) {
  const models::Model one(whole_model(c), [&](const nn::Param& param) {
    nn::FlatSpec of_one = nn::common_domain(param);
    of_one.trainable = c.spec(param).trainable;
    of_one.group = c.spec(param).group;
    of_one.gathered = c.spec(param).gathered;
    return of_one;
  });
  plan::LayoutChoices of_one = toy_layout({.packed = c.on.packed}, one);
  of_one.optimizer = c.optimizer;
  MeshAndOneRank out{.mesh = train_on_mesh(c)};
  out.one = expect_training_of_one_rank(one, of_one, with_two_micro_batches(c.on).batch_size(), out.mesh);
  EXPECT_LT(difference(trainable(one, out.mesh.after), trainable(one, out.one)), 1e-5);
  if (c.first_step) expect_first_moments(out, 1e-5);
  if (c.second_step) expect_first_moments(out, 1e-4);  // of weights that differ by rounding
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

// Embedding and head are not cut.
inline nn::FlatSpec spec_without_vocabulary(const nn::Param& param) {
  nn::FlatSpec spec = param.flat;
  if (param.name.find("layers.") == std::string::npos) spec.domain = Domain::replicated;
  return spec;
}

inline comm::MeshSizes with_kv_copies(comm::MeshSizes mesh, const models::ModelDescription& whole) {
  mesh.kv_copies = kv_copies(whole, mesh.tensor);
  return mesh;
}

}  // namespace hawser::testing
