// Training of the toy model on every mesh, for tests that compare states.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>

#include "engine/host_copy.h"
#include "engine/session.h"
#include "mesh_world.h"
#include "one_rank.h"
#include "support/toy_steps.h"
#include "tensor/fp8.h"
#include "tensor/nf4.h"

namespace hawser::testing {

using Tensors = std::map<std::string, std::vector<float>>;

inline bool is_adapter(const std::string& name) {
  return name.find("lora_") != std::string::npos;
}

// Adapters train and the base is frozen, where no rank has slices.
inline nn::FlatSpec train_adapters(const nn::Param& param) {
  nn::FlatSpec spec = nn::common_domain(param);
  spec.trainable = is_adapter(param.name);
  return spec;
}

inline std::vector<float> floats_of(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  if (view.dtype() == DType::f32) {
    std::memcpy(values.data(), view.raw(), static_cast<std::size_t>(view.bytes()));
  } else if (view.dtype() == DType::u8) {
    std::copy_n(view.data<std::uint8_t>(), view.elements(), values.begin());
  } else if (view.dtype() == DType::f8e4m3) {
    std::transform(view.data<F8E4M3>(), view.data<F8E4M3>() + view.elements(), values.begin(),
                   [](F8E4M3 value) { return static_cast<float>(value); });
  } else if (view.dtype() == DType::nf4) {  // a number of all bytes of each block
    std::transform(view.data<Nf4Block>(), view.data<Nf4Block>() + view.elements(), values.begin(),
                   [](const Nf4Block& block) {
                     const std::string_view bytes(reinterpret_cast<const char*>(&block), sizeof(block));
                     return static_cast<float>(fnv1a(bytes) % (1u << 24));
                   });
  } else {
    std::transform(view.data<Bf16>(), view.data<Bf16>() + view.elements(), values.begin(),
                   [](Bf16 value) { return static_cast<float>(value); });
  }
  return values;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}
inline bool same_bits(const Tensors& a, const Tensors& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return x.first == y.first && same_bits(x.second, y.second); });
}

// This rank's parts of all states of a session; other elements are NaN.
inline Tensors states_of(engine::Session& session) {
  session.synchronize();
  engine::HostCopy copy(session);
  copy.fetch();
  Tensors tensors;
  for (const NamedState& state : copy.states()) {
    auto& values =
        tensors.try_emplace(state.name, std::vector<float>(static_cast<std::size_t>(state.shape.elements()), NAN))
            .first->second;
    for (const Box& box : state.boxes) {
      const std::vector<float> part = floats_of(box.view);
      const bool matrix = state.shape.rank() == 2;
      const std::int64_t rows = matrix ? box.extent[0] : 1, columns = matrix ? box.extent[1] : box.extent[0];
      const std::int64_t first = matrix ? box.offset[0] * state.shape[1] + box.offset[1] : box.offset[0];
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(part.begin() + row * columns, columns,
                    values.begin() + first + row * (matrix ? state.shape[1] : 0));
      }
    }
  }
  return tensors;
}

// All states of a session, complete on every rank. Expects that the ranks' boxes cover each tensor, and have each
// element once in each replica.
inline Tensors assembled(engine::Session& session) {
  Tensors tensors = states_of(session);
  std::ostringstream mine;
  for (const auto& [name, values] : tensors) {
    mine << name << ' ' << values.size() << '\n';
    mine.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  std::size_t copies = 0, elements = 0;
  for (const std::string& text : the_world->all_gather_strings(mine.str())) {
    std::istringstream theirs(text);
    std::string name;
    std::size_t size = 0;
    while (theirs >> name >> size) {
      std::vector<float> part(size);
      theirs.ignore(1).read(reinterpret_cast<char*>(part.data()), static_cast<std::streamsize>(size * sizeof(float)));
      auto& values = tensors.try_emplace(name, std::vector<float>(size, NAN)).first->second;
      for (std::size_t i = 0; i < size; ++i) {
        if (std::isnan(part[i])) continue;
        values[i] = part[i];
        ++copies;
      }
    }
  }
  for (const auto& [name, values] : tensors) {
    EXPECT_TRUE(std::ranges::none_of(values, [](float value) { return std::isnan(value); })) << name;
    elements += values.size();
  }
  EXPECT_EQ(copies, elements * static_cast<std::size_t>(session.mesh().sizes().replicas()));
  return tensors;
}

// The device of the ranks, on which equal steps have equal bits.
inline plan::LayoutChoices rank_layout(const comm::MeshSizes& mesh) {
  plan::LayoutChoices layout;
  layout.mesh = mesh;
  layout.device = kRankDevice;
  layout.deterministic = kRankDevice == DeviceKind::cuda;
  return layout;
}

inline std::vector<plan::LayoutChoices> meshes(const models::Model& model) {
  std::vector<plan::LayoutChoices> layouts;
  const int world = the_world->size();
  for (int context = 1; context <= world; context *= 2) {
    for (int shard = 1; context * shard <= world; shard *= 2) {
      if (context * shard == 1 && world > 1) continue;
      plan::LayoutChoices layout =
          rank_layout({.context = context, .shard = shard, .replicate = world / (context * shard)});
      layout.batch_sizes = toy_batch(context);
      layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
      layout.gradient_clip = 0.02;
      // Pairwise: each mesh has one dtype and one accumulation policy, and each combination of these has meshes.
      const std::size_t i = layouts.size() + static_cast<std::size_t>(world);
      layout.compute = i % 2 == 0 ? DType::f32 : DType::bf16;
      layout.accumulation = i / 2 % 2 == 0 ? GradientAccumulation::sharded : GradientAccumulation::local;
      layouts.push_back(std::move(layout));
    }
  }
  return layouts;
}

inline std::string text_of(const plan::LayoutChoices& layout) {
  return cat("context ", layout.mesh.context, " shard ", layout.mesh.shard, " replicate ", layout.mesh.replicate, " ",
             to_string(layout.compute), layout.accumulation == GradientAccumulation::local ? " local" : "");
}

// AdamW divides by the size of gradients, some of which cancel to rounding noise, and moves these weights as far as any
// other. An epsilon of the size of small gradients leaves the noise of another order of sums out of the weights.
inline std::shared_ptr<const optim::Optimizer> toy_adamw() {
  return optim::make_adamw({.epsilon = 1e-5});
}

// With active clipping.
inline plan::LayoutChoices toy_layout(comm::MeshSizes mesh, const models::Model& model) {
  plan::LayoutChoices layout = rank_layout(mesh);
  layout.batch_sizes = toy_batch(mesh.context, true, mesh.context_heads);
  layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
  layout.gradient_clip = 0.02;
  layout.optimizer = toy_adamw();
  return layout;
}

// ||a - b|| / ||b|| of the tensors whose names begin with `prefix`.
inline double difference(const Tensors& a, const Tensors& b, const std::string& prefix = "") {
  double difference = 0, norm = 0;
  for (const auto& [name, values] : b) {
    if (!name.starts_with(prefix)) continue;
    const std::vector<float>& other = a.at(name);
    EXPECT_EQ(other.size(), values.size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i) {
      difference += std::pow(double{other[i]} - values[i], 2);
      norm += std::pow(double{values[i]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

struct Trained {
  std::vector<double> losses;
  std::vector<float> clips;
  Tensors before, after;
  step::OptimizerProgress progress;
  auto fields() { return std::tie(losses, clips, before, after, progress); }
};

struct Training {
  std::int64_t micro_batches = 2;                // on each data rank
  std::vector<std::int64_t> inputs = {0, 1, 2};  // the step whose batches each step reads
  std::int64_t without_update = -1;              // the input with StepInput::skip; -1: none
  step::OptimizerProgress start;
  step::LearningRates rates = 0.01f;
  bool replay = true;  // each rank plans itself and compares what it runs with its plan
  std::function<void(engine::Session&)> look = [](engine::Session&) {};  // sees the session at the end
};

// The steps of a training; `each` sees their outputs.
inline void take_steps(
    engine::Session& session, const ToySteps& steps, const Training& training, Trained& trained,
    const std::function<void(const step::StepOutput&)>& each = [](const step::StepOutput&) {}) {
  for (const std::int64_t which : training.inputs) {
    step::StepInput input = steps.input(which);
    input.record.learning_rate = training.rates;
    input.skip = which == training.without_update;
    const step::StepOutput output = session.enqueue(step::Purpose::train, input);
    session.synchronize();
    trained.losses.push_back(output.result->loss_sum.value());
    trained.clips.push_back(output.result->clip);
    each(output);
  }
}

inline Trained train(const models::Model& model, plan::LayoutChoices layout, const Training& training = {}) {
  const auto mesh = rank_mesh(plan::derive(layout, model).mesh);
  const ToySteps steps(model, layout, mesh->coordinate(),
                       layout.batch_sizes.sequences * layout.data_ranks() * training.micro_batches);
  const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train}, std::nullopt,
                          {.replay = training.replay, .guard = training.replay && step::kAddressSanitizer});
  session.initialise(3);
  session.set_progress(training.start);
  Trained trained{.before = assembled(session)};
  take_steps(session, steps, training, trained, [&](const step::StepOutput& output) {
    trained.progress = *output.progress;
    if (output.result->skipped() == step::Skip::none) {
      EXPECT_LT(output.result->clip, 1.0f) << "clipping is not active";
    }
  });
  trained.after = assembled(session);
  training.look(session);
  return trained;
}

// Trains one rank with the same sequences in `alone`, and expects the losses, clip coefficients, initial values and
// trained states of `cut` on every rank. Returns the states.
inline Tensors expect_one_ranks_training(const models::Model& one, plan::LayoutChoices alone, std::int64_t batch_size,
                                         const Trained& cut, const std::string& text) {
  Trained whole = on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    const ToySteps steps(one, alone, self->coordinate(), batch_size);
    const auto device = rank_device();
    engine::Session session(one, plan::derive(alone, one), *device, *self, {step::Purpose::train});
    session.initialise(3);
    Trained trained{.before = states_of(session)};
    Training training;
    training.inputs.resize(cut.losses.size());
    std::iota(training.inputs.begin(), training.inputs.end(), 0);
    take_steps(session, steps, training, trained);
    trained.after = states_of(session);
    return trained;
  });
  EXPECT_TRUE(cut.before == whole.before) << text << ": initial values";
  for (std::size_t step = 0; step < cut.losses.size(); ++step) {
    const double loss = whole.losses[step];
    EXPECT_NEAR(cut.losses[step], loss, 1e-5 * loss) << text;
    EXPECT_NEAR(cut.clips[step], whole.clips[step], 1e-6) << text;
  }
  EXPECT_LT(difference(cut.after, whole.after), kRankDevice == DeviceKind::cpu ? 1e-6 : 1e-5) << text;
  return std::move(whole.after);
}

}  // namespace hawser::testing
