// Targets: every shipped file is complete and consistent, and wrong names, files and recipes in FP8 are rejected.
#include "plan/target.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <set>
#include <sstream>

#include "base/testing/test_paths.h"
#include "base/text.h"
#include "config/config.h"

namespace hawser {
namespace target_test {

std::string what(const std::function<void()>& act) {
  try {
    act();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

const std::set<std::string> kHaveRun = {"cpu", "h100", "h200"};

std::string text_of(const std::string& name) {
  std::ifstream in(cat(testing::kSourceFolder, "/targets/", name, ".yaml"));
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(Target, EveryShippedFileIsComplete) {
  for (const std::string& name : plan::shipped_targets()) {
    SCOPED_TRACE(name);
    const plan::Target target = plan::load_target(name);
    EXPECT_EQ(target.name, name);
    EXPECT_EQ(target.never_run, !kHaveRun.contains(name));
    if (!target.cuda) continue;
    ASSERT_TRUE(target.compute_capability);
    EXPECT_GE(*target.compute_capability, plan::kFirstWithBf16);
    EXPECT_EQ(target.gemm_fp8 > 0, target.has_fp8());
    EXPECT_EQ(target.gemm_fp8_block < target.gemm_fp8, *target.compute_capability == plan::kWithBlockScales);
    EXPECT_GT(target.host.memory, 0);
    ASSERT_EQ(target.links.size(), 2u);
    EXPECT_EQ(target.ranks_per_machine(64), 8);
    EXPECT_GT(target.links.front().rate, target.links.back().rate);
    if (target.never_run) {
      EXPECT_EQ(target.assumed_rates(64),
                "the rate of links in a machine and of links between machines and of the link to host memory");
      const std::string text = text_of(name);
      for (const char* part : {"Never run on this hardware. From the ", "https://", "Compute capability ", " W. ",
                               "Assumed: these peaks times the shares that an H200 reaches", "Capacity: "}) {
        EXPECT_NE(text.find(part), std::string::npos) << part;
      }
    }
  }
}

// Rates of targets that never ran are those of the H200 times the ratio of the peaks: none is invented.
TEST(Target, RatesThatWereNeverMeasuredAreSharesOfThePeak) {
  const plan::Target h200 = plan::load_target("h200");
  constexpr double kRounded = 0.06;  // two digits
  for (const std::string& name : plan::shipped_targets()) {
    const plan::Target target = plan::load_target(name);
    if (!target.never_run) continue;
    SCOPED_TRACE(name);
    const double ratio = target.peak / h200.peak;
    const auto expect_scaled = [&](double rate, double of_h200, double by) {
      EXPECT_NEAR(rate / (of_h200 * by), 1, kRounded);
    };
    expect_scaled(target.bf16.gemm, h200.bf16.gemm, ratio);
    expect_scaled(target.bf16.attention.forward, h200.bf16.attention.forward, ratio);
    expect_scaled(target.bf16.attention.backward, h200.bf16.attention.backward, ratio);
    expect_scaled(target.float32.attention.forward / h200.float32.attention.forward,
                  target.float32.gemm / h200.float32.gemm, 1);
    if (target.has_fp8()) {
      expect_scaled(target.gemm_fp8, h200.gemm_fp8, ratio);
      if (target.compute_capability == plan::kWithBlockScales)
        expect_scaled(target.gemm_fp8_block, h200.gemm_fp8_block, ratio);
    }
  }
}

TEST(Target, NamesThatUsersTypeHaveAHint) {
  const auto hint = [](const char* name) {
    const std::string text = what([&] { plan::load_target(name); });
    const auto at = text.find("; try ");
    return at == std::string::npos ? "" : text.substr(at + 6);
  };
  EXPECT_EQ(hint("a100"), "--target a100-40gb or a100-80gb");
  EXPECT_EQ(hint("A100-80GB"), "--target a100-80gb");
  EXPECT_EQ(hint("RTX 4090"), "--target rtx4090");
  EXPECT_EQ(hint("4090"), "--target rtx4090");
  EXPECT_EQ(hint("h2000"), "--target h200");
  EXPECT_EQ(hint("zzzzzz"), "");
  EXPECT_EQ(hint("0"), "") << "it says nothing";
}

TEST(Target, GpusWithoutBf16AreDeclaredOut) {
  const std::string names = joined(plan::shipped_targets(), ", ");
  for (const auto& [name, capability] : {std::pair("v100", "7.0"), {"V100", "7.0"}, {"t4", "7.5"}}) {
    EXPECT_EQ(what([&] { plan::load_target(name); }),
              cat("compute capability ", capability, " has no bf16 and is not supported (expected ", names, ", got ",
                  name, ") at --target"));
  }
}

TEST(Target, TheGpuOfAMachineHasATarget) {
  const std::vector<std::pair<const char*, const char*>> names = {{"NVIDIA A100-SXM4-40GB", "a100-40gb"},
                                                                  {"NVIDIA A100-SXM4-80GB", "a100-80gb"},
                                                                  {"NVIDIA A100 80GB PCIe", "a100-80gb"},
                                                                  {"NVIDIA H100 PCIe", "h100-pcie"},
                                                                  {"NVIDIA H100 80GB HBM3", "h100"},
                                                                  {"NVIDIA H200", "h200"},
                                                                  {"NVIDIA L40S", "l40s"},
                                                                  {"NVIDIA GeForce RTX 3090", "rtx3090"},
                                                                  {"NVIDIA GeForce RTX 4090", "rtx4090"},
                                                                  {"NVIDIA GeForce RTX 5090", "rtx5090"},
                                                                  {"NVIDIA B200", "b200"},
                                                                  {"NVIDIA GH200 480GB", "h200"},
                                                                  {"NVIDIA L4", ""},
                                                                  {"", ""}};
  for (const auto& [gpu, target] : names) EXPECT_EQ(plan::target_of_gpu(gpu), target) << gpu;
}

TEST(Target, ScalesOfBlocksNeedComputeCapability9_0) {
  Recipe recipe;
  recipe.precision.compute = ComputePrecision::fp8;
  recipe.precision.fp8.scaling = Fp8Scaling::block;
  for (const auto& [name, capability] : {std::pair("rtx4090", "8.9"), std::pair("b200", "10.0")}) {
    Problems problems;
    plan::check_fp8(recipe, plan::load_target(name), problems);
    EXPECT_EQ(problems.lines(),
              cat("compute capability ", capability,
                  " has no FP8 GEMMs with scales of blocks; 9.0 has (expected delayed or current, got "
                  "block for ",
                  name, ") at precision.fp8.scaling; try precision.fp8.scaling: delayed"));
  }
  Problems problems;
  plan::check_fp8(recipe, plan::load_target("h100"), problems);
  EXPECT_TRUE(problems.empty());
}

TEST(Target, Fp8NeedsComputeCapability8_9) {
  const auto problems_of = [](const std::string& target, const Recipe& recipe) {
    Problems problems;
    plan::check_fp8(recipe, plan::load_target(target), problems);
    return problems.lines();
  };
  Recipe recipe;
  for (const std::string& name : plan::shipped_targets()) EXPECT_EQ(problems_of(name, recipe), "") << name;
  recipe.precision.compute = ComputePrecision::fp8;
  for (const char* name : {"cpu", "l40s", "rtx4090", "h100", "h100-pcie", "h200", "rtx5090", "b200"}) {
    EXPECT_EQ(problems_of(name, recipe), "") << name;
  }
  const std::string why = "compute capability 8.0 has no FP8; 8.9 and later do (expected ";
  EXPECT_EQ(problems_of("a100-40gb", recipe), why +
                                                  "auto, float32 or bf16, got fp8 for a100-40gb) at "
                                                  "precision.compute; try precision.compute: bf16");
  recipe.adapter.kind = AdapterKind::lora;
  recipe.adapter.base = AdapterBase::fp8;
  EXPECT_EQ(problems_of("a100-80gb", recipe),
            why +
                "auto, float32 or bf16, got fp8 for a100-80gb) at precision.compute; try precision.compute: bf16, "
                "with adapter.base: nf4 to save memory");
  recipe.precision.compute = ComputePrecision::automatic;
  EXPECT_NE(problems_of("rtx3090", recipe)
                .find("8.6 has no FP8; 8.9 and later do (expected auto, bf16 or nf4, got fp8 "
                      "for rtx3090) at adapter.base; try adapter.base: nf4"),
            std::string::npos);
}

TEST(Target, AFileSaysItsComputeCapability) {
  const std::string text =
      "name: x\nabout: y\ncapacity: 1 GiB\ncontext: 0\ncommunicator: 0\nlaunch: 0\ncopy: 1\n"
      "attention: {bf16: {forward: 1, backward: 1}, float32: {forward: 1, backward: 1}}\n";
  const std::string links = "links: [{ranks: 0, rate: 1, latency: 0}]\n", gemm = "gemm: {bf16: 1, float32: 1}\n";
  const auto parsed = [&](const std::string& more) { return plan::parse_target(text + more, "x.yaml"); };
  const std::string cuda = "device: cuda\n" + links;
  const plan::Target own = parsed(cuda + gemm);
  EXPECT_FALSE(own.compute_capability || own.never_run);
  EXPECT_TRUE(own.has_fp8() && own.links.front().peer_access);
  const plan::Target given = parsed(cuda + gemm + "compute_capability: 12.0\nnever_run: true\n");
  EXPECT_EQ(given.compute_capability, (plan::ComputeCapability{12, 0}));
  EXPECT_TRUE(given.never_run && given.has_fp8());
  EXPECT_FALSE(parsed(cuda + gemm + "compute_capability: 8.6\n").has_fp8());
  EXPECT_FALSE(parsed("device: cuda\nlinks: [{ranks: 0, rate: 1, latency: 0, peer_access: false}]\n" + gemm)
                   .links.front()
                   .peer_access);
  const auto wrong = [&](const std::string& more) { return what([&] { parsed(more); }); };
  for (const char* value : {"nine", "9", "9.0a", "[9, 0]"}) {
    EXPECT_NE(wrong(cuda + gemm + "compute_capability: " + value).find("not a compute capability"), std::string::npos)
        << value;
  }
  EXPECT_NE(wrong("device: cpu\n" + links + gemm + "compute_capability: 9.0\n").find("not a compute capability"),
            std::string::npos);
  EXPECT_NE(wrong(cuda + gemm + "compute_capability: 7.5\n")
                .find("compute capability 7.5 has no bf16 and is not supported (expected 8.0 or later)"),
            std::string::npos);
  for (const char* key : {"fp8", "fp8_block"}) {
    EXPECT_NE(wrong(cuda + cat("compute_capability: 8.0\ngemm: {bf16: 1, float32: 1, ", key, ": 2}\n"))
                  .find(cat("a rate of FP8 on a GPU without FP8 (expected compute capability 8.9 or later, got 8.0) at "
                            "gemm.",
                            key)),
              std::string::npos);
  }
}

TEST(Target, LoadsByNameOrPathAndReportsMistakes) {
  EXPECT_EQ(plan::shipped_targets(),
            (std::vector<std::string>{"a100-40gb", "a100-80gb", "b200", "cpu", "h100", "h100-pcie", "h200", "l40s",
                                      "rtx3090", "rtx4090", "rtx5090"}));
  EXPECT_TRUE(plan::load_target("h200").cuda);
  EXPECT_EQ(plan::load_target(cat(testing::kSourceFolder, "/targets/cpu.yaml")).name, "cpu");
  EXPECT_NE(what([] { plan::load_target("h2000"); }).find("try --target h200"), std::string::npos);
  EXPECT_NE(what([] { plan::load_target("zzzzzz"); }).find(joined(plan::shipped_targets(), ", ")), std::string::npos);
  const std::string wrong = what([] {
    plan::parse_target(
        "name: x\nabout: y\ndevice: gpu\ncapacity: 1 lot\ncontext: 0\ncommunicator: 0\nlaunch: -1\n"
        "copi: 3\ngemm: {bf16: 1}\nlinks: [{ranks: 2, rate: 1, latency: 0}]\n",
        "x.yaml");
  });
  for (const char* part :
       {"unknown key at copi, line 8; try copy", "unknown device (expected cuda or cpu, got gpu)", "not a size",
        "got 1 lot", "not a number", "missing key at copy", "missing key at gemm.float32",
        "missing key at attention.bf16.forward", "the last link must allow any number of ranks"}) {
    EXPECT_NE(wrong.find(part), std::string::npos) << part << " in\n" << wrong;
  }
  EXPECT_NE(what([] { plan::parse_target("{", "x.yaml"); }).find("broken YAML"), std::string::npos);
  EXPECT_NE(what([] { plan::parse_target("- 1", "x.yaml"); }).find("not a target"), std::string::npos);
}

TEST(Target, OverheadCountsTheCommunicatorsOfTheMesh) {
  plan::Target target;
  target.context = 1000, target.communicator = 1;
  const auto count = [&](const comm::MeshSizes& mesh, int stage = 0) {
    return plan::overhead_of(target, mesh, stage) - 1000;
  };
  EXPECT_EQ(count({}), 0);
  EXPECT_EQ(count({.shard = 4}), 3);
  EXPECT_EQ(count({.context = 2, .shard = 2, .replicate = 2}), 1 + 3 + 1 + 1);
  EXPECT_EQ(count({.tensor = 2}), 1 + 1 + 3);                              // world, tensor
  EXPECT_EQ(count({.tensor = 2, .shard = 2, .replicate = 2}), 3 + 3 + 4);  // and replicate, data, world
  EXPECT_EQ(count({.shard = 4, .expert = 2}), 3 + 4);
  EXPECT_EQ(count({.shard = 4, .expert = 4}), 3 + 1) << "no other rank has the same experts";
  EXPECT_EQ(count({.shard = 2, .pipeline = 2, .expert = 2}) - count({.shard = 2, .pipeline = 2}), 1 + 1);
  // World, loss, model; two at each edge; a tied embedding.
  const comm::MeshSizes stages{.pipeline = 4, .tied = {{0, 3}}};
  EXPECT_EQ(count(stages, 0), 3 + 2 + 1);
  EXPECT_EQ(count(stages, 1), 3 + 4);
  EXPECT_EQ(count({.pipeline = 4, .interleaved = true}, 0), 3 + 4);
  EXPECT_EQ(count({.pipeline = 2, .interleaved = true}, 1), 3 + 4);
}

}  // namespace target_test
}  // namespace hawser
