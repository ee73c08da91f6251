#include "config/convert/convert.h"

#include <gtest/gtest.h>

#include <set>

#include "config/config.h"
#include "config/convert/conversion.h"
#include "config/schema.h"
#include "config/testing/converted_file.h"

namespace hawser {
namespace convert_test {

class ConvertRecipe : public testing::ConvertedFile {
 protected:
  ConvertRecipe() { base_ = "base_model: org/model\nlearning_rate: 2e-5\n"; }
};

TEST_F(ConvertRecipe, RecognizesTheTrainerByItsKeyForTheModel) {
  EXPECT_EQ(convert("sequence_len: 512\n").from, OtherTrainer::axolotl);
  base_ = "";
  EXPECT_EQ(convert("model_name_or_path: a/b\n").from, OtherTrainer::llama_factory);
  EXPECT_EQ(convert("model: a/b\n").from, OtherTrainer::llama_factory);
  EXPECT_EQ(
      errors("compute_environment: LOCAL_MACHINE\n"),
      "other.yaml: neither axolotl's nor LLaMA-Factory's keys (expected base_model, model_name_or_path or model); "
      "try --from axolotl or --from llama-factory");
  EXPECT_EQ(errors("learning_rate: 2e-5\n", {.from = OtherTrainer::axolotl}),
            "other.yaml: missing key at base_model; try base_model: ORG/NAME, or a folder");
  const std::string recipe = errors("model: {path: m}\ntrain: {steps: 3}\n");
  EXPECT_TRUE(
      recipe.starts_with("other.yaml: a recipe of Hawser (expected a file for axolotl or LLaMA-Factory); try "
                         "hawser fit "))
      << recipe;
}

TEST_F(ConvertRecipe, RejectsWhatIsNoFile) {
  base_ = "";
  EXPECT_EQ(errors("- a\n- b\n"), "other.yaml: not a recipe (expected keys and values)");
  EXPECT_EQ(errors("a: [1\n").substr(0, 24), "other.yaml: broken YAML:");
  EXPECT_EQ(errors("a: 1\n---\nb: 1\n"), "other.yaml: more than one YAML document; try one recipe a file");
  Problems problems;
  EXPECT_THROW(convert_recipe({.file = folder_.path("none.yaml")}, problems), UserError);
  EXPECT_THROW(convert_recipe({.file = folder_.path()}, problems), UserError);
}

TEST_F(ConvertRecipe, EveryKeyIsConvertedOrListed) {
  const Converted converted = convert(
      "sequence_len: 512\n"
      "sequence_lenn: 512\n"
      "unheard_of: 1\n"
      "flash_attention: true\n"
      "wandb_project:\n"
      "load_in_8bit: false\n"
      "neftune_noise_alpha: 5\n");
  const std::set<std::string> mapped(converted.mapped.begin(), converted.mapped.end());
  EXPECT_EQ(mapped, (std::set<std::string>{"base_model", "learning_rate", "sequence_len"}));
  EXPECT_EQ(dropped(converted, "sequence_lenn"), "unknown: no key of axolotl; the nearest is sequence_len");
  EXPECT_EQ(dropped(converted, "unheard_of"), "unknown: no key of axolotl");
  EXPECT_EQ(dropped(converted, "flash_attention"), "automatic: attention is always fused, and never crosses documents");
  EXPECT_EQ(dropped(converted, "wandb_project"), "not needed: empty or off");
  EXPECT_EQ(dropped(converted, "load_in_8bit"), "not needed: empty or off");
  EXPECT_EQ(dropped(converted, "neftune_noise_alpha").substr(0, 14), "not supported:");
  std::size_t keys = converted.mapped.size();
  for (const DroppedKeys& group : converted.dropped) keys += group.keys.size();
  EXPECT_EQ(keys, 9u);
}

TEST_F(ConvertRecipe, AnUnknownKeyHasNoEffect) {
  // A key of the other trainer, which shared code reads.
  const Converted converted = convert("save_total_limit: 2\nneat_packing: true\nlr_scheduler_type: linear\n");
  EXPECT_EQ(dropped(converted, "lr_scheduler_type").substr(0, 8), "unknown:");
  EXPECT_EQ(value(converted, "optimizer.schedule"), "cosine");
}

TEST_F(ConvertRecipe, ValuesNameTheKeysThatTheyComeFrom) {
  const Converted converted = convert("sequence_len: 4_096\nsave_steps: 50\nmax_steps: 200\n");
  EXPECT_EQ(value(converted, "data.sequence_length"), 4096) << "YAML 1.1 has underscores in numbers";
  EXPECT_EQ(converted.notes.why.at("data.sequence_length"), "axolotl's sequence_len");
  EXPECT_EQ(converted.notes.why.at("optimizer.beta2"), "axolotl's default of adam_beta2");
  EXPECT_EQ(converted.notes.why.at("checkpoint.every_steps"), "axolotl's save_steps");
  EXPECT_EQ(converted.notes.why.count("train.seed"), 0u);
}

TEST_F(ConvertRecipe, WrongValuesAreReportedTogetherAtTheirKeys) {
  EXPECT_EQ(errors("sequence_len: long\nmax_steps: few\nmicro_batch_size: 0.5\n"),
            "other.yaml: wrong type (expected a whole number of at least 2, got long) at sequence_len, line 3\n"
            "other.yaml: wrong type (expected a whole number of at least 1, got 0.5) at micro_batch_size, line 5\n"
            "other.yaml: wrong type (expected a number, got few) at max_steps, line 4");
}

TEST_F(ConvertRecipe, TheLastOfEqualKeysCounts) {
  EXPECT_EQ(value(convert("sequence_len: 512\nsequence_len: 1024\n"), "data.sequence_length"), 1024);
}

TEST_F(ConvertRecipe, DroppedKeysAreCommentsOfTheRecipe) {
  const Converted converted = convert("flash_attention: true\nlora_on_cpu: true\nunheard_of: 1\n");
  const std::string comment = dropped_comment(converted, "other.yaml");
  EXPECT_NE(comment.find("# flash_attention: automatic: attention is always fused"), std::string::npos) << comment;
  EXPECT_NE(comment.find("# unheard_of: unknown: no key of axolotl"), std::string::npos) << comment;
  std::istringstream lines(comment);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(line, "");
  while (std::getline(lines, line)) {
    EXPECT_TRUE(line.starts_with("#")) << line;
    EXPECT_LE(line.size(), 120u) << line;
  }
}

TEST_F(ConvertRecipe, PathsStayRelativeWhereTheRecipeIs) {
  const std::string files = "datasets: [{path: data/chats.jsonl, type: chat_template}]\noutput_dir: ./out/\n";
  const Converted here = convert(files);
  EXPECT_EQ(value(here, "data.train"), nlohmann::json({"data/chats.jsonl"}));
  EXPECT_EQ(value(here, "output"), "out");
  const Converted elsewhere = convert(files, {.keep_relative = false});
  const std::string train = value(elsewhere, "data.train")[0];
  EXPECT_TRUE(train.starts_with("/") && train.ends_with("/data/chats.jsonl")) << train;
}

TEST_F(ConvertRecipe, ModelsOfTheHubKeepTheirNames) {
  const Converted converted = convert("revision_of_model: abc\n", {.keep_relative = false});
  EXPECT_EQ(value(converted, "model.path"), "org/model@abc");
  EXPECT_EQ(converted.downloads, std::vector<std::string>{"hawser pull org/model@abc"});
  folder_.write("model/config.json", "{}");
  const Converted folder = convert("base_model: " + folder_.path("model") + "\n");
  EXPECT_EQ(value(folder, "model.path"), folder_.path("model"));
  EXPECT_TRUE(folder.downloads.empty());
}

// A key with two rules would be converted by the first one alone.
TEST(ConvertRules, EachKeyHasOneRule) {
  for (const convert::Trainer* trainer : {&convert::axolotl(), &convert::llama_factory()}) {
    for (const auto rules : {trainer->rules, trainer->data_rules}) {
      std::set<std::string_view> seen;
      for (const convert::Rule& rule : rules) {
        convert::each_name(rule.names, [&](std::string_view name) {
          EXPECT_TRUE(seen.insert(name).second) << name;
          EXPECT_EQ(name.find('*') == std::string_view::npos, !name.ends_with('*')) << name;
        });
        EXPECT_FALSE(rule.target.empty());
        const bool is_key = rule.becomes == convert::Becomes::key;
        EXPECT_TRUE(!is_key || find_key(rule.target) != nullptr) << rule.target;
      }
    }
  }
}

TEST(ConvertRules, ReasonsAreOneLine) {
  for (const convert::Trainer* trainer : {&convert::axolotl(), &convert::llama_factory()}) {
    for (const convert::Rule& rule : trainer->rules) {
      if (rule.becomes != convert::Becomes::dropped) continue;
      EXPECT_LE(rule.target.size(), 120u) << rule.target;
      EXPECT_FALSE(rule.target.ends_with('.')) << rule.target;
    }
  }
}

}  // namespace convert_test
}  // namespace hawser
