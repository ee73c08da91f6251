// The real layers with quantized Linears: weights, recompute, skipped steps, the mask of real rows.
#include "delayed_scaling.h"
#include "toy_training.h"

namespace hawser {
namespace quantized_layers_test {

using testing::assembled;
using testing::CaseName;
using testing::CaseTest;
using testing::clipped_layout;
using testing::DelayedScaling;
using testing::MeshCase;
using testing::sharded_meshes;
using testing::Tensors;

models::Model quantized_model(bool transposed = false, std::optional<DType> gathered = {}) {
  return models::Model(testing::toy_description(false), [=](const nn::Param& param) {
    nn::FlatSpec spec = nn::common_domain(param);
    if (!param.name.ends_with("_proj.weight")) return spec;
    spec.scaled = true;
    spec.transposed = transposed;
    spec.gathered = gathered;
    return spec;
  });
}

// Every Linear of every block.
void quantize_layers(plan::LayoutChoices& layout, const models::Model& model, DelayedScaling::Settings settings = {}) {
  layout.quantizer = std::make_shared<DelayedScaling>(settings);
  for (int layer = 0; layer < model.layers(); ++layer) {
    const bool attention = model.attention(layer) != nullptr;
    for (const nn::Site site : {attention ? nn::Site::qkv_projection : nn::Site::up_projection,
                                attention ? nn::Site::output_projection : nn::Site::down_projection}) {
      layout.policies[static_cast<std::size_t>(layer)].formats[static_cast<std::size_t>(site)] =
          LinearFormat::fp8_delayed;
    }
  }
}

// One step after another in one session of the world.
class LayerRun {
 public:
  LayerRun(const models::Model& model, plan::LayoutChoices layout)
      : layout_(std::move(layout)),
        mesh_(rank_mesh(layout_.mesh)),
        device_(rank_device({.random_delay_s = 2e-4, .delay_seed = 5})),
        steps_(model, layout_, mesh_->coordinate(), 2LL * layout_.data_ranks() * 2),
        session_(model, plan::derive(layout_, model), *device_, *mesh_, {step::Purpose::train}, std::nullopt,
                 {.replay = true}) {
    session_.initialise(3);
  }
  step::StepResult step(std::int64_t which, bool skip = false) {
    step::StepInput input = steps_.input(which);
    input.record.learning_rate = 0.01f;
    input.skip = skip;
    const step::StepOutput output = session_.enqueue(step::Purpose::train, input);
    session_.synchronize();
    return *output.result;
  }
  engine::Session& session() { return session_; }

 private:
  plan::LayoutChoices layout_;
  std::shared_ptr<comm::Mesh> mesh_;
  std::shared_ptr<Device> device_;
  testing::ToySteps steps_;
  engine::Session session_;
};

// A flat of all ranks, from their shards.
std::vector<float> unsharded(engine::Session& session, int flat, const TensorView& shard) {
  comm::Group& group = session.mesh().shard_gather(session.model().flat(flat).spec().domain);
  const Storage all(session.device(), shard.dtype(), {shard.elements() * group.size()});
  group.all_gather(session.stream(), shard, all);
  session.stream().synchronize();
  return testing::floats_of(all.view());
}

struct GatheredCase {
  MeshCase on;
  std::optional<DType> gathered = {};

  std::string name() const {
    return testing::joined(on.name(), testing::name_if(gathered.has_value(), "gathered_in_bf16"));
  }
  friend void PrintTo(const GatheredCase& c, std::ostream* out) { *out << c.name(); }
};

using QuantizedWeights = CaseTest<GatheredCase>;

// What ranks quantize shard by shard has the bits of the quantized whole; the scale is that of all elements, exactly.
TEST_P(QuantizedWeights, AreThoseOfTheGatheredWeights) {
  const models::Model model = quantized_model(false, GetParam().gathered);
  plan::LayoutChoices layout = clipped_layout(GetParam().on, model);
  quantize_layers(layout, model, {.powers_of_two = false});
  LayerRun run(model, layout);
  for (int steps = 0; steps < 2; ++steps) {
    int checked = 0;
    for (int f = 0; f < run.session().state().flats(); ++f) {
      const step::FlatState& state = run.session().state().flat(f);
      const nn::Flat& flat = model.flat(f);
      if (!state.quantized_after_updates()) continue;
      EXPECT_NE(state.compute.raw(), state.stored.raw());
      const std::vector<float> weights = unsharded(run.session(), f, state.stored);
      const std::vector<float> q = unsharded(run.session(), f, state.compute);
      if (!state.unsharded.empty()) {
        EXPECT_EQ(testing::floats_of(state.unsharded), q);
      }
      for (int p = 0; p < static_cast<int>(flat.params().size()); ++p, ++checked) {
        const auto begin = static_cast<std::size_t>(flat.offset(p));
        const auto end = begin + static_cast<std::size_t>(flat.params()[static_cast<std::size_t>(p)].elements());
        float amax = 0;
        for (std::size_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(weights[i]));
        const float scale = amax / testing::kLargestE4m3;
        ASSERT_EQ(state.scales.data<float>()[p], scale) << flat.name();
        std::size_t wrong = 0;
        for (std::size_t i = begin; i < end; ++i) wrong += q[i] == testing::to_e4m3(weights[i] / scale) ? 0 : 1;
        EXPECT_EQ(wrong, 0u) << flat.name();
      }
    }
    EXPECT_EQ(checked, 8);
    run.step(steps);
  }
}

std::vector<GatheredCase> both_dtypes() {
  std::vector<GatheredCase> out;
  for (MeshCase c : sharded_meshes()) {
    out.push_back({c});
    c.shard_policy = ShardPolicy::optimizer;
    out.push_back({c, DType::bf16});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, QuantizedWeights, ::testing::ValuesIn(both_dtypes()), CaseName());

struct MeshOfTwo {
  MeshCase on;
  bool last = false;  // of the meshes; one rank has only one

  std::string name() const { return testing::joined(last ? "last" : "first", on.name()); }
  friend void PrintTo(const MeshOfTwo& c, std::ostream* out) { *out << c.name(); }
};

using QuantizedRecompute = CaseTest<MeshOfTwo>;

// Recompute and delayed weight gradients leave every bit as it is.
TEST_P(QuantizedRecompute, DoesNotChangeABit) {
  const models::Model model = quantized_model();
  const auto states_of = [&](Checkpointing checkpointing, bool delayed) {
    plan::LayoutChoices layout = clipped_layout(GetParam().on, model);
    quantize_layers(layout, model);
    for (auto& policy : layout.policies) {
      policy.checkpointing = checkpointing;
      policy.delay_weight_gradients = delayed;
    }
    layout.schedule.group = delayed ? 2 : 1;
    LayerRun run(model, layout);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(run.step(i).skipped(), step::Skip::none);
    return assembled(run.session());
  };
  const Tensors plain = states_of(Checkpointing::none, false);
  EXPECT_GT(plain.at("quantization/amax_history/layer.3/down_projection/dy").front(), 0);
  EXPECT_NE(plain.at("quantization/scale/layer.0/qkv_projection/x").front(), 1);
  EXPECT_TRUE(states_of(Checkpointing::full, false) == plain);
  EXPECT_TRUE(states_of(Checkpointing::full, true) == plain);
}

std::vector<MeshOfTwo> first_and_last() {
  const std::vector<MeshCase> all = sharded_meshes();
  return {{all.front(), false}, {all.back(), true}};
}
INSTANTIATE_TEST_SUITE_P(Meshes, QuantizedRecompute, ::testing::ValuesIn(first_and_last()), CaseName());

// Backward gathers transposed weights only; with recompute, one gather serves both passes.
TEST(QuantizedLayers, BackwardGathersTransposedWeights) {
  if (the_world->size() > 1) GTEST_SKIP() << "one rank is enough";
  const models::Model model = quantized_model(true);
  plan::LayoutChoices layout = clipped_layout(sharded_meshes().front(), model);
  layout.mesh.shard = 2;
  quantize_layers(layout, model);
  const auto forms = [&](Checkpointing checkpointing) {
    for (auto& policy : layout.policies) policy.checkpointing = checkpointing;
    std::map<program::WeightForm, int> count;
    const auto options = plan::schedule_options(plan::derive(layout, model), step::Purpose::train);
    for (const program::Instruction& instruction : step::make_program(model, options).instructions) {
      if (instruction.op == program::Op::gather) ++count[instruction.form];
      EXPECT_TRUE(instruction.form == program::WeightForm::rows || model.flat(instruction.flat).spec().transposed);
    }
    return count;
  };
  using enum program::WeightForm;
  const auto without = forms(Checkpointing::none), with = forms(Checkpointing::full);
  EXPECT_EQ(without.at(transposed), 2);  // of two blocks
  EXPECT_EQ(without.count(both), 0u);
  EXPECT_EQ(with.at(both), 2);
  EXPECT_EQ(with.count(transposed), 0u);
}

// A step with an overflow, or without a target, leaves weights, scales and histories, and names its reason.
TEST(QuantizedLayers, SkippedStepsPushNothing) {
  const models::Model model = quantized_model();
  plan::LayoutChoices layout = clipped_layout(sharded_meshes().back(), model);
  layout.loss_scaling = {.growth_interval = 1000};
  quantize_layers(layout, model);
  LayerRun run(model, layout);
  EXPECT_EQ(run.step(0).skipped(), step::Skip::none);
  const Tensors before = assembled(run.session());
  run.session().set_progress({.step = 1, .loss_scale = std::ldexp(1.0f, 120)});
  EXPECT_EQ(run.step(1).skipped(), step::Skip::overflow);
  EXPECT_TRUE(assembled(run.session()) == before);
  run.session().set_progress({.step = 1});
  EXPECT_EQ(run.step(1, true).skipped(), step::Skip::no_target);
  EXPECT_TRUE(assembled(run.session()) == before);
  EXPECT_EQ(run.step(1).skipped(), step::Skip::none);
  EXPECT_FALSE(assembled(run.session()) == before);
}

using DiagonalSegments = CaseTest<MeshCase>;

// The diagonal table is the mask of the rows that are no padding: each in one segment, over all ranks.
TEST_P(DiagonalSegments, HaveEachRealRowOnce) {
  const models::Model model = quantized_model();
  plan::LayoutChoices layout = clipped_layout(GetParam(), model);
  const auto mesh = rank_mesh(layout.mesh);
  const std::int64_t batch = 2LL * layout.data_ranks() * 2;
  const testing::ToySteps steps(model, layout, mesh->coordinate(), batch);
  std::ostringstream mine;
  for (const auto& micro_batch : steps.input(0).batches) {
    std::vector<int> seen(micro_batch->ids.size());
    for (std::size_t s = 0; s < micro_batch->diagonal.size(); s += step::kSegmentNumbers) {
      for (int row = 0; row < micro_batch->diagonal[s + 1]; ++row) {
        ++seen[static_cast<std::size_t>(micro_batch->diagonal[s] + row)];
      }
    }
    EXPECT_TRUE(std::ranges::all_of(seen, [](int count) { return count <= 1; }));
    mine << std::count(seen.begin(), seen.end(), 1) << ' ';
  }
  std::int64_t rows = 0, tokens = 0;
  for (const std::string& theirs : the_world->all_gather_strings(mine.str())) {
    std::istringstream in(theirs);
    for (std::int64_t count = 0; in >> count;) rows += count;
  }
  const testing::ToySequences sequences(4 * batch, testing::kToyLength, testing::kToyDocuments);
  for (std::int64_t i = 0; i < batch; ++i) tokens += static_cast<std::int64_t>(sequences.get(i).ids.size());
  EXPECT_EQ(rows, tokens);
}
INSTANTIATE_TEST_SUITE_P(Meshes, DiagonalSegments, ::testing::ValuesIn(sharded_meshes()), CaseName());

}  // namespace quantized_layers_test
}  // namespace hawser
