// train.freeze, optimizer.groups and schedules as a user runs them: training, checkpoints, resume, export, evaluation.
#include <cmath>

#include "cli/testing/binary.h"

namespace hawser {
namespace frozen_test {

namespace fs = std::filesystem;
using testing::tiny;

class Frozen : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("d.jsonl", testing::forty_documents());
  }
  // Keys of train and of optimizer; with the commas before them.
  std::string recipe(const std::string& output, const std::string& train, const std::string& optimizer = "") {
    write(output + ".yaml", "model: {path: " + base_ + "}\ndata: {train: [d.jsonl], sequence_length: 32}\n" +
                                "train: {steps: 6, global_batch_size: 4" + train + "}\n" +
                                "optimizer: {learning_rate: 0.01" + optimizer + "}\n" +
                                "checkpoint: {every_steps: 3}\noutput: " + output + "\n");
    return output + ".yaml";
  }
  void succeeds(const std::string& arguments) {
    const testing::Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
  }
  // A tensor of an exported folder, or of the model, as bytes.
  std::string tensor(const std::string& folder, const std::string& name) {
    const fs::path file = fs::path(folder).is_absolute() ? fs::path(folder) : folder_ / folder;
    const auto parts = testing::SafetensorsParts::read(file / "model.safetensors");
    const auto& offsets = parts.header.at(name)["data_offsets"];
    return parts.data.substr(offsets[0], offsets[1].get<std::size_t>() - offsets[0].get<std::size_t>());
  }
  double loss(const std::string& model) {
    return json("eval --model " + model + " --data d.jsonl --sequence-length 32")["loss"];
  }
  static std::uintmax_t bytes_below(const fs::path& folder) {
    std::uintmax_t bytes = 0;
    for (const auto& file : fs::recursive_directory_iterator(folder)) {
      if (file.is_regular_file()) bytes += file.file_size();
    }
    return bytes;
  }

  std::string base_ = tiny("gqa").string();
};

TEST_F(Frozen, TrainTheOthersAlone) {
  const std::string freeze = ", freeze: [embed_tokens, layers.0]";
  // Without clipping, whose norm is of all gradients, a learning rate of 0 has the same effect.
  succeeds("fit " + recipe("frozen", freeze, ", gradient_clip: 0"));
  succeeds("fit " +
           recipe("still", "", ", gradient_clip: 0, groups: [{match: [embed_tokens, layers.0], learning_rate: 0}]"));
  succeeds("export frozen a");
  succeeds("export still b");
  EXPECT_EQ(folder_.read("a/model.safetensors"), folder_.read("b/model.safetensors"));
  EXPECT_EQ(folder_.read("a/config.json"), folder_.read("b/config.json"));
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight",
                           "model.layers.0.input_layernorm.weight", "model.layers.0.self_attn.q_proj.weight"}) {
    EXPECT_EQ(tensor("a", name), tensor(base_, name)) << name;
  }
  for (const char* name : {"lm_head.weight", "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"}) {
    EXPECT_NE(tensor("a", name), tensor(base_, name)) << name;
  }
  const double trained = loss("frozen");
  EXPECT_LT(trained, loss(base_) - 0.01);
  EXPECT_NEAR(loss("a"), trained, 2e-6 * trained);
  EXPECT_EQ(loss("still"), trained);
  succeeds("generate --model frozen --prompt-ids 1,2 --max-tokens 4");

  // A checkpoint has what trains alone; inspect and the plan know it.
  const auto checkpoint = json("inspect frozen/checkpoints/step-00000006 --json");
  EXPECT_EQ(checkpoint["tensors"]["parameters"], 11);
  EXPECT_EQ(checkpoint["tensors"]["optimizer"], 22);
  EXPECT_EQ(checkpoint["frozen"]["parameters"], (nlohmann::json{"embed_tokens", "layers.0"}));
  EXPECT_EQ(checkpoint["frozen"]["weights"], base_);
  EXPECT_NE(hawser("inspect frozen").out.find("frozen      embed_tokens, layers.0; their weights are in "),
            std::string::npos);
  const auto norms = json("eval --model frozen --data d.jsonl --sequence-length 32 --gradient-norms")["gradient_norms"];
  EXPECT_EQ(norms.size(), 11u);
  EXPECT_FALSE(norms.contains("model.embed_tokens.weight"));
  EXPECT_LT(bytes_below(folder_ / "frozen/checkpoints/step-00000006"),
            bytes_below(folder_ / "still/checkpoints/step-00000006") * 3 / 4);
  const auto exported = [&](const std::string& recipe) {
    const std::string text = hawser("plan " + recipe).out;
    const auto begin = text.find("an export, in addition");
    return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
  };
  EXPECT_NE(exported("frozen.yaml"), "");
  EXPECT_EQ(exported("frozen.yaml"), exported("still.yaml")) << "an export is complete";
  const auto plan = json("plan frozen.yaml --json"), all = json("plan still.yaml --json");
  EXPECT_LT(plan["trainable_parameters"], all["trainable_parameters"]);
  EXPECT_LT(plan["memory"][0]["needed"].get<double>(), all["memory"][0]["needed"].get<double>());
  EXPECT_NE(hawser("fit frozen.yaml --set output=again --set train.steps=1").err.find("%) trained;"),
            std::string::npos);
}

TEST_F(Frozen, ResumeBitwiseAndOnAnotherMesh) {
  const std::string name = recipe("whole", ", freeze: [embed_tokens, '.*layers[.]0[.]self_attn', norm]",
                                  ", schedule: wsd, warmup_ratio: 0.3, decay_steps: 2, decay_type: 1-sqrt, "
                                  "groups: [{match: lm_head, learning_rate_factor: 0.5, weight_decay: 0}]");
  succeeds("fit " + name + " --ranks 2");
  // The run stops, and has the schedule of six steps.
  succeeds("fit " + name + " --set output=parts --ranks 2");
  fs::remove_all(folder_ / "parts/checkpoints/step-00000006");
  succeeds("fit " + name + " --set output=parts --ranks 2 --resume");
  succeeds("export whole a");
  succeeds("export parts b");
  EXPECT_EQ(folder_.read("a/model.safetensors"), folder_.read("b/model.safetensors"));
  std::istringstream metrics(folder_.read("whole/metrics.jsonl"));
  std::vector<double> rates;
  for (std::string line; std::getline(metrics, line);) rates.push_back(nlohmann::json::parse(line)["lr"]);
  ASSERT_EQ(rates.size(), 6u);
  const double expected[] = {0, 0.005, 0.01, 0.01, 0.01, 0.01 * (1 - std::sqrt(0.5))};
  for (std::size_t step = 0; step < 6; ++step) EXPECT_NEAR(rates[step], expected[step], 1e-8) << step;

  fs::remove_all(folder_ / "parts/checkpoints/step-00000006");
  succeeds("fit " + name + " --set output=parts --ranks 4 --set parallel.context_parallel_degree=2 --resume");
  const double one = loss("whole"), four = loss("parts");
  EXPECT_NEAR(one, four, 1e-5 * one);

  // The same parameters under other names are no change; others are one line.
  const std::string again = "fit " + name + " --set output=parts --set train.steps=7 --resume ";
  const testing::Ran other = hawser(again + "--set train.freeze=embed_tokens");
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(
      other.err.find(R"(: the frozen parameters have changed (expected ["embed_tokens",".*layers[.]0[.]self_attn")"
                     R"(,"norm"], got ["embed_tokens"]) at train.freeze)"),
      std::string::npos)
      << other.err;
  EXPECT_EQ(testing::lines_of(other.err).size(), 1u) << other.err;
  succeeds(again + "--set 'train.freeze=[model.embed_tokens, layers.0.self_attn, model.norm]'");
}

TEST_F(Frozen, InFp8) {
  succeeds("fit " + recipe("fp8", ", freeze: [embed_tokens, layers.0]") + " --set precision.compute=fp8 --ranks 2");
  succeeds("export fp8 a");
  EXPECT_EQ(tensor("a", "model.layers.0.mlp.up_proj.weight"), tensor(base_, "model.layers.0.mlp.up_proj.weight"));
  const double trained = loss("fp8");
  EXPECT_LT(trained, loss(base_) - 0.01);
}

// A group's learning rate and weight decay are those of a run that has them for all parameters, where nothing couples
// the parameters: in the first step, without clipping.
TEST_F(Frozen, GroupsLearnAsARunWithTheirSettings) {
  const std::string rest = ", gradient_clip: 0, schedule: constant, ";
  succeeds("fit " +
           recipe("groups", "",
                  rest + "weight_decay: 0.1, groups: [{match: [lm_head, norm], learning_rate: "
                         "0.003}, {match: mlp, weight_decay: 0.5}, {match: '.*', "
                         "learning_rate_factor: 0.2}]") +
           " --set train.steps=1");
  succeeds("fit " + recipe("rate", "", rest + "weight_decay: 0.1") +
           " --set train.steps=1 --set optimizer.learning_rate=0.003");
  succeeds("fit " + recipe("decay", "", rest + "weight_decay: 0.5") + " --set train.steps=1");
  succeeds("fit " + recipe("factor", "", rest + "weight_decay: 0.1") +
           " --set train.steps=1 --set optimizer.learning_rate=0.002");
  for (const char* run : {"groups", "rate", "decay", "factor"}) succeeds(cat("export ", run, " model-", run));
  for (const auto& [name, like] : std::initializer_list<std::pair<const char*, const char*>>{
           {"lm_head.weight", "rate"},
           {"model.norm.weight", "rate"},
           {"model.layers.1.mlp.up_proj.weight", "decay"},
           {"model.layers.0.mlp.down_proj.weight", "decay"},
           {"model.embed_tokens.weight", "factor"},
           {"model.layers.0.self_attn.q_proj.weight", "factor"},
           {"model.layers.1.input_layernorm.weight", "factor"}}) {
    for (const char* run : {"rate", "decay", "factor"}) {
      EXPECT_EQ(tensor("model-groups", name) == tensor(cat("model-", run), name), run == std::string(like))
          << name << " like " << run;
    }
  }
  // The metrics have the learning rate of no group. A resumed run may have other groups, and says so.
  EXPECT_EQ(nlohmann::json::parse(folder_.read("groups/metrics.jsonl"))["lr"], nlohmann::json(0.01f));
  const testing::Ran resumed = hawser("fit groups.yaml --set train.steps=2 --resume --set optimizer.groups=");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("optimizer.groups was [{"), std::string::npos) << resumed.err;
}

TEST_F(Frozen, MistakesAreReportedTogether) {
  const std::string name =
      recipe("out", ", freeze: [embed_token, q_proj]", ", warmup_steps: 2, warmup_ratio: 0.1, power: 2");
  const testing::Ran ran = hawser("fit " + name);
  EXPECT_EQ(ran.code, 2);
  for (const char* line :
       {"the model has no such parameter (expected ", "got embed_token) at train.freeze, line 3; try embed_tokens",
        "these are one parameter, which trains or is frozen as a whole (expected all of q_proj, k_proj, v_proj, got "
        "q_proj) "
        "at train.freeze, line 3",
        "both optimizer.warmup_steps and optimizer.warmup_ratio (expected one of the two)",
        "a key of another learning-rate schedule (expected optimizer.schedule: polynomial) at optimizer.power"}) {
    EXPECT_NE(ran.err.find(line), std::string::npos) << ran.err;
  }
  EXPECT_EQ(testing::lines_of(ran.err).size(), 4u) << ran.err;
  rejected("fit " + recipe("lora", ", freeze: embed_tokens") + " --set adapter.kind=lora",
           {"lora.yaml: an adapter freezes the model's weights already at train.freeze, line 3; try removing "
            "train.freeze"});
  rejected("fit " + recipe("random", ", freeze: embed_tokens") + " --set model.path= --set model.config=" + base_ +
               "/config.json",
           {"random.yaml: random weights are frozen (expected a model with weights) at train.freeze, line 3; try "
            "model.path in place of model.config, or removing train.freeze"});
  for (const auto& [groups, line] : std::initializer_list<std::pair<const char*, const char*>>{
           {"[{learning_rate: 1}]", "a group without match (expected {match: NAME, learning_rate: X, weight_decay: W}"},
           {"[{match: norm}]", "a group that changes nothing (expected learning_rate, learning_rate_factor or "},
           {"[{match: norm, lr: 1}]", "unknown key of a group: lr"},
           {"[{match: norm, weight_decay: -1}]", "weight_decay of a group (expected a number of at least 0"},
           {"[{match: norm, learning_rate: 1, learning_rate_factor: 1}]",
            "a group with learning_rate and learning_rate_factor (expected one of the two"},
           {"[{match: '*', learning_rate: 1}]", "not a regular expression (got *)"},
           {"[{match: nrm, learning_rate: 1}]", "the model has no such parameter (expected "},
           {"[{match: norm, weight_decay: 1}]", "weight decay of a group without a matrix (got norm)"}}) {
    const testing::Ran wrong = hawser("fit " + recipe("groups", "", std::string(", groups: ") + groups));
    EXPECT_EQ(wrong.code, 2) << groups;
    EXPECT_NE(wrong.err.find(line), std::string::npos) << wrong.err;
    EXPECT_EQ(testing::lines_of(wrong.err).size(), 1u) << wrong.err;
  }
}

// The frozen weights are not those that the run was started with, or are gone.
TEST_F(Frozen, TheirWeightsAreThoseOfTheModel) {
  base_ = (folder_ / copy_of("gqa", "base")).string();
  succeeds("fit " + recipe("out", ", freeze: embed_tokens"));
  EXPECT_EQ(json("inspect base --json")["parameter_names"].size(), 21u);
  EXPECT_NE(hawser("inspect base").out.find("    model.layers.{0-1}.mlp.up_proj.weight\n"), std::string::npos);
  testing::SafetensorsParts parts = testing::SafetensorsParts::read(folder_ / "base/model.safetensors");
  parts.data[100] = static_cast<char>(parts.data[100] ^ 0x10);
  parts.write(folder_ / "base/model.safetensors");
  for (const char* command : {"eval --data d.jsonl --sequence-length 32 --model out", "export out a"}) {
    const testing::Ran changed = hawser(command);
    EXPECT_EQ(changed.code, 2) << command;
    EXPECT_NE(changed.err.find("the frozen weights have changed"), std::string::npos) << changed.err;
  }
  fs::rename(folder_ / "base", folder_ / "gone");
  const testing::Ran gone = hawser("export out a");
  EXPECT_EQ(gone.code, 2);
  EXPECT_NE(gone.err.find("the model with the frozen weights is missing (expected "), std::string::npos) << gone.err;
}

}  // namespace frozen_test
}  // namespace hawser
