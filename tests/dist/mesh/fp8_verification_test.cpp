// Steps of FP8 training that are verified: the same step with inputs and gradients in the compute dtype.
#include "nn/precision/fp8_scaling.h"
#include "toy_training.h"

namespace hawser {
namespace fp8_verification_test {

using testing::assembled;
using testing::MeshCase;
using testing::Tensors;

constexpr int kSteps = 3;

models::Model fp8_model() {
  return models::Model(testing::toy_description(false),
                       nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
}

plan::LayoutChoices with_fp8(const MeshCase& c, const models::Model& model, const Fp8Recipe& recipe) {
  plan::LayoutChoices layout = testing::layout_of(c, model);
  plan::set_formats(layout, model, recipe);
  return layout;
}

// A session of the world with the state after some steps.
class VerifiedRun {
 public:
  VerifiedRun(const models::Model& model, const plan::LayoutChoices& layout)
      : layout_(layout),
        mesh_(rank_mesh(layout.mesh)),
        steps_(model, layout_, mesh_->coordinate(), 2LL * the_world->size()),
        device_(rank_device({.random_delay_s = 2e-4, .delay_seed = 5})),
        session_(model, plan::derive(layout_, model), *device_, *mesh_, {step::Purpose::train}, std::nullopt,
                 {.replay = true}) {
    session_.initialise(3);
  }
  step::StepInput input(std::int64_t which) const {
    step::StepInput input = steps_.input(which);
    input.record.learning_rate = 0.01f;
    return input;
  }
  engine::Session::Verified verified(std::int64_t which) {
    engine::Session::Verified output = session_.enqueue_verified(input(which));
    session_.synchronize();
    return output;
  }
  step::StepOutput step(std::int64_t which) {
    step::StepOutput output = session_.enqueue(step::Purpose::train, input(which));
    session_.synchronize();
    return output;
  }
  // AdamW's first moments after the first step: its gradients times 1 - beta1.
  Tensors moments() {
    Tensors out;
    for (const auto& [name, values] : assembled(session_)) {
      if (name.starts_with("optimizer/exp_avg/")) out[name.substr(std::string("optimizer/exp_avg/").size())] = values;
    }
    return out;
  }
  engine::Session& session() { return session_; }

 private:
  plan::LayoutChoices layout_;
  std::shared_ptr<comm::Mesh> mesh_;
  testing::ToySteps steps_;
  std::shared_ptr<Device> device_;
  engine::Session session_;
};

double norm_of(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(squares);
}

// The comparison changes no bit of the run, and its memory is planned.
void expect_the_run_as_it_is(const models::Model& model, const MeshCase& c, Fp8Scaling scaling) {
  const Fp8Recipe plain{.scaling = scaling, .saturation_limit = 1};
  Fp8Recipe verifying = plain;
  verifying.verify_every = 2;
  VerifiedRun without(model, with_fp8(c, model, plain)), with(model, with_fp8(c, model, verifying));
  for (int i = 0; i < kSteps; ++i) {
    const step::StepOutput expected = without.step(i);
    const engine::Session::Verified got = with.verified(i);
    EXPECT_EQ(got.step.result->loss_sum.value(), expected.result->loss_sum.value());
    EXPECT_NE(got.reference.result->loss_sum.value(), expected.result->loss_sum.value());
    EXPECT_EQ(got.step.progress->step, i + 1);
  }
  EXPECT_TRUE(assembled(with.session()) == assembled(without.session()));
  std::int64_t references = 0;
  for (int f = 0; f < with.session().state().flats(); ++f) {
    const TensorView& reference = with.session().state().flat(f).reference_gradient;
    EXPECT_EQ(reference.empty(), !with.session().state().flat(f).held);
    if (!reference.empty()) references += round_up(reference.bytes(), Device::kAlignment);
  }
  EXPECT_EQ(with.session().plan(step::Purpose::train).reference_bytes, references);
  EXPECT_EQ(with.session().state().bytes(), without.session().state().bytes() + references);
  // A verified step needs the most memory: what a report shows are its parts.
  std::int64_t parts = 0;
  for (const auto& [purpose, bytes] : with.session().largest_costs().peak_bytes_by_category) parts += bytes;
  EXPECT_EQ(parts, with.session().planned_bytes());
}

// In float32.
std::vector<MeshCase> meshes_in_f32() {
  std::vector<MeshCase> out = testing::sharded_meshes();
  for (MeshCase& c : out) c.compute = DType::f32;
  return out;
}

struct ScalingCase {
  Fp8Scaling scaling;
  MeshCase on;

  std::string name() const {
    return testing::joined(scaling == Fp8Scaling::delayed ? "delayed_scaling" : "current_scaling", on.name());
  }
  friend void PrintTo(const ScalingCase& c, std::ostream* out) { *out << c.name(); }
};

using Fp8Verification = testing::CaseTest<ScalingCase>;

TEST_P(Fp8Verification, LeavesTheRunAsItIs) {
  expect_the_run_as_it_is(fp8_model(), GetParam().on, GetParam().scaling);
}

std::vector<ScalingCase> both_scalings() {
  std::vector<ScalingCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  int number = 0;
  for (const MeshCase& c : meshes_in_f32()) {
    for (const Fp8Scaling scaling : {Fp8Scaling::delayed, Fp8Scaling::current}) {
      // Pairwise: with many ranks, a mesh has one kind of scales.
      if (the_world->size() > 2 && number++ % 4 % 3 != 0) continue;
      out.push_back({scaling, c});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8Verification, ::testing::ValuesIn(both_scalings()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8Verification);

// The reference reads unrounded weights.
TEST(Fp8Verification, LeavesARunWithScalesOfBlocksAsItIs) {
  if (the_world->size() > 2) GTEST_SKIP() << "mesh_2 runs it";
  const auto all = [](int) { return true; };
  const models::Model plain(testing::toy_description(false)),
      model(testing::toy_description(false), nn::with_weights_quantized_on_use(nn::common_domain, all));
  const MeshCase c = meshes_in_f32().front();
  expect_the_run_as_it_is(model, c, Fp8Scaling::block);
  const plan::LayoutChoices exact = testing::layout_of(c, model);
  VerifiedRun verified(model, with_fp8(c, model, {.scaling = Fp8Scaling::block, .verify_every = 1}));
  VerifiedRun other(plain, exact);
  EXPECT_EQ(verified.verified(0).reference.result->loss_sum.value(), other.step(0).result->loss_sum.value());
}

// The norms are those of gradients that are computed otherwise: from the moments of a run without FP8 inputs.
void expect_comparisons_with_the_step_without_fp8(const models::Model& model, const MeshCase& c) {
  const std::vector<models::HfTensor> tensors = models::hf_tensors(model);
  const plan::LayoutChoices layout = with_fp8(c, model, {.saturation_limit = 1, .verify_every = 1});
  plan::LayoutChoices exact = layout;
  exact.verify_every.reset();
  for (nn::SavePolicy& policy : exact.policies) policy.formats = {};
  VerifiedRun verified(model, layout), other(model, exact);
  const engine::Session::Verified got = verified.verified(0);
  EXPECT_EQ(got.reference.result->loss_sum.value(), other.step(0).result->loss_sum.value());
  const Tensors rounded = verified.moments(), reference = other.moments();
  double largest = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<float>&a = rounded.at(tensors[i].name), &b = reference.at(tensors[i].name);
    const double norm = norm_of(b, std::vector<float>(b.size())), difference = norm_of(a, b);
    constexpr double kMoment = 0.1;  // 1 - beta1
    EXPECT_NEAR(kMoment * (*got.reference.parameter_norms)[i], norm, 1e-5 * norm) << tensors[i].name;
    EXPECT_NEAR(kMoment * (*got.step.parameter_norms)[i], difference, 1e-4 * norm) << tensors[i].name;
    if (norm > 0) largest = std::max(largest, difference / norm);
  }
  EXPECT_GT(largest, 0.01);
  EXPECT_LT(largest, 0.5);
}

using Fp8VerifiedStep = testing::CaseTest<MeshCase>;

TEST_P(Fp8VerifiedStep, ComparesWithTheStepWithoutFp8) {
  expect_comparisons_with_the_step_without_fp8(fp8_model(), GetParam());
}

std::vector<MeshCase> up_to_four_ranks() {
  return the_world->size() > 4 ? std::vector<MeshCase>() : meshes_in_f32();  // long on eight ranks
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8VerifiedStep, ::testing::ValuesIn(up_to_four_ranks()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8VerifiedStep);

// Experts whose rows are not rounded, beside weights that are.
TEST(Fp8Verification, ComparesExpertsWithTheStepWithoutFp8) {
  if (the_world->size() > 2) GTEST_SKIP() << "two ranks are enough";
  const models::Model model(testing::toy_with_experts(),
                            nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  expect_comparisons_with_the_step_without_fp8(model, meshes_in_f32().front());
}

// The reference, and the first step of delayed scales, run before a step that counts. An overflow of their gradients
// reduces no loss scale, and does not set back the number of good steps.
TEST(Fp8Verification, StepsThatAreDiscardedLeaveTheLossScale) {
  if (the_world->size() > 1) GTEST_SKIP() << "mesh_1 runs it";
  const models::Model model = fp8_model();
  for (const Fp8Scaling scaling : {Fp8Scaling::delayed, Fp8Scaling::current}) {
    plan::LayoutChoices layout = with_fp8(meshes_in_f32().front(), model, {.scaling = scaling, .verify_every = 1});
    layout.loss_scaling = {.growth_interval = 3, .initial = std::ldexp(1.0, 66)};
    VerifiedRun run(model, layout);
    float scale = static_cast<float>(layout.loss_scaling.initial);
    int good = 0, discarded = 0, trained = 0;
    for (int i = 0; i < 14; ++i) {
      SCOPED_TRACE(cat("delayed ", scaling == Fp8Scaling::delayed, ", step ", i));
      const engine::Session::Verified got = run.verified(0);
      const step::Skip skipped = got.step.result->skipped();
      if (got.reference.result->skipped() == step::Skip::overflow) ++discarded;
      if (skipped == step::Skip::none) {
        ++trained, ++good;
      } else if (skipped == step::Skip::overflow) {
        scale /= 2, good = 0;
      }
      if (good == layout.loss_scaling.growth_interval) scale *= 2, good = 0;
      EXPECT_EQ(got.step.progress->loss_scale, scale);
      EXPECT_EQ(got.step.progress->good_steps, good);
      EXPECT_EQ(got.step.progress->step, trained);
    }
    EXPECT_GT(discarded, 0);
    EXPECT_GT(trained, 0);
  }
}

}  // namespace fp8_verification_test
}  // namespace hawser
