// Steps, sessions and checkpoints on a GPU, compared with the CPU. On hosts without the sources, the folder of golden
// cases is an argument: session_cuda_test --golden=tests/golden/tiny
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "engine/gemm_algorithms.h"
#include "engine/host_copy.h"
#include "engine/load_state.h"
#include "parity/fp8_golden.h"
#include "parity/golden.h"
#include "plan/support.h"
#include "support/exchanging_adamw.h"
#include "train/saver.h"
#include "train/snapshot.h"

namespace hawser {
namespace session_cuda_test {

namespace fs = std::filesystem;

fs::path golden = fs::path(testing::kSourceFolder) / "tests/golden/tiny";

constexpr engine::RankDevice kGpu{.kind = DeviceKind::cuda};

std::vector<std::string> cases() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(golden, error)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

evaluate::EvaluateRequest request_of(const std::string& name, ComputePrecision compute,
                                     const engine::RankDevice& device) {
  const nlohmann::json expected = testing::read_json(golden / name / "expected.json");
  evaluate::EvaluateRequest request{.model = (golden / name).string(),
                                    .data = (golden / name / "data.jsonl").string(),
                                    .sequence_length = expected.value("sequence_length", 4096),
                                    .gradient_norms = true,
                                    .device = device};
  request.recipe.precision.compute = compute;
  return request;
}

// The bounds of tests/parity, which apply to float32 on any device.
TEST(SessionCuda, LossAndGradientsInFloat32EqualTransformers) {
  ASSERT_FALSE(cases().empty()) << golden << " holds no cases";
  for (const std::string& name : cases()) {
    SCOPED_TRACE(name);
    const nlohmann::json expected = testing::read_json(golden / name / "expected.json");
    evaluate::EvaluateRequest request = request_of(name, ComputePrecision::float32, kGpu);
    std::map<std::string, std::vector<double>> projections;
    const evaluate::Evaluation result = evaluate::evaluate(request, nullptr, [&](engine::Session& session) {
      projections = testing::gradient_projections(session, evaluate::gradient_purpose(session.model()));
    });
    EXPECT_EQ(result.tokens, expected["tokens"].get<std::int64_t>());
    ASSERT_FALSE(result.notes.empty());
    EXPECT_EQ(result.notes.front(), "attention_forward: plain (float32 operands; precision.compute: bf16 avoids it)");
    const double loss = expected["loss"];
    EXPECT_NEAR(result.loss, loss, 1e-5 * loss);
    EXPECT_EQ(result.gradient_norms.size(), expected["gradient_norms"].size());
    for (const auto& [tensor, value] : result.gradient_norms) {
      const double norm = expected["gradient_norms"][tensor];
      EXPECT_NEAR(value, norm, 1e-4 * norm + 1e-8) << tensor;
      const auto reference = expected["projections"][tensor].get<std::vector<double>>();
      EXPECT_LT(testing::projected_distance(projections.at(tensor), reference), 1e-4 * norm + 1e-8) << tensor;
    }
    request.gradient_norms = false;
    EXPECT_NEAR(evaluate::evaluate(request, nullptr).loss, loss, 1e-5 * loss);
  }
}

// Both devices round every activation to bf16 (a relative error of 2^-9), at slightly different values, since their
// sums have a different order. Over a few layers of a tiny model that is 1% of the loss, and 5% of a gradient or 1% of
// the largest one.
TEST(SessionCuda, Bf16FollowsTheCpuWithinItsRounding) {
  for (const std::string& name : cases()) {
    SCOPED_TRACE(name);
    const evaluate::Evaluation gpu = evaluate::evaluate(request_of(name, ComputePrecision::bf16, kGpu), nullptr);
    const evaluate::Evaluation cpu = evaluate::evaluate(request_of(name, ComputePrecision::bf16, {}), nullptr);
    EXPECT_EQ(gpu.tokens, cpu.tokens);
    EXPECT_NEAR(gpu.loss, cpu.loss, 0.01 * cpu.loss);
    double largest = 0;
    for (const auto& [tensor, norm] : cpu.gradient_norms) largest = std::max(largest, norm);
    ASSERT_EQ(gpu.gradient_norms.size(), cpu.gradient_norms.size());
    for (std::size_t i = 0; i < cpu.gradient_norms.size(); ++i) {
      const auto& [tensor, norm] = cpu.gradient_norms[i];
      EXPECT_NEAR(gpu.gradient_norms[i].second, norm, std::max(0.05 * norm, 0.01 * largest)) << tensor;
    }
  }
}

// The golden models whose sizes FP8 takes on a GPU, on a GPU and on the CPU: Llamas, and of a bundle those of other
// families with such sizes.
TEST(SessionCuda, Fp8FollowsTransformers) {
  int checked = 0;
  for (const std::string& name : cases()) {
    const nlohmann::json config = testing::read_json(golden / name / "config.json");
    const auto fits = [&](const char* key) { return !config.contains(key) || config[key].get<int>() % 16 == 0; };
    if (!config.contains("hidden_size") || !config.contains("intermediate_size")) continue;
    if (!fits("hidden_size") || !fits("intermediate_size") || !fits("moe_intermediate_size")) continue;
    testing::expect_fp8_follows_transformers(golden / name, kGpu);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

struct Curve {
  std::vector<double> losses;
  std::int64_t allocations = 0;  // inside the steps
};

models::ModelDescription small_llama() {
  return testing::llama_description({.width = 128, .head_dim = 32, .inner = 352});
}

Curve curve(const engine::RankDevice& place, testing::LayoutOptions options, int steps,
            engine::SessionChecks checks = {.replay = false, .guard = false},
            const std::shared_ptr<const optim::Optimizer>& optimizer = optim::make_adamw(),
            const models::ModelDescription& description = small_llama()) {
  const models::Model model(description);
  plan::LayoutChoices layout = testing::make_test_layout(options, model);
  layout.device = place.kind;
  layout.optimizer = optimizer;
  layout.reduce_dtype = plan::default_reduce_dtype(place.kind, layout.compute);
  const auto device = engine::make_device(place, 1);
  const auto mesh = comm::make_self_mesh();
  engine::prepare_gemms(model, plan::derive(layout, model), *device);
  engine::Session session(model, plan::derive(layout, model), *device, *mesh,
                          {step::Purpose::train, step::Purpose::loss}, std::nullopt, checks);
  testing::Steps run(session);
  Curve out;
  const std::int64_t before = device->allocations();
  for (int step = 0; step < steps; ++step) out.losses.push_back(run.run(step::Purpose::train));
  out.losses.push_back(run.run(step::Purpose::loss));
  out.allocations = device->allocations() - before;
  return out;
}

TEST(SessionCuda, TwentyStepsFollowTheCpu) {
  for (const auto& [compute, max] : {std::pair{DType::f32, 1e-3}, std::pair{DType::bf16, 1e-2}}) {
    const testing::LayoutOptions options{.length = 96, .sequences = 2, .micro_batches = 2, .compute = compute};
    const Curve gpu = curve(kGpu, options, 20), cpu = curve({}, options, 20);
    EXPECT_LT(cpu.losses.back(), 0.98 * cpu.losses.front());  // the loss decreases
    for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
      EXPECT_NEAR(gpu.losses[i], cpu.losses[i], max * cpu.losses[i]) << to_string(compute) << ", step " << i;
    }
  }
}

// Parallel blocks with one norm for both layers, of either kind: both add to one gradient.
TEST(SessionCuda, StepsWithOneNormOfParallelBlocksFollowTheCpu) {
  models::ModelDescription description = small_llama();
  for (models::BlockDescription& block : description.blocks) {
    if (&block == &description.blocks.front()) {
      block.attention.norm_config = block.mlp.norm_config = {.kind = nn::NormKind::layer, .bias = true};
    }
    block.mlp.norm = block.attention.norm;
    block.residual = models::Residual::parallel_one_norm;
  }
  for (const Checkpointing checkpointing : {Checkpointing::none, Checkpointing::full}) {
    for (const auto& [compute, max] : {std::pair{DType::f32, 1e-3}, std::pair{DType::bf16, 1e-2}}) {
      const testing::LayoutOptions options{
          .length = 96, .sequences = 2, .checkpointing = checkpointing, .micro_batches = 2, .compute = compute};
      const auto curve_on = [&](const engine::RankDevice& place) {
        return curve(place, options, 20, {.replay = false, .guard = false}, optim::make_adamw(), description);
      };
      const Curve gpu = curve_on(kGpu), cpu = curve_on({});
      EXPECT_LT(cpu.losses.back(), 0.98 * cpu.losses.front());  // the loss decreases
      for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
        EXPECT_NEAR(gpu.losses[i], cpu.losses[i], max * cpu.losses[i]) << to_string(compute) << ", step " << i;
      }
    }
  }
}

// The curves may differ in the last bits: each measures its own choice of GEMM algorithms.
TEST(SessionCuda, AnUpdateOfSeveralPhasesEqualsOneOfOne) {
  for (const auto& [compute, max] : {std::pair{DType::f32, 1e-5}, std::pair{DType::bf16, 1e-2}}) {
    const testing::LayoutOptions options{.length = 96, .sequences = 2, .compute = compute};
    const Curve one = curve(kGpu, options, 4), several = curve(kGpu, options, 4, {.replay = true, .guard = false},
                                                               std::make_shared<testing::ExchangingAdamW>());
    for (std::size_t i = 0; i < one.losses.size(); ++i) {
      EXPECT_NEAR(several.losses[i], one.losses[i], max * one.losses[i]) << to_string(compute) << ", step " << i;
    }
    EXPECT_EQ(several.allocations, 0);
  }
}

TEST(SessionCuda, NothingIsAllocatedInsideAStep) {
  for (const testing::LayoutOptions& policy : testing::all_policies()) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      testing::LayoutOptions options = policy;
      options.compute = compute;
      EXPECT_EQ(curve(kGpu, options, 3).allocations, 0) << testing::text_of(options);
    }
  }
}

// Workspaces, streams and offsets equal those of the plan, which was computed without a GPU.
TEST(SessionCuda, EveryStepEqualsItsPlanItemByItem) {
  for (testing::LayoutOptions options : testing::all_policies()) {
    options.length = 61;
    options.compute = DType::bf16;
    EXPECT_TRUE(std::isfinite(curve(kGpu, options, 2, {.replay = true, .guard = false}).losses.back()))
        << testing::text_of(options);
  }
}

TEST(SessionCuda, ASessionThatDoesNotFitIsRejectedBeforeAnythingIsReserved) {
  const models::Model model(testing::llama_description({}));
  plan::LayoutChoices layout = testing::make_test_layout({}, model);
  layout.device = DeviceKind::cuda;
  const auto device = engine::make_device(kGpu, 1);
  const auto mesh = comm::make_self_mesh();
  EXPECT_THROW(
      engine::Session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train}, Bytes(1 << 20)),
      Error);
  EXPECT_EQ(device->allocations(), 0);
}

// All parameters and moments, by name.
std::map<std::string, std::vector<float>> contents(engine::Session& session) {
  engine::HostCopy copy(session);
  copy.fetch();
  std::map<std::string, std::vector<float>> out;
  for (const NamedState& state : copy.states()) {
    for (const Box& box : state.boxes) {
      const auto* data = box.view.data<float>();
      out[state.name].insert(out[state.name].end(), data, data + box.view.elements());
    }
  }
  return out;
}

TEST(SessionCuda, CheckpointsOfOneDeviceLoadOnTheOther) {
  const TemporaryFolder root;
  const models::Model model(testing::llama_description({}));
  for (const engine::RankDevice& from : {kGpu, engine::RankDevice()}) {
    const engine::RankDevice to = from.kind == DeviceKind::cuda ? engine::RankDevice() : kGpu;
    std::map<std::string, std::vector<float>> saved;
    std::string folder;
    std::vector<double> losses;
    for (const engine::RankDevice& place : {from, to}) {
      plan::LayoutChoices layout = testing::make_test_layout({}, model);
      layout.device = place.kind;
      const auto device = engine::make_device(place, 1);
      const auto mesh = comm::make_self_mesh();
      engine::Session session(model, plan::derive(layout, model), *device, *mesh,
                              {step::Purpose::train, step::Purpose::loss});
      testing::Steps steps(session);
      if (folder.empty()) {
        for (int step = 0; step < 3; ++step) steps.run(step::Purpose::train);
        saved = contents(session);
        folder = train::save(session, nullptr, {.root = root.path(), .keep = 2},
                             {.step = 3, .sequences = 3, .recipe = "{}"});
      } else {
        auto checkpoint = checkpoint::Checkpoint::open(folder);
        engine::load(session, checkpoint);
        EXPECT_EQ(contents(session), saved);
      }
      losses.push_back(steps.run(step::Purpose::loss));
    }
    EXPECT_NEAR(losses[1], losses[0], 1e-5 * losses[0]);
    fs::remove_all(root.path());
  }
}

// A snapshot copies concurrently with the next steps, by the copy engine. It must hold the state after its step, not
// that of later steps. The model is large enough that the copies are still running when the next step starts.
TEST(SessionCuda, ASnapshotHoldsTheStepItWasTakenAt) {
  const models::Model model(testing::llama_description(
      {.width = 1024, .heads = 16, .kv_heads = 8, .head_dim = 64, .inner = 2816, .vocabulary = 4096, .blocks = 8}));
  plan::LayoutChoices layout = testing::make_test_layout({}, model);
  layout.device = DeviceKind::cuda;
  layout.deterministic = true;
  const auto device = engine::make_device(kGpu, 1);
  const auto mesh = comm::make_self_mesh();
  std::vector<std::map<std::string, std::vector<float>>> after;
  for (const bool beside : {false, true}) {
    engine::Session session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train});
    testing::Steps steps(session);
    std::optional<train::Snapshot> snapshot;
    if (beside) snapshot.emplace(session);
    for (int step = 0; step < 4; ++step) {
      const step::StepOutput output = steps.enqueue(step::Purpose::train);
      if (!beside) {
        after.push_back(contents(session));
        continue;
      }
      snapshot->take(output.end);
      for (int ahead = 0; ahead < 2 && step + 1 < 4; ++ahead, ++step) steps.enqueue(step::Purpose::train);
      snapshot->wait();
      std::map<std::string, std::vector<float>> taken;
      for (const NamedState& state : snapshot->states()) {
        for (const Box& box : state.boxes) {
          const auto* data = box.view.data<float>();
          taken[state.name].insert(taken[state.name].end(), data, data + box.view.elements());
        }
      }
      EXPECT_TRUE(taken == after[step == 2 ? 0 : 3]) << "step " << step;
    }
  }
}

}  // namespace session_cuda_test
}  // namespace hawser

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--golden=", 9) == 0) hawser::session_cuda_test::golden = argv[i] + 9;
  }
  if (const hawser::CudaInfo info = hawser::cuda_info(); info.devices == 0) {
    std::printf("session_cuda_test: %s: nothing was tested\n", info.problem.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
