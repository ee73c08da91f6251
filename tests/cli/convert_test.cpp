// hawser recipe convert: files of axolotl and LLaMA-Factory become recipes that plan, prepare and fit take.
#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace convert_test {

namespace fs = std::filesystem;

class RecipeConvert : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("data.jsonl", testing::forty_documents());
    write("axolotl.yaml", cat("base_model: ", testing::tiny("gqa").string(),
                              "\n"
                              "datasets:\n"
                              "  - path: data.jsonl\n"
                              "    type:\n"
                              "val_set_size: 0.2\n"
                              "sequence_len: 32\n"
                              "sample_packing: true\n"
                              "micro_batch_size: 2\n"
                              "gradient_accumulation_steps: 2\n"
                              "max_steps: 3\n"
                              "warmup_ratio: 0.4\n"
                              "learning_rate: 1e-3\n"
                              "optimizer: adamw_bnb_8bit\n"
                              "gradient_checkpointing: true\n"
                              "flash_attention: true\n"
                              "output_dir: out\n"
                              "colour: blue\n"));
    write("factory.yaml", cat("model_name_or_path: ", testing::tiny("gqa").string(),
                              "\n"
                              "do_train: true\n"
                              "stage: sft\n"
                              "finetuning_type: lora\n"
                              "lora_rank: 4\n"
                              "dataset: ids\n"
                              "dataset_dir: index\n"
                              "cutoff_len: 32\n"
                              "per_device_train_batch_size: 1\n"
                              "gradient_accumulation_steps: 2\n"
                              "num_train_epochs: 1\n"
                              "learning_rate: 1e-3\n"
                              "output_dir: saves\n"));
    write("index/dataset_info.json", R"({"ids": {"file_name": "../data.jsonl"}})");
  }
};

TEST_F(RecipeConvert, RecipesRun) {
  for (const std::string file : {"axolotl", "factory"}) {
    const testing::Ran ran = hawser(cat("recipe convert ", file, ".yaml --output ", file, "-recipe.yaml"));
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.out, "");
    for (const std::string command : {"plan", "fit"}) {
      const testing::Ran next = hawser(cat(command, " ", file, "-recipe.yaml"));
      EXPECT_EQ(next.code, 0) << command << "\n" << next.err << folder_.read(file + "-recipe.yaml");
    }
  }
  EXPECT_TRUE(fs::exists(folder_ / "out/report.html"));
  EXPECT_TRUE(fs::exists(folder_ / "saves/report.html"));
}

TEST_F(RecipeConvert, WritesTheRecipeToStandardOutputAndTheRestToStandardError) {
  const testing::Ran ran = hawser("recipe convert axolotl.yaml --ranks 2 --set train.steps=9");
  EXPECT_EQ(ran.code, 0);
  for (const char* part : {"  # why: axolotl's sequence_len\n  sequence_length: 32 ", "global_batch_size: 8 ",
                           "# why: micro_batch_size 2 x gradient_accumulation_steps 2 x 2 ranks", "\n  steps: 9 ",
                           "\n# colour: unknown: no key of axolotl\n", "kind: adamw_8bit"}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran.out;
  }
  const auto lines = testing::lines_of(ran.err);
  EXPECT_EQ(lines.front(), "hawser: axolotl.yaml: a file for axolotl: 14 keys converted, 2 dropped, 1 unknown");
  EXPECT_NE(ran.err.find("hawser: dropped flash_attention: automatic: attention is always fused"), std::string::npos);
  EXPECT_NE(ran.err.find("hawser: dropped colour: unknown: no key of axolotl\n"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("hawser: note: train.global_batch_size 8 is micro_batch_size 2 x "), std::string::npos);
  const auto recipe = nlohmann::json::parse(hawser("recipe convert axolotl.yaml --json").out);
  EXPECT_EQ(recipe["train"]["global_batch_size"], 4);
}

TEST_F(RecipeConvert, OverwritesNothing) {
  write("recipe.yaml", "mine");
  const testing::Ran ran = hawser("recipe convert axolotl.yaml --output recipe.yaml");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err, "hawser: recipe.yaml: already exists; try another --output, or --force to overwrite it\n");
  EXPECT_EQ(folder_.read("recipe.yaml"), "mine");
  EXPECT_EQ(hawser("recipe convert axolotl.yaml --output recipe.yaml --force").code, 0);
  EXPECT_NE(folder_.read("recipe.yaml"), "mine");
  const std::string before = folder_.read("axolotl.yaml");
  EXPECT_EQ(hawser("recipe convert axolotl.yaml --output axolotl.yaml --force").code, 2);
  EXPECT_EQ(folder_.read("axolotl.yaml"), before);
}

TEST_F(RecipeConvert, ErrorsWriteNothing) {
  write("dpo.yaml", "base_model: a/b\nlearning_rate: 1e-6\nrl: dpo\ndatasets: [{path: a}]\n");
  const testing::Ran ran = hawser("recipe convert dpo.yaml --output recipe.yaml");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(
      ran.err,
      "hawser: dpo.yaml: this kind of training is not supported (expected supervised fine-tuning or pre-training, "
      "got dpo) at rl, line 3\n");
  EXPECT_EQ(ran.out, "");
  EXPECT_FALSE(fs::exists(folder_ / "recipe.yaml"));
  EXPECT_EQ(hawser("recipe convert axolotl.yaml --from torchtune").err,
            "hawser: wrong value (expected axolotl or llama-factory, got torchtune) at --from\n");
  EXPECT_EQ(hawser("recipe convert none.yaml").code, 2);
}

TEST_F(RecipeConvert, OtherCommandsPointToIt) {
  EXPECT_EQ(hawser("fit axolotl.yaml").err,
            "hawser: axolotl.yaml: a file for axolotl (expected a recipe); try hawser recipe convert axolotl.yaml\n");
  EXPECT_EQ(
      hawser("plan factory.yaml").err,
      "hawser: factory.yaml: a file for LLaMA-Factory (expected a recipe); try hawser recipe convert factory.yaml\n");
  EXPECT_EQ(hawser("convert axolotl.yaml").err,
            "hawser: unknown command convert; try hawser recipe convert axolotl.yaml\n");
}

}  // namespace convert_test
}  // namespace hawser
