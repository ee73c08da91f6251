// The contract of optimizers: state slots of any number, and counts that the device keeps.
#include <thread>

#include "base/testing/temporary_folder.h"
#include "config/config.h"
#include "engine/load_state.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "io/files.h"
#include "models/weights.h"
#include "ops/copy/copy.h"
#include "report/rules.h"
#include "toy_training.h"
#include "train/saver.h"
#include "train/step_outcome.h"

namespace hawser {
namespace optimizer_test {

using testing::CaseName;
using testing::CaseTest;
using testing::clipped_layout;
using testing::MeshCase;
using testing::sharded_meshes;
using testing::Tensors;
using testing::train;
using testing::Trained;

// Gradient descent with momentum: one slot, no bias corrections.
//   momentum = 0.9 * momentum + coefficient * gradient;  weight -= learning_rate * momentum
class Momentum : public optim::Optimizer {
 public:
  std::string name() const override { return "momentum"; }
  std::vector<optim::StateSlot> slots(const nn::Flat&) const override { return {{"momentum"}}; }
  std::int64_t scalars() const override { return 1; }
  void prepare(Stream& stream, const optim::Prepare& step) const override {
    ops::copy(stream, {.x = step.learning_rate.rows(0, 1), .y = step.scalars});
  }
  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    const TensorView momentum = u.slots[0];
    OpRecord record{.name = "momentum", .kind = OpKind::optimizer};
    for (const TensorView& view : {u.weights, momentum, u.gradient, u.scalars, u.coefficient, u.skip}) {
      record.accesses.push_back(reads(view));
    }
    for (const TensorView& view : {u.weights, momentum}) record.accesses.push_back(writes(view));
    if (!u.compute.empty()) record.accesses.push_back(writes(u.compute));
    const auto work = [weights = u.weights, gradient = u.gradient, momentum, compute = u.compute, rate = u.scalars,
                       coefficient = u.coefficient, skip = u.skip] {
      if (*skip.data<std::int32_t>() != 0) return;
      for (std::int64_t i = 0; i < weights.elements(); ++i) {
        float& m = momentum.data<float>()[i];
        m = 0.9f * m + *coefficient.data<float>() * gradient.data<float>()[i];
        weights.data<float>()[i] -= *rate.data<float>() * m;
        if (!compute.empty()) compute.data<Bf16>()[i] = Bf16(weights.data<float>()[i]);
      }
    };
    stream.launch(std::move(record), work);
  }
};

using OptimizerWithOneSlot = CaseTest<MeshCase>;

TEST_P(OptimizerWithOneSlot, Trains) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(GetParam(), model);
  layout.optimizer = std::make_shared<Momentum>();
  std::int64_t bytes = 0;
  for (const nn::Flat& flat : model.flats()) bytes += 4 * flat.total(layout.parts()) / layout.parts();
  const Trained trained = train(model, layout, {.inputs = {0}, .look = [&](engine::Session& session) {
                                                  EXPECT_EQ(session.state().optimizer_bytes(), bytes);
                                                }});
  // The slot has the clipped gradient, and the weights follow it.
  double squares = 0;
  std::size_t tensors = 0;
  for (const auto& [name, after] : trained.after) {
    if (name.starts_with("optimizer/")) continue;
    ++tensors;
    const std::vector<float>& momentum = trained.after.at("optimizer/momentum/" + name);
    const std::vector<float>& before = trained.before.at(name);
    for (std::size_t i = 0; i < after.size(); ++i) {
      squares += std::pow(double{momentum[i]}, 2);
      EXPECT_EQ(after[i], before[i] - 0.01f * momentum[i]) << name;
    }
  }
  EXPECT_EQ(trained.after.size(), 2 * tensors);
  EXPECT_NEAR(std::sqrt(squares), *layout.gradient_clip, 1e-5 * *layout.gradient_clip);
}

std::vector<MeshCase> both_shardings() {
  std::vector<MeshCase> out;
  for (MeshCase c : sharded_meshes()) {
    for (const ShardPolicy policy : {ShardPolicy::parameters, ShardPolicy::optimizer}) {
      c.shard_policy = policy;
      out.push_back(c);
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, OptimizerWithOneSlot, ::testing::ValuesIn(both_shardings()), CaseName());

// Momentum for matrices, plain gradient descent at a tenth of the rate for norms and biases: what differs is in flats
// of its own, with slots of its own. It counts its updates in a scalar that it keeps.
class ByGroup : public Momentum {
 public:
  std::string name() const override { return "by group"; }
  std::vector<optim::StateSlot> slots(const nn::Flat& flat) const override {
    return flat.spec().group == 0 ? Momentum::slots(flat) : std::vector<optim::StateSlot>();
  }
  void prepare(Stream& stream, const optim::Prepare& step) const override {
    Momentum::prepare(stream, step);
    OpRecord record{.name = "count", .kind = OpKind::optimizer};
    for (const TensorView& view : {step.skip, step.kept}) record.accesses.push_back(reads(view));
    record.accesses.push_back(writes(step.kept));
    stream.launch(std::move(record), [skip = step.skip, kept = step.kept] {
      if (*skip.data<std::int32_t>() == 0) kept.data<float>()[1] += 1;
    });
  }
  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    if (u.flat.spec().group == 0) return Momentum::update(stream, u);
    EXPECT_TRUE(u.slots.empty());
    OpRecord record{.name = "descent", .kind = OpKind::optimizer};
    for (const TensorView& view : {u.weights, u.gradient, u.scalars, u.coefficient, u.skip}) {
      record.accesses.push_back(reads(view));
    }
    record.accesses.push_back(writes(u.weights));
    if (!u.compute.empty()) record.accesses.push_back(writes(u.compute));
    const auto work = [weights = u.weights, gradient = u.gradient, compute = u.compute, rate = u.scalars,
                       coefficient = u.coefficient, skip = u.skip] {
      if (*skip.data<std::int32_t>() != 0) return;
      for (std::int64_t i = 0; i < weights.elements(); ++i) {
        weights.data<float>()[i] -= 0.1f * *rate.data<float>() * *coefficient.data<float>() * gradient.data<float>()[i];
        if (!compute.empty()) compute.data<Bf16>()[i] = Bf16(weights.data<float>()[i]);
      }
    };
    stream.launch(std::move(record), work);
  }
};

models::Model model_of_groups() {
  return models::Model(testing::toy_description(), [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.group = param.shape.rank() == 1 ? 1 : 0;
    return spec;
  });
}

using OptimizerGroups = CaseTest<MeshCase>;

TEST_P(OptimizerGroups, HaveSlotsAndUpdatesOfTheirOwn) {
  const models::Model model = model_of_groups();
  std::map<std::string, int> group;
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) group[segment.name] = flat.spec().group;
    }
  }
  const models::Model plain(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(GetParam(), model);
  layout.optimizer = std::make_shared<Momentum>();
  const Trained same = train(plain, layout, {.inputs = {0}});
  layout.optimizer = std::make_shared<ByGroup>();
  const Trained trained = train(model, layout, {.inputs = {0}});
  EXPECT_TRUE(trained.before.at("model.norm.weight") == same.before.at("model.norm.weight"));
  EXPECT_EQ(trained.progress.kept, (std::array<float, 4>{0, 1, 0, 0}));
  int checked = 0;
  for (const auto& [name, of] : group) {
    EXPECT_EQ(trained.after.count("optimizer/momentum/" + name), of == 0 ? 1u : 0u) << name;
    const std::vector<float>&before = trained.before.at(name), &now = trained.after.at(name),
          &other = same.after.at(name);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double change = double{other[i]} - before[i];
      ASSERT_NEAR(now[i] - before[i], of == 0 ? change : change / 10, 1e-3 * std::abs(change) + 1e-7) << name;
      ++checked;
    }
  }
  EXPECT_GT(checked, 1000);
}
INSTANTIATE_TEST_SUITE_P(Meshes, OptimizerGroups, ::testing::ValuesIn(sharded_meshes()), CaseName());

TEST(Optimizer, AStepWithoutAnUpdateLeavesWhatIsKept) {
  const models::Model model = model_of_groups();
  plan::LayoutChoices layout = clipped_layout(sharded_meshes().front(), model);
  layout.optimizer = std::make_shared<ByGroup>();
  layout.loss_scaling = {.growth_interval = 3};
  const Trained skipped = train(model, layout, {.inputs = {0}, .start = {.loss_scale = std::ldexp(1.0f, 100)}});
  EXPECT_EQ(skipped.progress.step, 0);
  EXPECT_EQ(skipped.progress.kept, (std::array<float, 4>{}));
}

using OptimizerUnderALossScale = CaseTest<MeshCase>;

// The loss scale starts so high that the first steps overflow. They change nothing and are not counted, so that the
// later ones equal those of a run without a loss scale to the bit: a power of two leaves every product exact.
TEST_P(OptimizerUnderALossScale, DoesNotCountSkippedSteps) {
  const models::Model model(testing::toy_description());
  static int skipped = 1;  // about as many steps on every mesh
  plan::LayoutChoices layout = clipped_layout(GetParam(), model);
  const Trained plain = train(model, layout);
  EXPECT_EQ(plain.progress.step, 3);
  layout.loss_scaling = {.growth_interval = 3};
  const float start = std::ldexp(1.0f, 65);
  Trained trained = train(model, layout, {.inputs = {0}, .start = {.loss_scale = start}});
  EXPECT_EQ(trained.progress.step, 0);
  EXPECT_EQ(trained.progress.loss_scale, start / 2);
  EXPECT_TRUE(trained.after == trained.before);
  std::vector<std::int64_t> inputs;
  for (int attempt = 0; attempt < 20; ++attempt) {
    inputs.assign(static_cast<std::size_t>(skipped), 0);
    inputs.insert(inputs.end(), {0, 1, 2});
    trained = train(model, layout, {.inputs = inputs, .start = {.loss_scale = start}});
    if (trained.progress.step == 3) break;
    skipped += trained.progress.step < 3 ? 1 : -1;
  }
  EXPECT_EQ(trained.progress.step, 3);
  EXPECT_EQ(trained.progress.good_steps, 0);  // the third good step doubled the scale
  EXPECT_EQ(trained.progress.loss_scale, std::ldexp(start, 4 - static_cast<int>(inputs.size())));
  EXPECT_TRUE(trained.after == plain.after);
}
INSTANTIATE_TEST_SUITE_P(Meshes, OptimizerUnderALossScale, ::testing::ValuesIn(sharded_meshes()), CaseName());

class Failing : public Momentum {
 public:
  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    HAWSER_CHECK(stream.kind() == DeviceKind::meta, "an update that fails");
    Momentum::update(stream, u);
  }
};

// The session is destroyed while its streams still work on the step so far, which uses its memory.
TEST(Optimizer, AnErrorWithinAStepIsReported) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(sharded_meshes().back(), model);
  layout.optimizer = std::make_shared<Failing>();
  for (int i = 0; i < 5; ++i) EXPECT_THROW(train(model, layout, {.inputs = {0}}), InternalError);
}

// What the host makes of it (train/fit.cpp): steps with an overflow are no divergence, the rules report nothing, and
// the metrics have no norm. At the minimum of the scale the run ends.
TEST(Optimizer, AnOverflowUnderALossScaleIsNoDivergence) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(sharded_meshes().back(), model);
  const auto ends = [&](const ops::LossScaling& scaling) {
    layout.loss_scaling = scaling;
    const auto mesh = rank_mesh(layout.mesh);
    plan::LayoutChoices own = layout;
    const testing::ToySteps steps(model, own, mesh->coordinate(), 2LL * own.data_ranks());
    const auto device = rank_device();
    engine::Session session(model, plan::derive(own, model), *device, *mesh, {step::Purpose::train});
    session.initialise(3);
    report::Rules rules({.steps = 60});
    std::string outcomes;
    float scale = static_cast<float>(scaling.initial);
    for (int step = 1; step <= 60 && outcomes.find('d') == std::string::npos; ++step) {
      step::StepInput input = steps.input(0);
      input.record.learning_rate = 0.01f;
      const step::StepOutput output = session.enqueue(step::Purpose::train, input);
      session.synchronize();
      report::StepMetrics metrics{.step = step,
                                  .loss = output.result->loss_sum.value() / static_cast<double>(steps.targets(0)),
                                  .grad_norm = output.result->gradient_norm,
                                  .targets = steps.targets(0),
                                  .loss_scale = scale};
      const train::Outcome outcome = train::outcome_of(metrics.loss, metrics.grad_norm, scale, scaling);
      metrics.overflow = outcome == train::Outcome::overflow;
      outcomes += outcome == train::Outcome::trained ? 't' : metrics.overflow ? 'o' : 'd';
      for (const report::Finding& finding : rules.step(metrics)) {
        EXPECT_EQ(outcome, train::Outcome::diverged) << finding.text;
        EXPECT_EQ(finding.rule, report::kNotANumber);
      }
      const auto line = report::from_json(report::to_json(metrics));
      EXPECT_EQ(line->overflow, metrics.overflow);
      EXPECT_EQ(std::isnan(line->grad_norm), outcome != train::Outcome::trained);
      EXPECT_EQ(line->loss_scale, scale);
      if (metrics.overflow) {
        EXPECT_LT(output.progress->loss_scale, scale);
      }
      scale = output.progress->loss_scale;
      if (outcomes.ends_with("ttt")) break;
    }
    return outcomes;
  };
  const double start = std::ldexp(1.0, 70);
  const std::string recovered = ends({.growth_interval = 100, .initial = start});
  EXPECT_TRUE(recovered.starts_with("ooo")) << recovered;
  EXPECT_EQ(recovered, std::string(recovered.size() - 3, 'o') + "ttt");
  EXPECT_EQ(ends({.growth_interval = 100, .initial = start, .minimum = start / 4}), "ood");
  EXPECT_EQ(ends({.growth_interval = 0, .initial = start}), "d");  // a static scale is never lowered
  EXPECT_NE(train::remedy_of(2, 1, {.growth_interval = 100}).find("overflows at the minimum loss scale 1;"),
            std::string::npos);
  EXPECT_TRUE(train::remedy_of(NAN, 1, {.growth_interval = 100}).starts_with("; try a lower"));
}

// Each group of parameters has the learning rate of its own; of groups that AdamW does not tell apart, that of group 0.
TEST(Optimizer, GroupsHaveLearningRatesOfTheirOwn) {
  const models::Model model(testing::toy_description(), [](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    spec.group = param.shape.rank() == 1 ? 3 : 0;
    return spec;
  });
  plan::LayoutChoices layout = clipped_layout(sharded_meshes().front(), model);
  layout.compute = DType::f32;
  step::LearningRates rates = 0.01f;
  rates.of[3] = 0;
  const auto moved = [&](int groups) {
    layout.optimizer = optim::make_adamw({.groups = groups});
    const Trained trained = train(model, layout, {.inputs = {0}, .rates = rates});
    std::array<int, 2> count{};  // tensors that changed, by rank - 1
    for (const models::HfTensor& tensor : models::hf_tensors(model)) {
      const bool changed = trained.after.at(tensor.name) != trained.before.at(tensor.name);
      count[static_cast<std::size_t>(tensor.shape.rank()) - 1] += changed ? 1 : 0;
    }
    return count;
  };
  const std::array<int, 2> all = moved(1), matrices = moved(4);
  EXPECT_GT(all[0], 5);
  EXPECT_EQ(matrices[0], 0);
  EXPECT_EQ(matrices[1], all[1]);
}

// A copy of the state is complete before the next training step, of whichever kind, changes what it copies.
TEST(Optimizer, UpdatesOfEachKindOfStepWaitForACopy) {
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = clipped_layout(sharded_meshes().front(), model);
  const auto mesh = rank_mesh(layout.mesh);
  const testing::ToySteps steps(model, layout, mesh->coordinate(), 2LL * layout.data_ranks());
  const auto device = rank_device();
  const engine::StepConfig config{.purpose = step::Purpose::train, .layout = plan::derive(layout, model)};
  engine::Session session(model, {config, config}, *device, *mesh);
  session.initialise(3);
  const auto copies = device->make_stream("copies");
  for (const std::size_t kind : {1u, 0u, 1u}) {
    std::vector<Event> copied;
    std::vector<std::vector<float>> copy(model.flats().size());
    const Tensors before = testing::assembled(session);
    std::vector<std::vector<float>> expected;
    for (std::size_t f = 0; f < model.flats().size(); ++f) {
      const TensorView weights = session.state().flat(static_cast<int>(f)).stored;
      expected.push_back(testing::floats_of(weights));
      copies->launch({.name = "copy", .kind = OpKind::host, .accesses = {reads(weights)}}, [&, f, weights] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        copy[f] = testing::floats_of(weights);
      });
      copied.push_back(copies->record_event());
    }
    session.hold_updates(copied);
    step::StepInput input = steps.input(0);
    input.record.learning_rate = 0.01f;
    session.enqueue(kind, input);
    session.synchronize();
    copies->synchronize();
    EXPECT_TRUE(copy == expected) << kind;
    EXPECT_FALSE(testing::assembled(session) == before) << kind;
  }
}

// What a recipe makes of a model is decided by the recipe in the checkpoint. Frozen weights are read from the base
// model.
TEST(Optimizer, ACheckpointIsOpenedWithTheChangesOfItsRecipe) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const std::string folder = golden_folder + "/tied";
  Recipe recipe;
  recipe.adapter = {.kind = AdapterKind::lora, .rank = 2, .targets = {"q_proj"}};
  Problems problems;
  engine::OpenModel open = engine::open_model(folder, false, problems, engine::changes_of(recipe));
  ASSERT_EQ(problems.lines(), "");
  plan::LayoutChoices layout;
  layout.batch_sizes = testing::toy_batch(1);
  layout.policies.assign(static_cast<std::size_t>(open.model->layers()), {});
  const auto device = rank_device();
  const auto mesh = comm::make_self_mesh();
  engine::Session session(*open.model, plan::derive(layout, *open.model), *device, *mesh, {step::Purpose::train});
  engine::load_weights(session, open, 7);
  const TemporaryFolder own;
  const auto save = [&](const std::string& base, const std::string& identity, int step) {
    return train::save(session, nullptr, {.root = own.path("checkpoints"), .keep = 3},
                       {.step = step,
                        .recipe = recipe_json(recipe),
                        .config = io::read_text(folder + "/config.json", 1 << 20),
                        .base = identity,
                        .base_model = base},
                       train::kSavedByRun);
  };
  const std::string saved = save(folder, engine::frozen_identity(open), 1);
  engine::OpenModel again = engine::open_trained_model(saved, problems);
  EXPECT_EQ(problems.lines(), "");
  ASSERT_NE(again.model, nullptr);
  EXPECT_EQ(again.model->parameters(), open.model->parameters());
  EXPECT_EQ(again.checkpoint->find("model.norm.weight"), nullptr);
  engine::Session other(*again.model, plan::derive(layout, *again.model), *device, *mesh, {step::Purpose::train});
  engine::load_weights(other, again);
  EXPECT_TRUE(testing::assembled(other) == testing::assembled(session));
  EXPECT_LT(engine::open_trained_model(folder, problems).model->parameters(), open.model->parameters());

  EXPECT_TRUE(problems.empty());
  engine::open_trained_model(save(folder, "1", 2), problems);
  EXPECT_NE(problems.lines().find("the frozen weights have changed"), std::string::npos) << problems.lines();
  Problems missing;
  engine::open_trained_model(save(own.path("none"), "", 3), missing);
  EXPECT_NE(missing.lines().find("the base model of the adapter is missing"), std::string::npos) << missing.lines();
}

// Two steps without a target leave the bias corrections of the next updates as they are.
TEST(Optimizer, AStepWithoutATargetIsNotCounted) {
  const models::Model model(testing::toy_description());
  const plan::LayoutChoices layout = clipped_layout(sharded_meshes().front(), model);
  const auto weights_after = [&](int skipped_before) {
    const auto mesh = rank_mesh(layout.mesh);
    plan::LayoutChoices own = layout;
    const testing::ToySteps steps(model, own, mesh->coordinate(), 2LL * own.data_ranks());
    const auto device = rank_device();
    engine::Session session(model, plan::derive(own, model), *device, *mesh, {step::Purpose::train});
    session.initialise(3);
    for (int step = -skipped_before; step < 2; ++step) {
      step::StepInput input = steps.input(std::max(0, step));
      input.record.learning_rate = 0.01f;
      input.skip = step < 0;
      session.enqueue(step::Purpose::train, input);
    }
    return testing::assembled(session);
  };
  EXPECT_TRUE(weights_after(2) == weights_after(0));
}

}  // namespace optimizer_test
}  // namespace hawser
