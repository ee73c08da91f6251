// FP8 training of experts, on ranks that have all of them or some: each expert's weight has a scale of its own, which
// does not depend on the ranks.
#include <span>

#include "base/testing/temporary_folder.h"
#include "checkpoint/root.h"
#include "engine/load_state.h"
#include "experts_case.h"
#include "fp8_experts_case.h"
#include "train/saver.h"
#include "two_pass_fp8.h"

namespace hawser {
namespace fp8_experts_test {

using testing::assembled;
using testing::MeshCase;
using testing::Tensors;
using namespace testing::fp8_experts;

struct GradientCase {
  MeshCase on;
  int sequences = 2;            // of a micro-batch: one micro-batch of two, or two of one
  bool quantized_rows = false;  // that tensor ranks send

  std::string name() const {
    return testing::joined(on.name(), testing::name_if(sequences == 1, "one_sequence"),
                           testing::name_if(quantized_rows, "quantized_rows"));
  }
  friend void PrintTo(const GradientCase& c, std::ostream* out) { *out << c.name(); }
};

using Fp8ExpertGradients = testing::CaseTest<GradientCase>;

// What another mesh changes of the gradients is less than a quarter of what FP8 changes of them.
TEST_P(Fp8ExpertGradients, AreNearThoseOfOneRank) {
  const MeshCase& c = GetParam().on;
  const models::Model plain = model_of({}, false), model = model_of({});
  plan::LayoutChoices exact_layout = layout_of(model, {});
  for (nn::SavePolicy& policy : exact_layout.policies) policy.formats = {}, policy.fp8_inputs = false;
  exact_layout.quantizer = nullptr;
  const auto first_step = [](const models::Model& of, const plan::LayoutChoices& layout) {
    return testing::on_one_rank([&] {
      ExpertRun run(of, layout, true);
      const double loss = run.step(0);
      return std::pair(loss, run.gradients(true));
    });
  };
  static const auto exact = first_step(plain, exact_layout), one = first_step(model, layout_of(model, {}));
  const auto& [exact_loss, of_exact] = exact;
  const auto& [one_loss, of_one] = one;
  EXPECT_NEAR(one_loss, exact_loss, 0.02 * exact_loss);
  const auto experts = [](const Tensors& all, bool wanted) {
    Tensors out;
    for (const auto& [name, values] : all) {
      if ((name.find(".experts.") != std::string::npos) == wanted) out[name] = values;
    }
    return out;
  };
  const models::Model part = model_of(c.mesh);
  plan::LayoutChoices layout = layout_of(part, c.mesh, {.saturation_limit = 1}, c.pieces, GetParam().quantized_rows);
  for (nn::SavePolicy& policy : layout.policies) {
    policy.checkpointing = c.policy.checkpointing;
    policy.delay_weight_gradients = c.policy.delay_weight_gradients;
  }
  layout.batch_sizes.sequences = GetParam().sequences;
  ExpertRun run(part, layout);
  EXPECT_NEAR(run.step(0), one_loss, 1e-3 * one_loss);
  const Tensors got = run.gradients();
  for (const bool of_experts : {false, true}) {
    const Tensors expected = experts(of_one, of_experts);
    const double of_fp8 = testing::difference(experts(of_exact, of_experts), expected);
    EXPECT_GT(of_fp8, 0.01);
    EXPECT_LT(testing::difference(experts(got, of_experts), expected), 0.25 * of_fp8)
        << (of_experts ? "experts" : "others");
  }
}

std::vector<GradientCase> in_turn() {
  std::vector<GradientCase> out;
  if (the_world->size() > 4) return out;  // long on eight ranks
  for (const comm::MeshSizes& mesh : all_meshes()) {
    const int turn = the_world->size() + static_cast<int>(out.size());
    const Checkpointing checkpointing = turn % 3 == 0   ? Checkpointing::full
                                        : turn % 3 == 1 ? Checkpointing::none
                                                        : Checkpointing::selective;
    out.push_back({{.mesh = mesh,
                    .policy = {.checkpointing = checkpointing, .delay_weight_gradients = turn % 4 == 3},
                    .pieces = turn % 2 == 0 ? 1 : 2},
                   turn % 2 == 0 ? 1 : 2,
                   mesh.tensor > 1});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(InTurn, Fp8ExpertGradients, ::testing::ValuesIn(in_turn()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8ExpertGradients);

struct WayToCompute {
  MeshCase on;
  Fp8Scaling scaling = Fp8Scaling::delayed;

  std::string name() const {
    return testing::joined(scaling == Fp8Scaling::delayed ? "delayed_scaling" : "current_scaling", on.name());
  }
  friend void PrintTo(const WayToCompute& c, std::ostream* out) { *out << c.name(); }
};

using Fp8ExpertBits = testing::CaseTest<WayToCompute>;

// Ops that write FP8, and every way to recompute, have the bits of rows that are written first and then rounded.
TEST_P(Fp8ExpertBits, AreThoseOfEveryWayToCompute) {
  const MeshCase& c = GetParam().on;
  const models::Model model = model_of(c.mesh);
  const auto states_of = [&](const nn::SavePolicy& of, bool two_passes) {
    plan::LayoutChoices layout =
        layout_of(model, c.mesh, {.scaling = GetParam().scaling, .saturation_limit = 1}, c.pieces);
    if (two_passes) layout.quantizer = std::make_shared<testing::TwoPassFp8>(nn::Fp8Options{});
    for (nn::SavePolicy& policy : layout.policies) {
      policy.checkpointing = of.checkpointing;
      policy.delay_weight_gradients = of.delay_weight_gradients;
    }
    ExpertRun run(model, layout);
    run.step(0);
    run.step(1);
    return assembled(run.session());
  };
  static std::map<std::pair<std::string, Fp8Scaling>, Tensors> references;
  Tensors& expected = references[{testing::name_of(c.mesh), GetParam().scaling}];
  if (expected.empty()) expected = states_of({}, true);
  EXPECT_TRUE(states_of(c.policy, false) == expected);
}

std::vector<WayToCompute> ways_to_compute() {
  std::vector<WayToCompute> out;
  if (the_world->size() > 4 || the_world->size() == 1) return out;
  constexpr std::array kWays = {Checkpointing::none, Checkpointing::selective, Checkpointing::gate_up,
                                Checkpointing::full};
  for (const comm::MeshSizes& mesh : two_meshes()) {
    for (const Fp8Scaling scaling : {Fp8Scaling::delayed, Fp8Scaling::current}) {
      for (std::size_t i = 0; i < (the_world->size() > 2 ? 1 : kWays.size()); ++i) {
        const std::size_t turn = static_cast<std::size_t>(the_world->size()) + out.size();
        out.push_back({{.mesh = mesh,
                        .policy = {.checkpointing = kWays[turn % kWays.size()],
                                   .delay_weight_gradients = turn / kWays.size() % 2 == 1},
                        .pieces = 2},
                       scaling});
      }
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8ExpertBits, ::testing::ValuesIn(ways_to_compute()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8ExpertBits);

// A step that is refused for its rows is not judged, and changes neither histories nor scales. Run again, it saturates
// and is replayed as often as in a run without a bound.
TEST(Fp8Experts, ARefusedStepIsNotJudged) {
  if (the_world->size() != 2) GTEST_SKIP() << "two ranks are enough";
  const comm::MeshSizes mesh{.shard = 2, .expert = 2};
  models::ModelDescription d = testing::toy_with_experts(2, 1);
  for (models::BlockDescription& block : d.blocks) {
    block.moe->auxiliary_loss = block.moe->router_z_loss = 0;
    block.moe->experts_shard = {.index = the_world->rank().value(), .count = 2};
  }
  const models::Model model(d, spec_of(mesh, true, Train::all, nullptr));
  struct Result {
    int refused = 0;
    std::vector<int> replays;  // after each run of a step that was not refused
    step::OptimizerProgress progress;
    Tensors states;
    std::vector<std::vector<float>> tables;
  };
  const auto run = [&](std::optional<double> bound) {
    plan::LayoutChoices layout = layout_of(model, mesh);
    nn::Fp8Options options;
    options.saturation_limit = 0.1f;
    options.max_replays = 1;
    layout.quantizer = std::make_shared<nn::Fp8Scaling>(options);
    layout.expert_row_bound = bound;
    layout.batch_sizes.sequences = 6;
    ExpertRun steps(model, layout, false, 12);
    engine::Session& session = steps.session();
    // Equal logits choose the first expert.
    testing::set_weights(session, model, [](const std::string& name, std::int64_t) {
      return name.ends_with("block_sparse_moe.gate.weight") ? 0.0f : NAN;
    });
    Result result;
    for (std::int64_t step = 0; step < 4;) {
      if (step == 2) {  // every run of it saturates
        for (const step::StateTable& table : session.state().tables()) {
          if (table.name.starts_with("quantization/scale/")) *table.view.data<float>() = 0x1p-20f;
        }
      }
      step::StepOutput output = session.enqueue(step::Purpose::train, steps.input(step));
      session.synchronize();
      if (output.result->skipped() == step::Skip::refused) {
        ++result.refused;
        output = session.enqueue_refused(step::Purpose::train, steps.input(step));
        session.synchronize();
      }
      result.progress = *output.progress;
      result.replays.push_back(result.progress.replays);
      HAWSER_CHECK(result.replays.size() < 8, "a step is replayed again and again");
      if (output.result->skipped() == step::Skip::saturated) continue;
      EXPECT_EQ(output.result->skipped(), step::Skip::none);
      ++step;
    }
    result.states = assembled(session);
    for (const step::StateTable& table : session.state().tables()) {
      result.tables.push_back(testing::floats_of(table.view));
    }
    return result;
  };
  const Result bounded = run(1.3), unbounded = run(std::nullopt);
  EXPECT_EQ(unbounded.refused, 0);
  EXPECT_EQ(unbounded.replays, (std::vector{0, 0, 1, 0, 0}));
  EXPECT_GE(bounded.refused, 3);  // the step that saturates, each time
  EXPECT_EQ(bounded.replays, unbounded.replays);
  EXPECT_EQ(std::memcmp(&bounded.progress, &unbounded.progress, sizeof(bounded.progress)), 0);
  EXPECT_TRUE(bounded.states == unbounded.states);
  EXPECT_EQ(bounded.tables, unbounded.tables);
}

using Fp8ExpertsOfCheckpoint = testing::CaseTest<testing::TwoMeshes>;

// A run that was saved where ranks have some of the experts resumes where each has all, and the other way around.
TEST_P(Fp8ExpertsOfCheckpoint, ResumeOnAnotherMesh) {
  const comm::MeshSizes from = GetParam().from.mesh, to = GetParam().to.mesh;
  const models::Model before = model_of(from), after = model_of(to);
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  ExpertRun first(before, layout_of(before, from, {.saturation_limit = 1}, 2));
  first.step(0);
  first.step(1);
  train::save(first.session(), the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  ExpertRun second(after, layout_of(after, to));
  engine::load(second.session(), checkpoint);
  const Tensors saved = assembled(first.session());
  EXPECT_TRUE(assembled(second.session()) == saved);
  int scales = 0;
  for (const auto& [name, values] : saved) {
    if (!name.starts_with("scale/") || name.find(".experts.") == std::string::npos) continue;
    EXPECT_EQ(values.size(), 1u) << name;
    EXPECT_NE(values[0], 1) << name;
    ++scales;
  }
  EXPECT_EQ(scales, 2 * 3 * kExperts);  // of three tensors of each expert in two blocks
  const double loss = first.step(2);
  EXPECT_NEAR(second.step(2), loss, 1e-3 * loss);
}

std::vector<testing::TwoMeshes> both_ways() {
  if (the_world->size() > 4 || the_world->size() == 1) return {};
  return testing::each_to_next({{.mesh = two_meshes().back()}, {.mesh = two_meshes().front()}});
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8ExpertsOfCheckpoint, ::testing::ValuesIn(both_ways()), testing::CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8ExpertsOfCheckpoint);

std::vector<MeshCase> cases_of_two_meshes() {
  std::vector<MeshCase> out;
  for (const comm::MeshSizes& mesh : two_meshes()) out.push_back({.mesh = mesh});
  return out;
}

engine::Fp8Exclusions exclusions_of(const std::vector<std::string>& names, const std::vector<std::string>& fallbacks) {
  Recipe recipe;
  recipe.precision.fp8.exclude = names;
  Problems problems;
  engine::Fp8Exclusions out(recipe, fallbacks, problems);
  EXPECT_EQ(problems.lines(), "");
  return out;
}

// The name of one expert excludes that projection of all, also on ranks that have others; so does a fallback, whose
// names one rank stores for all. The run is that of ranks that have all experts.
TEST(Fp8Experts, NamesOfOneRanksExpertsHoldForAllRanks) {
  if (the_world->size() > 4 || the_world->size() == 1) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  const comm::MeshSizes together = two_meshes().front(), apart{.shard = the_world->size(), .expert = the_world->size()};
  const std::vector<std::string> fallback = models::modules_at(model_of(apart), 3, nn::Site::up_projection);
  EXPECT_EQ(fallback.size(), 2u * kExperts);
  EXPECT_EQ(fallback, models::modules_at(model_of(together), 3, nn::Site::up_projection));
  const std::vector<std::string> last = {fallback.rbegin()[1], fallback.back()};  // experts of the last rank
  const engine::Fp8Exclusions exclusions = exclusions_of({"model.layers.0.block_sparse_moe.experts.0.w2"}, last);
  std::vector<double> losses;
  for (const comm::MeshSizes& mesh : {together, apart}) {
    const models::Model model = model_of(mesh, true, Train::all, &exclusions);
    const plan::LayoutChoices layout = layout_of(model, mesh);
    std::string sites;
    for (const step::ScaledSite& site : plan::scaled_sites(plan::derive(layout, model)))
      sites += step::scale_table(site) + " ";
    for (const std::string& other : the_world->all_gather_strings(sites)) EXPECT_EQ(other, sites);
    EXPECT_EQ(sites.find("layer.1/down_projection"), std::string::npos) << sites;
    EXPECT_NE(sites.find("layer.1/up_projection"), std::string::npos) << sites;
    EXPECT_NE(sites.find("layer.3/down_projection"), std::string::npos) << sites;
    EXPECT_EQ(sites.find("layer.3/up_projection"), std::string::npos) << sites;
    ExpertRun run(model, layout);
    for (int i = 0; i < 2; ++i) losses.push_back(run.step(i));
  }
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(losses[2 + i], losses[i], 1e-3 * losses[i]);
}

// Runs of earlier versions computed experts in the compute dtype: they resume without experts in FP8, as the line says.
TEST(Fp8Experts, ARunThatHadThemNotSaysWhatToExclude) {
  if (the_world->size() > 4) GTEST_SKIP() << "mesh_1, mesh_2 and mesh_4 run it";
  const comm::MeshSizes mesh = two_meshes().back();
  for (const Fp8Scaling scaling : {Fp8Scaling::delayed, Fp8Scaling::current}) {
    const Fp8Recipe recipe{.scaling = scaling, .saturation_limit = 1};
    const engine::Fp8Exclusions exclusions = exclusions_of({"o_proj", ".*experts.*"}, {});
    const models::Model before = model_of(mesh, true, Train::all, &exclusions), now = model_of(mesh);
    const TemporaryFolder own;
    const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
    ExpertRun first(before, layout_of(before, mesh, recipe));
    first.step(0);
    train::save(first.session(), the_world, {.root = root}, {.step = 1, .recipe = "{}", .config = "{}"});
    checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
    EXPECT_EQ(engine::missing_scales(first.session(), checkpoint, {"o_proj"}).lines(), "");
    const engine::Fp8Exclusions o_proj = exclusions_of({"o_proj"}, {});
    const models::Model in_fp8 = model_of(mesh, true, Train::all, &o_proj);
    ExpertRun second(in_fp8, layout_of(in_fp8, mesh, recipe));
    EXPECT_EQ(engine::missing_scales(second.session(), checkpoint, {"o_proj"}).lines(),
              cat(checkpoint.folder(),
                  ": the precision has changed (expected w1, w3, w2 in float32, got FP8) at precision.fp8.exclude; try "
                  "--set 'precision.fp8.exclude=[\"o_proj\",\".*experts.*\"]', or --set output=... for a new run"));
    ExpertRun third(before, layout_of(before, mesh, recipe));
    engine::load(third.session(), checkpoint);
    EXPECT_TRUE(assembled(third.session()) == assembled(first.session()));
  }
}

using Fp8FrozenExperts = testing::CaseTest<MeshCase>;

// Frozen experts are quantized once, to what trained ones begin with, and no gradient of theirs is computed.
TEST_P(Fp8FrozenExperts, AreQuantizedAsTheyAreLoaded) {
  const comm::MeshSizes& mesh = GetParam().mesh;
  const models::Model trained = model_of(mesh), frozen = model_of(mesh, true, Train::but_experts);
  const auto weights_of = [](const models::Model& model, ExpertRun& run) {
    Tensors out;
    for (int f = 0; f < run.session().state().flats(); ++f) {
      const step::FlatState& state = run.session().state().flat(f);
      const nn::Flat& flat = model.flat(f);
      for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
        const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
        if (param.matrices == 0) continue;
        EXPECT_EQ(state.quantized_on_load(), !flat.spec().trainable);
        out[param.name] = testing::floats_of(flat.view(state.unsharded, p));
        out[param.name + " transposed"] = testing::floats_of(flat.transposed_view(state.transposed, p));
        out[param.name + " scales"] = testing::floats_of(run.session().state().gemm_scale(f, p));
      }
    }
    return out;
  };
  const auto layout = [&](const models::Model& model) {
    plan::LayoutChoices out = layout_of(model, mesh);
    out.shard_policy = ShardPolicy::optimizer;  // unsharded weights on every rank
    return out;
  };
  ExpertRun of_trained(trained, layout(trained)), of_frozen(frozen, layout(frozen));
  const Tensors weights = weights_of(frozen, of_frozen);
  EXPECT_EQ(weights.size(), 2u * 2 * 3);
  EXPECT_TRUE(weights == weights_of(trained, of_trained));
  EXPECT_EQ(of_frozen.step(0), of_trained.step(0));
  EXPECT_NE(of_frozen.step(1), of_trained.step(1));
  EXPECT_TRUE(weights_of(frozen, of_frozen) == weights);
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8FrozenExperts, ::testing::ValuesIn(cases_of_two_meshes()), testing::CaseName());

using Fp8ExpertWeights = testing::CaseTest<MeshCase>;

// What the experts' GEMMs read is the cast of each expert's master weight with its own scale, and its transpose.
TEST_P(Fp8ExpertWeights, AreCastsOfEachExpert) {
  const comm::MeshSizes& mesh = GetParam().mesh;
  const models::Model model = model_of(mesh);
  plan::LayoutChoices layout = layout_of(model, mesh);
  layout.shard_policy = ShardPolicy::optimizer;  // unsharded weights on every rank
  ExpertRun run(model, layout);
  run.step(0);
  const Tensors states = assembled(run.session());
  int checked = 0;
  for (int f = 0; f < run.session().state().flats(); ++f) {
    const step::FlatState& state = run.session().state().flat(f);
    const nn::Flat& flat = model.flat(f);
    for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
      const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
      if (param.matrices == 0) continue;
      ASSERT_TRUE(state.quantized_after_updates());
      const auto* const q = flat.view(state.unsharded, p).data<F8E4M3>();
      const auto* const t = flat.transposed_view(state.transposed, p).data<F8E4M3>();
      const std::int64_t rows = param.shape[0] / param.gemm_matrices(), columns = param.shape[1];
      for (const nn::Segment& segment : param.segments) {
        const std::vector<float>& masters = states.at(segment.name);
        const std::int64_t part = segment.row / rows;
        const float scale = state.scales.data<float>()[flat.scale_offset(p) + part], inverse = 1.0f / scale;
        EXPECT_EQ(run.session().state().gemm_scale(f, p).data<float>()[part], scale);
        for (std::int64_t i = 0; i < segment.rows * columns; ++i) {
          const std::int64_t row = segment.row + i / columns, column = i % columns;
          const F8E4M3 expected(masters[static_cast<std::size_t>(i)] * inverse);
          ASSERT_EQ(q[row * columns + column].bits, expected.bits) << segment.name;
          ASSERT_EQ(t[(part * columns + column) * rows + row % rows].bits, expected.bits) << segment.name;
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked, 0);
}
INSTANTIATE_TEST_SUITE_P(Meshes, Fp8ExpertWeights, ::testing::ValuesIn(cases_of_two_meshes()), testing::CaseName());

}  // namespace fp8_experts_test
}  // namespace hawser
