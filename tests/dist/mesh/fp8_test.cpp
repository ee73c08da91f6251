// FP8 training on CPU ranks. The sums of the exact layers are exact, and scales are powers of two: every mesh, split
// into micro-batches and way to recompute has the bits of one rank. Models have a bound on what another mesh may
// change.
#include "fp8_exact.h"
#include "two_pass_fp8.h"

namespace hawser {
namespace fp8_test {

using testing::assembled;
using testing::ExactRun;
using testing::fp8_layout;
using testing::fp8_model;
using testing::Tensors;
using testing::text_of;
using testing::whole_batch;

void expect_the_bits_and_histories_of_one_rank(const models::Model& model) {
  const Tensors one = testing::expect_the_bits_of_one_rank(model, fp8_layout);
  int histories = 0;
  for (const auto& [name, values] : one) {
    if (!name.starts_with("quantization/amax_history/")) continue;
    EXPECT_EQ(values.size(), 4u);
    EXPECT_GT(values[0], 0) << name;
    ++histories;
  }
  EXPECT_EQ(histories, 2 * 2 * 2);  // of x and dy at two sites of two layers
}

TEST(Fp8, EveryMeshAndSplitHasTheBitsOfOneRank) {
  expect_the_bits_and_histories_of_one_rank(fp8_model());
}

TEST(Fp8, EveryMeshHasTheBitsOfOneRankWithFrozenWeights) {
  if (the_world->size() > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  expect_the_bits_and_histories_of_one_rank(fp8_model(true));
}

TEST(Fp8, AResumedRunHasTheBitsOfOneThatDidNotStop) {
  testing::expect_the_bits_of_a_run_without_a_stop(fp8_model(), fp8_layout, false);
}

TEST(Fp8, AResumedRunLoadsFrozenWeightsAgain) {
  testing::expect_the_bits_of_a_run_without_a_stop(fp8_model(true), fp8_layout, true);
}

// A model of real layers, with scales that are no powers of two: what another mesh changes of a gradient is less than a
// quarter of what FP8 changes of it. With current scaling, whose scales are of the rows of a rank, two meshes may
// differ as two roundings do: by twice of it.
void expect_a_models_gradients_of_one_rank(Fp8Scaling scaling, double of_loss, double part) {
  const models::Model plain(testing::toy_description(false));
  const models::Model model(testing::toy_description(false),
                            nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  const auto layout_of = [&](const models::Model& of, const plan::LayoutChoices& base) {
    plan::LayoutChoices layout = base;
    layout.gradient_clip.reset();
    layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::f32;
    if (&of == &model) plan::set_formats(layout, of, {.scaling = scaling, .saturation_limit = 1});
    return layout;
  };
  // The first moments of AdamW after one step are its gradients times a constant.
  const auto gradients = [](const Tensors& states) {
    Tensors out;
    for (const auto& [name, values] : states) {
      if (name.starts_with("optimizer/exp_avg/")) out[name] = values;
    }
    return out;
  };
  const auto trained_alone = [&](const models::Model& of) {
    return testing::on_one_rank([&] {
      const auto self = comm::make_self_mesh();
      plan::LayoutChoices layout = layout_of(of, testing::toy_layout({}, of));
      const testing::ToySteps steps(of, layout, self->coordinate(), whole_batch());
      const auto device = rank_device();
      engine::Session session(of, plan::derive(layout, of), *device, *self, {step::Purpose::train});
      session.initialise(3);
      testing::Trained trained;
      testing::take_steps(session, steps, {.inputs = {0}}, trained);
      trained.after = gradients(testing::states_of(session));
      return trained;
    });
  };
  const testing::Trained exact = trained_alone(plain), one = trained_alone(model);
  EXPECT_NEAR(one.losses[0], exact.losses[0], 0.02 * exact.losses[0]);
  EXPECT_NE(one.losses[0], exact.losses[0]);
  ASSERT_FALSE(one.after.empty());
  for (const plan::LayoutChoices& base : testing::meshes(model)) {
    plan::LayoutChoices layout = layout_of(model, base);
    const auto mesh = rank_mesh(layout.mesh);
    const testing::ToySteps steps(model, layout, mesh->coordinate(), whole_batch());
    const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, {.inputs = {0}}, trained);
    EXPECT_NEAR(trained.losses[0], one.losses[0], of_loss * one.losses[0]) << text_of(layout);
    const Tensors many = gradients(assembled(session));
    for (const auto& [name, values] : one.after) {
      const Tensors own{{name, many.at(name)}}, alone{{name, values}};
      const double of_fp8 = testing::difference({{name, exact.after.at(name)}}, alone);
      EXPECT_LT(testing::difference(own, alone), part * of_fp8) << text_of(layout) << ": " << name;
    }
  }
}

TEST(Fp8, AModelsGradientsAreThoseOfOneRank) {
  expect_a_models_gradients_of_one_rank(Fp8Scaling::delayed, 1e-3, 0.25);
}

TEST(Fp8, WithCurrentScalingAModelsGradientsAreNearThoseOfOneRank) {
  expect_a_models_gradients_of_one_rank(Fp8Scaling::current, 1e-2, 2);
}

// Inputs that are saved in FP8, and ops that write FP8, change no bit of a model: with every way to recompute, delayed
// gradients of weights, both kinds of scales, on every mesh.
TEST(Fp8, InputsSavedInFp8ChangeNoBit) {
  if (the_world->size() > 4) GTEST_SKIP() << "long on eight ranks; mesh_2 and mesh_4 run it";
  const models::Model model(testing::toy_description(false),
                            nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  const auto run = [&](plan::LayoutChoices layout, comm::Mesh& mesh, bool saved) {
    for (nn::SavePolicy& policy : layout.policies) policy.fp8_inputs = saved;
    if (!saved) layout.quantizer = std::make_shared<testing::TwoPassFp8>(nn::Fp8Options{});
    const testing::ToySteps steps(model, layout, mesh.coordinate(), whole_batch());
    const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    testing::Trained trained;
    testing::take_steps(session, steps, {.inputs = {0, 1}}, trained);
    trained.after = the_world->size() > 1 ? assembled(session) : testing::states_of(session);
    return std::pair{trained, session.planned_bytes()};
  };
  constexpr std::array kWays = {Checkpointing::none, Checkpointing::selective, Checkpointing::gate_up,
                                Checkpointing::projections, Checkpointing::full};
  int i = the_world->size();
  for (const plan::LayoutChoices& base : testing::meshes(model)) {
    const auto mesh = rank_mesh(base.mesh);
    // Pairwise: with many ranks, a mesh has one way to recompute.
    const std::size_t first = the_world->size() > 2 ? static_cast<std::size_t>(i) % kWays.size() : 0;
    const std::size_t count = the_world->size() > 2 ? 1 : kWays.size();
    for (const Checkpointing checkpointing : std::span(kWays).subspan(first, count)) {
      plan::LayoutChoices layout = base;
      layout.compute = layout.reduce_dtype = layout.kv_reduce_dtype = DType::f32;
      plan::set_formats(layout, model,
                        {.scaling = i % 2 == 0 ? Fp8Scaling::delayed : Fp8Scaling::current, .saturation_limit = 1});
      for (nn::SavePolicy& policy : layout.policies) {
        policy.checkpointing = checkpointing;
        policy.delay_weight_gradients = i % 3 == 0;
      }
      ++i;
      const auto [plain, plain_bytes] = run(layout, *mesh, false);
      const auto [saved, saved_bytes] = run(layout, *mesh, true);
      const std::string what = cat(text_of(layout), ", checkpointing ", static_cast<int>(checkpointing));
      EXPECT_EQ(saved.losses, plain.losses) << what;
      ASSERT_EQ(saved.after.size(), plain.after.size());
      for (const auto& [name, values] : plain.after)
        EXPECT_TRUE(saved.after.at(name) == values) << what << ": " << name;
      if (checkpointing == Checkpointing::none) {
        EXPECT_LT(saved_bytes, plain_bytes) << what;
      }
    }
  }
}

// What layers read of a weight that was gathered in FP8 is the cast of the weight that was gathered in float32.
TEST(Fp8, AGatheredWeightIsTheCastOfTheWeight) {
  const models::Model model = fp8_model();
  plan::LayoutChoices layout = fp8_layout(model, testing::meshes(model).front().mesh);
  layout.shard_policy = ShardPolicy::optimizer;  // whole weights on every rank
  const auto mesh = rank_mesh(layout.mesh);
  ExactRun run(model, layout, *mesh, whole_batch());
  testing::write_exact(run.session());
  for (int i = 0; i < 3; ++i) run.step(i);
  const Tensors states = assembled(run.session());
  int checked = 0;
  for (int f = 0; f < run.session().state().flats(); ++f) {
    const step::FlatState& state = run.session().state().flat(f);
    if (!state.quantized_after_updates()) continue;
    const nn::Flat& flat = model.flats()[static_cast<std::size_t>(f)];
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      const std::vector<float>& masters = states.at(flat.params()[static_cast<std::size_t>(p)].name);
      const float inverse = 1.0f / state.scales.data<float>()[p];
      const TensorView q = flat.view(state.unsharded, p), t = flat.transposed_view(state.transposed, p);
      for (std::int64_t r = 0; r < q.size(0); ++r) {
        for (std::int64_t c = 0; c < q.size(1); ++c) {
          const F8E4M3 expected(masters[static_cast<std::size_t>(r * q.size(1) + c)] * inverse);
          ASSERT_EQ(q.data<F8E4M3>()[r * q.size(1) + c].bits, expected.bits);
          ASSERT_EQ(t.data<F8E4M3>()[c * q.size(0) + r].bits, expected.bits);
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 0);
}

}  // namespace fp8_test
}  // namespace hawser
