// FP8 training on CPU ranks. The sums of the exact layers are exact, and scales are powers of two: every mesh, split
// into micro-batches and way to recompute has the bits of one rank. Models have a bound on what another mesh may
// change.
#include "fp8_exact.h"
#include "two_pass_fp8.h"

namespace hawser {
namespace fp8_test {

using testing::assembled;
using testing::CaseName;
using testing::CaseTest;
using testing::ExactRun;
using testing::fp8_layout;
using testing::fp8_model;
using testing::MeshCase;
using testing::Tensors;
using testing::Trained;
using testing::whole_batch;

// With histories of the scales.
Tensors trained_on_one_rank(const models::Model& model) {
  Tensors one = testing::trained_on_one_rank(model, fp8_layout(model, {}));
  int histories = 0;
  for (const auto& [name, values] : one) {
    if (!name.starts_with("quantization/amax_history/")) continue;
    EXPECT_EQ(values.size(), 4u);
    EXPECT_GT(values[0], 0) << name;
    ++histories;
  }
  EXPECT_EQ(histories, 2 * 2 * 2);  // of x and dy at two sites of two layers
  return one;
}

using Fp8 = CaseTest<testing::ExactCase>;

TEST_P(Fp8, HasTheBitsOfOneRank) {
  static const Tensors one = trained_on_one_rank(fp8_model());
  testing::expect_the_bits_of(one, fp8_model(), fp8_layout, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8, ::testing::ValuesIn(testing::exact_cases()), CaseName());

using Fp8WithFrozenWeights = CaseTest<testing::ExactCase>;

TEST_P(Fp8WithFrozenWeights, HasTheBitsOfOneRank) {
  static const Tensors one = trained_on_one_rank(fp8_model(true));
  testing::expect_the_bits_of(one, fp8_model(true), fp8_layout, GetParam());
}

// Long on eight ranks.
std::vector<testing::ExactCase> up_to_four_ranks() {
  return the_world->size() > 4 ? std::vector<testing::ExactCase>() : testing::exact_cases();
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8WithFrozenWeights, ::testing::ValuesIn(up_to_four_ranks()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8WithFrozenWeights);

TEST(Fp8, AResumedRunHasTheBitsOfOneThatDidNotStop) {
  testing::expect_the_bits_of_a_run_without_a_stop(fp8_model(), fp8_layout, false);
}

TEST(Fp8, AResumedRunLoadsFrozenWeightsAgain) {
  testing::expect_the_bits_of_a_run_without_a_stop(fp8_model(true), fp8_layout, true);
}

struct ScalingCase {
  Fp8Scaling scaling = Fp8Scaling::delayed;
  MeshCase on;

  std::string name() const {
    return testing::joined(scaling == Fp8Scaling::delayed ? "delayed_scaling" : "current_scaling", on.name());
  }
  friend void PrintTo(const ScalingCase& c, std::ostream* out) { *out << c.name(); }
};

plan::LayoutChoices without_clip(const MeshCase& c, const models::Model& model) {
  plan::LayoutChoices layout = testing::layout_of(c, model);
  layout.optimizer = testing::toy_adamw();
  return layout;
}

// The first moments of AdamW after one step are its gradients times a constant.
Tensors gradients(const Tensors& states) {
  Tensors out;
  for (const auto& [name, values] : states) {
    if (name.starts_with("optimizer/exp_avg/")) out[name] = values;
  }
  return out;
}

Trained first_step_of_one_rank(const models::Model& model, const plan::LayoutChoices& of_one) {
  return testing::on_one_rank([&] {
    const auto self = comm::make_self_mesh();
    plan::LayoutChoices layout = of_one;
    const testing::ToySteps steps(model, layout, self->coordinate(), whole_batch());
    const auto device = rank_device();
    engine::Session session(model, plan::derive(layout, model), *device, *self, {step::Purpose::train});
    session.initialise(3);
    Trained trained;
    testing::take_steps(session, steps, {.inputs = {0}}, trained);
    trained.after = gradients(testing::states_of(session));
    return trained;
  });
}

models::Model toy_in_fp8() {
  return models::Model(testing::toy_description(false),
                       nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
}

using Fp8Gradients = CaseTest<ScalingCase>;

// A model of real layers, with scales that are no powers of two: what another mesh changes of a gradient is less than a
// quarter of what FP8 changes of it. With current scaling, whose scales are of the rows of a rank, two meshes may
// differ as two roundings do: by twice of it.
TEST_P(Fp8Gradients, AreNearThoseOfOneRank) {
  const auto& [scaling, c] = GetParam();
  const bool delayed = scaling == Fp8Scaling::delayed;
  const double of_loss = delayed ? 1e-3 : 1e-2, part = delayed ? 0.25 : 2;
  const models::Model plain(testing::toy_description(false)), model = toy_in_fp8();
  const auto in_fp8 = [&, scaling = scaling](plan::LayoutChoices layout) {
    plan::set_formats(layout, model, {.scaling = scaling, .saturation_limit = 1});
    return layout;
  };
  static const Trained exact = first_step_of_one_rank(plain, without_clip({}, plain));
  static std::map<Fp8Scaling, Trained> references;
  Trained& one = references[scaling];
  if (one.losses.empty()) {
    one = first_step_of_one_rank(model, in_fp8(without_clip({}, model)));
    EXPECT_NEAR(one.losses[0], exact.losses[0], 0.02 * exact.losses[0]);
    EXPECT_NE(one.losses[0], exact.losses[0]);
  }
  ASSERT_FALSE(one.after.empty());
  plan::LayoutChoices layout = in_fp8(testing::layout_of(c, model));
  const auto mesh = rank_mesh(layout.mesh);
  const testing::ToySteps steps(model, layout, mesh->coordinate(), whole_batch());
  const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
  engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train}, std::nullopt,
                          {.replay = true});
  session.initialise(3);
  Trained trained;
  testing::take_steps(session, steps, {.inputs = {0}}, trained);
  EXPECT_NEAR(trained.losses[0], one.losses[0], of_loss * one.losses[0]);
  const Tensors ours = gradients(assembled(session));
  for (const auto& [name, values] : one.after) {
    const Tensors own{{name, ours.at(name)}}, of_one{{name, values}};
    const double of_fp8 = testing::difference({{name, exact.after.at(name)}}, of_one);
    EXPECT_LT(testing::difference(own, of_one), part * of_fp8) << name;
  }
}

std::vector<ScalingCase> both_scalings() {
  std::vector<ScalingCase> out;
  for (const Fp8Scaling scaling : {Fp8Scaling::delayed, Fp8Scaling::current}) {
    for (MeshCase c : testing::sharded_meshes()) {
      c.compute = DType::f32;
      out.push_back({scaling, c});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Gradients, ::testing::ValuesIn(both_scalings()), CaseName());

using Fp8Inputs = CaseTest<ScalingCase>;

// Inputs that are saved in FP8, and ops that write FP8, change no bit of a model: with every way to recompute, delayed
// gradients of weights, both kinds of scales, on every mesh.
TEST_P(Fp8Inputs, ThatAreSavedChangeNoBit) {
  const auto& [scaling, c] = GetParam();
  const models::Model model = toy_in_fp8();
  const auto mesh = rank_mesh(c.mesh);
  const auto run = [&, scaling = scaling, &c = c](bool saved) {
    plan::LayoutChoices layout = testing::clipped_layout(c, model);
    plan::set_formats(layout, model, {.scaling = scaling, .saturation_limit = 1});
    for (nn::SavePolicy& policy : layout.policies) policy.fp8_inputs = saved;
    if (!saved) layout.quantizer = std::make_shared<testing::TwoPassFp8>(nn::Fp8Options{});
    const testing::ToySteps steps(model, layout, mesh->coordinate(), whole_batch());
    const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    Trained trained;
    testing::take_steps(session, steps, {.inputs = {0, 1}}, trained);
    trained.after = the_world->size() > 1 ? assembled(session) : testing::states_of(session);
    return std::pair{trained, session.planned_bytes()};
  };
  const auto [plain, plain_bytes] = run(false);
  const auto [saved, saved_bytes] = run(true);
  EXPECT_EQ(saved.losses, plain.losses);
  ASSERT_EQ(saved.after.size(), plain.after.size());
  for (const auto& [name, values] : plain.after) EXPECT_TRUE(saved.after.at(name) == values) << name;
  if (c.policy.checkpointing == Checkpointing::none) {
    EXPECT_LT(saved_bytes, plain_bytes);
  }
}

// Pairwise: with many ranks, a mesh has one way to recompute.
std::vector<ScalingCase> ways_to_recompute() {
  std::vector<ScalingCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  constexpr std::array kWays = {Checkpointing::none, Checkpointing::selective, Checkpointing::gate_up,
                                Checkpointing::projections, Checkpointing::full};
  int i = the_world->size();
  for (MeshCase c : testing::sharded_meshes()) {
    const std::size_t first = the_world->size() > 2 ? static_cast<std::size_t>(i) % kWays.size() : 0;
    const std::size_t count = the_world->size() > 2 ? 1 : kWays.size();
    for (const Checkpointing checkpointing : std::span(kWays).subspan(first, count)) {
      c.compute = DType::f32;
      c.policy = {.checkpointing = checkpointing, .delay_weight_gradients = i % 3 == 0};
      out.push_back({i % 2 == 0 ? Fp8Scaling::delayed : Fp8Scaling::current, c});
      ++i;
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Inputs, ::testing::ValuesIn(ways_to_recompute()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Inputs);

// What layers read of a weight that was gathered in FP8 is the cast of the weight that was gathered in float32.
TEST(Fp8, AGatheredWeightIsTheCastOfTheWeight) {
  const models::Model model = fp8_model();
  plan::LayoutChoices layout = fp8_layout(model, testing::sharded_meshes().front().mesh);
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
