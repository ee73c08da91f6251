// Adapters on a frozen base in FP8, on every mesh: the base is the cast of its weights and takes one byte a parameter,
// gradients of adapters are those of one rank, and a resumed run has the same base again.
#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "nn/precision/fp8_scaling.h"
#include "toy_training.h"
#include "train/saver.h"

namespace hawser {
namespace fp8_adapters_test {

using testing::assembled;
using testing::is_adapter;
using testing::MeshCase;
using testing::Tensors;
using testing::train_adapters;

// `some`: only q_proj and down_proj have adapters, so that ops write the inputs of other Linears in FP8.
models::ModelDescription description_of(bool some) {
  models::ModelDescription description = testing::toy_with_adapters(0);
  for (models::BlockDescription& block : description.blocks) {
    if (!some) continue;
    std::erase_if(block.attention.adapters, [](const nn::AdapterConfig& a) { return !a.target.ends_with("q_proj"); });
    std::erase_if(block.mlp.adapters, [](const nn::AdapterConfig& a) { return !a.target.ends_with("down_proj"); });
  }
  return description;
}

models::Model fp8_model(bool some = false, Fp8Scaling scaling = Fp8Scaling::delayed) {
  const auto with_weights = scaling == Fp8Scaling::block ? nn::with_weights_quantized_on_use : nn::with_fp8_weights;
  return models::Model(description_of(some), with_weights(train_adapters, [](int) { return true; }));
}
models::Model plain_model(bool some = false) {
  return models::Model(description_of(some), train_adapters);
}

// In float32, without clipping.
plan::LayoutChoices layout_of(const models::Model& model, MeshCase c, bool fp8,
                              Fp8Scaling scaling = Fp8Scaling::delayed) {
  c.compute = DType::f32;
  plan::LayoutChoices layout = testing::layout_of(c, model);
  if (fp8) plan::set_formats(layout, model, {.scaling = scaling, .saturation_limit = 1});
  return layout;
}

// Initial values, and B that are not zero, so that A have gradients.
void write(engine::Session& session) {
  session.initialise(3);
  for (int f = 0; f < session.state().flats(); ++f) {
    const nn::Flat& flat = session.model().flat(f);
    const step::FlatState& state = session.state().flat(f);
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
      if (param.name.find("lora_B") == std::string::npos) continue;
      for (std::int64_t i = 0; i < param.elements(); ++i) {
        const std::int64_t at = flat.offset(p) + i - state.begin;
        if (at < 0 || at >= state.count) continue;
        state.stored.data<float>()[at] = 0.05f * static_cast<float>(i * 40503 % 1021 % 7 - 3);
      }
    }
  }
  session.parameters_changed();
}

// Gathered or not, every element and scale that a rank has of the base.
void expect_the_cast(engine::Session& session, const Tensors& weights) {
  int checked = 0;
  for (int f = 0; f < session.state().flats(); ++f) {
    const nn::Flat& flat = session.model().flat(f);
    const step::FlatState& state = session.state().flat(f);
    EXPECT_FALSE(state.quantized_after_updates());
    if (!state.quantized_on_load()) continue;
    EXPECT_EQ(state.stored.raw(), state.compute.raw());
    EXPECT_EQ(state.stored.bytes(), state.count);  // a byte each
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p, ++checked) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
      std::vector<float> values;
      for (const nn::Segment& segment : param.segments) {
        const std::vector<float>& of = weights.at(segment.name);
        values.insert(values.end(), of.begin(), of.end());
      }
      float amax = 0;
      for (const float value : values) amax = std::max(amax, std::abs(value));
      const float scale = amax / 448.0f, inverse = 1.0f / scale;
      ASSERT_EQ(state.scales.data<float>()[p], scale) << param.name;
      ASSERT_EQ(*session.state().gemm_scale(f, p).data<float>(), scale) << param.name;
      const std::int64_t columns = param.shape[1];
      std::size_t wrong = 0;
      for (std::int64_t i = 0; i < param.elements(); ++i) {
        const std::uint8_t bits = F8E4M3(values[static_cast<std::size_t>(i)] * inverse).bits;
        const std::int64_t at = flat.offset(p) + i - state.begin;
        if (at >= 0 && at < state.count) wrong += state.stored.data<F8E4M3>()[at].bits == bits ? 0 : 1;
        if (state.unsharded.empty()) continue;
        wrong += flat.view(state.unsharded, p).data<F8E4M3>()[i].bits == bits ? 0 : 1;
        const TensorView transposed = flat.transposed_view(state.transposed, p);
        wrong += transposed.data<F8E4M3>()[i % columns * param.shape[0] + i / columns].bits == bits ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0u) << param.name;
    }
  }
  EXPECT_EQ(checked, 8);
}

using Fp8Base = testing::CaseTest<MeshCase>;

TEST_P(Fp8Base, IsTheCastOfItsWeights) {
  const MeshCase& c = GetParam();
  const models::Model model = fp8_model(), plain = plain_model();
  const auto device = rank_device();
  static const Tensors weights = testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    engine::Session one(plain, plan::derive(layout_of(plain, {}, false), plain), *device, *self,
                        {step::Purpose::train});
    one.initialise(3);
    return testing::states_of(one);
  });
  const auto mesh = rank_mesh(c.mesh);
  plan::LayoutChoices layout = layout_of(model, c, true), in_bf16 = layout_of(plain, c, false);
  in_bf16.compute = DType::bf16;
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
  session.initialise(3);
  expect_the_cast(session, weights);
  EXPECT_EQ(session.plan(step::Purpose::train).state_bytes, session.state().bytes());
  std::int64_t base_elements = 0, alignment = 0;
  for (int f = 0; f < session.state().flats(); ++f) {
    const step::FlatState& state = session.state().flat(f);
    if (state.quantized_on_load()) base_elements += state.count;
    alignment += 8 * Device::kAlignment;
  }
  if (!session.state().flat(0).unsharded.empty()) return;  // all ranks have two forms of all
  // Other frozen weights are in float32 here, and in bf16 there.
  engine::Session other(plain, plan::derive(in_bf16, plain), *device, *mesh, {step::Purpose::train});
  std::int64_t others = 0;
  for (int f = 0; f < session.state().flats(); ++f) {
    const step::FlatState& state = session.state().flat(f);
    if (!model.flat(f).spec().trainable && !state.quantized_on_load()) others += 2 * state.count;
    if (model.flat(f).spec().trainable) others -= 2 * state.count;  // copies in bf16
  }
  EXPECT_NEAR(static_cast<double>(session.state().parameter_bytes() - others + base_elements),
              static_cast<double>(other.state().parameter_bytes()), static_cast<double>(alignment));
}

std::vector<MeshCase> both_shardings() {
  std::vector<MeshCase> out;
  for (MeshCase c : testing::sharded_meshes()) {
    for (const ShardPolicy policy : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      c.shard_policy = policy;
      out.push_back(c);
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Base, ::testing::ValuesIn(both_shardings()), testing::CaseName());

// The base is what a run has trained in full: its checkpoint has float32 weights, and no scales.
TEST(Fp8Adapters, TheBaseOfACheckpointIsTheCastOfItsWeights) {
  const models::Model model = fp8_model(), plain = plain_model();
  const std::vector<MeshCase> meshes = testing::sharded_meshes();
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const auto device = rank_device();
  Tensors weights;
  {
    const auto mesh = rank_mesh(meshes.front().mesh);
    engine::Session session(plain, plan::derive(layout_of(plain, meshes.front(), false), plain), *device, *mesh,
                            {step::Purpose::train});
    session.initialise(3);
    train::save(session, the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
    weights = assembled(session);
  }
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  const auto mesh = rank_mesh(meshes.back().mesh);
  engine::Session session(model, plan::derive(layout_of(model, meshes.back(), true), model), *device, *mesh,
                          {step::Purpose::train});
  engine::load(session, checkpoint, {.scales = false});
  expect_the_cast(session, weights);
}

// The first moments of AdamW after one step are its gradients times a constant.
Tensors gradients(const Tensors& states) {
  Tensors out;
  for (const auto& [name, values] : states) {
    if (name.starts_with("optimizer/exp_avg/")) out[name] = values;
  }
  return out;
}

struct AdapterCase {
  MeshCase on;
  bool some = false;  // Linears have adapters; else all
  Fp8Scaling scaling = Fp8Scaling::delayed;

  std::string of() const {
    return testing::joined(some ? "some" : "all", testing::name_if(scaling == Fp8Scaling::block, "block_scaling"));
  }
  std::string name() const { return testing::joined(of(), on.name()); }
  friend void PrintTo(const AdapterCase& c, std::ostream* out) { *out << c.name(); }
};

using Fp8Adapters = testing::CaseTest<AdapterCase>;

// What another mesh changes of an adapter's gradient is less than a quarter of what FP8 changes of it.
TEST_P(Fp8Adapters, HaveTheGradientsOfOneRank) {
  const auto& [c, some, scaling] = GetParam();
  const models::Model plain = plain_model(some), model = fp8_model(some, scaling);
  const std::int64_t batch = 2LL * the_world->size();
  const auto trained = [&](const models::Model& of, plan::LayoutChoices layout, comm::Mesh& mesh, bool all) {
    const testing::ToySteps steps(of, layout, mesh.coordinate(), batch);
    const auto device = rank_device({.random_delay_s = all ? 2e-4 : 0, .delay_seed = 5});
    engine::Session session(of, plan::derive(layout, of), *device, mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = all});
    write(session);
    testing::Trained out;
    out.before = all ? assembled(session) : testing::states_of(session);
    testing::take_steps(session, steps, {.inputs = {0}}, out);
    const Tensors after = all ? assembled(session) : testing::states_of(session);
    for (const auto& [name, values] : out.before) {
      const bool changes = is_adapter(name) || name.starts_with("optimizer/") || name.starts_with("quantization/");
      EXPECT_TRUE(changes || after.at(name) == values) << name;
    }
    out.after = gradients(after);
    return out;
  };
  static std::map<std::string, std::pair<testing::Trained, testing::Trained>> references;  // without FP8 and with it
  auto& [exact, one] = references[GetParam().of()];
  if (one.losses.empty()) {
    plan::LayoutChoices of_plain = layout_of(plain, {}, false), of_one = layout_of(model, {}, true, scaling);
    of_plain.optimizer = of_one.optimizer = testing::toy_adamw();
    exact = testing::on_one_rank([&] { return trained(plain, of_plain, *comm::make_self_mesh(), false); });
    one = testing::on_one_rank([&] { return trained(model, of_one, *comm::make_self_mesh(), false); });
    EXPECT_NEAR(one.losses[0], exact.losses[0], 0.02 * exact.losses[0]);
    EXPECT_NE(one.losses[0], exact.losses[0]);
    EXPECT_FALSE(one.after.empty());
    for (const auto& [name, values] : one.after) EXPECT_TRUE(is_adapter(name)) << name;
  }
  const plan::LayoutChoices layout = layout_of(model, c, true, scaling);
  const auto mesh = rank_mesh(layout.mesh);
  const testing::Trained ours = trained(model, layout, *mesh, true);
  EXPECT_NEAR(ours.losses[0], one.losses[0], 1e-3 * one.losses[0]);
  for (const auto& [name, values] : one.before) {
    EXPECT_TRUE(ours.before.at(name) == values) << name;
  }
  for (const auto& [name, values] : one.after) {
    const Tensors own{{name, ours.after.at(name)}}, of_one{{name, values}};
    const double of_fp8 = testing::difference({{name, exact.after.at(name)}}, of_one);
    EXPECT_LT(testing::difference(own, of_one), 0.25 * of_fp8) << name;
  }
}

std::vector<AdapterCase> in_turn(bool some, Fp8Scaling scaling) {
  std::vector<AdapterCase> out;
  for (MeshCase c : testing::sharded_meshes()) {
    const int i = the_world->size() + static_cast<int>(out.size());
    c.compute = DType::f32;
    c.shard_policy = i % 2 == 0 ? ShardPolicy::optimizer : ShardPolicy::parameters;
    c.policy = {.checkpointing = i / 2 % 2 == 0 ? Checkpointing::full : Checkpointing::none,
                .delay_weight_gradients = i % 3 == 0};
    out.push_back({c, some, scaling});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(AllLinears, Fp8Adapters, ::testing::ValuesIn(in_turn(false, Fp8Scaling::delayed)),
                         testing::CaseName());
INSTANTIATE_TEST_SUITE_P(SomeLinears, Fp8Adapters, ::testing::ValuesIn(in_turn(true, Fp8Scaling::delayed)),
                         testing::CaseName());

// Frozen weights that are rounded where they are read, in blocks. mesh_1 and mesh_2 run them.
std::vector<AdapterCase> blocks(bool some) {
  return the_world->size() > 2 ? std::vector<AdapterCase>() : in_turn(some, Fp8Scaling::block);
}
INSTANTIATE_TEST_SUITE_P(BlocksOfAllLinears, Fp8Adapters, ::testing::ValuesIn(blocks(false)), testing::CaseName());
INSTANTIATE_TEST_SUITE_P(BlocksOfSomeLinears, Fp8Adapters, ::testing::ValuesIn(blocks(true)), testing::CaseName());

// A checkpoint has nothing of the base. A run that loads the base again has its bits on another mesh, and continues on
// the same mesh with the bits of one that did not stop.
TEST(Fp8Adapters, AResumedRunHasTheSameBase) {
  const models::Model model = fp8_model();
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const std::vector<MeshCase> meshes = testing::sharded_meshes();
  const engine::StateScope scope{.frozen = false};
  const auto with_session = [&](const MeshCase& c, const auto& body) {
    plan::LayoutChoices layout = layout_of(model, c, true);
    const auto mesh = rank_mesh(layout.mesh);
    const testing::ToySteps steps(model, layout, mesh->coordinate(), 2LL * the_world->size());
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
    write(session);
    body(session, steps);
  };
  Tensors saved, after;
  step::OptimizerProgress progress;
  with_session(meshes.front(), [&](engine::Session& session, const testing::ToySteps& steps) {
    testing::Trained ignored;
    testing::take_steps(session, steps, {.inputs = {0, 1}}, ignored,
                        [&](const step::StepOutput& output) { progress = *output.progress; });
    train::save(session, the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"}, scope);
    saved = assembled(session);
    testing::take_steps(session, steps, {.inputs = {2}}, ignored);
    after = assembled(session);
  });
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
    EXPECT_TRUE(is_adapter(tensor.name) || tensor.name.starts_with("quantization/")) << tensor.name;
  }
  with_session(meshes.back(), [&](engine::Session& session, const testing::ToySteps&) {
    engine::load(session, checkpoint, scope);
    EXPECT_TRUE(assembled(session) == saved);
  });
  with_session(meshes.front(), [&](engine::Session& session, const testing::ToySteps& steps) {
    engine::load(session, checkpoint, scope);
    session.set_progress(progress);
    testing::Trained ignored;
    testing::take_steps(session, steps, {.inputs = {2}}, ignored);
    EXPECT_TRUE(assembled(session) == after);
  });
}

}  // namespace fp8_adapters_test
}  // namespace hawser
