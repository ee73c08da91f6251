// FP8 training with a scale for each block, on CPU ranks. Scales are powers of two, so that a number that is not below
// the range of its block is rounded to the same value whichever block it is in: the exact layers have the bits of one
// rank on every mesh.
#include "fp8_exact.h"
#include "tensor_case.h"

namespace hawser {
namespace fp8_block_test {

using testing::assembled;
using testing::fp8_block_layout;
using testing::fp8_block_model;
using testing::whole_batch;

using Fp8Block = testing::CaseTest<testing::ExactCase>;

TEST_P(Fp8Block, HasTheBitsOfOneRank) {
  static const testing::Tensors one =
      testing::trained_on_one_rank(fp8_block_model(), fp8_block_layout(fp8_block_model(), {}));
  for (const auto& [name, values] : one) EXPECT_FALSE(name.starts_with("quantization/")) << name;
  testing::expect_the_bits_of(one, fp8_block_model(), fp8_block_layout, GetParam());
}

std::vector<testing::ExactCase> on_up_to(int ranks) {
  return the_world->size() > ranks ? std::vector<testing::ExactCase>() : testing::exact_cases();
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Block, ::testing::ValuesIn(on_up_to(4)), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Block);  // long on eight ranks

using Fp8BlockWithFrozenWeights = testing::CaseTest<testing::ExactCase>;

TEST_P(Fp8BlockWithFrozenWeights, HasTheBitsOfOneRank) {
  static const testing::Tensors one =
      testing::trained_on_one_rank(fp8_block_model(true), fp8_block_layout(fp8_block_model(true), {}));
  testing::expect_the_bits_of(one, fp8_block_model(true), fp8_block_layout, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8BlockWithFrozenWeights, ::testing::ValuesIn(on_up_to(2)), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8BlockWithFrozenWeights);

TEST(Fp8Block, AResumedRunHasTheBitsOfOneThatDidNotStop) {
  if (the_world->size() > 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  testing::expect_the_bits_of_a_run_without_a_stop(fp8_block_model(), fp8_block_layout, false);
}

using Fp8BlockInputs = testing::CaseTest<testing::MeshCase>;

// A rank rounds the weights that it has gathered: the plain run differs, and one without saved FP8 inputs does not.
TEST_P(Fp8BlockInputs, ThatAreSavedChangeNoBit) {
  const testing::MeshCase& c = GetParam();
  const models::Model plain(testing::toy_description(false));
  const models::Model model(testing::toy_description(false),
                            nn::with_weights_quantized_on_use(nn::common_domain, [](int) { return true; }));
  const auto run = [&](const models::Model& of, plan::LayoutChoices layout, comm::Mesh& mesh) {
    const testing::ToySteps steps(of, layout, mesh.coordinate(), whole_batch());
    const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(of, plan::derive(layout, of), *device, mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, {.inputs = {0, 1}}, trained);
    trained.after = the_world->size() > 1 ? assembled(session) : testing::states_of(session);
    return std::pair{trained, session.planned_bytes()};
  };
  const auto mesh = rank_mesh(c.mesh);
  testing::MeshCase saving_all = c;
  saving_all.policy = {};
  const auto [exact, exact_bytes] = run(plain, testing::clipped_layout(saving_all, plain), *mesh);
  plan::LayoutChoices layout = testing::clipped_layout(c, model);
  plan::set_formats(layout, model, {.scaling = Fp8Scaling::block});
  const auto [saved, saved_bytes] = run(model, layout, *mesh);
  for (nn::SavePolicy& policy : layout.policies) policy.fp8_inputs = false;
  const auto [unsaved, unsaved_bytes] = run(model, layout, *mesh);
  EXPECT_EQ(saved.losses, unsaved.losses);
  EXPECT_NE(saved.losses, exact.losses);
  EXPECT_NEAR(saved.losses[0], exact.losses[0], 0.02 * exact.losses[0]);
  ASSERT_EQ(saved.after.size(), unsaved.after.size());
  for (const auto& [name, values] : unsaved.after) EXPECT_TRUE(saved.after.at(name) == values) << name;
}

std::vector<testing::MeshCase> ways_to_recompute() {
  std::vector<testing::MeshCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  constexpr std::array kWays = {Checkpointing::none, Checkpointing::selective, Checkpointing::full};
  for (testing::MeshCase c : testing::sharded_meshes()) {
    const std::size_t i = out.size() + static_cast<std::size_t>(the_world->size());
    c.compute = DType::f32;
    c.policy = {.checkpointing = kWays[i % kWays.size()], .delay_weight_gradients = i % 2 == 0};
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8BlockInputs, ::testing::ValuesIn(ways_to_recompute()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8BlockInputs);

// Pieces of rows, slices of W, and W of q, k and v in two parameters, since two tensor ranks have copies of one
// key-value head: what they change of a gradient is less than a quarter of what FP8 changes of it.
TEST(Fp8Block, TensorRanksHaveTheGradientsOfOneRank) {
  if (the_world->size() != 2) GTEST_SKIP() << "two tensor ranks";
  models::ModelDescription whole = testing::toy_description(false);
  for (models::BlockDescription& block : whole.blocks) block.attention.kv_heads = 1, block.mlp.inner = 38;
  const comm::MeshSizes sizes{.tensor = 2, .kv_copies = testing::kv_copies(whole, 2)};
  const auto pair = rank_mesh(sizes);
  const auto gradients = [&](const models::Model& model, comm::Mesh& mesh, bool fp8) {
    plan::LayoutChoices layout = testing::toy_layout({.mesh = mesh.sizes()}, model);
    layout.gradient_clip.reset();
    layout.sequence_parallel = mesh.sizes().tensor > 1;
    for (nn::SavePolicy& policy : layout.policies) policy.checkpointing = Checkpointing::full;
    if (fp8) plan::set_formats(layout, model, {.scaling = Fp8Scaling::block});
    const testing::ToySteps steps(model, layout, mesh.coordinate(), 4);
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, {.inputs = {0}}, trained);
    testing::Tensors states = layout.sequence_parallel ? assembled(session) : testing::states_of(session);
    std::erase_if(states, [](const auto& state) { return !state.first.starts_with("optimizer/exp_avg/"); });
    return std::pair{trained.losses[0], states};
  };
  const auto in_fp8 = [](const nn::FlatSpecOf& spec) {
    return nn::with_weights_quantized_on_use(spec, [](int) { return true; });
  };
  const nn::FlatSpecOf own = [](const nn::Param& param) { return param.flat; };
  const models::Model plain(whole), one(whole, in_fp8(nn::common_domain)),
      half(testing::half_of(whole, pair->coordinate().tensor, testing::kSequence),
           nn::with_sequence_parallelism(in_fp8(own)));
  const auto [exact_loss, exact] =
      testing::on_one_rank([&] { return gradients(plain, *comm::make_self_mesh(), false); });
  const auto [one_loss, of_one] = testing::on_one_rank([&] { return gradients(one, *comm::make_self_mesh(), true); });
  const auto [loss, of_half] = gradients(half, *pair, true);
  EXPECT_NE(one_loss, exact_loss);
  EXPECT_NEAR(loss, one_loss, 1e-3 * one_loss);
  ASSERT_EQ(of_half.size(), of_one.size());
  for (const auto& [name, values] : of_one) {
    const testing::Tensors expected{{name, values}};
    const double of_fp8 = testing::difference({{name, exact.at(name)}}, expected);
    EXPECT_LT(testing::difference({{name, of_half.at(name)}}, expected), 0.25 * of_fp8) << name;
  }
}

}  // namespace fp8_block_test
}  // namespace hawser
