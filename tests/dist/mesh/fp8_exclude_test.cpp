// Linears of FP8 blocks that compute in the compute dtype, on CPU ranks: the recipe excludes them, or they have fallen
// back.
#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/does_not_fit.h"
#include "engine/fp8_exclusions.h"
#include "engine/load_state.h"
#include "engine/model_changes.h"
#include "fp8_exact.h"
#include "support/toy_slices.h"
#include "train/saver.h"
#include "two_pass_fp8.h"

namespace hawser {
namespace fp8_exclude_test {

using testing::assembled;
using testing::ExactRun;
using testing::fp8_model;
using testing::kFp8Steps;
using testing::Tensors;
using testing::whole_batch;
using testing::without_head;

constexpr const char* kExcluded = "layers.0.down.weight";

// The exact layers in FP8, without the second Linear of layer 0.
models::Model exact_model_without_one() {
  models::ModelDescription description = testing::toy_description();
  description.blocks.resize(1);
  const std::int64_t width = description.embedding.width;
  return models::Model(
      std::move(description),
      [](const nn::Param& param) {
        nn::FlatSpec spec = nn::common_domain(param);
        spec.trainable = param.name.starts_with("layers.");
        if (!spec.trainable || param.name == kExcluded) return spec;
        spec.scaled = true;
        spec.transposed = true;
        spec.gathered = DType::f8e4m3;
        return spec;
      },
      {}, [=](auto, int number) { return std::make_unique<testing::ExactLayer>(number, width, true); });
}

plan::LayoutChoices exact_layout_without_one(const models::Model& model, const comm::MeshSizes& mesh) {
  plan::LayoutChoices layout = testing::fp8_layout(model, mesh);
  layout.policies[0].formats[static_cast<std::size_t>(nn::Site::down_projection)] = LinearFormat::compute;
  return layout;
}

// Two steps in FP8 on this mesh, then a checkpoint.
checkpoint::Checkpoint saved_in_fp8(const comm::MeshSizes& sizes, const std::string& root) {
  const models::Model model = fp8_model();
  const plan::LayoutChoices layout = testing::fp8_layout(model, sizes);
  const auto mesh = rank_mesh(layout.mesh);
  ExactRun run(model, layout, *mesh, whole_batch());
  testing::write_exact(run.session());
  for (int i = 0; i < 2; ++i) run.step(i);
  train::save(run.session(), the_world, {.root = root}, {.step = 2, .recipe = "{}", .config = "{}"});
  return checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(2)));
}

using Fp8Continued = testing::CaseTest<testing::ExactCase>;

// A run that continues without a Linear has the bits of one rank on every mesh, and keeps the other scales.
TEST_P(Fp8Continued, WithoutALinearHasTheBitsOfOneRank) {
  const testing::ExactCase& c = GetParam();
  const models::Model model = exact_model_without_one();
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  checkpoint::Checkpoint checkpoint = saved_in_fp8(testing::sharded_meshes().front().mesh, root);
  const auto continued = [&](const plan::LayoutChoices& layout, comm::Mesh& mesh, bool whole) {
    ExactRun run(model, layout, mesh, whole_batch(), whole);
    engine::load(run.session(), checkpoint);
    const Tensors loaded = whole ? assembled(run.session()) : testing::states_of(run.session());
    int scales = 0;
    for (const auto& [name, values] : loaded) {
      if (!name.starts_with("quantization/")) continue;
      EXPECT_EQ(name.find("layer.0/down_projection"), std::string::npos) << name;
      EXPECT_NE(values, std::vector<float>(values.size(), name.find("/scale/") == std::string::npos ? 0.0f : 1.0f))
          << name << " was not loaded";
      ++scales;
    }
    EXPECT_EQ(scales, 2 * 2 * 3);  // scale and history of x and dy at three sites
    EXPECT_FALSE(loaded.contains(cat("scale/", kExcluded)));
    for (int i = 2; i < kFp8Steps; ++i) run.step(i);
    return without_head(whole ? assembled(run.session()) : testing::states_of(run.session()));
  };
  static const Tensors one = testing::on_one_rank(
      [&] { return continued(exact_layout_without_one(model, {}), *comm::make_self_mesh(), false); });
  const auto mesh = rank_mesh(c.on.mesh);
  const Tensors ours = continued(testing::with_options(exact_layout_without_one(model, c.on.mesh), c), *mesh, true);
  EXPECT_EQ(ours.size(), one.size());
  for (const auto& [name, values] : one) EXPECT_TRUE(ours.at(name) == values) << name;
}

std::vector<testing::ExactCase> continued() {
  std::vector<testing::ExactCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  for (testing::ExactCase c : testing::exact_cases()) {
    c.on.policy.delay_weight_gradients = false;
    c.on.in_flight = 1;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Continued, ::testing::ValuesIn(continued()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Continued);

using Fp8Excluded = testing::CaseTest<testing::MeshCase>;

// What a recipe excludes has the bits of a run whose Linears were put in FP8 one by one, without the others: on every
// mesh, with inputs saved in FP8 or not. Each rank compares what it runs with its plan.
TEST_P(Fp8Excluded, LinearsAreInTheComputeDtype) {
  const testing::MeshCase& c = GetParam();
  const models::ModelDescription description = testing::toy_description(false);
  Recipe recipe;
  recipe.precision.compute = ComputePrecision::fp8;
  recipe.precision.fp8.saturation_limit = 1;
  recipe.precision.fp8.exclude = {"down_proj", "model[.]layers[.]0[.].*k_proj"};
  const std::vector<std::string> in_fp8 = {"layers.0.self_attn.o_proj", "layers.0.mlp.gate_up_proj",
                                           "layers.1.self_attn.qkv_proj", "layers.1.self_attn.o_proj",
                                           "layers.1.mlp.gate_up_proj"};
  const models::Model excluding(description, engine::changes_of(recipe).spec_of);
  const models::Model all(description, nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  const models::Model one_by_one(description, [&](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    const bool fp8 = std::ranges::any_of(
        in_fp8, [&](const std::string& name) { return param.name == cat("model.", name, ".weight"); });
    if (!fp8) return spec;
    spec.gathered = DType::f8e4m3;
    spec.scaled = true;
    spec.transposed = true;
    return spec;
  });
  const auto run = [&](const models::Model& model, plan::LayoutChoices layout, comm::Mesh& mesh) {
    const testing::ToySteps steps(model, layout, mesh.coordinate(), whole_batch());
    const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    EXPECT_EQ(session.planned_bytes(), session.plan(step::Purpose::train).state_bytes + session.arena_bytes());
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, {.inputs = {0, 1}}, trained);
    return the_world->size() > 1 ? assembled(session) : testing::states_of(session);
  };
  const auto mesh = rank_mesh(c.mesh);
  const plan::LayoutChoices plain = testing::clipped_layout(c, excluding);
  plan::LayoutChoices of_recipe = plain, of_all = plain, by_hand = plain;
  plan::set_formats(of_recipe, excluding, recipe.precision.fp8);
  plan::set_formats(of_all, all, recipe.precision.fp8);
  by_hand.quantizer = std::make_shared<testing::TwoPassFp8>(nn::Fp8Options{});
  using enum nn::Site;
  for (const auto& [layer, site] : {std::pair{0, output_projection},
                                    {1, up_projection},
                                    {2, qkv_projection},
                                    {2, output_projection},
                                    {3, up_projection}}) {
    by_hand.policies[static_cast<std::size_t>(layer)].formats[static_cast<std::size_t>(site)] =
        LinearFormat::fp8_delayed;
  }
  const Tensors expected = run(one_by_one, by_hand, *mesh), got = run(excluding, of_recipe, *mesh);
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [name, values] : expected) EXPECT_TRUE(got.at(name) == values) << name;
  if (c.mesh == testing::sharded_meshes().front().mesh) {
    const std::string down = "model.layers.0.mlp.down_proj.weight";
    EXPECT_NE(run(all, of_all, *mesh).at(down), got.at(down));
  }
}

std::vector<testing::MeshCase> ways_to_recompute() {
  std::vector<testing::MeshCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  for (testing::MeshCase c : testing::sharded_meshes()) {
    const int i = the_world->size() + static_cast<int>(out.size());
    c.compute = DType::f32;
    c.policy.checkpointing = i % 3 == 0   ? Checkpointing::full
                             : i % 3 == 1 ? Checkpointing::none
                                          : Checkpointing::gate_up;
    c.policy.delay_weight_gradients = i % 2 == 0;
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Excluded, ::testing::ValuesIn(ways_to_recompute()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Excluded);

// With fewer key-value heads than tensor ranks, a Linear has two weights: a name of one excludes both.
TEST(Fp8Exclude, OneNameExcludesAllWeightsOfALinear) {
  const nn::FlatSpecOf own([](const nn::Param& param) { return param.flat; });
  const models::Model model(
      testing::part_of(testing::divisible(testing::toy_description(false)), 1, 4, {.vocabulary = true}), own);
  const std::vector<std::string> qkv = {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj",
                                        "model.layers.0.self_attn.v_proj"};
  EXPECT_EQ(models::modules_at(model, 0, nn::Site::qkv_projection), qkv);
  Recipe recipe;
  for (const std::string& name : qkv) {
    recipe.precision.fp8.exclude = {name};
    Problems problems;
    const engine::Fp8Exclusions exclusions(recipe, {}, problems);
    exclusions.check(model.description(), problems);
    EXPECT_EQ(problems.lines(), "");
    std::vector<std::string> excluded;
    for (const nn::Flat& flat : model.flats()) {
      for (const nn::Param& param : flat.params()) {
        if (param.of_linear && exclusions.contains(param)) excluded.push_back(param.name);
      }
    }
    EXPECT_EQ(excluded.size(), 2u) << name;
  }
}

// If one rank has too little memory, every rank says so, and none waits for another.
TEST(Fp8Exclude, EveryRankLearnsThatOneDoesNotFit) {
  const models::Model model(testing::toy_description(false));
  const plan::LayoutChoices layout = testing::clipped_layout(testing::sharded_meshes().front(), model);
  const auto mesh = rank_mesh(layout.mesh);
  const auto device = rank_device();
  const bool last = the_world->rank().value() == the_world->size() - 1;
  try {
    const engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train},
                                  last ? std::optional(Bytes(1000)) : std::nullopt);
    FAIL() << "not rejected";
  } catch (const engine::DoesNotFit& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
    EXPECT_NE(std::string(error.what()).find("and may use 1000 B"), std::string::npos) << error.what();
  }
}

}  // namespace fp8_exclude_test
}  // namespace hawser
