// Mistakes of a recipe and of the command line: commands print all of them at once, each with its place.
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace recipe_errors_test {

class RecipeErrors : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("data.jsonl", testing::forty_documents());
  }
  // A valid recipe for the model `gqa`, of two blocks; `more`: further sections, from line 5 on.
  void recipe(const std::string& more, const std::string& batch = "2") {
    write("r.yaml", "model: {path: " + testing::tiny("gqa").string() + "}\n" +
                        "data: {train: data.jsonl, sequence_length: 16}\ntrain: {steps: 1, global_batch_size: " +
                        batch + "}\noutput: run\n" + more);
  }
  void all_reject(const std::string& arguments, const std::vector<std::string>& lines) {
    for (const char* command : {"plan", "fit", "prepare"}) rejected(command + (" r.yaml " + arguments), lines);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "run"));
  }
};

const std::string kLinears = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj";

TEST_F(RecipeErrors, PlanFitAndPrepareReportTheSame) {
  recipe(
      "memory:\n  activation_checkpointing: [full, none, none]\nmoe: {z_loss_coefficient: 1}\n"
      "precision: {compute: fp8, fp8: {layers: [1, 7]}}\n",
      "3");
  const std::vector<std::string> of_model = {
      "r.yaml: list length differs from the number of blocks (expected 2, got 3) at memory.activation_checkpointing, "
      "line 6",
      "r.yaml: the model has no experts at moe.z_loss_coefficient, line 7",
      "r.yaml: the model has no such block (expected blocks 0 to 1, got 7) at precision.fp8.layers, line 8"};
  std::vector<std::string> all = {
      "r.yaml: batch does not divide over the ranks (expected a multiple of 2: 2 data ranks x micro_batch_size 1, got "
      "3) at train.global_batch_size, line 3; try train.global_batch_size: 2 or 4"};
  all.insert(all.end(), of_model.begin(), of_model.end());
  all_reject("--ranks 2", all);
  all_reject("", of_model);
}

// Neither a mistake in one entry of a list, nor one of the start, hides what is wrong with the model's names.
TEST_F(RecipeErrors, NoMistakeOfAdaptersHidesAnother) {
  recipe(
      "adapter:\n  kind: lora\n  targets: [\"q_proj(\", nope]\n  modules_to_save: [nrm]\n  dora: true\n"
      "precision: {compute: fp8, fp8: {layers: [x, 7], exclude: [\"[\", down_prj]}}\n");
  const std::string modules =
      "embed_tokens, input_layernorm, q_proj, k_proj, v_proj, o_proj, post_attention_layernorm, gate_proj, up_proj, "
      "down_proj, norm, lm_head";
  const std::vector<std::string> lines = {
      "r.yaml: not a block or a range of blocks (expected all, numbers from 0, or ranges such as 2-29, got x) at "
      "precision.fp8.layers, line 10",
      "r.yaml: not a regular expression (got [) at precision.fp8.exclude, line 10; try a name such as down_proj, or "
      ".*[.][01][.].*down_proj",
      "r.yaml: not a regular expression (got q_proj() at adapter.targets, line 7; try a name such as q_proj, or "
      ".*[qv]_proj",
      "r.yaml: the model has no such module (expected " + modules +
          ", got nrm) at adapter.modules_to_save, line 8; try norm",
      "r.yaml: the model has no such Linear (expected " + kLinears +
          " or all-linear, got nope) at adapter.targets, "
          "line 7",
      "r.yaml: the model has no such Linear (expected " + kLinears +
          ", got down_prj) at precision.fp8.exclude, line "
          "10; try down_proj",
      "r.yaml: the model has no such block (expected blocks 0 to 1, got 7) at precision.fp8.layers, line 10",
      "r.yaml: FP8 with DoRA is not supported at adapter.dora, line 9; try adapter.dora: false, or precision.compute: "
      "bf16"};
  all_reject("", lines);
}

TEST_F(RecipeErrors, AnAdapterOfRandomWeightsHidesNothing) {
  write("r.yaml", "model: {config: " + (testing::tiny("gqa") / "config.json").string() +
                      "}\ndata: {train: none.jsonl, sequence_length: 16}\ntrain: {steps: 1, global_batch_size: 3}\n"
                      "output: run\nadapter: {kind: lora, targets: nope}\n");
  std::vector<std::string> lines = {
      "r.yaml: an adapter of random weights (expected a model with weights) at adapter.kind, line 5; try "
      "model.path in place of model.config, or adapter.kind: none",
      "r.yaml: batch does not divide over the ranks (expected a multiple of 2: 2 data ranks x micro_batch_size "
      "1, got 3) at train.global_batch_size, line 3; try train.global_batch_size: 2 or 4",
      "r.yaml: the model has no such Linear (expected " + kLinears +
          " or all-linear, got nope) at "
          "adapter.targets, line 5"};
  rejected("plan r.yaml --ranks 2", {lines.begin() + 1, lines.end()});  // which reads no weights
  lines.emplace_back("none.jsonl: no such file at data.train[0], line 2 of r.yaml");
  for (const char* command : {"fit", "prepare"}) rejected(std::string(command) + " r.yaml --ranks 2", lines);
}

// A mistake of a key says nothing about the keys that depend on it, and hides nothing about the others.
TEST_F(RecipeErrors, AMistakeOfAKeyHidesOnlyWhatDependsOnIt) {
  recipe("memory: {activation_checkpointing: [full]}\noptimizer: {epsilon: small}\nadapter: {rank: 4}\n", "3");
  const std::string epsilon = "r.yaml: wrong type (expected a number above 0, got small) at optimizer.epsilon, line 6";
  const std::string adapter =
      "r.yaml: no adapter trains without adapter.kind at adapter.rank, line 7; try adapter.kind: lora";
  const std::string batch =
      "r.yaml: batch does not divide over the ranks (expected a multiple of 2: 2 data ranks x micro_batch_size 1, got "
      "3) at train.global_batch_size, line 3; try train.global_batch_size: 2 or 4";
  const std::string blocks =
      "r.yaml: list length differs from the number of blocks (expected 2, got 1) at memory.activation_checkpointing, "
      "line 5";
  all_reject("--ranks 2", {epsilon, adapter, batch, blocks});
  all_reject("--ranks 2 --set train.stepz=7",
             {"--set: unknown key at train.stepz; try train.steps", epsilon, adapter, batch, blocks});
  const std::string whole = "--set: wrong type (expected a whole number of at least 1, got x) at ";
  all_reject("--ranks 2 --set train.micro_batch_size=x", {whole + "train.micro_batch_size", epsilon, adapter, blocks});
  all_reject(
      "--set parallel.context_parallel_degree=x --set memory.activation_checkpointing=no",
      {whole + "parallel.context_parallel_degree", epsilon,
       "--set: unknown value (expected none, selective, gate_up, qkv, projections, full, block or auto, got no) at "
       "memory.activation_checkpointing; try none",
       adapter});
}

// A wrong name means the key that it resembles: this is not missing, too.
TEST_F(RecipeErrors, AWrongNameIsNoMissingKey) {
  const std::string start = "model: {path: " + testing::tiny("gqa").string() + "}\ndata: {train: none.jsonl, ";
  write("r.yaml", start + "seq_len: 16}\ntrain: {stepz: 1}\noutptu: run\n");
  rejected("fit r.yaml", {"r.yaml: unknown key at data.seq_len, line 2; try data.sequence_length",
                          "r.yaml: unknown key at train.stepz, line 3; try train.steps",
                          "r.yaml: unknown key at outptu, line 4; try output",
                          "none.jsonl: no such file at data.train[0], line 2 of r.yaml"});
  write("r.yaml", start + "sequence_length: 16}\ntraining: {steps: 1, micro_batch_size: 2}\noutput: 7\n");
  rejected("fit r.yaml", {"r.yaml: unknown key at training, line 3; try train",
                          "none.jsonl: no such file at data.train[0], line 2 of r.yaml"});
  write("r.yaml", start + "sequence_length: 16}\ntrain: 5\noutput: 7\n");
  rejected("fit r.yaml", {"r.yaml: wrong type (expected a section of keys, got 5) at train, line 3",
                          "none.jsonl: no such file at data.train[0], line 2 of r.yaml"});
}

TEST_F(RecipeErrors, AdaptersNameTheirOrigin) {
  recipe("adapter:\n  kind: lora\n");
  const std::string linear = "the model has no such Linear (expected " + kLinears + " or all-linear, got nope) at ";
  all_reject("--set adapter.targets=nope", {"--set: " + linear + "adapter.targets"});
  all_reject("--set 'adapter.targets=[q_proj]' --set adapter.modules_to_save=q_proj",
             {"--set: these modules train in full only together (expected q_proj, k_proj, v_proj, got q_proj) at "
              "adapter.modules_to_save",
              "--set: a module that trains in full has an adapter (got model.layers.0.self_attn.q_proj) at "
              "adapter.modules_to_save"});
  rejected("recipe init --model " + testing::tiny("gqa").string() +
               " --set adapter.kind=lora --set adapter.targets=nope --set moe.balancing=none",
           {"--set: the model has no experts at moe.balancing", "--set: " + linear + "adapter.targets"});
  rejected("recipe init --model " + testing::tiny("gqa").string() +
               " --set adapter.kind=lora --set adapter.targets=nope --set train.stepz=1",
           {"--set: unknown key at train.stepz; try train.steps", "--set: " + linear + "adapter.targets"});
}

// A mistake of the model's settings hides none of the layout, and a batch that is chosen later is none.
TEST_F(RecipeErrors, RecipeInitReportsLayoutAndModel) {
  const std::string init = "recipe init --model " + testing::tiny("gqa").string() +
                           " --ranks 2 --set 'memory.activation_checkpointing=[full]'";
  const std::string batch =
      "--set: batch does not divide over the ranks (expected a multiple of 2: 2 data ranks x micro_batch_size 1, got "
      "3) at train.global_batch_size; try train.global_batch_size: 2 or 4";
  const std::string blocks =
      "--set: list length differs from the number of blocks (expected 2, got 1) at memory.activation_checkpointing";
  const std::string degrees =
      "--set: ranks do not divide by the degrees (expected ranks a multiple of 3, got 2 ranks) at "
      "parallel.context_parallel_degree; try --ranks 3";
  const std::string unknown = "--set: unknown key at train.stepz; try train.steps";
  rejected(init, {blocks});
  rejected(init + " --set train.global_batch_size=3", {batch, blocks});
  rejected(init + " --set parallel.context_parallel_degree=3", {degrees, blocks});
  rejected(init + " --set train.stepz=1", {unknown, blocks});
  rejected(init + " --set train.stepz=1 --set train.global_batch_size=3", {unknown, batch, blocks});
  rejected(init + " --set train.global_batch_size=3 --set train.micro_batch_size=x",
           {"--set: wrong type (expected a whole number of at least 1, got x) at train.micro_batch_size", blocks});
}

// Mistakes of the recipe, of options and of the model hide none of each other.
TEST_F(RecipeErrors, BenchStepReportsOptionsAndModel) {
  const std::string bench = "bench step --device cpu --model " + testing::tiny("gqa").string();
  const std::string blocks =
      "--set: list length differs from the number of blocks (expected 2, got 1) at memory.activation_checkpointing";
  rejected(bench +
               " --documents foo --set train.micro_batch_size=x --set train.epochs=2 --set "
               "'memory.activation_checkpointing=[full]'",
           {"--set: wrong type (expected a whole number of at least 1, got x) at train.micro_batch_size",
            "--set: bench step has no data to repeat at train.epochs; try --steps N",
            "wrong value (expected mean=TOKENS or long=TOKENS, got foo) at --documents", blocks});
  // No length is known that the document could exceed.
  rejected(bench + " --documents long=2000 --set data.sequence_length=x",
           {"--set: wrong type (expected a whole number of at least 2, got x) at data.sequence_length"});
}

// A wrong value of an option hides neither those of others, nor mistakes of the recipe, the model and the data.
TEST_F(RecipeErrors, AWrongOptionHidesNothing) {
  recipe("memory: {activation_checkpointing: [full]}\n");
  const std::string blocks = "list length differs from the number of blocks (expected 2, got 1) at ";
  const std::string place = "memory.activation_checkpointing, line 5";
  const std::string ranks = "wrong value (expected a whole number of at least 1, got 0) at --ranks";
  const std::string memory = "wrong value (expected bytes with a unit, got lots) at --memory; try --memory 24GB";
  const std::string device = "wrong value (expected auto, cpu or cuda, got gpu) at --device";
  const std::string unknown = "--set: unknown key at train.stepz; try train.steps";
  const std::string options = "--ranks 0 --memory lots --device gpu ";
  all_reject(options + "--set train.stepz=7", {ranks, memory, device, unknown, "r.yaml: " + blocks + place});
  rejected("plan r.yaml --ranks 0 --target foo",
           {ranks,
            "unknown target (expected a100-40gb, a100-80gb, b200, cpu, h100, h100-pcie, h200, l40s, rtx3090, rtx4090, "
            "rtx5090, or a file like targets/h200.yaml, got foo) at --target",
            "r.yaml: " + blocks + place});
  rejected("plan none.yaml --ranks 0 --set train.stepz=7",
           {ranks, "none.yaml: no such recipe; try hawser recipe init", unknown});
  rejected("plan --ranks 0", {ranks, "plan: RECIPE is missing; try hawser plan --help"});

  const std::string whole = "wrong value (expected a whole number of at least ";
  const std::string model = "nowhere: no such model (expected a Hugging Face folder or a config.json)";
  rejected("eval --model nowhere --data none.jsonl --sequence-length x --set train.stepz=7 " + options,
           {ranks, memory, device, whole + "1, got x) at --sequence-length", unknown,
            "nowhere: no such model (expected a folder with weights)",
            "none.jsonl: cannot read: No such file or directory"});
  rejected("bench step --model nowhere --sequence-length 1 --steps x --threads y --documents foo --set train.stepz=7 " +
               options,
           {ranks, memory, device, whole + "2, got 1) at --sequence-length", whole + "1, got x) at --steps",
            whole + "1, got y) at --threads", unknown,
            "wrong value (expected mean=TOKENS or long=TOKENS, got foo) at --documents", model});
  rejected("eval --ranks 0", {ranks, "eval: --model is missing; try hawser eval --help",
                              "eval: --data is missing; try hawser eval --help"});
  rejected("recipe init --model nowhere --ranks 0 --set train.stepz=7",
           {"nowhere: no such model (expected a model folder or a config.json) at --model", ranks, unknown});
}

// One mistake is one line.
TEST_F(RecipeErrors, EvalReportsNoConsequences) {
  const std::string model = testing::tiny("gqa").string();
  const std::string unused = "--set: eval does not use this key at train.steps; try hawser eval --help";
  const std::string missing = "eval: --sequence-length is missing; try hawser eval --help";
  const std::string no_data = "none.jsonl: cannot read: No such file or directory";
  for (const char* steps : {"10", "ten"}) {
    rejected("eval --model " + model + " --data data.jsonl --sequence-length 16 --set train.steps=" + steps, {unused});
  }
  // A run has a length, and perhaps a tokenizer.
  std::filesystem::create_directories(folder_ / "out/checkpoints");
  write("text.jsonl", "{\"text\": \"words\"}\n");
  const std::string no_checkpoint = "out/checkpoints: no complete checkpoint";
  rejected("eval --model out --data text.jsonl", {no_checkpoint});
  rejected("eval --model out --data none.jsonl", {no_checkpoint, no_data});
  // A missing length does not hide what is wrong with the data.
  rejected("eval --model " + model + " --data none.jsonl", {missing, no_data});
}

// Without a number of ranks, text is prepared for a batch that one rank could not train.
TEST_F(RecipeErrors, PrepareIsForAnyNumberOfRanks) {
  write("large.yaml",
        "model: {path: " + testing::tiny("gqa").string() +
            "}\ndata: {train: data.jsonl, sequence_length: 16}\ntrain: {steps: 1, global_batch_size: 2048, "
            "micro_batch_size: 1}\noutput: large\n");
  const testing::Ran ran = hawser("prepare large.yaml");
  EXPECT_EQ(ran.code, 0) << ran.err;
  rejected(
      "prepare large.yaml --ranks 1",
      {"large.yaml: too many micro-batches in a step (expected at most 1024, got 2048: 2048 sequences, 1 data rank, "
       "micro_batch_size 1) at train.global_batch_size, line 3; try more ranks, a larger train.micro_batch_size, or "
       "a smaller global batch"});
}

TEST_F(RecipeErrors, PlanRejectsWhatFitRejects) {
  write("both.yaml", "model: {path: " + testing::tiny("gqa").string() +
                         "}\ndata: {train: data.jsonl, sequence_length: 16}\ntrain: {steps: 4, epochs: 1}\n"
                         "optimizer: {warmup_steps: 8}\noutput: run\n");
  const std::vector<std::string> both = {
      "both.yaml: both train.steps and train.epochs (expected one of the two) at train.epochs, line 3; try "
      "train.steps: "
      "4 or train.epochs: 1 alone"};
  for (const char* command : {"plan", "fit", "prepare"}) rejected(std::string(command) + " both.yaml", both);
  const std::string set = " both.yaml --set train.steps= --set optimizer.warmup_steps=0 ";
  const std::vector<std::string> empty = {
      "--set: empty list (expected a path or more) at data.train; try data: {train: [text/*.jsonl]}"};
  for (const char* command : {"plan", "fit", "prepare"}) rejected(command + set + "--set data.train=[]", empty);
  // A plan needs fewer keys than a run.
  const testing::Ran less = hawser("plan" + set + "--set train.epochs= --set data.train= --set output=");
  EXPECT_EQ(less.code, 0) << less.err;
  EXPECT_EQ(
      less.err,
      "hawser: `hawser fit` needs keys that this recipe lacks: data.train, train.steps or train.epochs, output\n");
  const testing::Ran all = hawser("plan" + set);
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_EQ(all.err, "");
}

TEST_F(RecipeErrors, ATargetHasADevice) {
  recipe("");
  const std::string other = "the target has another kind of device (expected auto or ";
  rejected("plan r.yaml --target h200 --device cpu", {other + "cuda, got cpu) at --device; try --target cpu"});
  rejected("plan r.yaml --target h200 --set run.device=cpu",
           {"--set: " + other + "cuda, got cpu) at run.device; try --target cpu"});
  rejected("plan r.yaml --target cpu --device cuda", {other + "cpu, got cuda) at --device; try --target h200"});
  rejected("recipe init --model " + testing::tiny("gqa").string() + " --target h200 --device cpu",
           {other + "cuda, got cpu) at --device; try --target cpu"});
  // The recipe's own device is that of its runs.
  for (const char* options : {"--target h200", "--target cpu --device cpu", "--target h200 --device cuda"}) {
    recipe("run: {device: cpu}\n");
    EXPECT_EQ(hawser("plan r.yaml " + std::string(options)).code, 0) << options;
  }
}

// Ranks that another launcher started find the same.
TEST_F(RecipeErrors, UnderMpirunTheyArePrintedOnce) {
  recipe("memory: {activation_checkpointing: [full]}\n", "3");
  const testing::Ran ran =
      shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe -np 2 " +
            std::string(testing::kHawser) + " fit r.yaml --set train.stepz=1");
  EXPECT_EQ(ran.code, 2);
  std::vector<std::string> lines;
  for (const std::string& line : testing::lines_of(ran.err)) {
    if (line.starts_with("hawser: ")) lines.push_back(line.substr(8, 30));
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"--set: unknown key at train.st", "r.yaml: batch does not divide ",
                                             "r.yaml: list length differs fr"}))
      << ran.err;
}

}  // namespace recipe_errors_test
}  // namespace hawser
