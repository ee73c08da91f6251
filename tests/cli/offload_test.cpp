// Offload to host memory in the commands: fit, resume, eval, plan, suggestions, recipe init, and errors.
#include "parallel_commands.h"

namespace hawser {
namespace cli_offload_test {

class OffloadCommands : public testing::ParallelCommands {
 protected:
  void SetUp() override {
    ParallelCommands::SetUp();
    write_recipe(4, "hybrid_shard_degree: 0", "optimizer: {schedule: constant}\n");
  }

  // Llama-3.1-8B's sizes: 128 GB of master weights, moments and gradients.
  void write_large() {
    nlohmann::json config = testing::json_of(config_);
    config.update({{"hidden_size", 4096},
                   {"intermediate_size", 14336},
                   {"num_hidden_layers", 32},
                   {"num_attention_heads", 32},
                   {"num_key_value_heads", 8},
                   {"head_dim", 128},
                   {"vocab_size", 128256},
                   {"max_position_embeddings", 131072}});
    write("large/config.json", config.dump());
    write("large.yaml",
          "model: {config: large/config.json}\ndata: {sequence_length: 16384, pack: chunks}\n"
          "train: {steps: 10, global_batch_size: 4, micro_batch_size: 1}\noutput: run\n");
  }

  const std::string all_ =
      "--set memory.activation_offload=true --set memory.optimizer_offload=true --set memory.weight_offload=true ";
  const std::string large_ = "plan large.yaml --target h200 --ranks 1 ";
};

TEST_F(OffloadCommands, TrainsResumesAndEvaluatesToTheSameBits) {
  const nlohmann::json resident = json("fit recipe.yaml --ranks 2 --json --set output=resident");
  EXPECT_EQ(resident["offload"], "");
  const std::string begun = fit(all_ + "--set train.steps=2");
  EXPECT_TRUE(says(begun,
                   "warning: memory.activation_offload, memory.optimizer_offload, memory.weight_offload save nothing "
                   "on a CPU: host and device memory are one"))
      << begun;
  EXPECT_TRUE(says(hawser("inspect run/checkpoints/step-00000002").out,
                   "activation_offload true, optimizer_offload true, weight_offload true"));
  const nlohmann::json resumed =
      json("fit recipe.yaml --ranks 2 --json --resume " + all_ + "--set memory.activation_offload_window=3");
  EXPECT_EQ(resumed["offload"], "activations of 2 blocks, the optimizer state, the weights");
  EXPECT_EQ(resumed["validation_loss"], resident["validation_loss"]);
  const std::string eval = "eval --model run --data text.jsonl --sequence-length 24 ";
  EXPECT_EQ(json(eval)["loss"], json(eval + "--set memory.weight_offload=true")["loss"]);
  EXPECT_EQ(json("fit recipe.yaml --ranks 1 --json --set output=auto --set memory.optimizer_offload=auto")["offload"],
            "");
}

TEST_F(OffloadCommands, AdaptersLoadTheirFrozenBase) {
  fit("--set train.steps=1");
  ASSERT_EQ(hawser("export run model").code, 0);
  const std::string lora =
      "fit recipe.yaml --json --ranks 1 --set model.config= --set model.path=model --set adapter.kind=lora ";
  const nlohmann::json resident = json(lora + "--set output=lora");
  const nlohmann::json streamed = json(lora + "--set output=streamed --set memory.weight_offload=true");
  EXPECT_EQ(streamed["offload"], "the weights, the frozen weights");
  EXPECT_EQ(streamed["validation_loss"], resident["validation_loss"]);
}

TEST_F(OffloadCommands, PlansSayWhatIsInHostMemory) {
  write_large();
  const testing::Ran too_large = hawser(large_);
  EXPECT_EQ(too_large.code, 4);
  EXPECT_TRUE(says(too_large.err, "_offload=")) << too_large.err;
  const testing::Ran some = hawser(large_ + "--set memory.optimizer_offload=auto");
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_TRUE(says(some.out, "\noffload: 7")) << some.out;  // 74%
  EXPECT_TRUE(says(some.out, "% of the optimizer state\n")) << some.out;
  const nlohmann::json free = json(large_ + "--json --set memory.optimizer_offload=auto");
  const nlohmann::json state = json(large_ + "--json --set memory.optimizer_offload=true");
  EXPECT_EQ(state["offload"], "the optimizer state");
  EXPECT_GT(state["host_memory"]["needed"].get<double>(), free["host_memory"]["needed"].get<double>());
  EXPECT_LT(state["tokens_per_second"].get<double>(), free["tokens_per_second"].get<double>());
  const nlohmann::json recomputed =
      json(large_ + "--json --set memory.activation_checkpointing=auto --set memory.activation_offload=auto");
  EXPECT_TRUE(says(recomputed["offload"], "activations of ")) << recomputed["offload"];
  EXPECT_TRUE(says(hawser(large_ + "--set memory.activation_offload=auto").out +
                       hawser(large_ + "--set memory.activation_offload=auto").err,
                   "warning: memory.activation_offload: auto offloads nothing without"));
  EXPECT_TRUE(says(hawser(large_ + "--alternatives --set memory.optimizer_offload=true").out,
                   "--set memory.optimizer_offload=false"));
}

TEST_F(OffloadCommands, MlpsRunInTiles) {
  const std::string tiles = "--set memory.mlp_tile_rows=128 --set memory.activation_checkpointing=block ";
  const nlohmann::json whole = json("fit recipe.yaml --ranks 2 --json --set output=whole");
  fit(tiles + "--set train.steps=2");
  EXPECT_TRUE(says(hawser("inspect run/checkpoints/step-00000002").out, "mlp_tile_rows 128"));
  const nlohmann::json resumed = json("fit recipe.yaml --ranks 2 --json --resume");
  EXPECT_NEAR(resumed["validation_loss"].get<double>(), whole["validation_loss"].get<double>(), 1e-4);
  const std::string eval = "eval --model run --data text.jsonl --sequence-length 24 ";
  EXPECT_NEAR(json(eval)["loss"].get<double>(), json(eval + "--set memory.mlp_tile_rows=128")["loss"].get<double>(),
              1e-5);
  write_large();
  const std::string longer = large_ +
                             "--host-memory 1TB --set train.global_batch_size=1 "
                             "--set memory.optimizer_offload=true --set memory.activation_offload=true "
                             "--set data.sequence_length=131072 ";
  const std::string planned = hawser(longer + tiles).out;
  EXPECT_TRUE(says(planned, "checkpointing: 32*block, MLPs in tiles of 128 rows\n")) << planned;
  const testing::Ran alternatives = hawser(longer + "--alternatives");
  EXPECT_TRUE(says(alternatives.out, "--set memory.mlp_tile_rows=8192")) << alternatives.out;
  // Suggested where it makes the sequence fit.
  const testing::Ran too_long = hawser(longer + "--memory 60GiB");
  EXPECT_EQ(too_long.code, 4);
  EXPECT_TRUE(says(too_long.err, "--set memory.mlp_tile_rows=8192")) << too_long.err;
  for (const std::string command :
       {"plan recipe.yaml", "bench step --model large/config.json", "eval --model run --data text.jsonl"}) {
    const testing::Ran ran = hawser(command + " --set memory.mlp_tile_rows=100");
    EXPECT_EQ(ran.code, 2) << command;
    EXPECT_TRUE(says(ran.err, "not a multiple (expected a multiple of 128, got 100) at memory.mlp_tile_rows; try 128"))
        << ran.err;
  }
  const testing::Ran sliced =
      hawser("plan recipe.yaml --ranks 2 --set memory.mlp_tile_rows=128 --set parallel.tensor_parallel_degree=2");
  EXPECT_EQ(sliced.code, 2);
  EXPECT_TRUE(says(sliced.err,
                   "tiles of rows of an MLP that tensor-parallel ranks divide (expected 0 with "
                   "parallel.tensor_parallel_degree above 1, got 128) at memory.mlp_tile_rows"))
      << sliced.err;
  // What a layout would not take is not proposed.
  const testing::Ran divided = hawser(
      "plan large.yaml --target h200 --ranks 8 --set data.sequence_length=131072 --set train.global_batch_size=8 "
      "--set memory.mlp_tile_rows=8192 --alternatives");
  EXPECT_FALSE(says(divided.out + divided.err, "tensor_parallel_degree")) << divided.out << divided.err;
}

TEST_F(OffloadCommands, TooLittleHostMemoryIsOneLine) {
  write_large();
  const std::string state = large_ + "--set memory.optimizer_offload=true ";
  EXPECT_EQ(hawser(state).code, 0);
  const testing::Ran none = hawser(state + "--host-memory 64GB");
  EXPECT_EQ(none.code, 4);
  EXPECT_TRUE(says(none.err,
                   "large.yaml: does not fit in host memory (expected at most 59.60 GiB for the 1 rank of a machine, "
                   "got 93."))
      << none.err;
  EXPECT_TRUE(says(none.err, ") at --host-memory; try memory.optimizer_offload: auto, which pins only")) << none.err;
  EXPECT_EQ(hawser(large_ + "--set memory.optimizer_offload=auto --host-memory 80GB").code, 0);
  // Before anything is pinned.
  const testing::Ran run = hawser("fit recipe.yaml --ranks 2 " + all_ + "--set memory.host_capacity=64KiB");
  EXPECT_EQ(run.code, 4) << run.err;
  EXPECT_TRUE(says(run.err, "does not fit in host memory (expected at most 64.0 KiB for the 2 ranks of a machine"))
      << run.err;
  rejected("plan recipe.yaml --host-memory lots",
           {"wrong value (expected bytes with a unit, got lots) at --host-memory; try --host-memory 24GB"});
}

TEST_F(OffloadCommands, RecipeInitProposesItWithItsCost) {
  write_large();
  const testing::Ran ran = hawser(
      "recipe init --model large/config.json --data text.jsonl --target h200 --ranks 1 --output made.yaml --set "
      "data.sequence_length=65536");
  EXPECT_EQ(ran.code, 0) << ran.err;
  const std::string made = folder_.read("made.yaml");
  EXPECT_TRUE(says(made, "# why: it does not fit on the device; copies of ")) << made;
  EXPECT_TRUE(says(made, "_offload: true") || says(made, "optimizer_offload: auto")) << made;
  EXPECT_EQ(hawser("plan made.yaml").code, 0);
}

}  // namespace cli_offload_test
}  // namespace hawser
