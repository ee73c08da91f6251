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
using testing::text_of;
using testing::whole_batch;

TEST(Fp8Block, EveryMeshAndSplitHasTheBitsOfOneRank) {
  if (the_world->size() > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  const testing::Tensors one = testing::expect_the_bits_of_one_rank(fp8_block_model(), fp8_block_layout);
  for (const auto& [name, values] : one) EXPECT_FALSE(name.starts_with("quantization/")) << name;
}

TEST(Fp8Block, EveryMeshHasTheBitsOfOneRankWithFrozenWeights) {
  if (the_world->size() > 2) GTEST_SKIP() << "mesh_2 runs it";
  testing::expect_the_bits_of_one_rank(fp8_block_model(true), fp8_block_layout);
}

TEST(Fp8Block, AResumedRunHasTheBitsOfOneThatDidNotStop) {
  if (the_world->size() > 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  testing::expect_the_bits_of_a_run_without_a_stop(fp8_block_model(), fp8_block_layout, false);
}

// A rank rounds the weights that it has gathered: the plain run differs, and one without saved FP8 inputs does not.
TEST(Fp8Block, InputsSavedInFp8ChangeNoBit) {
  if (the_world->size() > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
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
  constexpr std::array kWays = {Checkpointing::none, Checkpointing::selective, Checkpointing::full};
  int i = the_world->size();
  for (const plan::LayoutChoices& base : testing::meshes(model)) {
    const auto mesh = rank_mesh(base.mesh);
    plan::LayoutChoices layout = base;
    layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::f32;
    const auto [exact, exact_bytes] = run(plain, layout, *mesh);
    plan::set_formats(layout, model, {.scaling = Fp8Scaling::block});
    for (nn::SavePolicy& policy : layout.policies) {
      policy.checkpointing = kWays[static_cast<std::size_t>(i) % kWays.size()];
      policy.delay_weight_gradients = i % 2 == 0;
    }
    const auto [saved, saved_bytes] = run(model, layout, *mesh);
    for (nn::SavePolicy& policy : layout.policies) policy.fp8_inputs = false;
    const auto [unsaved, unsaved_bytes] = run(model, layout, *mesh);
    const std::string what = cat(text_of(layout), ", checkpointing ", i++ % kWays.size());
    EXPECT_EQ(saved.losses, unsaved.losses) << what;
    EXPECT_NE(saved.losses, exact.losses) << what;
    EXPECT_NEAR(saved.losses[0], exact.losses[0], 0.02 * exact.losses[0]) << what;
    ASSERT_EQ(saved.after.size(), unsaved.after.size());
    for (const auto& [name, values] : unsaved.after)
      EXPECT_TRUE(saved.after.at(name) == values) << what << ": " << name;
  }
}

// Pieces of rows, slices of W, and W of q, k and v in two parameters, since two tensor ranks have copies of one
// key-value head: what they change of a gradient is less than a quarter of what FP8 changes of it.
TEST(Fp8Block, TensorRanksHaveTheGradientsOfOneRank) {
  if (the_world->size() != 2) GTEST_SKIP() << "two tensor ranks";
  models::ModelDescription whole = testing::toy_description(false);
  for (models::BlockDescription& block : whole.blocks) block.attention.kv_heads = 1;
  const comm::MeshSizes sizes{.tensor = 2, .kv_copies = testing::kv_copies(whole, 2)};
  const auto pair = rank_mesh(sizes);
  const auto gradients = [&](const models::Model& model, comm::Mesh& mesh, bool fp8) {
    plan::LayoutChoices layout = testing::toy_layout(mesh.sizes(), model);
    layout.gradient_clip.reset();
    layout.sequence_parallel = mesh.sizes().tensor > 1;
    for (nn::SavePolicy& policy : layout.policies) policy.checkpointing = Checkpointing::full;
    if (fp8) plan::set_formats(layout, model, {.scaling = Fp8Scaling::block});
    if (layout.sequence_parallel) {
      layout.replace_seams = [](nn::Seams& seams, comm::Mesh& groups) {
        seams.redistribute = std::make_shared<testing::SequenceParallel>(groups.tensor());
        seams.tensor_reduce = std::make_shared<testing::TensorSums>(groups.tensor());
      };
    }
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
    const testing::Tensors alone{{name, values}};
    const double of_fp8 = testing::difference({{name, exact.at(name)}}, alone);
    EXPECT_LT(testing::difference({{name, of_half.at(name)}}, alone), 0.25 * of_fp8) << name;
  }
}

}  // namespace fp8_block_test
}  // namespace hawser
