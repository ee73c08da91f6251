// Training of the toy model on every mesh, for tests that compare states.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <sstream>

#include "engine/host_copy.h"
#include "engine/session.h"
#include "mesh_case.h"
#include "one_rank.h"
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
  } else if (is_nf4(view.dtype())) {  // a number of all bytes of each block
    const auto size = static_cast<std::size_t>(size_of(view.dtype()));
    const std::string_view bytes(reinterpret_cast<const char*>(view.raw()), values.size() * size);
    for (std::size_t b = 0; b < values.size(); ++b) {
      values[b] = static_cast<float>(fnv1a(bytes.substr(b * size, size)) % (1u << 24));
    }
  } else {
    std::transform(view.data<Bf16>(), view.data<Bf16>() + view.elements(), values.begin(),
                   [](Bf16 value) { return static_cast<float>(value); });
  }
  return values;
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

// All states of a session, complete on every rank. Expects that the ranks' boxes cover each tensor, that they have each
// element once in each replica, and that replicas have equal bits.
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
      std::size_t differing = 0;
      for (std::size_t i = 0; i < size; ++i) {
        if (std::isnan(part[i])) continue;
        const bool known = !std::isnan(values[i]);
        if (known && std::bit_cast<std::uint32_t>(values[i]) != std::bit_cast<std::uint32_t>(part[i])) ++differing;
        values[i] = part[i];
        ++copies;
      }
      EXPECT_EQ(differing, 0u) << "elements of replicas of " << name;
    }
  }
  for (const auto& [name, values] : tensors) {
    EXPECT_TRUE(std::ranges::none_of(values, [](float value) { return std::isnan(value); })) << name;
    elements += values.size();
  }
  // Two tensor ranks have a block that their slices cut.
  const bool cut = std::ranges::any_of(session.model().flats(), [](const nn::Flat& flat) {
    return std::ranges::any_of(flat.params(), [](const nn::Param& param) { return param.read_columns.has_value(); });
  });
  const std::size_t once = elements * static_cast<std::size_t>(session.mesh().sizes().replicas());
  if (cut) {
    EXPECT_GT(copies, once);
  } else {
    EXPECT_EQ(copies, once);
  }
  return tensors;
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

inline void expect_same_bits(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_TRUE(same_bits(a.clips, b.clips));
  EXPECT_TRUE(same_bits(a.before, b.before));
  EXPECT_TRUE(same_bits(a.after, b.after));
}

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

// Trains one rank with the same sequences in `layout`, and expects the losses, clip coefficients, initial values and
// trained states of `mesh` on every rank. Returns the states of one rank.
inline Tensors expect_training_of_one_rank(const models::Model& model, plan::LayoutChoices layout,
                                           std::int64_t batch_size, const Trained& mesh) {
  Trained one = on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    const ToySteps steps(model, layout, self->coordinate(), batch_size);
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout, model), *device, *self, {step::Purpose::train});
    session.initialise(3);
    Trained trained{.before = states_of(session)};
    Training training;
    training.inputs.resize(mesh.losses.size());
    std::iota(training.inputs.begin(), training.inputs.end(), 0);
    take_steps(session, steps, training, trained);
    trained.after = states_of(session);
    return trained;
  });
  EXPECT_TRUE(mesh.before == one.before) << "initial values";
  for (std::size_t step = 0; step < mesh.losses.size(); ++step) {
    const double loss = one.losses[step];
    EXPECT_NEAR(mesh.losses[step], loss, 1e-5 * loss);
    EXPECT_NEAR(mesh.clips[step], one.clips[step], 1e-6);
  }
  EXPECT_LT(difference(mesh.after, one.after), kRankDevice == DeviceKind::cpu ? 1e-6 : 1e-5);
  return std::move(one.after);
}

}  // namespace hawser::testing
