// hawser recipe init: its recipes fit the memory, the ranks and the batch of a machine, of this one or another.
#include "recipe_init.h"

namespace hawser {
namespace recipe_fit_test {

namespace fs = std::filesystem;
using testing::RecipeInit;

// A batch of fewer sequences than ranks: ranks share each sequence.
TEST_F(RecipeInit, RanksShareSequencesOfASmallBatch) {
  write("data.jsonl", testing::forty_documents());
  const auto recipe = init("--model " + tiny("gqa") +
                           " --data data.jsonl --ranks 4 --set train.steps=2 --set train.global_batch_size=2");
  EXPECT_EQ(recipe["parallel"]["context_parallel_degree"], 2);
  EXPECT_NE(text().find("a step has 2 sequences, which 2 data ranks divide and 4 do not"), std::string::npos) << text();
  goes("fit recipe.yaml");
}

TEST_F(RecipeInit, ShrinksUntilItFits) {
  write("data.jsonl", testing::forty_documents());
  // A model whose memory is mostly activations.
  write_config("model/config.json",
               {{"max_position_embeddings", 2048}, {"num_hidden_layers", 12}, {"vocab_size", 4096}});
  const std::string model = "--model model/config.json ";
  const auto ample = init(model + "--memory 4GiB");
  EXPECT_EQ(ample["data"]["sequence_length"], 2048);
  EXPECT_EQ(ample["memory"]["activation_checkpointing"], "none");
  goes("plan recipe.yaml");
  // With less and less memory, first activations are recomputed, then sequences get shorter, then nothing fits.
  bool checkpointed = false, shorter = false, rejected = false;
  for (const int mebibytes : {140, 100, 80, 60, 46, 38, 32}) {
    const std::string how = model + "--memory " + std::to_string(mebibytes) + "MiB";
    const testing::Ran ran = hawser("recipe init --force --output recipe.yaml " + how);
    if (ran.code == 4) {
      rejected = true;
      EXPECT_NE(ran.err.find("does not fit, even with sequences of 128 tokens"), std::string::npos);
      // The nearest settings that are suggested do fit.
      const auto at = ran.err.find("it would fit with ");
      ASSERT_NE(at, std::string::npos) << ran.err;
      const auto memory = ran.err.find("--memory ", at);
      const std::string flag = ran.err.substr(memory, ran.err.find(' ', memory + 9) - memory);
      goes("recipe init " + model + flag);
      break;
    }
    ASSERT_EQ(ran.code, 0) << how << "\n" << ran.err;
    goes("plan recipe.yaml");
    const auto recipe = nlohmann::json::parse(hawser("recipe init --json " + how).out);
    checkpointed = checkpointed || recipe["memory"]["activation_checkpointing"] == "auto";
    if (recipe["data"]["sequence_length"] < 2048) {
      shorter = true;
      EXPECT_NE(text().find("# why: the longest that fits in memory: 2048 is halved until it fits"), std::string::npos);
    }
  }
  EXPECT_TRUE(checkpointed);
  EXPECT_TRUE(shorter);
  EXPECT_TRUE(rejected);
  // The user's values are kept.
  const testing::Ran fixed = hawser("recipe init " + model + "--memory 60MiB --set data.sequence_length=2048");
  EXPECT_EQ(fixed.code, 4);
  EXPECT_NE(fixed.err.find("sequences of 2048 tokens"), std::string::npos) << fixed.err;
}

// Where a batch of one micro-batch fits and accumulated gradients do not, the batch is the smaller one.
TEST_F(RecipeInit, ReducesTheBatchBeforeItRejects) {
  write("data.jsonl", testing::forty_documents());
  write_config("model.json",
               {{"hidden_size", 128}, {"intermediate_size", 512}, {"num_hidden_layers", 4}, {"vocab_size", 4096}});
  const std::string model =
      "--model model.json --set precision.compute=float32 --set train.steps=3 --set data.sequence_length=64 ";
  const auto ample = init(model + "--memory 1GiB");
  EXPECT_EQ(ample["train"]["global_batch_size"], 8);
  const auto needed = [&](int batch) {  // at least
    const testing::Ran ran = hawser(
        "plan recipe.yaml --json --memory 1MB --set memory.activation_checkpointing=auto "
        "--set train.global_batch_size=" +
        std::to_string(batch));
    return nlohmann::json::parse(ran.out)["memory"][0]["needed"].get<std::int64_t>();
  };
  const std::int64_t one = needed(1), eight = needed(8);
  ASSERT_GT(eight, one + (1 << 18)) << "accumulation of gradients needs memory";
  const std::string memory = "--memory " + std::to_string((one + eight) / 2) + " ";

  const auto recipe = init(model + memory);
  EXPECT_EQ(recipe["train"]["global_batch_size"], 1);
  EXPECT_NE(text().find("# why: 64 tokens per step; a batch of 8 does not fit in memory: it accumulates the gradients"),
            std::string::npos)
      << text();
  goes("fit recipe.yaml --set data.train=data.jsonl");
  // The user's batch is kept, and the figure is the one that does not fit.
  const testing::Ran fixed = hawser("recipe init " + model + memory + "--set train.global_batch_size=8");
  EXPECT_EQ(fixed.code, 4);
  const auto figure = [&](const std::string& before) {
    const auto at = fixed.err.find(before);
    return at == std::string::npos ? 0.0 : std::stod(fixed.err.substr(at + before.size()));
  };
  EXPECT_GT(figure("expected at most "), 0) << fixed.err;
  EXPECT_GT(figure("got "), figure("expected at most ")) << fixed.err;
}

// A recipe for GPUs that this machine lacks names them, and plan on this machine agrees.
TEST_F(RecipeInit, WritesForAnotherMachine) {
  write_config("llama/config.json", {{"hidden_size", 4096},
                                     {"intermediate_size", 14336},
                                     {"num_hidden_layers", 32},
                                     {"num_attention_heads", 32},
                                     {"num_key_value_heads", 8},
                                     {"vocab_size", 128256},
                                     {"max_position_embeddings", 131072}});
  const auto recipe = init("--model llama/config.json --target h200 --ranks 8");
  EXPECT_EQ(recipe["run"]["device"], "cuda");
  EXPECT_EQ(recipe["run"]["ranks"], 8);
  EXPECT_EQ(recipe["data"]["sequence_length"], 131072);
  goes("plan recipe.yaml");
  const testing::Ran one = hawser("recipe init --model llama/config.json --target h200 --ranks 1 --memory 40GB");
  EXPECT_EQ(one.code, 4);
  EXPECT_NE(one.err.find("it would fit with --ranks "), std::string::npos) << one.err;
}

// A real model and real text, if scripts/fetch-inputs has been run.
TEST_F(RecipeInit, FitsSmolLm2) {
  const fs::path inputs = fs::path(testing::kSourceFolder) / "inputs";
  if (!fs::exists(inputs / "smollm2/config.json") || !fs::exists(inputs / "text/austen")) {
    FAIL() << "inputs/smollm2 and inputs/text are not here: scripts/fetch-inputs";
  }
  const std::string model =
      "--model " + (inputs / "smollm2").string() + " --data " + (inputs / "text/austen").string() + " ";
  for (const std::string how : {"--memory 3GiB", "--memory 2200MiB", "--memory 2GiB --ranks 2"}) {
    const auto recipe = init(model + how);
    EXPECT_GE(recipe["data"]["sequence_length"], 128) << how;
    if (how == "--memory 2200MiB") EXPECT_EQ(recipe["precision"]["compute"], "auto") << "bf16 needs more";
    goes("plan recipe.yaml");
  }
  // Where training all weights does not fit, an adapter does, and with less memory one beside NF4: with as little memory
  // as the error names, which depends on the processor (bf16, workspaces of GEMMs).
  const auto least_of = [&](const std::string& settings) {
    const testing::Ran none = hawser("recipe init " + model + "--memory 150MiB" + settings);
    EXPECT_EQ(none.code, 4);
    const auto at = none.err.find("--memory ");
    EXPECT_NE(at, std::string::npos) << none.err;
    return at == std::string::npos ? "" : none.err.substr(at, none.err.find(' ', at + 9) - at);
  };
  const auto expect_adapter = [&](const std::string& memory, const std::string& kind, const std::string& why) {
    const auto adapted = init(model + memory);
    EXPECT_EQ(adapted["adapter"]["kind"], kind);
    EXPECT_EQ(adapted["optimizer"]["learning_rate"], 2e-3);
    EXPECT_NE(text().find("# why: " + why), std::string::npos) << text();
    goes("plan recipe.yaml");
    EXPECT_EQ(hawser("recipe init " + model + memory + " --set adapter.kind=none").code, 4);
  };
  const std::string beside_nf4 = least_of("");
  const auto least = std::stoll(beside_nf4.substr(std::string("--memory ").size()));  // in MiB
  EXPECT_LT(least, 600) << beside_nf4;
  expect_adapter(cat("--memory ", 2 * least, "MiB"), "lora", "training all weights does not fit in memory");
  expect_adapter(beside_nf4, "qlora", "neither all weights nor an adapter beside frozen weights in bf16 fit in memory");
}

}  // namespace recipe_fit_test
}  // namespace hawser
