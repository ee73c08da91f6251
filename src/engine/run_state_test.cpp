#include "engine/run_state.h"

#include <gtest/gtest.h>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "checkpoint/checkpoint.h"
#include "config/config.h"
#include "models/families.h"

namespace hawser::engine {
namespace run_state_test {

TEST(RunState, ComesBackAsItWasWritten) {
  const RunState state{.step = 7,
                       .sequences = 21,
                       .micro_batches = 4,
                       .skipped = 2,
                       .good_steps = 3,
                       .loss_scale = 4096,
                       .kept = {1, 0.1f, 0, -3},
                       .replay_step = 6,
                       .replays = 2,
                       .recipe = R"({"train":{"seed":3}})",
                       .config = "{}",
                       .tokenizer = "a/tokenizer.json",
                       .base = "0123456789abcdef",
                       .validation_loss = ValidationLosses(2.25, {{"novels", 2.5}, {"support", 2}}),
                       .initial_validation_loss = 4.5,
                       .unfinished_evaluation = R"({"step":7,"loss":2.5})",
                       .conversations = true,
                       .gemm_algorithms = "cublasLt 130100 on NVIDIA H200\n1 2 3\n# 4 x 5 x 6: ours\n"};
  const RunState back = run_state_of(to_json(state));
  EXPECT_EQ(back.step, 7);
  EXPECT_EQ(back.sequences, 21);
  EXPECT_EQ(back.micro_batches, 4);
  EXPECT_EQ(back.skipped, 2);
  EXPECT_EQ(back.replay_step, 6);
  EXPECT_EQ(back.replays, 2);
  EXPECT_EQ(back.good_steps, 3);
  EXPECT_EQ(back.loss_scale, 4096);
  EXPECT_EQ(back.kept, state.kept);
  EXPECT_EQ(back.recipe, state.recipe);
  EXPECT_EQ(back.validation_loss, state.validation_loss);
  EXPECT_EQ(back.initial_validation_loss, state.initial_validation_loss);
  EXPECT_EQ(run_state_of(to_json({.recipe = "{}"})).validation_loss, std::nullopt);
  EXPECT_EQ(back.unfinished_evaluation, state.unfinished_evaluation);
  EXPECT_EQ(back.conversations, true);
  EXPECT_EQ(run_state_of(to_json({.recipe = "{}"})).conversations, std::nullopt);
  EXPECT_EQ(back.gemm_algorithms, state.gemm_algorithms);
  EXPECT_EQ(back.data, "");
  EXPECT_EQ(back.base, state.base);
  EXPECT_TRUE(base_changes(state.base, state.base, "f", true).empty());
  EXPECT_TRUE(base_changes(state.base, "", "f", true).empty());
  EXPECT_NE(base_changes(state.base, "1123456789abcdef", "f", true).lines().find("the frozen weights have changed"),
            std::string::npos);
  // A run on the CPU has no choices and omits the key, as do older checkpoints.
  EXPECT_EQ(to_json({.recipe = "{}"}).find("gemm_algorithms"), std::string::npos);
  EXPECT_EQ(run_state_of(to_json({.recipe = "{}"})).gemm_algorithms, "");
  // Version 0.1 called the key "products".
  std::string old = to_json(state);
  old.replace(old.find("gemm_algorithms"), 15, "products");
  EXPECT_EQ(run_state_of(old).gemm_algorithms, state.gemm_algorithms);
}

TEST(RunState, ChangesOfFp8AreNamed) {
  const auto recipe = [](ComputePrecision compute, std::int64_t history, const char* layers,
                         Fp8Scaling scaling = Fp8Scaling::delayed) {
    Recipe out;
    out.precision.compute = compute;
    out.precision.fp8.scaling = scaling;
    out.precision.fp8.amax_history = history;
    out.precision.fp8.layers = {layers};
    return recipe_json(out);
  };
  using enum ComputePrecision;
  const RunState before{.recipe = recipe(fp8, 16, "all")}, other{.recipe = recipe(bf16, 16, "all")};
  EXPECT_TRUE(fp8_changes(before, recipe(fp8, 16, "all"), 4, "f").empty());
  EXPECT_TRUE(fp8_changes(other, recipe(automatic, 4, "1"), 4, "f").empty()) << "other dtypes: computation_changes";
  EXPECT_EQ(fp8_changes(before, recipe(bf16, 16, "all"), 4, "f").lines(),
            "f: the precision has changed (expected \"fp8\", got \"bf16\") at precision.compute; try the setting that "
            "the run was started with, or --set output=... for a new run");
  EXPECT_FALSE(fp8_changes(other, recipe(fp8, 16, "all"), 4, "f").empty());
  EXPECT_FALSE(fp8_changes({.recipe = "{}"}, recipe(fp8, 16, "all"), 4, "f").empty()) << "of an earlier version";
  const std::string lines = fp8_changes(before, recipe(fp8, 4, "1"), 4, "f").lines();
  EXPECT_NE(lines.find("at precision.fp8.amax_history"), std::string::npos) << lines;
  EXPECT_NE(lines.find("at precision.fp8.layers"), std::string::npos) << lines;
  EXPECT_NE(
      fp8_changes(before, recipe(fp8, 16, "all", Fp8Scaling::block), 4, "f").lines().find("at precision.fp8.scaling"),
      std::string::npos);
  for (const Fp8Scaling scaling : {Fp8Scaling::current, Fp8Scaling::block}) {  // without a history
    EXPECT_TRUE(
        fp8_changes({.recipe = recipe(fp8, 16, "all", scaling)}, recipe(fp8, 4, "all", scaling), 4, "f").empty());
  }
  EXPECT_TRUE(fp8_changes(before, recipe(fp8, 16, "0-3"), 4, "f").empty()) << "all blocks";
  EXPECT_FALSE(fp8_changes(before, recipe(fp8, 16, "0-3"), 5, "f").empty());
}

// A change to or from FP8 is one line, whatever the compute dtypes are.
TEST(RunState, TheComputeDtypeOfFp8IsNoChangeOfItsOwn) {
  const auto recipe = [](ComputePrecision compute) {
    Recipe out;
    out.precision.compute = compute;
    return recipe_json(out);
  };
  using enum ComputePrecision;
  const auto changes = [&](ComputePrecision was, const char* was_dtype, ComputePrecision is, DType dtype) {
    const RunState state{.recipe = recipe(was), .compute = was_dtype};
    return computation_changes(state, dtype, "adamw", recipe(is), "f").lines();
  };
  EXPECT_EQ(changes(fp8, "float32", bf16, DType::bf16), "");
  EXPECT_EQ(changes(bf16, "bfloat16", fp8, DType::f32), "");
  EXPECT_EQ(changes(fp8, "float32", fp8, DType::f32), "");
  EXPECT_EQ(changes(fp8, "float32", fp8, DType::bf16),
            "f: the compute dtype has changed (expected float32, got bfloat16) at precision.compute; try the kind of "
            "device that the run was started on, or --set output=... for a new run");
  EXPECT_EQ(changes(float32, "float32", bf16, DType::bf16),
            "f: the compute dtype has changed (expected float32, got bfloat16) at precision.compute; try --set "
            "precision.compute=float32");
}

// A Linear more may leave FP8, none may return: there is no history of its amaxes.
TEST(RunState, ExclusionsOfFp8Stay) {
  const auto recipe = [](const std::vector<std::string>& exclude) {
    Recipe out;
    out.precision.compute = ComputePrecision::fp8;
    out.precision.fp8.exclude = exclude;
    return recipe_json(out);
  };
  const RunState before{.recipe = recipe({"a", "b"})}, earlier{.recipe = recipe({})};
  EXPECT_TRUE(fp8_changes(before, recipe({"a", "b"}), 4, "f").empty());
  EXPECT_TRUE(fp8_changes(before, recipe({"b", "c", "a"}), 4, "f").empty());
  EXPECT_TRUE(fp8_changes(earlier, recipe({"a"}), 4, "f").empty());
  EXPECT_EQ(fp8_changes(before, recipe({"b"}), 4, "f").lines(),
            "f: the precision has changed (expected [\"a\",\"b\"], got [\"b\"]) at precision.fp8.exclude; try the "
            "setting that the run was started with, or --set output=... for a new run");
}

TEST(RunState, FallbacksAreReadAsWritten) {
  using enum nn::Site;
  const RunState state{.fp8_fallbacks = {{7, {"layers.0.q_proj", "layers.0.k_proj"}}, {9, {"layers.1.down_proj"}}},
                       .saturated_steps = {{8, 3, down_projection}, {9, 0, qkv_projection}},
                       .kept_in_fp8 = {{8, 3, down_projection}},
                       .recipe = "{}"};
  const RunState back = run_state_of(to_json(state));
  EXPECT_EQ(back.fp8_fallbacks, state.fp8_fallbacks);
  EXPECT_EQ(back.saturated_steps, state.saturated_steps);
  EXPECT_EQ(back.kept_in_fp8, state.kept_in_fp8);
  const std::string none = to_json({.recipe = "{}"});
  EXPECT_EQ(none.find("fallback"), std::string::npos) << none;
  EXPECT_TRUE(run_state_of(none).fp8_fallbacks.empty());
  EXPECT_TRUE(run_state_of(none).saturated_steps.empty());
  EXPECT_TRUE(run_state_of(none).kept_in_fp8.empty());
  std::string wrong = to_json(state);
  wrong.replace(wrong.find("\"modules\""), 9, "\"x\"");
  EXPECT_THROW(run_state_of(wrong), UserError);
}

// router_changes() names these.
TEST(RunState, CoefficientsOfRouterLossesAreNoOtherModel) {
  const std::string file = std::string(testing::kSourceFolder) + "/tests/golden/families/mixtral/config.json";
  const RunState state{.recipe = "{}", .config = read_file(file)};
  Problems problems;
  models::ModelDescription now = models::describe_config(state.config, file, problems);
  ASSERT_EQ(problems.lines(), "");
  const auto changes = [&] { return description_changes(state, now, "model.path", "f").lines(); };
  EXPECT_EQ(changes(), "");
  for (models::BlockDescription& block : now.blocks) {
    block.moe->auxiliary_loss += 0.5;
    block.moe->router_z_loss += 0.001;
  }
  EXPECT_EQ(changes(), "");
  for (models::BlockDescription& block : now.blocks) block.moe->top_k = 1;
  EXPECT_EQ(changes(),
            "f: the model has changed: num_experts_per_tok was 2 and is 1 at model.path; try the model that the run "
            "was started with, or --set output=... for a new run");
}

TEST(RunState, OfAnEarlierBuildIsRead) {
  const std::string run = std::string(testing::kSourceFolder) + "/tests/golden/runs/e0aa1b5/run";
  const auto checkpoint = checkpoint::Checkpoint::open(run + "/checkpoints/step-00000009");
  const RunState state = run_state_of(checkpoint.metadata());
  EXPECT_EQ(state.step, 9);
  EXPECT_EQ(state.sequences, 18);
  EXPECT_EQ(state.micro_batches, 0);
  EXPECT_TRUE(state.gemm_algorithms.starts_with("cublasLt ")) << state.gemm_algorithms;
  EXPECT_EQ(state.gemm_algorithms, read_file(run + "/products.txt"));
}

}  // namespace run_state_test
}  // namespace hawser::engine
