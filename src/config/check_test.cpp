// Keys of a recipe against each other (check.cpp).
#include "config/testing/read_recipe.h"

namespace hawser {
namespace check_test {

using CheckRecipe = ReadRecipe;

// eval and generate would read the model instead of the run.
TEST_F(CheckRecipe, RejectsTheFolderOfAModelAsOutput) {
  folder_.write("model/config.json", "{}");
  const std::string model = folder_.path("model");
  EXPECT_EQ(errors(kSmallest, {"output=" + model}),
            "--set: the folder of a model (expected a folder of its own, got model) at output; try output: runs/NAME");
  EXPECT_EQ(errors(kSmallest, {"output=" + model + "/run"}), "");
}

TEST_F(CheckRecipe, RejectsTheRootFolderAndEmptyLists) {
  for (const char* root : {"/", "/.", "/.."}) {
    EXPECT_EQ(errors(kSmallest, {std::string("output=") + root}),
              "--set: the root folder (expected a folder of its own, got /) at output; try output: runs/NAME")
        << root;
  }
  const std::string empty = "empty list (expected a path or more) at data.train";
  EXPECT_EQ(errors(kSmallest, {"data.train=[]"}), "--set: " + empty + "; try data: {train: [text/*.jsonl]}");
  EXPECT_NE(errors("data: {train: []}\n").find("r.yaml: " + empty + ", line 1"), std::string::npos);
  EXPECT_NE(errors(kSmallest, {"data.train=['']"}).find("an empty entry in a list (expected a list of paths"),
            std::string::npos);
  EXPECT_EQ(errors(kSmallest, {"data.train=[]", "data.prepared=d"}), "");
  EXPECT_EQ(errors(kSmallest, {"data.validation=[]"}), "");
}

TEST_F(CheckRecipe, ChecksKeysAgainstEachOther) {
  EXPECT_EQ(errors("model: {path: a, config: b}\n"
                   "data: {train: a, sequence_length: 100}\n"
                   "parallel: {hybrid_shard_degree: 6, context_parallel_degree: 4}\n"
                   "train: {steps: 10, global_batch_size: 7, micro_batch_size: 2}\n"
                   "optimizer: {warmup_steps: 11, minimum_learning_rate: 1}\n"
                   "output: o\n"),
            "r.yaml: both model.path and model.config (expected one of the two) at model.config, line 1; try "
            "model.path to fine-tune, model.config to start from random weights\n"
            "r.yaml: batch sizes do not divide (expected a multiple of train.micro_batch_size 2, got 7) at "
            "train.global_batch_size, line 4; try train.global_batch_size: 6 or 8\n"
            "r.yaml: degrees do not divide (expected a multiple of parallel.context_parallel_degree 4, got 6) at "
            "parallel.hybrid_shard_degree, line 3; try parallel.hybrid_shard_degree: 4 or 8\n"
            "r.yaml: warm-up is longer than the run (expected at most train.steps 10, got 11) at "
            "optimizer.warmup_steps, line 5; try optimizer.warmup_steps: 0, or train.steps: 11\n"
            "r.yaml: minimum learning rate above the peak (expected at most learning_rate 0.0003, got 1) at "
            "optimizer.minimum_learning_rate, line 5");
}

TEST_F(CheckRecipe, TheLearningRateScheduleHasItsKeys) {
  const auto lines = [&](const std::string& optimizer, const std::vector<std::string>& sets = {}) {
    return errors(kSmallest + ("optimizer: " + optimizer + "\n"), sets);
  };
  const std::string file = "r.yaml: ";
  EXPECT_EQ(lines("{warmup_steps: 2, warmup_ratio: 0.1}"),
            file +
                "both optimizer.warmup_steps and optimizer.warmup_ratio (expected one of the two) at "
                "optimizer.warmup_ratio, line 6; try optimizer.warmup_steps: 2 or optimizer.warmup_ratio: 0.1 alone");
  EXPECT_EQ(lines("{warmup_steps: 0, warmup_ratio: 0.1}").find(file + "both optimizer.warmup_steps"), 0u);
  EXPECT_EQ(lines("{warmup_steps: 2}", {"optimizer.warmup_ratio=0.1"}), "");
  EXPECT_EQ(lines("{warmup_ratio: 0.1}", {"optimizer.warmup_steps=2"}), "");
  EXPECT_EQ(lines("{warmup_ratio: 1}").find(file + "out of range"), 0u);
  EXPECT_EQ(lines("{decay_steps: 2, power: 2, decay_type: linear}"),
            file +
                "a key of another learning-rate schedule (expected optimizer.schedule: wsd) at optimizer.decay_steps, "
                "line 6; try optimizer.schedule: wsd, or remove optimizer.decay_steps\n" +
                file +
                "a key of another learning-rate schedule (expected optimizer.schedule: wsd) at optimizer.decay_type, "
                "line 6; try optimizer.schedule: wsd, or remove optimizer.decay_type\n" +
                file +
                "a key of another learning-rate schedule (expected optimizer.schedule: polynomial) at "
                "optimizer.power, line 6; try optimizer.schedule: polynomial, or remove optimizer.power");
  EXPECT_EQ(lines("{decay_steps: 0, power: 1, decay_type: cosine}"), "");  // the defaults
  EXPECT_EQ(lines("{schedule: inverse_sqrt, minimum_learning_rate: 1.0e-5}"),
            file +
                "the schedule inverse_sqrt has no minimum (expected 0, got 1e-05) at optimizer.minimum_learning_rate, "
                "line 6; try optimizer.schedule: polynomial, or cosine");
  EXPECT_EQ(lines("{schedule: wsd, warmup_steps: 4, decay_steps: 7}"),
            file +
                "warm-up and decay are longer than the run (expected at most 6 after 4 steps of warm-up in train.steps "
                "10, got 7) at optimizer.decay_steps, line 6; try optimizer.decay_steps: 0, or train.steps: 11");
  EXPECT_EQ(lines("{schedule: wsd, warmup_steps: 4, decay_steps: 6}"), "");
  for (const auto& [other, schedule] : {std::pair("constant_with_warmup", LearningRateSchedule::constant),
                                        std::pair("warmup_stable_decay", LearningRateSchedule::wsd),
                                        std::pair("cosine_with_min_lr", LearningRateSchedule::cosine)}) {
    EXPECT_EQ(read(kSmallest + cat("optimizer: {schedule: ", other, "}\n")).optimizer.schedule, schedule) << other;
  }
}

TEST_F(CheckRecipe, ALengthOfTheWarmUpIsReadBack) {
  const Recipe ratio = read(kSmallest + std::string("optimizer: {warmup_ratio: 0.25}\n"));
  EXPECT_EQ(ratio.optimizer.warmup_of(10), 3);
  EXPECT_EQ(recipe_json(read(recipe_json(ratio))), recipe_json(ratio));
  EXPECT_EQ(recipe_json(read(commented_recipe(ratio))), recipe_json(ratio));
  const Recipe steps = read(kSmallest + std::string("optimizer: {warmup_steps: 2}\n"));
  EXPECT_EQ(steps.optimizer.warmup_of(10), 2);
  EXPECT_EQ(recipe_json(read(recipe_json(steps))), recipe_json(steps));
}

TEST_F(CheckRecipe, AnAdapterNeedsItsKindAndAModelWithWeights) {
  const std::string rest = "data: {train: [a.txt], sequence_length: 8}\ntrain: {steps: 1}\noutput: out\n";
  const auto lines = [&](const std::string& text, const std::vector<std::string>& sets = {}) {
    return errors(text + rest, sets);
  };
  const std::string file = "r.yaml: ", model = "model: {path: m}\n";
  EXPECT_EQ(lines(model + "adapter: {rank: 8}\n"),
            file + "no adapter trains without adapter.kind at adapter.rank, line 2; try adapter.kind: lora");
  EXPECT_EQ(lines(model + "adapter: {rank: 8}\n", {"adapter.kind=lora"}), "");
  EXPECT_EQ(lines(model + "adapter: {kind: lora, rank: 8}\n", {"adapter.kind=none"}), "");  // full training once
  EXPECT_EQ(lines(model + "adapter: {kind: lora, targets: []}\n"),
            file + "empty list (expected names of Linears) at adapter.targets, line 2; try all-linear");
  EXPECT_EQ(lines("model: {config: c.json}\nadapter: {kind: lora}\n"),
            file +
                "an adapter of random weights (expected a model with weights) at adapter.kind, line 2; try "
                "model.path in place of model.config, or adapter.kind: none");
  const std::string compute = "precision: {compute: fp8}\n";
  for (const std::string keys : {"kind: qlora", "kind: qlora, base: nf4",
                                 "kind: lora, base: nf4, double_quantization: false", "kind: lora, base: bf16"}) {
    EXPECT_EQ(lines(model + "adapter: {" + keys + "}\n"), "") << keys;
  }
  EXPECT_EQ(lines(model + "adapter: {kind: lora, base: fp8}\n" + compute), "");
  EXPECT_EQ(lines(model + "adapter: {kind: lora, base: bf16}\nprecision: {compute: fp8, fp8: {scaling: block}}\n"), "");
  struct Wrong {
    std::string keys, more, line;
  };
  for (const auto& [keys, more, line] : std::vector<Wrong>{
           {"base: nf4", "", "no adapter trains without adapter.kind at adapter.base, line 2; try adapter.kind: qlora"},
           {"kind: qlora, base: bf16", "",
            "adapter.kind: qlora has its base in NF4 (expected auto or nf4, got bf16) at adapter.base, line 2; try "
            "adapter.kind: lora, or adapter.base: auto"},
           {"kind: lora, double_quantization: false", "",
            "double quantization is of NF4 at adapter.double_quantization, line 2; try adapter.base: nf4, or removing "
            "adapter.double_quantization"},
           {"kind: qlora, dora: true", "",
            "NF4 with DoRA is not supported at adapter.dora, line 2; try adapter.dora: false, or adapter.kind: "
            "lora with adapter.base: auto"},
           {"kind: qlora", compute,
            "a base in NF4 is not computed in FP8 (expected auto, bf16 or float32, got fp8) at precision.compute, line "
            "3; try adapter.kind: lora, whose base is then in FP8, or precision.compute: auto"},
           {"kind: lora, base: fp8", "",
            "only GEMMs of FP8 read a base in FP8 (expected auto, bf16 or nf4, got fp8) at adapter.base, line 2; try "
            "precision.compute: fp8, or adapter.base: nf4"},
           {"kind: lora, base: fp8", "precision: {compute: fp8, fp8: {scaling: block}}\n",
            "precision.fp8.scaling: block rounds weights where GEMMs read them (expected auto or bf16, got fp8) at "
            "adapter.base, line 2; try adapter.base: auto, or precision.fp8.scaling: delayed"},
           {"kind: lora, base: bf16", compute,
            "GEMMs of FP8 with this scaling read weights in FP8 alone (expected auto or fp8, got bf16) at "
            "adapter.base, "
            "line 2; try adapter.base: auto, or precision.fp8.scaling: block"}}) {
    EXPECT_EQ(lines(model + "adapter: {" + keys + "}\n" + more), file + line);
  }
  EXPECT_EQ(read(model + "adapter: {kind: lora, targets: q_proj}\n" + rest, {"adapter.modules_to_save=[a, b]"})
                .adapter.modules_to_save,
            (std::vector<std::string>{"a", "b"}));
}

TEST_F(CheckRecipe, RequiresOnlyTheKeysOfTheCommand) {
  EXPECT_EQ(errors("model: {path: m}\ndata: {sequence_length: 64}\n", {}, Purpose::plan), "");
  EXPECT_EQ(errors("model: {path: m}\ndata: {sequence_length: 64, train: a}\noutput: o\n", {}, Purpose::prepare), "");
  EXPECT_NE(errors("model: {path: m}\ndata: {sequence_length: 64}\n", {}, Purpose::prepare), "");
  EXPECT_EQ(errors("model: {path: m}\ndata: {sequence_length: 64, prepared: d}\ntrain: {steps: 1}\noutput: o\n"), "");
}

}  // namespace check_test
}  // namespace hawser
