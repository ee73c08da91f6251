// Models of other families than Llama, as a user trains them: experts in fit, resume, eval, export, generate and
// inspect; and what commands print for files that do not fit together.
#include <cmath>
#include <cstdio>
#include <map>

#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace families_test {

namespace fs = std::filesystem;
using testing::json_of;
using testing::SafetensorsParts;

fs::path family(const std::string& name) {
  return fs::path(testing::kSourceFolder) / "tests/golden/families" / name;
}

class Families : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    std::string lines;
    for (int line = 0; line < 40; ++line) {
      nlohmann::json ids = nlohmann::json::array();
      for (int i = 0; i < 5 + line % 23; ++i) ids.push_back((line * 31 + i * i * 7) % 67);
      lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
    }
    write("text.jsonl", lines);
  }

  void write_recipe(const std::string& model, const std::string& more = "") {
    write("recipe.yaml", "model: {path: " + family(model).string() +
                             "}\n"
                             "data: {train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}\n"
                             "train: {steps: 10, global_batch_size: 4}\n"
                             "optimizer: {learning_rate: 2.0e-3}\n"
                             "checkpoint: {every_steps: 5}\n"
                             "output: run\n" +
                             more);
  }

  void fit(const std::string& options) {
    const testing::Ran ran = hawser("fit recipe.yaml " + options);
    ASSERT_EQ(ran.code, 0) << options << "\n" << ran.err;
  }

  std::vector<nlohmann::json> metrics(const std::string& run) {
    std::vector<nlohmann::json> steps;
    for (const std::string& line : testing::lines_of(folder_.read(run + "/metrics.jsonl"))) {
      steps.push_back(nlohmann::json::parse(line));
    }
    return steps;
  }

  // A copy of a golden model without the tensors whose names contain `part`.
  void copy_without(const std::string& model, const std::string& as, const std::string& part) {
    fs::copy(family(model), folder_ / as, fs::copy_options::recursive);
    const SafetensorsParts all = SafetensorsParts::read(folder_ / as / "model.safetensors");
    std::map<std::size_t, std::string> by_begin;
    for (const auto& [name, tensor] : all.header.items()) {
      if (name != "__metadata__" && name.find(part) == std::string::npos) by_begin[tensor["data_offsets"][0]] = name;
    }
    SafetensorsParts rest{nlohmann::json::object(), ""};
    for (const auto& [begin, name] : by_begin) {
      nlohmann::json tensor = all.header[name];
      const std::size_t bytes = tensor["data_offsets"][1].get<std::size_t>() - begin, at = rest.data.size();
      tensor["data_offsets"] = {at, at + bytes};
      rest.header[name] = tensor;
      rest.data += all.data.substr(begin, bytes);
    }
    rest.write(folder_ / as / "model.safetensors");
  }
};

TEST_F(Families, AMixtralTrainsResumesAndEvaluates) {
  write_recipe("mixtral", "moe: {balancing: aux_loss, aux_loss_coefficient: 0.05, z_loss_coefficient: 0.001}\n");
  // A micro-step of one rank is one of two: routers have a loss of each.
  fit("--set train.micro_batch_size=2");
  fit("--set output=two --ranks 2");
  const std::vector<nlohmann::json> one = metrics("run"), two = metrics("two");
  ASSERT_EQ(one.size(), 10u);
  ASSERT_EQ(two.size(), 10u);
  for (std::size_t i = 0; i < one.size(); ++i) {
    for (const char* key : {"loss", "grad_norm", "router_loss", "expert_imbalance"}) {
      ASSERT_TRUE(one[i].contains(key)) << key;
      // AdamW magnifies differences of small gradients, which the norm of later gradients shows most.
      const double value = one[i][key], max = std::string(key) == "grad_norm" && i > 0 ? 1e-3 : 1e-4;
      EXPECT_NEAR(two[i][key].get<double>(), value, max * value) << key << " of step " << i + 1;
    }
    EXPECT_GT(one[i]["router_loss"].get<double>(), 0.08);  // balanced: 2 experts of each token, times 0.05
    EXPECT_GE(one[i]["expert_imbalance"].get<double>(), 1);
    ASSERT_EQ(one[i]["expert_tokens"].size(), 2u);
    for (const auto& layer : one[i]["expert_tokens"]) {
      ASSERT_EQ(layer.size(), 5u);
      std::int64_t pairs = 0;
      for (const auto& tokens : layer) pairs += tokens.get<std::int64_t>();
      EXPECT_EQ(pairs % 2, 0);
      EXPECT_GE(pairs / 2, one[i]["targets"].get<std::int64_t>());
    }
  }
  EXPECT_LT(one[9]["validation_loss"].get<double>(), one[0]["initial_validation_loss"].get<double>());

  // Resumed after step 5, it writes the same bytes.
  const std::string last = "run/checkpoints/step-00000010";
  const std::string bytes = folder_.read(last + "/rank-00000.bin");
  fs::remove_all(folder_ / last);
  fit("--set train.micro_batch_size=2 --resume");
  EXPECT_EQ(folder_.read(last + "/rank-00000.bin"), bytes);

  // With more micro-batches the routers' loss is the mean of more, which is said; without that loss nothing changes.
  const auto resumed = [&](const std::string& options) {
    fs::remove_all(folder_ / last);
    const testing::Ran ran = hawser("fit recipe.yaml --resume " + options);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.err;
  };
  const std::string changed = "the loss of routers has changed: ";
  EXPECT_EQ(resumed("--set train.micro_batch_size=2").find(changed), std::string::npos);
  const std::string more = resumed("");
  EXPECT_NE(more.find(changed + "micro-batches of a step were 2 and are 4"), std::string::npos) << more;
  const std::string none = resumed("--set moe.z_loss_coefficient=0 --set moe.balancing=none");
  EXPECT_EQ(none.find("micro-batches of a step were"), std::string::npos) << none;

  // Other coefficients are another loss, and are said.
  fs::remove_all(folder_ / last);
  const testing::Ran other = hawser(
      "fit recipe.yaml --set train.micro_batch_size=2 --set moe.z_loss_coefficient=0 "
      "--set moe.balancing=none --resume");
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_NE(other.err.find("the loss of routers has changed: moe.aux_loss_coefficient was 0.05 and is 0, "
                           "moe.z_loss_coefficient was 0.001 and is 0"),
            std::string::npos)
      << other.err;
  fs::remove_all(folder_ / last);
  fit("--set train.micro_batch_size=2 --resume");

  EXPECT_EQ(json("export run out --json")["step"], 10);
  EXPECT_EQ(json("inspect out --json")["model"]["family"], "mixtral");
  const std::string eval = "eval --data text.jsonl --sequence-length 24 --gradient-norms --model ";
  const nlohmann::json expected = json(eval + "run");
  EXPECT_GT(expected["router_loss"].get<double>(), 0.08);
  const double of_text = expected["loss"].get<double>() - expected["router_loss"].get<double>();
  const std::string table = on_terminal("eval --data text.jsonl --sequence-length 24 --model run").out;
  char perplexity[40];
  std::snprintf(perplexity, sizeof perplexity, "\nperplexity    %.4g\n", std::exp(of_text));
  EXPECT_NE(table.find(perplexity), std::string::npos) << perplexity << table;
  for (const char* options : {"out", "out --ranks 2", "out --ranks 2 --set parallel.context_parallel_degree=2"}) {
    const nlohmann::json got = json(eval + options);
    for (const char* key : {"loss", "router_loss"}) {
      EXPECT_NEAR(got[key].get<double>(), expected[key].get<double>(), 1e-5 * expected[key].get<double>()) << options;
    }
    for (const auto& [name, norm] : expected["gradient_norms"].items()) {
      const double value = norm;
      EXPECT_NEAR(got["gradient_norms"].value(name, -1.0), value, 1e-4 * value + 1e-6) << options << ": " << name;
    }
  }
  const std::string generate = "generate --prompt-ids 5,9,40 --max-tokens 12 --temperature 0 --json --model ";
  EXPECT_EQ(json(generate + "run")["ids"], json(generate + "out")["ids"]);
}

// Without output_router_logits the config's coefficient is that of no run.
TEST_F(Families, AMixtralWithoutARouterLossResumes) {
  write_recipe("mixtral", "moe: {balancing: none}\n");
  for (const std::string& set : {"", "--set moe.balancing="}) {
    fit("--set train.steps=5 " + set);
    const testing::Ran ran = hawser("fit recipe.yaml --resume --set train.steps=6 " + set);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.err.find("routers has changed"), std::string::npos) << ran.err;
  }
}

// The loss of several lines is one of all their tokens; that of the golden file is transformers'.
TEST_F(Families, EvalEqualsTransformers) {
  for (const char* name : {"mixtral", "gemma3"}) {
    const nlohmann::json expected = json_of(family(name) / "expected.json");
    const nlohmann::json got =
        json("eval --model " + family(name).string() + " --data " + (family(name) / "data.jsonl").string() +
             " --ranks 2 --gradient-norms " + "--sequence-length " + expected["sequence_length"].dump());
    const double loss = expected["loss"];
    EXPECT_NEAR(got["loss"].get<double>(), loss, 1e-5 * loss) << name;
    EXPECT_EQ(got.contains("router_loss"), expected.contains("router_loss")) << name;
    for (const auto& [parameter, norm] : expected["gradient_norms"].items()) {
      const double value = norm;
      EXPECT_NEAR(got["gradient_norms"].value(parameter, -1.0), value, 1e-4 * value + 1e-8) << name << parameter;
    }
  }
}

TEST_F(Families, RecipeInitWritesWhatPlanAndFitRead) {
  const testing::Ran init =
      hawser("recipe init --model " + family("qwen3_moe").string() + " --data text.jsonl --output recipe.yaml");
  ASSERT_EQ(init.code, 0) << init.err;
  EXPECT_EQ(json("plan recipe.yaml --json")["fits"], true);
  fit("--set train.steps=2 --set output=run");
  EXPECT_EQ(metrics("run").back()["expert_tokens"].size(), 2u);  // its first layer has an MLP
}

TEST_F(Families, WhatDoesNotFitTogetherIsOneLine) {
  const std::string eval = "eval --data text.jsonl --sequence-length 24 --model ";
  copy_without("mixtral", "missing", "layers.1.block_sparse_moe.experts.4");
  rejected(eval + "missing", {"missing: tensors of experts are missing (expected 30, got 27) at "
                              "model.layers.1.block_sparse_moe.experts.4.w1.weight"});

  fs::copy(family("mixtral"), folder_ / "dense", fs::copy_options::recursive);
  nlohmann::json config = json_of(family("mixtral") / "config.json");
  config["model_type"] = "mistral";
  write("dense/config.json", config.dump());
  rejected(eval + "dense", {"dense/config.json: a key of another family (expected none with model_type mistral, got "
                            "5) at num_local_experts"});

  write("labels.jsonl", "{\"input_ids\": [1, 2, 3], \"labels\": [1, 67, 3]}\n");
  rejected("eval --data labels.jsonl --sequence-length 24 --model " + family("mixtral").string(),
           {"labels.jsonl: label outside the vocabulary (expected -100, or 0 to 66, got 67) at line 1, labels[1]"});

  write_recipe("mistral");
  rejected("fit recipe.yaml --set moe.z_loss_coefficient=0.1",
           {"--set: the model has no experts at moe.z_loss_coefficient"});
}

// An adapter is planned from a config alone. Experts have none, and the plan and the run say so.
TEST_F(Families, AnAdapterLeavesExpertsOut) {
  const std::string note =
      "adapters are on Linears outside of experts: the experts of 2 of 2 blocks keep their weights";
  write_recipe("mixtral", "adapter: {kind: lora}\n");
  const testing::Ran plan =
      hawser("plan recipe.yaml --set model.path= --set model.config=" + (family("mixtral") / "config.json").string());
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE((plan.out + plan.err).find(note), std::string::npos) << plan.out << plan.err;
  EXPECT_NE(hawser("fit recipe.yaml").err.find(note), std::string::npos);
  write_recipe("mistral", "adapter: {kind: lora}\n");
  EXPECT_EQ(hawser("plan recipe.yaml").err, "");
}

}  // namespace families_test
}  // namespace hawser
