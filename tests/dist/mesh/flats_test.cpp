// Flats that are not a dense model's: frozen ones, and weights that every rank keeps while the optimizer's state is
// sharded. The real layers run through plan, checker, executor and session on every mesh.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <sstream>

#include "engine/host_copy.h"
#include "engine/session.h"
#include "mesh_world.h"
#include "models/weights.h"
#include "support/toy_steps.h"

namespace hawser {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

constexpr int kSteps = 3;

std::vector<float> floats_of(const TensorView& view) {
  std::vector<float> values(static_cast<std::size_t>(view.elements()));
  if (view.dtype() == DType::f32) {
    std::memcpy(values.data(), view.raw(), static_cast<std::size_t>(view.bytes()));
  } else {
    std::transform(view.data<Bf16>(), view.data<Bf16>() + view.elements(), values.begin(),
                   [](Bf16 value) { return static_cast<float>(value); });
  }
  return values;
}

// All states of a session, complete on every rank. Expects that the ranks' boxes cover each tensor.
Tensors assembled(engine::Session& session) {
  session.synchronize();
  engine::HostCopy copy(session, /*optimizer=*/true);
  copy.fetch();
  Tensors tensors;
  for (const NamedState& state : copy.states()) {
    auto& values =
        tensors.try_emplace(state.name, std::vector<float>(static_cast<std::size_t>(state.shape.elements()), NAN))
            .first->second;
    for (const Box& box : state.boxes) {
      // A box of a toy's tensor is a range of rows, or of columns of one row.
      std::int64_t at = 0;
      for (int dim = 0; dim < state.shape.rank(); ++dim) at = at * state.shape[dim] + box.offset[dim];
      std::ranges::copy(floats_of(box.view), values.begin() + at);
    }
  }
  std::ostringstream mine;
  for (const auto& [name, values] : tensors) {
    mine << name << ' ' << values.size() << '\n';
    mine.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  for (const std::string& text : the_world->all_gather_strings(mine.str())) {
    std::istringstream theirs(text);
    std::string name;
    std::size_t size = 0;
    while (theirs >> name >> size) {
      std::vector<float> part(size);
      theirs.ignore(1).read(reinterpret_cast<char*>(part.data()), static_cast<std::streamsize>(size * sizeof(float)));
      auto& values = tensors.try_emplace(name, std::vector<float>(size, NAN)).first->second;
      for (std::size_t i = 0; i < size; ++i) {
        if (!std::isnan(part[i])) values[i] = part[i];
      }
    }
  }
  for (const auto& [name, values] : tensors) {
    EXPECT_TRUE(std::ranges::none_of(values, [](float value) { return std::isnan(value); })) << name;
  }
  return tensors;
}

std::vector<plan::Layout> meshes(const models::Model& model) {
  std::vector<plan::Layout> layouts;
  const int world = the_world->size();
  for (int context = 1; context <= world; context *= 2) {
    for (int shard = 1; context * shard <= world; shard *= 2) {
      if (context * shard == 1 && world > 1) continue;
      plan::Layout layout;
      layout.mesh = {.context = context, .shard = shard, .replicate = world / (context * shard)};
      layout.batch = testing::toy_batch(context);
      layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
      layout.optimizer.gradient_clip = 0.02;
      plan::set_bounds(layout);
      // Pairwise: each mesh has one dtype and one accumulation policy, and each combination of these has meshes.
      const std::size_t i = layouts.size() + static_cast<std::size_t>(world);
      layout.compute = i % 2 == 0 ? DType::f32 : DType::bf16;
      layout.accumulation = i / 2 % 2 == 0 ? GradientAccumulation::sharded : GradientAccumulation::local;
      layouts.push_back(std::move(layout));
    }
  }
  return layouts;
}

std::string text_of(const plan::Layout& layout) {
  return cat("context ", layout.mesh.context, " shard ", layout.mesh.shard, " replicate ", layout.mesh.replicate, " ",
             to_string(layout.compute), layout.accumulation == GradientAccumulation::local ? " local" : "");
}

struct Trained {
  std::vector<double> losses;
  Tensors before, after;
};

// Trains for kSteps; `look` sees the session at the end.
Trained train(
    const models::Model& model, plan::Layout layout,
    const std::function<void(engine::Session&)>& look = [](engine::Session&) {}) {
  const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
  const testing::ToySteps steps(layout, mesh->place(), 2LL * layout.data_ranks() * 2);
  const auto device = make_cpu_device({.random_delay_s = 2e-4, .delay_seed = 5});
  engine::Session session(model, layout, *device, *mesh, {step::Purpose::train}, std::nullopt, {.replay = true});
  session.initialise(3);
  Trained trained{.losses = {}, .before = assembled(session), .after = {}};
  for (int step = 0; step < kSteps; ++step) {
    step::StepInput input = steps.input(step);
    input.record.adam = ops::adam_hyper(0.01, layout.optimizer.beta1, layout.optimizer.beta2, step + 1);
    const step::StepOutput output = session.enqueue(step::Purpose::train, input);
    session.synchronize();
    trained.losses.push_back(output.result->loss_sum.value());
    EXPECT_LT(output.result->clip, 1.0f) << "clipping is not active";
  }
  trained.after = assembled(session);
  look(session);
  return trained;
}

TEST(Flats, WeightsThatEveryRankKeepsTrainLikeShardedOnes) {
  const models::Model model(testing::toy_description());
  for (plan::Layout layout : meshes(model)) {
    layout.shard_policy = ShardPolicy::parameters;
    const Trained sharded = train(model, layout);
    layout.shard_policy = ShardPolicy::optimizer;
    const Trained kept = train(model, layout, [&](engine::Session& session) {
      std::int64_t bytes = 0;
      for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
        const step::FlatState& flat = session.state().flat(f);
        const std::int64_t total = model.flat(f).total(layout.parts());
        ASSERT_EQ(flat.unsharded.elements(), total);
        EXPECT_EQ(flat.count, total / layout.parts());
        bytes += flat.unsharded.bytes() + (layout.compute == DType::f32 ? 0 : flat.stored.bytes());
      }
      EXPECT_EQ(session.state().parameter_bytes(), bytes);
      for (const program::Instruction& instruction : session.plan(step::Purpose::train).program.instructions) {
        EXPECT_NE(instruction.op, program::Op::gather);
      }
    });
    EXPECT_EQ(kept.losses, sharded.losses) << text_of(layout);
    EXPECT_TRUE(kept.before == sharded.before) << text_of(layout);
    EXPECT_TRUE(kept.after == sharded.after) << text_of(layout);
    EXPECT_FALSE(kept.after == kept.before);
  }
}

// Freezes the parameters whose names contain one of these.
models::Model freeze(const std::vector<std::string>& names, bool tied = true) {
  return models::Model(testing::toy_description(tied), [names](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    for (const std::string& name : names) {
      if (param.name.find(name) != std::string::npos) spec.trainable = false;
    }
    return spec;
  });
}

bool is_frozen(const models::Model& model, const std::string& name) {
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) {
        if (segment.name == name) return !flat.spec().trainable;
      }
    }
  }
  return false;
}

Tensors gradients(const models::Model& model, plan::Layout layout) {
  const auto mesh = comm::make_mpi_mesh(*the_world, layout.mesh, 60.0);
  const testing::ToySteps steps(layout, mesh->place(), 2LL * layout.data_ranks() * 2);
  const auto device = make_cpu_device();
  engine::Session session(model, layout, *device, *mesh, {step::Purpose::gradient_norms});
  session.initialise(3);
  const step::StepOutput output = session.enqueue(step::Purpose::gradient_norms, steps.input(0));
  session.synchronize();
  Tensors norms;
  const auto tensors = models::hf_tensors(model);
  for (std::size_t i = 0; i < tensors.size(); ++i) norms[tensors[i].name] = {(*output.parameter_norms)[i]};
  return norms;
}

// Frozen parameters stay as they are, cost no more than what layers read, and leave the gradients of all others as they
// are in a model that trains everything.
TEST(Flats, FrozenOnesHaveNoGradientMomentsOrMasterWeights) {
  const models::Model whole(testing::toy_description(false));
  const std::vector<std::vector<std::string>> choices = {
      {"qkv_proj", "down_proj", "norm"},           // parts of every layer
      {"embed_tokens", "layers.0."},               // backward ends above block 0
      {"embed_tokens", "layers.", "model.norm"}};  // the head's weight alone
  for (const auto& names : choices) {
    const models::Model model = freeze(names, false);
    for (const plan::Layout& layout : meshes(model)) {
      const std::string text = cat(names.front(), ", ", text_of(layout));
      const Trained trained = train(model, layout, [&](engine::Session& session) {
        std::int64_t parameters = 0, moments = 0;
        for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
          const std::int64_t count = model.flat(f).total(layout.parts()) / layout.parts();
          const bool trainable = model.flat(f).spec().trainable;
          const std::int64_t read = count * size_of(layout.compute),
                             master = layout.compute == DType::f32 ? 0 : 4 * count;
          parameters += read + (trainable ? master : 0);
          moments += trainable ? 8 * count : 0;
        }
        EXPECT_EQ(session.state().parameter_bytes(), parameters) << text;
        EXPECT_EQ(session.state().optimizer_bytes(), moments) << text;
      });
      for (const auto& [name, values] : trained.after) {
        const std::string tensor = name.substr(name.rfind('/') + 1);
        EXPECT_EQ(values == trained.before.at(name), is_frozen(model, tensor)) << text << ": " << name;
        EXPECT_TRUE(name == tensor || !is_frozen(model, tensor)) << text << ": moments " << name;
      }
      const Tensors all = gradients(whole, layout), some = gradients(model, layout);
      for (const auto& [name, norm] : some) {
        // Shards begin elsewhere in a tensor, so its squares are summed in another order.
        const float expected = is_frozen(model, name) ? 0.0f : all.at(name).front();
        EXPECT_NEAR(norm.front(), expected, 1e-6 * expected) << text << ": " << name;
      }
    }
  }
}

TEST(Flats, BackwardEndsAtTheLowestTrainableLayer) {
  const models::Model model = freeze({"embed_tokens", "layers.0."}, false);
  const plan::Layout layout = meshes(model).front();
  const program::Program program = step::make_program(model, plan::schedule_options(layout, step::Purpose::train));
  int lowest = model.layers();
  for (const program::Instruction& instruction : program.instructions) {
    EXPECT_NE(instruction.op, program::Op::embed_backward);
    if (instruction.op == program::Op::backward) lowest = std::min(lowest, instruction.layer);
  }
  EXPECT_EQ(lowest, 2);
  const models::Model frozen = freeze({""});
  EXPECT_THROW(step::make_program(frozen, plan::schedule_options(layout, step::Purpose::train)), InternalError);
}

}  // namespace
}  // namespace hawser
