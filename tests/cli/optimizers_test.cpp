// optimizer.kind and its dtypes in every command: fit, plan, eval, export, inspect, resume, and the lines of wrong
// input.
#include "cli/testing/binary.h"

namespace hawser {
namespace optimizers_cli_test {

namespace fs = std::filesystem;

class OptimizerCommands : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("data.jsonl", testing::forty_documents());
    copy_of("gqa", "m");
    write("m/tokenizer.json", testing::letters_tokenizer());
    write("r.yaml", recipe("path: m"));
    // Tensors that are large enough for states of 8 bits.
    write("wide/config.json",
          R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
              "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 96, "max_position_embeddings": 128,
              "rms_norm_eps": 1e-5, "tie_word_embeddings": false})");
    write("wide.yaml", recipe("config: wide/config.json"));
  }

  static std::string recipe(const std::string& model) {
    return "model: {" + model + "}\ndata: {train: data.jsonl, tokenizer: m/tokenizer.json, sequence_length: 32}\n" +
           "train: {steps: 2, global_batch_size: 4}\nrun: {threads: 1}\noutput: run\n";
  }
  static std::string set(const std::string& keys) {
    std::string out;
    std::istringstream in(keys);
    for (std::string key; in >> key;) out += " --set " + key;
    return out;
  }
  // A number of plan --json, by its key.
  double bytes_of(const std::string& options, const std::string& category) {
    const testing::Ran ran = hawser("plan wide.yaml --json" + set(options));
    EXPECT_EQ(ran.code, 0) << ran.err;
    const std::size_t at = ran.out.rfind("\"" + category + "\":");
    EXPECT_NE(at, std::string::npos) << ran.out;
    return at == std::string::npos ? 0 : std::stod(ran.out.substr(at + category.size() + 3));
  }
};

TEST_F(OptimizerCommands, TrainEvaluateAndExport) {
  for (const char* const keys : {"optimizer.kind=lion", "optimizer.kind=sgd", "optimizer.kind=adafactor",
                                 "optimizer.kind=muon", "optimizer.kind=adamw_8bit optimizer.master_dtype=bf16",
                                 "optimizer.state_dtype=bf16 optimizer.master_dtype=bf16 run.ranks=2"}) {
    SCOPED_TRACE(keys);
    fs::remove_all(folder_ / "run");
    const testing::Ran fit = hawser("fit wide.yaml" + set(keys));
    ASSERT_EQ(fit.code, 0) << fit.err;
    EXPECT_EQ(hawser("eval --model run --data data.jsonl").code, 0);
    fs::remove_all(folder_ / "exported");
    EXPECT_EQ(hawser("export run exported").code, 0);
    EXPECT_EQ(hawser("eval --model exported --data data.jsonl --sequence-length 32").code, 0);
    EXPECT_NE(hawser("inspect run").out.find("optimizer   "), std::string::npos);
  }
}

TEST_F(OptimizerCommands, PlanTheirState) {
  const double adamw = bytes_of("", "optimizer state"), weights = bytes_of("", "parameters");
  EXPECT_EQ(bytes_of("optimizer.state_dtype=bf16", "optimizer state"), adamw / 2);
  EXPECT_EQ(bytes_of("optimizer.kind=lion", "optimizer state"), adamw / 2);
  EXPECT_EQ(bytes_of("optimizer.kind=sgd", "optimizer state"), adamw / 2);
  EXPECT_EQ(bytes_of("optimizer.kind=lion optimizer.state_dtype=bf16", "optimizer state"), adamw / 4);
  EXPECT_LT(bytes_of("optimizer.kind=adafactor", "optimizer state"), 0.05 * adamw);
  EXPECT_LT(bytes_of("optimizer.kind=adamw_8bit", "optimizer state"), 0.4 * adamw);
  // On the CPU layers read float32: a copy of the bf16 weights.
  EXPECT_EQ(bytes_of("optimizer.master_dtype=bf16 precision.compute=bf16", "parameters"), weights / 2);
  EXPECT_NE(hawser("plan wide.yaml" + set("optimizer.kind=lion optimizer.state_dtype=bf16"))
                .out.find("optimizer: lion, state in bf16\n"),
            std::string::npos);
}

// Where no other setting is enough.
TEST_F(OptimizerCommands, SuggestSmallerMoments) {
  write("big/config.json",
        R"({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
            "num_hidden_layers": 8, "intermediate_size": 1024, "vocab_size": 96, "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": false})");
  write("big.yaml", recipe("config: big/config.json"));
  const testing::Ran ran = hawser("plan big.yaml --memory 155MiB");
  EXPECT_EQ(ran.code, 4);
  EXPECT_NE(ran.err.find("no settings were found that fit 1 rank"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("\nhawser: with less state of the optimizer it fits: --set optimizer.state_dtype=bf16   ("),
            std::string::npos)
      << ran.err;
  EXPECT_EQ(hawser("plan big.yaml --memory 155MiB --set optimizer.state_dtype=bf16").code, 0);
  const testing::Ran less = hawser("plan big.yaml --memory 125MiB --set optimizer.ema=0.9");
  EXPECT_NE(less.err.find("\nhawser: with less state of the optimizer it fits: --set optimizer.kind=adamw_8bit --set "
                          "optimizer.ema=0   ("),
            std::string::npos)
      << less.err;
  EXPECT_EQ(hawser("plan big.yaml --memory 125MiB --set optimizer.kind=adamw_8bit").code, 0);
}

TEST_F(OptimizerCommands, ResumeWithTheirOwnState) {
  ASSERT_EQ(hawser("fit wide.yaml").code, 0);
  rejected("fit wide.yaml --resume --set optimizer.kind=adamw_8bit",
           {"run/checkpoints/step-00000002: the optimizer has changed (expected adamw, got adamw_8bit) at "
            "optimizer.kind, --set; try the run's own optimizer, adamw, or --set output=... for a new run"});
  const testing::Ran ran = hawser("fit wide.yaml --resume" + set("train.steps=3 optimizer.state_dtype=bf16"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("optimizer.state_dtype was \"float32\" and is \"bf16\""), std::string::npos) << ran.err;
}

// What `eval` and `export` read with --ema.
TEST_F(OptimizerCommands, AverageTheWeights) {
  const auto loss = [&](const std::string& model) {
    const testing::Ran ran = hawser("eval --data data.jsonl --sequence-length 32 --json --model " + model);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? nlohmann::json::parse(ran.out).at("loss").get<double>() : 0;
  };
  const std::string ema = set("optimizer.ema=0.5 optimizer.learning_rate=0.01");
  for (const char* const keys : {"train.steps=4", "train.steps=4 optimizer.master_dtype=bf16 precision.compute=fp8",
                                 "train.steps=4 run.ranks=2 optimizer.kind=adamw_8bit"}) {
    SCOPED_TRACE(keys);
    fs::remove_all(folder_ / "run");
    fs::remove_all(folder_ / "exported");
    ASSERT_EQ(hawser("fit wide.yaml" + ema + set(keys)).code, 0);
    const double average = loss("run --ema");
    EXPECT_GT(std::abs(average - loss("run")), 1e-3);
    ASSERT_EQ(hawser("export run exported --ema --dtype float32").code, 0);
    if (std::string(keys).find("fp8") == std::string::npos) EXPECT_NEAR(loss("exported"), average, 1e-6);
  }
  EXPECT_NE(hawser("inspect run").out.find(", average of the weights with decay 0.5"), std::string::npos);
  EXPECT_NE(hawser("inspect run/checkpoints/step-00000004").out.find(", and its average"), std::string::npos);
  EXPECT_EQ(hawser("generate --model run --ema --prompt a --max-tokens 2").code, 0);
  EXPECT_EQ(bytes_of("optimizer.ema=0.5", "optimizer state"), 1.5 * bytes_of("", "optimizer state"));
}

TEST_F(OptimizerCommands, AverageOfAnAdapter) {
  ASSERT_EQ(hawser("fit r.yaml" + set("adapter.kind=lora optimizer.ema=0.5 optimizer.learning_rate=0.05")).code, 0);
  const auto loss = [&](const std::string& model) {
    const testing::Ran ran = hawser("eval --data data.jsonl --sequence-length 32 --json --model " + model);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.code == 0 ? nlohmann::json::parse(ran.out).at("loss").get<double>() : 0;
  };
  const double average = loss("run --ema");
  EXPECT_NE(average, loss("run"));
  EXPECT_EQ(hawser("export run adapter --ema").code, 0);
  EXPECT_EQ(hawser("export run merged --ema --merge").code, 0);
  EXPECT_NEAR(loss("m --adapter adapter"), average, 1e-6);
  EXPECT_NEAR(loss("merged"), average, 1e-5);
}

// Switched on in a resumed run, the average begins at its weights.
TEST_F(OptimizerCommands, AverageFromAResumedRunOn) {
  ASSERT_EQ(hawser("fit wide.yaml").code, 0);
  rejected("eval --model run --ema --data data.jsonl",
           {"run/checkpoints/step-00000002: no average of the weights (expected a checkpoint of a run with "
            "optimizer.ema, got a run without it) at --ema"});
  rejected("export run exported --ema",
           {"run/checkpoints/step-00000002: no average of the weights (expected a checkpoint of a run with "
            "optimizer.ema, got a run without it) at --ema"});
  rejected("generate --model m --ema --prompt a",
           {"m: no average of the weights (expected a checkpoint of a run with optimizer.ema, got a model's folder) at "
            "--ema"});
  const testing::Ran ran = hawser("fit wide.yaml --resume" + set("train.steps=3 optimizer.ema=0.5"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("optimizer.ema was"), std::string::npos) << ran.err;
  EXPECT_EQ(hawser("eval --model run --ema --data data.jsonl").code, 0);
  EXPECT_EQ(hawser("fit wide.yaml --resume" + set("train.steps=4")).code, 0);
  rejected("fit wide.yaml" + set("optimizer.ema=1"),
           {"--set: out of range (expected a number at least 0 and below 1, got 1) at "
            "optimizer.ema"});
}

TEST_F(OptimizerCommands, RejectWhatTheyDoNotRead) {
  rejected("fit r.yaml --set optimizer.kind=lions", {"--set: unknown value (expected adamw, adamw_8bit, adafactor, "
                                                     "lion, sgd or muon, got lions) at optimizer.kind; try lion"});
  rejected("fit r.yaml --set optimizer.momentum=0.5",
           {"--set: a key of another optimizer (expected optimizer.kind: sgd or muon) at optimizer.momentum; try "
            "optimizer.kind: sgd or muon, or remove optimizer.momentum"});
  rejected("plan r.yaml" + set("optimizer.kind=adamw_8bit optimizer.state_dtype=bf16"),
           {"--set: a key of another optimizer (expected optimizer.kind: adamw, lion or sgd) at "
            "optimizer.state_dtype; try optimizer.kind: adamw, lion or sgd, or remove optimizer.state_dtype"});
  rejected("fit r.yaml" + set("optimizer.kind=sgd optimizer.nesterov=true optimizer.momentum=0"),
           {"--set: Nesterov's momentum without momentum (expected optimizer.momentum above 0, got 0) at "
            "optimizer.nesterov; try optimizer.momentum: 0.9, or optimizer.nesterov: false"});
}

// Before memory is reserved, in plan and fit alike.
TEST_F(OptimizerCommands, RejectSlicesThatCutBlocksOf8Bits) {
  const std::string line =
      "--set: the state of the optimizer is of blocks of 256 elements, which no parameter or slice may cut (got "
      "model.layers.0.mlp.down_proj.weight: the slice [0, 64) of dim 1 of [64, 128] cuts a block of 256 that shares a "
      "value) at optimizer.kind; try optimizer.kind: adamw, or a smaller parallel.tensor_parallel_degree";
  for (const char* const command : {"plan", "fit"}) {
    rejected(std::string(command) + " wide.yaml" +
                 set("optimizer.kind=adamw_8bit run.ranks=2 parallel.tensor_parallel_degree=2 "
                     "parallel.tensor_parallel_modules=[mlp]"),
             {line});
  }
}

}  // namespace optimizers_cli_test
}  // namespace hawser
