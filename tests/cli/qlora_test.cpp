// adapter.kind: qlora as a user runs it: plan, training on several layouts, checkpoints, resume, evaluation, export.
#include <cmath>

#include "cli/testing/binary.h"

namespace hawser {
namespace qlora_test {

namespace fs = std::filesystem;

fs::path golden(const std::string& name) {
  return fs::path(testing::kSourceFolder) / "tests/golden" / name;
}

class Qlora : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    fs::copy(golden("nf4/base/data.jsonl"), folder_ / "d.jsonl");
  }
  std::string recipe(const std::string& name, const std::string& adapter, const std::string& more = "",
                     const std::string& model = "base") {
    write(name + ".yaml",
          "model: {path: " + golden("nf4/" + model).string() + "}\ndata: {train: [d.jsonl], sequence_length: 48}\n" +
              "train: {steps: 4, global_batch_size: 2}\nadapter: {" + adapter + ", rank: 4}\n" +
              "optimizer: {learning_rate: 0.02, schedule: constant, warmup_steps: 0}\ncheckpoint: {every_steps: 2}\n" +
              more + "output: " + name + "\n");
    return name + ".yaml";
  }
  testing::Ran succeeds(const std::string& arguments) {
    const testing::Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
    return ran;
  }
  std::string fails(const std::string& arguments) {
    const testing::Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.err;
    return ran.err;
  }
  double loss(const std::string& model, const std::string& more = "") {
    return json("eval --model " + model + " --data d.jsonl --sequence-length 48 " + more)["loss"];
  }
  const std::string base_ = golden("nf4/base").string();
};

TEST_F(Qlora, PlanHasTheBytesOfTheBlocks) {
  const auto bytes = [&](const std::string& name, const std::string& adapter) {
    const nlohmann::json plan = json("plan " + recipe(name, adapter) + " --ranks 1 --json");
    return plan.at("memory").at(0).at("by_purpose").at("parameters").get<std::int64_t>();
  };
  const std::int64_t plain = bytes("plain", "kind: lora"), doubly = bytes("doubly", "kind: qlora"),
                     single = bytes("single", "kind: lora, base: nf4, double_quantization: false");
  constexpr std::int64_t kWeights = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 320 * 64), kAligned = 4096;
  EXPECT_NEAR(plain - single, kWeights * 4 - kWeights / 64 * 36, kAligned);
  // Rows of one block have few weights for the place of each.
  constexpr std::int64_t kRows = 2 * (2 * 64 + 2 * 32 + 2 * 320 + 64), kGroups = 2 * (4 + 3 * 2);
  EXPECT_NEAR(single - doubly, kWeights / 64 * 3 - 4 * kRows - 8 * kGroups, kAligned);
  const testing::Ran ran = succeeds("plan doubly.yaml --ranks 1");
  EXPECT_TRUE(ran.out.find("frozen weights in NF4 with double quantization") != std::string::npos) << ran.out;
}

// Every layout trains the same adapter; a resumed run, too.
TEST_F(Qlora, TrainsOnEveryLayout) {
  succeeds("fit " + recipe("one", "kind: qlora") + " --ranks 1");
  succeeds("fit " + recipe("same", "kind: lora, base: nf4") + " --ranks 1");
  const double expected = loss("one");
  EXPECT_EQ(loss("same"), expected);
  succeeds("fit " + recipe("sharded", "kind: qlora") + " --ranks 2");
  succeeds("fit " + recipe("tensor", "kind: qlora", "parallel: {tensor_parallel_degree: 2}\n") + " --ranks 2");
  succeeds("fit " + recipe("stages", "kind: qlora", "parallel: {pipeline_parallel_degree: 2}\n") + " --ranks 2");
  for (const std::string run : {"sharded", "tensor", "stages"}) {
    EXPECT_NEAR(loss(run), expected, 1e-4 * expected) << run;
  }
  EXPECT_NEAR(loss("one", "--ranks 2 --set parallel.tensor_parallel_degree=2"), expected, 1e-5 * expected);
  succeeds("fit " + recipe("stopped", "kind: qlora") + " --ranks 1 --set train.steps=2");
  succeeds("fit stopped.yaml --ranks 1 --resume");
  EXPECT_EQ(loss("stopped"), expected);
  const std::string changed = fails("fit stopped.yaml --ranks 1 --resume --set train.steps=6 --set adapter.kind=lora");
  EXPECT_TRUE(changed.find("the adapter has changed (expected \"nf4\", got \"auto\") at adapter.base") !=
              std::string::npos)
      << changed;
}

TEST_F(Qlora, EvaluatesOnEitherBase) {
  succeeds("fit " + recipe("run", "kind: qlora") + " --ranks 1");
  EXPECT_EQ(json("inspect run --json")["newest"]["adapter"]["base"], "nf4");
  EXPECT_NE(hawser("inspect run").out.find("QLoRA of rank 4; the frozen weights are in " + base_), std::string::npos);
  const double quantized = loss("run"), original = loss("run", "--set adapter.base=bf16");
  EXPECT_NE(quantized, original);
  succeeds("export run adapter");
  EXPECT_EQ(loss(base_, "--adapter adapter --set adapter.base=nf4"), quantized);
  EXPECT_EQ(loss(base_, "--adapter adapter"), original);
  EXPECT_NE(loss(base_, "--adapter adapter --set adapter.base=nf4 --set adapter.double_quantization=false"), quantized);
  EXPECT_NE(loss(base_, "--set adapter.base=nf4"), loss(base_));  // all of it is the base
  succeeds("export run merged --merge --dtype float32");
  EXPECT_NEAR(loss("merged"), original, 1e-5 * original);
  succeeds("generate --model run --prompt-ids 5,6,7 --max-tokens 3");
}

// What trains in full beside the adapter is not quantized.
TEST_F(Qlora, ModulesToSaveAreNotTheBase) {
  succeeds("fit " + recipe("run", "kind: qlora, targets: [up_proj, gate_proj], modules_to_save: [down_proj]") +
           " --ranks 1");
  succeeds("export run adapter");
  EXPECT_EQ(loss(base_, "--adapter adapter --set adapter.base=nf4"), loss("run"));
}

// A folder of bitsandbytes, as a model of its own, and as the base of an adapter.
TEST_F(Qlora, ReadsFoldersOfBitsandbytes) {
  const std::string folder = golden("nf4/double/quantized").string();
  EXPECT_EQ(loss(folder), loss(base_, "--set adapter.base=nf4"));
  succeeds("fit " + recipe("from", "kind: qlora", "", "double/quantized") + " --ranks 1");
  succeeds("fit " + recipe("here", "kind: qlora") + " --ranks 1");
  EXPECT_EQ(loss("from"), loss("here"));
  succeeds("export from merged --merge --dtype float32");
  const auto config = nlohmann::json::parse(folder_.read("merged/config.json"));
  EXPECT_FALSE(config.contains("quantization_config"));
  EXPECT_NEAR(loss("merged"), loss("from", "--set adapter.base=bf16"), 1e-5 * loss("merged"));
}

TEST_F(Qlora, WrongSettings) {
  write("narrow.yaml", "model: {path: " + testing::tiny("gqa").string() +
                           "}\ndata: {train: [d.jsonl], sequence_length: 32}\ntrain: {steps: 1}\n"
                           "adapter: {kind: qlora}\noutput: narrow\n");
  const std::string narrow = fails("fit narrow.yaml --ranks 1");
  EXPECT_TRUE(
      narrow.find("narrow.yaml: NF4 has blocks of 64 weights of a row (expected rows of a multiple of 64, got ") !=
      std::string::npos)
      << narrow;
  EXPECT_TRUE(narrow.find("at adapter.kind, line 4; try adapter.kind: lora with adapter.base: auto") !=
              std::string::npos)
      << narrow;
  EXPECT_TRUE(fails("eval --model " + base_ + " --data d.jsonl --sequence-length 48 --set adapter.base=fp8")
                  .find("only training reads a base in FP8 (expected auto, bf16 or nf4, got fp8) at adapter.base") !=
              std::string::npos);
}

}  // namespace qlora_test
}  // namespace hawser
