// What a recipe and a command line may name as data: token files by prefix, text by its ending.
#include "binary.h"

namespace hawser {
namespace {

namespace fs = std::filesystem;
using testing::tiny;

class Data : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    std::string lines;
    for (int line = 0; line < 40; ++line) {
      nlohmann::json ids = nlohmann::json::array();
      for (int i = 0; i < 5 + line % 23; ++i) ids.push_back((line * 31 + i * i * 7) % 96);
      lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
    }
    write("text.jsonl", lines);
    write("recipe.yaml", recipe("{train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}", "run"));
  }
  static std::string recipe(const std::string& data, const std::string& output) {
    return "model: {config: " + (tiny("tied") / "config.json").string() + "}\ndata: " + data +
           "\ntrain: {steps: 3, global_batch_size: 4}\noptimizer: {learning_rate: 1.0e-2}\noutput: " + output + "\n";
  }
};

TEST_F(Data, ATokenFileTrainsAsTheTextItCameFrom) {
  const nlohmann::json from_text = json("fit recipe.yaml --json");
  fs::rename(folder_ / "run/data", folder_ / "tokens");
  write("tokens.yaml", recipe("{train: [tokens/train], validation: tokens/valid.bin, sequence_length: 24}", "again"));
  const nlohmann::json from_tokens = json("fit tokens.yaml --json");
  EXPECT_EQ(from_tokens["train_loss"], from_text["train_loss"]);
  EXPECT_EQ(from_tokens["validation_loss"], from_text["validation_loss"]);
  EXPECT_FALSE(fs::exists(folder_ / "again/data")) << "the files are read where they lie";
  const testing::Ran two = hawser("fit tokens.yaml --ranks 2 --json");
  EXPECT_EQ(two.code, 0) << two.err;

  const nlohmann::json prepared = json("prepare tokens.yaml --json");
  EXPECT_EQ(prepared["made_now"], false);
  EXPECT_EQ(prepared["train"]["documents"], 30);
  // Several are joined, and a share of them may be held out.
  write("both.yaml",
        recipe("{train: [tokens/train, tokens/valid], validation_fraction: 0.1, sequence_length: 24}", "both"));
  const nlohmann::json both = json("prepare both.yaml --json");
  EXPECT_EQ(both["train"]["documents"], 36);
  EXPECT_EQ(both["valid"]["documents"], 4);
}

}  // namespace
}  // namespace hawser
