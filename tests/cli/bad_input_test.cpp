// Wrong input: one line per problem, all problems at once, exit code 2, nothing on standard output.
#include <functional>

#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace bad_input_test {

namespace fs = std::filesystem;
using testing::SafetensorsParts;
using testing::tiny;

class BadInput : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("good.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
  }
  // `eval` of the model, on valid data.
  void model_rejected(const std::string& model, const std::vector<std::string>& lines) {
    rejected("eval --model " + model + " --data good.jsonl --sequence-length 16", lines);
    rejected("eval --model " + model + " --data good.jsonl --sequence-length 16 --ranks 2", lines);
  }
  void data_rejected(const std::string& content, const std::vector<std::string>& lines) {
    write("bad.jsonl", content);
    rejected("eval --model " + tiny("gqa").string() + " --data bad.jsonl --sequence-length 16", lines);
  }
  // Breaks the header of a copy of `gqa`.
  std::string broken(const std::string& name, const std::function<void(nlohmann::json&)>& change) {
    copy_of("gqa", name);
    SafetensorsParts parts = SafetensorsParts::read(folder_ / name / "model.safetensors");
    change(parts.header);
    parts.write(folder_ / name / "model.safetensors");
    return name;
  }
};

TEST_F(BadInput, Weights) {
  copy_of("gqa", "missing");
  fs::remove(folder_ / "missing/model.safetensors");
  model_rejected("missing",
                 {"missing: no weights in this folder (expected model.safetensors or model.safetensors.index.json)"});
  write("missing/pytorch_model.bin", "");
  const testing::Ran pickled = hawser("eval --model missing --data good.jsonl --sequence-length 16");
  EXPECT_NE(pickled.err.find("got pytorch_model.bin); try python -c \"from transformers import AutoModelForCausalLM"),
            std::string::npos)
      << pickled.err;
  broken("wrapped", [](nlohmann::json& header) {
    nlohmann::json renamed;
    for (const auto& [name, tensor] : header.items()) {
      renamed[name == "__metadata__" ? name : "module._orig_mod." + name] = tensor;
    }
    header = renamed;
  });
  const testing::Ran wrapped = hawser("eval --model wrapped --data good.jsonl --sequence-length 16");
  EXPECT_NE(wrapped.err.find("wrapped: every tensor's name begins with module._orig_mod., which a wrapper of the model "
                             "has left at module._orig_mod."),
            std::string::npos)
      << wrapped.err;
  EXPECT_EQ(testing::lines_of(wrapped.err).size(), 1u) << wrapped.err;
  copy_of("gqa", "empty");
  fs::resize_file(folder_ / "empty/model.safetensors", 0);
  model_rejected("empty", {"empty/model.safetensors: not a safetensors file: too short for a header (expected 8 bytes "
                           "at least, got 0)"});
  copy_of("gqa", "cut");  // its last tensor is model.norm.weight, 128 bytes
  fs::resize_file(folder_ / "cut/model.safetensors", fs::file_size(folder_ / "cut/model.safetensors") - 1);
  model_rejected("cut",
                 {"cut/model.safetensors: data past the end of the file: the file is truncated, or its header is "
                  "wrong (expected data_offsets up to 86655, got 86656) at 'model.norm.weight'"});
  copy_of("gqa", "half");
  fs::resize_file(folder_ / "half/model.safetensors", fs::file_size(folder_ / "half/model.safetensors") / 2);
  const testing::Ran half = hawser("eval --model half --data good.jsonl --sequence-length 16");
  EXPECT_EQ(half.code, 2);
  EXPECT_EQ(testing::lines_of(half.err).size(), 6u) << half.err;
  EXPECT_NE(half.err.find(" more: data past the end of the file"), std::string::npos) << half.err;

  broken("overlapping", [](nlohmann::json& header) {
    header["model.norm.weight"]["data_offsets"] = header["model.layers.1.input_layernorm.weight"]["data_offsets"];
  });
  const testing::Ran overlapping = hawser("eval --model overlapping --data good.jsonl --sequence-length 16");
  EXPECT_EQ(overlapping.code, 2);
  EXPECT_NE(overlapping.err.find("overlapping/model.safetensors: overlapping tensors (expected data from byte"),
            std::string::npos)
      << overlapping.err;
  model_rejected(broken("overflowing",
                        [](nlohmann::json& header) {
                          header["model.norm.weight"]["shape"] = {std::int64_t{1} << 62, 4, 32};
                        }),
                 {"overflowing/model.safetensors: shape overflows (got [4611686018427387904, 4, 32]) at "
                  "'model.norm.weight'"});
  model_rejected(broken("shape",
                        [](nlohmann::json& header) {
                          header["model.layers.0.self_attn.q_proj.weight"]["shape"] = {16, 64};
                        }),
                 {"shape/model.safetensors: a tensor's shape differs from config.json (expected [32, 32], got "
                  "[16, 64]) at model.layers.0.self_attn.q_proj.weight"});
  model_rejected(broken("absent",
                        [](nlohmann::json& header) {
                          header["other"] = header["model.norm.weight"];
                          header.erase("model.norm.weight");
                        }),
                 {"absent: a tensor of the model is missing (expected [32], got none) at model.norm.weight",
                  "absent/model.safetensors: a tensor is not part of config.json's model (got F32 [32]) at "
                  "'other'"});

  copy_of("sharded", "traversal");
  nlohmann::json index = testing::json_of(folder_ / "traversal/model.safetensors.index.json");
  index["weight_map"]["model.norm.weight"] = "../outside.safetensors";
  write("traversal/model.safetensors.index.json", index.dump());
  model_rejected("traversal", {"traversal/model.safetensors.index.json: the index names a file that is not a "
                               ".safetensors file of its own folder (got '../outside.safetensors') at "
                               "weight_map.'model.norm.weight'"});
  model_rejected("nowhere", {"nowhere: no such model (expected a folder with weights)"});

  // Weights are needed: neither a config.json nor the file of the weights is a model.
  write("m.json", testing::json_of(tiny("gqa") / "config.json").dump());
  copy_of("gqa", "base");
  copy_of("sharded", "parts");
  const std::string what = ": a file, not a model folder (expected a folder with weights)";
  model_rejected("m.json", {"m.json" + what});
  model_rejected("base/model.safetensors", {"base/model.safetensors" + what + "; try base"});
  model_rejected("parts/config.json", {"parts/config.json" + what + "; try parts"});
  for (const std::string command : {"generate --prompt a", "generate --prompt-ids 1"}) {
    rejected(command + " --model m.json", {"m.json" + what});
    rejected(command + " --model nowhere", {"nowhere: no such model (expected a folder with weights)"});
  }
  fs::create_directories(folder_ / "adapter");
  rejected(
      "export --model m.json --adapter adapter --merge out",
      {"adapter: no adapter here (expected a folder with adapter_config.json and adapter_model.safetensors, as PEFT "
       "saves it)",
       "m.json" + what});
  rejected("bench step --model base/model.safetensors", {"base/model.safetensors" + what + "; try base"});
}

TEST_F(BadInput, Data) {
  data_rejected("", {"bad.jsonl: empty file (expected one line of JSON or more)"});
  data_rejected("\n  \n", {"bad.jsonl: empty file (expected one line of JSON or more)"});
  data_rejected("{\"input_ids\": [1, 2]}\n\n{\"input_ids\": [1, 2\n",
                {"bad.jsonl: broken JSON: syntax error while parsing array - unexpected end of input; expected ']' at "
                 "line 3, byte 42"});
  data_rejected("{\"input_ids\": [1, 96]}\n{\"input_ids\": [-1]}\n",
                {"bad.jsonl: id outside the vocabulary (expected 0 to 95, got 96) at line 1, input_ids[1]",
                 "bad.jsonl: id outside the vocabulary (expected 0 to 95, got -1) at line 2, input_ids[0]"});
  data_rejected("{\"input_ids\": [1, 2, 3], \"document_lengths\": [1, 1]}\n",
                {"bad.jsonl: document_lengths do not add up (expected 3, got 2) at line 1, document_lengths"});
  data_rejected("{\"text\": \"no tokenizer here\"}\n",
                {"bad.jsonl: lines of text need a tokenizer; try a tokenizer.json in the model's folder"});
  std::string many;
  for (int i = 0; i < 12; ++i) many += "{\"input_ids\": [100]}\n";
  write("bad.jsonl", many);
  const testing::Ran ran = hawser("eval --model " + tiny("gqa").string() + " --data bad.jsonl --sequence-length 16");
  EXPECT_EQ(testing::lines_of(ran.err).size(), 6u) << ran.err;
  EXPECT_NE(ran.err.find("hawser: and 7 more: id outside the vocabulary\n"), std::string::npos) << ran.err;
}

// What users of other tools give: pairs of preferences, and places that are not on this machine.
TEST_F(BadInput, DataOfOtherKindsAreNamed) {
  data_rejected("{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}\n",
                {"bad.jsonl: preference data, which are not supported yet (expected a form of docs/data.md, got chosen "
                 "and rejected) at line 1; try data.columns: {completion: chosen}, which trains on the chosen answers "
                 "alone"});
  write("recipe.yaml", "model: {path: " + tiny("gqa").string() +
                           "}\ndata: {train: good.jsonl, sequence_length: 16}\ntrain: {steps: 1}\noutput: run\n");
  const auto place = [&](const std::string& path, const std::string& problem) {
    rejected("fit recipe.yaml --set data.train=" + path, {path + ": " + problem});
  };
  const std::string remote = "not a local file: data are read from disks at data.train[0], --set; try ";
  place("s3://b/d", remote + "aws s3 cp --recursive s3://b/d FOLDER, and that folder");
  place("hf://datasets/o/n", remote + "hawser pull o/n --dataset, and the folder that it prints");
  const auto here = [&](const std::string& name) { return folder_.path(name); };
  rejected(
      "fit recipe.yaml --set data.train=org/name",
      {here("org/name") +
       ": no such file at data.train[0], --set; try if it is a data set of the Hub, hawser pull org/name --dataset, "
       "and the folder that it prints"});
}

TEST_F(BadInput, Layout) {
  const std::string eval =
      "eval --model " + tiny("gqa").string() + " --data good.jsonl --sequence-length 16 --ranks 4 --set ";
  rejected(eval + "parallel.context_paralel_degree=2",
           {"--set: unknown key at parallel.context_paralel_degree; try parallel.context_parallel_degree"});
  rejected(eval + "parallel.context_parallel_degree=3",
           {"--set: ranks do not divide by the degrees (expected ranks a multiple of 3, got 4 ranks) at "
            "parallel.context_parallel_degree; try --ranks 3 or 6"});
  rejected(eval + "parallel.hybrid_shard_degree=3",
           {"--set: degrees do not divide (expected a divisor of 4 ranks, got 3) at parallel.hybrid_shard_degree; try "
            "parallel.hybrid_shard_degree: 1, 2 or 4"});
}

TEST_F(BadInput, EverythingAtOnce) {
  broken("model", [](nlohmann::json& header) {
    header["model.norm.weight"]["dtype"] = "I32";
    header["lm_head.weight"]["shape"] = {32, 96};
  });
  write("bad.jsonl", "{\"input_ids\": [1, 200]}\nnot JSON\n");
  const std::vector<std::string> of_model_and_data = {
      "model/model.safetensors: a tensor has an unsupported dtype (expected F32, BF16, F16, F64, or NF4 of "
      "bitsandbytes, got I32) at "
      "model.norm.weight",
      "model/model.safetensors: a tensor's shape differs from config.json (expected [96, 32], got [32, 96]) "
      "at lm_head.weight",
      "bad.jsonl: id outside the vocabulary (expected 0 to 95, got 200) at line 1, input_ids[1]",
      "bad.jsonl: broken JSON: syntax error while parsing value - invalid literal; last read: 'no' at line 2, byte 25"};
  const std::string eval = "eval --model model --data bad.jsonl --sequence-length 16 ";
  rejected(eval, of_model_and_data);
  std::vector<std::string> all = {
      "--set: ranks do not divide by the degrees (expected ranks a multiple of 2, got 3 ranks) at "
      "parallel.context_parallel_degree; try --ranks 2 or 4"};
  all.insert(all.end(), of_model_and_data.begin(), of_model_and_data.end());
  rejected(eval + "--ranks 3 --set parallel.context_parallel_degree=2", all);
  all[0] = "--set: unknown key at train.stepz; try train.steps";
  rejected(eval + "--set train.stepz=2", all);
}

// Ranks under another launcher find the same errors: they are printed once, and all ranks exit alike.
TEST_F(BadInput, UnderMpirunIsReportedOnce) {
  write("bad.jsonl", "{\"input_ids\": [1, 200]}\n");
  const testing::Ran ran =
      shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe -np 3 " +
            std::string(testing::kHawser) + " eval --model " + tiny("gqa").string() +
            " --data bad.jsonl --sequence-length 16");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  const std::string line = "hawser: bad.jsonl: id outside the vocabulary";
  const auto first = ran.err.find(line);
  EXPECT_NE(first, std::string::npos) << ran.err;
  EXPECT_EQ(ran.err.find(line, first + 1), std::string::npos) << ran.err;
}

TEST_F(BadInput, OutputNotWritable) {
  write("file", "");
  write("recipe.yaml", "model: {path: " + tiny("gqa").string() +
                           "}\ndata: {train: good.jsonl, sequence_length: 16}\ntrain: {steps: 1}\noutput: file/run\n");
  const std::string reason = ": the folder is not writable (got Not a directory) at output, line 4 of recipe.yaml";
  rejected("prepare recipe.yaml", {folder_.path("file/run/data") + reason});
  rejected("fit recipe.yaml", {"file/run" + reason});
  rejected("fit recipe.yaml --ranks 2 --set train.global_batch_size=2", {"file/run" + reason});
}

TEST_F(BadInput, OptionsAndFoldersAreNamedForWhatTheyAre) {
  rejected("plan recipe.yaml --ranks 2 --ranks 4", {"--ranks given twice; try hawser plan --help"});
  rejected("fit recipe.yaml --resume=run",
           {"--resume takes no value (got run); try --resume, which continues the newest "
            "checkpoint in output"});
  rejected("fit recipe.yaml train.steps=3", {"unexpected argument train.steps=3; try --set train.steps=3"});
  rejected("plan " + (tiny("gqa") / "config.json").string(),
           {(tiny("gqa") / "config.json").string() +
            ": a model's config.json (expected a recipe); try hawser recipe "
            "init --model " +
            (tiny("gqa") / "config.json").string() + ", which writes one"});
  rejected("plan recipe.yaml --ranks", {"--ranks needs a value; try hawser plan --help"});
  write("recipe.yaml", "model: {config: " + (tiny("gqa") / "config.json").string() +
                           "}\ndata: {train: good.jsonl, sequence_length: 16}\ntrain: {steps: 1}\noutput: taken\n");
  write("taken", "a file");
  rejected("fit recipe.yaml", {"taken: is a file, not a folder at output, line 4 of recipe.yaml; try another folder"});
}

TEST_F(BadInput, GenerateExportAndInspect) {
  rejected("generate --model " + tiny("gqa").string() + " --prompt-ids 1,96",
           {"id outside the vocabulary (expected below 96, got 96) at --prompt-ids"});
  rejected("generate --model " + tiny("gqa").string() + " --prompt words",
           {tiny("gqa").string() +
            ": no tokenizer.json in the model's folder at --prompt; try --prompt-ids with token ids"});
  rejected("export nowhere out", {"nowhere: no such folder (expected a run's folder or a checkpoint)"});
  rejected("export . out", {".: neither a run's folder nor a checkpoint"});
  fs::create_directories(folder_ / "run/checkpoints");
  rejected("export run out", {"run/checkpoints: no complete checkpoint"});
  rejected(
      "inspect nowhere",
      {"nowhere: no such file or folder (expected a run, a checkpoint, a model or adapter folder, a token file or a "
       "trace)"});
  const std::string no_model = "nowhere: no such model (expected a Hugging Face folder or a config.json)";
  rejected("bench step --model nowhere --documents 8k",
           {"wrong value (expected mean=TOKENS or long=TOKENS, got 8k) at --documents", no_model});
  rejected("bench step --model nowhere --sequence-length 64 --documents long=65",
           {"a document longer than a sequence (expected at most 64, got 65) at --documents; try --sequence-length 65",
            no_model});
  rejected("bench step --device cpu --sequence-length 64 --documents mean=1000 --model " + tiny("gqa").string(),
           {"documents longer than a sequence (expected a mean of at most 64, got 1000) at --documents; try "
            "--sequence-length 1000"});
  rejected("bench step --model nowhere", {no_model});
}

}  // namespace bad_input_test
}  // namespace hawser
