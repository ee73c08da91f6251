// From text to a trained model in another program's format: prepare, fit, inspect, export, eval, generate, bench.
#include <map>
#include <set>
#include <tuple>

#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace run_test {

using testing::tiny;

class Run : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("text.jsonl", testing::forty_documents());
    write("recipe.yaml", "model: {config: " + (tiny("tied") / "config.json").string() +
                             "}\n"
                             "data: {train: text.jsonl, validation_fraction: 0.25, sequence_length: 24}\n"
                             "train: {steps: 4, global_batch_size: 4}\n"
                             "optimizer: {learning_rate: 1.0e-2}\n"
                             "checkpoint: {every_steps: 2}\n"
                             "output: run\n");
  }
};

TEST_F(Run, PrepareReportsWhatItWroteAndIsDoneOnce) {
  const nlohmann::json first = json("prepare recipe.yaml --json");
  EXPECT_EQ(first["made_now"], true);
  EXPECT_EQ(first["train"]["documents"], 30);
  EXPECT_EQ(first["valid"]["documents"], 10);
  for (const char* name : {"train", "valid"}) {
    for (const auto& file : first[name]["files"]) EXPECT_TRUE(std::filesystem::exists(file.get<std::string>())) << file;
  }
  const std::string bytes = folder_.read("run/data/train.bin");
  const nlohmann::json second = json("prepare recipe.yaml --json");
  EXPECT_EQ(second["made_now"], false);
  EXPECT_EQ(second["train"], first["train"]);
  const testing::Ran shown = hawser("prepare recipe.yaml");
  EXPECT_EQ(shown.code, 0);
  EXPECT_TRUE(shown.out.starts_with("already prepared, nothing to do: ")) << shown.out;
  EXPECT_EQ(shown.err, "");
  EXPECT_EQ(folder_.read("run/data/train.bin"), bytes);

  const nlohmann::json file = json("inspect run/data/train.bin --json");
  EXPECT_EQ(file["kind"], "token file");
  EXPECT_EQ(file["documents"], 30);
  EXPECT_EQ(file["tokens"], first["train"]["tokens"]);
  EXPECT_EQ(file["lengths"]["max"], 27);
}

TEST_F(Run, AnExportedModelEvaluatesAlikeOnAnyRankCount) {
  const testing::Ran fit = hawser("fit recipe.yaml --ranks 2");
  ASSERT_EQ(fit.code, 0) << fit.err;

  const nlohmann::json run = json("inspect run --json");
  EXPECT_EQ(run["kind"], "run");
  EXPECT_EQ(run["checkpoints"].size(), 2u);
  const nlohmann::json& newest = run["newest"];
  EXPECT_EQ(newest["step"], 4);
  EXPECT_EQ(newest["world"], 2);
  EXPECT_EQ(newest["data_position"]["sequences"], 16);
  EXPECT_EQ(newest["model"]["family"], "llama");
  EXPECT_EQ(newest["tensors"]["optimizer"], 2 * newest["tensors"]["parameters"].get<int>());
  EXPECT_EQ(json("inspect run/checkpoints/step-00000002 --json")["step"], 2);

  EXPECT_EQ(json("export run out --json")["step"], 4);
  EXPECT_EQ(json("export run/checkpoints/step-00000002 older --json")["step"], 2);
  rejected("export run out", {"out: the export folder is not empty; try another folder"});
  const nlohmann::json model = json("inspect out --json");
  EXPECT_EQ(model["kind"], "model");
  EXPECT_EQ(model["model"]["parameters"], newest["model"]["parameters"]);
  EXPECT_EQ(model["weights"]["dtypes"]["F32"]["tensors"], 20);

  const std::string eval = "eval --data text.jsonl --sequence-length 24 --model ";
  const double one = json(eval + "out")["loss"];
  EXPECT_NEAR(json(eval + "out --ranks 4 --set parallel.context_parallel_degree=2")["loss"].get<double>(), one, 1e-5);
  EXPECT_LT(one, json(eval + "older")["loss"].get<double>());

  // An incomplete checkpoint is skipped with a message.
  std::filesystem::resize_file(folder_ / "run/checkpoints/step-00000004/rank-00001.bin", 100);
  const testing::Ran passed = hawser("export run again --json");
  EXPECT_EQ(passed.code, 0) << passed.err;
  EXPECT_EQ(nlohmann::json::parse(passed.out)["step"], 2);
  EXPECT_NE(passed.err.find("hawser: skipped: "), std::string::npos) << passed.err;
}

// A folder that lacks a part gets the same message from every command.
TEST_F(Run, IncompleteFoldersAreNamed) {
  ASSERT_EQ(hawser("fit recipe.yaml").code, 0);
  const auto rejected_by_all = [&](const std::string& folder, const std::string& line) {
    for (const std::string& command :
         {"inspect " + folder, "inspect checkpoint " + folder, "inspect " + folder + " --verify",
          "export " + folder + " out", "eval --data text.jsonl --sequence-length 24 --model " + folder,
          "generate --prompt-ids 1 --model " + folder}) {
      rejected(command, {line});
    }
  };
  const std::string show = "hawser inspect data run/data/train.bin";
  rejected_by_all("run/data", "run/data: a folder of prepared data; try " + show);
  rejected("inspect data run/data", {"run/data: a folder of prepared data; try " + show});
  std::filesystem::remove(folder_ / "run/data/prepared.json");
  const std::string lost =
      "run/data: looks like prepared data without its prepared.json; try hawser prepare RECIPE "
      "to rebuild it, or " +
      show;
  rejected_by_all("run/data", lost);
  rejected("inspect data run/data", {lost});
  EXPECT_EQ(json("prepare recipe.yaml --json")["made_now"], true);
  std::filesystem::remove(folder_ / "run/data/train.idx");
  rejected_by_all("run/data", "run/data: prepared data without its token files; try hawser prepare RECIPE");
  std::filesystem::create_directories(folder_ / "half/unfinished");
  write("half/unfinished/state.json", "{}");
  rejected_by_all("half", "half: unfinished prepared data; try hawser prepare RECIPE to resume it");

  std::filesystem::remove(folder_ / "run/checkpoints/step-00000004/manifest.json");
  rejected_by_all("run/checkpoints/step-00000004",
                  "run/checkpoints/step-00000004/manifest.json: no manifest: the save was not finished; try "
                  "run/checkpoints/step-00000002");

  std::filesystem::remove_all(folder_ / "run/checkpoints");
  rejected_by_all("run", "run: no checkpoint yet; try again after the run has saved; metrics.jsonl shows its progress");
  std::filesystem::create_directory(folder_ / "run/checkpoints");
  rejected("inspect run --verify", {"run/checkpoints: no complete checkpoint"});
  EXPECT_EQ(json("inspect run --json")["checkpoints"].size(), 0u);
}

TEST_F(Run, ARunInBf16IsExportedInBf16) {
  const testing::Ran fit = hawser("fit recipe.yaml --set precision.compute=bf16 --set train.steps=1");
  ASSERT_EQ(fit.code, 0) << fit.err;
  EXPECT_EQ(json("export run out --json")["dtype"], "bfloat16");
  EXPECT_EQ(json("inspect out --json")["weights"]["dtypes"]["BF16"]["tensors"], 20);
  EXPECT_EQ(testing::json_of(folder_ / "out/config.json")["torch_dtype"], "bfloat16");
}

TEST_F(Run, AnExportHasTheRequestedDType) {
  ASSERT_EQ(hawser("fit recipe.yaml --set train.steps=1").code, 0);
  const std::string eval = " --data text.jsonl --sequence-length 24";
  const double loss = json("eval --model run" + eval)["loss"];
  for (const auto& [name, stored, type, tolerance] :
       std::vector<std::tuple<std::string, std::string, std::string, double>>{{"float32", "float32", "F32", 1e-6},
                                                                              {"bf16", "bfloat16", "BF16", 1e-2},
                                                                              {"float16", "float16", "F16", 1e-3}}) {
    EXPECT_EQ(json("export run " + name + " --json --dtype " + name)["dtype"], stored);
    EXPECT_EQ(json("inspect " + name + " --json")["weights"]["dtypes"][type]["tensors"], 20) << name;
    EXPECT_EQ(testing::json_of(folder_ / name / "config.json")["torch_dtype"], stored);
    EXPECT_NEAR(json("eval --model " + name + eval)["loss"].get<double>(), loss, tolerance * loss) << name;
  }
  EXPECT_EQ(json("export run half --json --dtype fp16")["dtype"], "float16");
  rejected("export run out --dtype fp8", {"wrong value (expected bf16, float32 or float16, got fp8) at --dtype"});
}

TEST_F(Run, AFineTunedModelKeepsConfigAndTokenizer) {
  copy_of("tied", "model");
  write("model/tokenizer.json", testing::letters_tokenizer());
  write("words.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that is the question\"}\n");
  write("tune.yaml",
        "model: {path: model}\n"
        "data: {train: words.jsonl, sequence_length: 16}\n"
        "train: {steps: 2}\n"
        "output: tuned\n");
  const testing::Ran fit = hawser("fit tune.yaml");
  ASSERT_EQ(fit.code, 0) << fit.err;
  const testing::Ran exported = hawser("export tuned out");
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(folder_.read("out/tokenizer.json"), testing::letters_tokenizer());
  EXPECT_EQ(testing::json_of(folder_ / "out/config.json"), testing::json_of(folder_ / "model/config.json"));
  const testing::Ran text = hawser("generate --model out --prompt 'to be' --max-tokens 5");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_TRUE(text.out.starts_with("to be")) << text.out;
}

// An export needs only the checkpoint, from any folder.
TEST_F(Run, ARunThatWasMovedIsExportedWithItsTokenizer) {
  copy_of("tied", "model");
  write("model/tokenizer.json", testing::letters_tokenizer());
  write("model/special_tokens_map.json", "{}");
  write("words.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that is the question\"}\n");
  write("tune.yaml",
        "model: {path: model}\ndata: {train: words.jsonl, sequence_length: 16}\ntrain: {steps: 1}\noutput: tuned\n");
  ASSERT_EQ(hawser("fit tune.yaml --ranks 1").code, 0);
  namespace fs = std::filesystem;
  fs::remove_all(folder_ / "model");
  fs::rename(folder_ / "tuned/checkpoints/step-00000001", folder_ / "elsewhere");
  const testing::Ran exported = hawser("export elsewhere out");
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(folder_.read("out/tokenizer.json"), testing::letters_tokenizer());
  EXPECT_EQ(folder_.read("out/special_tokens_map.json"), "{}");
  EXPECT_TRUE(hawser("generate --model out --prompt 'to be' --max-tokens 5").out.starts_with("to be"));

  write("elsewhere/tokenizer.json", "{}");
  rejected("export elsewhere other", {"elsewhere/tokenizer.json: truncated file (expected " +
                                      std::to_string(testing::letters_tokenizer().size()) + " bytes, got 2)"});
  fs::remove(folder_ / "elsewhere/tokenizer.json");
  rejected("export elsewhere other", {"elsewhere/tokenizer.json: a file of the checkpoint is missing"});
}

// A checkpoint calls every tokenizer tokenizer.json; an export has the name that the format has elsewhere.
TEST_F(Run, AnExportNamesASentencePieceModel) {
  nlohmann::json config = testing::json_of(tiny("tied") / "config.json");
  config["vocab_size"] = 1000;
  write("config.json", config.dump());
  const std::string source = cat(testing::kSourceFolder, "/tests/golden/tokenizers/sp-bpe/tokenizer.model");
  write("words.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that is the question\"}\n");
  write("tune.yaml", "model: {config: config.json}\ndata: {train: words.jsonl, tokenizer: " + source +
                         ", sequence_length: 16}\ntrain: {steps: 1}\noutput: tuned\n");
  const testing::Ran fit = hawser("fit tune.yaml --ranks 1");
  ASSERT_EQ(fit.code, 0) << fit.err;
  ASSERT_EQ(hawser("export tuned out").code, 0);
  EXPECT_EQ(folder_.read("out/tokenizer.model"), read_file(source));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/tokenizer_config.json"));
  EXPECT_EQ(hawser("generate --model out --prompt 'to be' --max-tokens 5").code, 0);
}

TEST_F(Run, GenerateStopsAtTheEndTokenAndPrintsIdsWithoutATokenizer) {
  const std::string generate = "generate --model " + tiny("gqa").string() + " --prompt-ids 5,6 ";
  const nlohmann::json whole = json(generate + "--max-tokens 50 --json");
  ASSERT_EQ(whole["ids"].size(), 50u);
  EXPECT_EQ(whole["ended"], false);
  const testing::Ran plain = hawser(generate + "--max-tokens 3");
  EXPECT_EQ(plain.code, 0);
  EXPECT_EQ(plain.out, whole["ids"][0].dump() + "," + whole["ids"][1].dump() + "," + whole["ids"][2].dump() + "\n");

  copy_of("gqa", "model");
  nlohmann::json config = testing::json_of(folder_ / "model/config.json");
  config["eos_token_id"] = {95, whole["ids"][4]};
  write("model/config.json", config.dump());
  const nlohmann::json ended = json("generate --model model --prompt-ids 5,6 --max-tokens 50 --json");
  EXPECT_EQ(ended["ended"], true);
  ASSERT_LE(ended["ids"].size(), 5u);
  EXPECT_EQ(ended["ids"].back(), whole["ids"][4]);
}

// generation_config.json belongs to the model: a tokenizer elsewhere, or data without one, does not change where it
// ends.
TEST_F(Run, KeepsTheGenerationConfigOfTheModel) {
  namespace fs = std::filesystem;
  copy_of("gqa", "model");
  const std::string generate = " --prompt-ids 5,6 --max-tokens 50 --json";
  const nlohmann::json whole = json("generate --model model" + generate)["ids"];
  ASSERT_EQ(whole.size(), 50u);
  const std::string ends = nlohmann::json{{"eos_token_id", {95, whole[4]}}}.dump();
  write("model/generation_config.json", ends);
  write("tok/tokenizer.json", testing::letters_tokenizer());
  write("tok/generation_config.json", "{\"eos_token_id\": 95}");
  write("words.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that is the question\"}\n");
  const auto recipe = [&](const std::string& model, const std::string& data, const std::string& output) {
    write("tune.yaml", "model: {" + model + "}\ndata: {" + data +
                           ", sequence_length: 16}\ntrain: {steps: 1}\n"
                           "optimizer: {learning_rate: 1.0e-30}\noutput: " +
                           output + "\n");
  };
  const std::string words = "train: words.jsonl, tokenizer: tok/tokenizer.json";
  for (const std::string& data : {words, std::string("train: text.jsonl")}) {
    recipe("path: model", data, "tuned");
    ASSERT_EQ(hawser("fit tune.yaml").code, 0) << data;
    EXPECT_EQ(json("generate --model tuned" + generate)["ids"].back(), whole[4]) << data;
    ASSERT_EQ(hawser("export tuned out").code, 0) << data;
    EXPECT_EQ(fs::exists(folder_ / "out/generation_config.json") ? folder_.read("out/generation_config.json") : "",
              ends);
    EXPECT_EQ(fs::exists(folder_ / "out/tokenizer_config.json"), data == words) << data;
    fs::remove_all(folder_ / "out");
    // It may change: a resumed run saves it as it is now.
    write("model/generation_config.json", "{}");
    const testing::Ran resumed = hawser("fit tune.yaml --resume --set train.steps=2");
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(json("generate --model tuned" + generate)["ids"].size(), 50u) << data;
    write("model/generation_config.json", ends);
    fs::remove_all(folder_ / "tuned");
  }
  // A model that has none does not take another's; one without weights ends as its tokenizer does.
  fs::remove(folder_ / "model/generation_config.json");
  for (const std::string& model : {"path: model", "config: model/config.json"}) {
    recipe(model, words, "tuned");
    ASSERT_EQ(hawser("fit tune.yaml").code, 0) << model;
    ASSERT_EQ(hawser("export tuned out").code, 0) << model;
    EXPECT_EQ(fs::exists(folder_ / "out/generation_config.json"), model.starts_with("config")) << model;
    fs::remove_all(folder_ / "out");
    fs::remove_all(folder_ / "tuned");
  }
}

// A result that cannot be written is an error, for every command.
TEST_F(Run, ResultsThatCannotBeWrittenAreAnError) {
  ASSERT_EQ(hawser("fit recipe.yaml").code, 0);
  const std::string model = tiny("gqa").string(), data = (tiny("gqa") / "data.jsonl").string();
  const std::string eval = "eval --model " + model + " --data " + data + " --sequence-length 30";
  for (const std::string& command :
       {std::string("--help"), std::string("--version"), std::string("plan recipe.yaml"),
        std::string("plan recipe.yaml --json"), std::string("prepare recipe.yaml"), eval, eval + " --ranks 2",
        "generate --model " + model + " --prompt-ids 1,2 --max-tokens 3", std::string("inspect run"),
        std::string("export run out"), "recipe init --model " + model, std::string("fit recipe.yaml --json"),
        std::string("fit recipe.yaml --json --ranks 2"),
        "bench step --steps 1 --sequence-length 32 --model " + model}) {
    const testing::Ran ran = hawser(command + " > /dev/full");
    EXPECT_EQ(ran.code, 1) << command << "\n" << ran.err;
    EXPECT_NE(ran.err.find("hawser: standard output: cannot be written"), std::string::npos) << command << "\n"
                                                                                             << ran.err;
  }
}

// A key of --set that a command would ignore is an error that names the option to use.
TEST_F(Run, KeysThatACommandDoesNotUseAreRejected) {
  const std::string model = tiny("gqa").string();
  rejected("eval --data text.jsonl --sequence-length 24 --model " + model +
               " --set data.pack=chunks --set data.sequence_length=16 --set run.threads=1",
           {"--set: eval does not use this key at data.pack; try --across-documents",
            "--set: eval does not use this key at data.sequence_length; try --sequence-length N"});
  rejected("generate --prompt-ids 1,2 --model " + model + " --set data.tokenizer=x",
           {"--set: generate does not use this key at data.tokenizer; try hawser generate --help"});
  rejected("export run out --set precision.compute=bf16",
           {"--set: export does not use this key at precision.compute; try --dtype"});
  const std::string bench = "bench step --threads 1 --model " + model + " --set data.sequence_length=32";
  rejected(bench + " --set data.train=x --set output=/nowhere/x --set data.max_documents=4 --set model.path=x",
           {"--set: bench step does not use this key at data.train; try hawser bench step --help",
            "--set: bench step does not use this key at output; try hawser bench step --help",
            "--set: bench step does not use this key at data.max_documents; try --documents MIX",
            "--set: bench step does not use this key at model.path; try --model"});
  rejected(bench + " --sequence-length 32 --steps 2 --set train.steps=3 --set run.threads=2",
           {"bench step: both --sequence-length and --set data.sequence_length (expected one of them)",
            "bench step: both --steps and --set train.steps (expected one of them)",
            "bench step: both --threads and --set run.threads (expected one of them)"});
  // One of both gives the value; without a value, --set gives the default.
  EXPECT_EQ(json(bench + " --set train.steps=2 --json")["steps"].size(), 2u);
  EXPECT_EQ(json(bench + " --set train.steps= --documents mean=8 --set data.max_documents=4 --json")["steps"].size(),
            5u);
  for (const std::string command : {"eval --data text.jsonl --sequence-length 24", "generate --prompt-ids 1,2"}) {
    rejected(command + " --model " + model + " --set precision.compute=fp8",
             {"--set: only training computes in FP8 (expected auto, float32 or bf16, got fp8) at precision.compute"});
  }
}

// Nothing is shown of an export that is not finished.
TEST_F(Run, GenerateShowsNothingBeforeAllIsChecked) {
  copy_of("tied", "model");
  write("model/tokenizer.json", testing::letters_tokenizer());
  const std::string generate = "generate --model model --prompt 'to be' --max-tokens ";
  for (const std::string& more : {std::string("5 --memory 10KB"), std::string("1000000 --memory 80MB")}) {
    const testing::Ran ran = hawser(generate + more);
    EXPECT_EQ(ran.code, 4) << ran.err;
    EXPECT_EQ(ran.out, "");
  }
  EXPECT_EQ(hawser(generate + "5 --memory 80MB").code, 0);
}

TEST_F(Run, PlanReportsOneAndManyRanks) {
  EXPECT_NE(hawser("plan recipe.yaml").out.find("\npeak memory of rank 0 (at "), std::string::npos);
  EXPECT_NE(hawser("plan recipe.yaml --ranks 2").out.find("\npeak memory of each of ranks 0-1 (at "),
            std::string::npos);
}

TEST_F(Run, BenchStepTimesSteps) {
  const nlohmann::json got =
      json("bench step --model " + tiny("gqa").string() + " --sequence-length 64 --steps 3 --threads 1 --json");
  EXPECT_EQ(got["steps"].size(), 3u);
  EXPECT_NEAR(got["tokens_per_second"].get<double>(), 64 / got["step_seconds"].get<double>(), 1e-6 * 64e3);
  EXPECT_GT(got["model_flops_per_second"].get<double>(), 0);
  EXPECT_GT(got["planned_bytes"].get<std::int64_t>(), 3 * 4 * 21664);
  EXPECT_TRUE(got["seconds_by_family"].contains("gemm"));
  const nlohmann::json two = json("bench step --model " + (tiny("gqa") / "config.json").string() +
                                  " --sequence-length 64 --steps 1 --ranks 2 --json "
                                  "--set parallel.context_parallel_degree=2");
  EXPECT_TRUE(two["seconds_by_family"].contains("communication"));
  EXPECT_EQ(two["attention_imbalance"].get<double>(), 1.0);  // zig-zag of one document
  EXPECT_FALSE(two.contains("documents"));
  const nlohmann::json packed = json("bench step --model " + (tiny("gqa") / "config.json").string() +
                                     " --sequence-length 256 --documents mean=30 --steps 1 --ranks 2 --json "
                                     "--set parallel.context_parallel_degree=2");
  EXPECT_GE(packed["attention_imbalance"].get<double>(), 1.0);
  EXPECT_EQ(packed["documents"]["kind"], "mean=30");
  EXPECT_GT(packed["documents"]["a_sequence"].get<double>(), 1);
  EXPECT_LT(packed["documents"]["equivalent_sequence_length"].get<double>(), 256);
  const testing::Ran table = hawser("bench step --model " + tiny("gqa").string() + " --sequence-length 64 --steps 1");
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("tokens/s"), std::string::npos) << table.out;
}

// Every instruction of the step is enqueued in order and appears on a stream; the spans of a stream do not overlap.
void expect_whole_trace(const nlohmann::json& trace, const std::set<int>& ranks) {
  std::set<int> seen;
  std::map<std::tuple<int, int, std::string>, double> reached;
  std::map<int, std::set<std::string>> enqueued, ran;
  std::map<std::pair<int, int>, std::string> lanes;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    const int rank = event["pid"], lane = event["tid"];
    if (event["name"] == "thread_name") lanes[{rank, lane}] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    seen.insert(rank);
    const std::string category = event["cat"];
    const double begin = event["ts"], end = begin + event["dur"].get<double>();
    EXPECT_GE(begin, 0);
    EXPECT_GE(event["dur"].get<double>(), 0);
    double& last = reached[{rank, lane, category}];
    EXPECT_GE(begin, last - 1e-6) << event;
    last = end;
    if (category == "host") enqueued[rank].insert(event["name"]);
    if (category == "instruction") ran[rank].insert(event["name"]);
    EXPECT_EQ(category == "host", (lanes[{rank, lane}]) == "host") << event;
  }
  EXPECT_EQ(seen, ranks);
  for (const int rank : ranks) {
    for (const char* name : {"begin step", "embed", "forward block 0 attention", "forward block 1 mlp", "loss gradient",
                             "backward block 0 mlp", "embed backward", "update head", "end step"}) {
      EXPECT_TRUE(enqueued[rank].contains(name)) << name;
    }
    EXPECT_EQ(enqueued[rank], ran[rank]);
  }
}

TEST_F(Run, BenchStepDrawsATimelineOfEveryRank) {
  const std::string bench =
      "bench step --model " + tiny("gqa").string() + " --sequence-length 64 --steps 1 --threads 1 ";
  const testing::Ran one = hawser(bench + "--trace one.json");
  EXPECT_EQ(one.code, 0) << one.err;
  for (const char* word :
       {"timeline of rank 0: ", "  compute idle ", "  longest gaps of the compute stream\n", "  gemm "})
    EXPECT_NE(one.out.find(word), std::string::npos) << word << one.out;
  expect_whole_trace(testing::json_of(folder_ / "one.json"), {0});

  const nlohmann::json two = json(bench + "--ranks 2 --set parallel.context_parallel_degree=2 --trace two.json --json");
  expect_whole_trace(testing::json_of(folder_ / "two.json"), {0, 1});
  ASSERT_EQ(two["trace"]["ranks"].size(), 2u);
  for (const nlohmann::json& rank : two["trace"]["ranks"]) {
    EXPECT_EQ(rank["spans_without_instruction"], 0);
    EXPECT_GT(rank["communication_seconds"], 0);
    EXPECT_LE(rank["exposed_communication_seconds"], rank["communication_seconds"]);
    EXPECT_LE(rank["communication_seconds"], rank["seconds"]);
    for (const char* stream : {"compute", "exchange", "gather", "reduce"})
      EXPECT_GT(rank["busy_seconds"][stream], 0) << stream;
  }

  const nlohmann::json inspected = json("inspect two.json --svg two.svg --json");
  EXPECT_EQ(inspected["kind"], "trace");
  EXPECT_EQ(inspected["ranks"], two["trace"]["ranks"]);
  const std::string drawn = folder_.read("two.svg");
  for (const char* word : {"<svg ", ">rank 1</text>", ">exchange</text>", ">communication</text>"})
    EXPECT_NE(drawn.find(word), std::string::npos) << word;
  const testing::Ran part = hawser("inspect one.json --svg part.svg --window 0:0.1");
  EXPECT_EQ(part.code, 0) << part.err;
  EXPECT_TRUE(part.out.ends_with("wrote part.svg\n")) << part.out;
  EXPECT_LT(folder_.read("part.svg").size(), drawn.size());

  rejected("inspect one.json --window 3:2 --svg x.svg", {"wrong value (expected FROM below TO, got 3:2) at --window"});
  rejected("inspect one.json --window 3 --svg x.svg", {"wrong value (expected milliseconds, got '') at --window"});
  rejected("inspect . --svg x.svg", {".: not a trace at --svg"});
  rejected("inspect one.json --svg ./one.json",
           {"./one.json: the same file as the trace (expected another file) at --svg"});
  write("file", "");
  rejected(bench + "--trace file/x.json", {"file: is a file, not a folder; try another folder"});
}

}  // namespace run_test
}  // namespace hawser
