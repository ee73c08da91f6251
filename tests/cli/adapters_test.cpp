// LoRA as a user runs it: training, checkpoints of the adapter alone, resume, PEFT's folders, merged models.
#include <cmath>

#include "cli/testing/binary.h"

namespace hawser {
namespace adapters_test {

namespace fs = std::filesystem;
using testing::tiny;

class Adapters : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("d.jsonl", testing::forty_documents());
  }
  std::string recipe(const std::string& adapter, const std::string& output = "out", const std::string& more = "") {
    const std::string name = output + ".yaml";
    write(name, "model: {path: " + base_ + "}\ndata: {train: [d.jsonl], sequence_length: 32}\n" +
                    "train: {steps: 6, global_batch_size: 4}\nadapter: {kind: lora, " + adapter + "}\n" +
                    "optimizer: {learning_rate: 0.02, schedule: constant}\ncheckpoint: {every_steps: 3}\n" + more +
                    "output: " + output + "\n");
    return name;
  }
  void succeeds(const std::string& arguments) {
    const testing::Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
  }
  double loss(const std::string& model) {
    return json("eval " + model + " --data d.jsonl --sequence-length 32")["loss"];
  }

  std::string base_ = tiny("gqa").string();
};

TEST_F(Adapters, TrainExportMergeAndAddUp) {
  succeeds("fit " + recipe("rank: 4, alpha: 8, dropout: 0.1, dora: true, modules_to_save: [norm, lm_head]"));
  const double base = loss("--model " + base_), trained = loss("--model out");
  EXPECT_LT(trained, base - 0.05);

  succeeds("export out adapter");
  EXPECT_EQ(loss("--model " + base_ + " --adapter adapter"), trained);
  const auto config = testing::json_of(folder_ / "adapter/adapter_config.json");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["use_dora"], true);
  EXPECT_EQ(config["base_model_name_or_path"], base_);
  const auto tensors = testing::SafetensorsParts::read(folder_ / "adapter/adapter_model.safetensors").header;
  for (const auto& [name, tensor] : tensors.items()) {
    if (name == "__metadata__") continue;
    EXPECT_TRUE(name.starts_with("base_model.model.")) << name;
    EXPECT_EQ(tensor["dtype"], "F32");
  }

  succeeds("export out merged --merge");
  succeeds("export --model " + base_ + " --adapter adapter --merge merged-2");
  EXPECT_EQ(folder_.read("merged/model.safetensors"), folder_.read("merged-2/model.safetensors"));
  EXPECT_NEAR(loss("--model merged"), trained, 2e-6 * trained);

  // A checkpoint has the adapter's states alone: three float32 values for each trained parameter.
  std::int64_t parameters = 0;
  for (const auto& [name, tensor] : tensors.items()) {
    if (name == "__metadata__") continue;
    std::int64_t elements = 1;
    for (const auto& size : tensor["shape"]) elements *= size.get<std::int64_t>();
    parameters += elements;
  }
  std::uintmax_t bytes = 0;
  for (const auto& file : fs::recursive_directory_iterator(folder_ / "out/checkpoints/step-00000006")) {
    if (file.is_regular_file()) bytes += file.file_size();
  }
  EXPECT_GE(bytes, 12 * static_cast<std::uintmax_t>(parameters));
  EXPECT_LT(bytes, 12 * static_cast<std::uintmax_t>(parameters) + 40000);

  const auto norms = json("eval --model " + base_ +
                          " --adapter adapter --data d.jsonl --sequence-length 32 --gradient-norms")["gradient_norms"];
  EXPECT_EQ(norms.size() + tensors.contains("__metadata__"), tensors.size());
  for (const auto& [name, norm] : norms.items()) EXPECT_TRUE(tensors.contains(name)) << name;

  // Twice the same adapter is another model; modules_to_save in both would replace each other.
  rejected("generate --model " + base_ + " --adapter adapter --adapter adapter --prompt-ids 1,2",
           {"adapter: two adapters have the same module in full (got base_model.model.lm_head.weight)"});
  fs::copy(folder_ / "adapter", folder_ / "named");
  testing::SafetensorsParts named = testing::SafetensorsParts::read(folder_ / "adapter/adapter_model.safetensors");
  for (const char* module : {"base_model.model.lm_head", "base_model.model.model.norm"}) {
    const std::string name = module;
    named.header[name + ".modules_to_save.default.weight"] = named.header[name + ".weight"];
    named.header.erase(name + ".weight");
  }
  named.write(folder_ / "named/adapter_model.safetensors");
  const testing::Ran both = hawser("generate --model " + base_ + " --adapter adapter --adapter named --prompt-ids 1,2");
  EXPECT_EQ(both.code, 2);
  EXPECT_NE(both.err.find("named: two adapters have the same module in full (got base_model.model.lm_head.weight and "
                          "base_model.model.lm_head.modules_to_save.default.weight)"),
            std::string::npos)
      << both.err;
  succeeds("fit " + recipe("rank: 2, alpha: 8", "plain"));
  succeeds("export plain plain-adapter");
  succeeds("generate --model " + base_ + " --adapter plain-adapter --adapter adapter --prompt-ids 1,2 --max-tokens 4");
  succeeds("export --model " + base_ + " --adapter plain-adapter --adapter plain-adapter --merge twice");
  EXPECT_GT(std::abs(loss("--model twice") - loss("--model plain")), 1e-4);
}

// A tensor that a file has under two names is one tensor or a mistake.
TEST_F(Adapters, TwoNamesOfOneTensorAreReported) {
  succeeds("fit " + recipe("rank: 2") + " --set train.steps=2");
  succeeds("export out adapter");
  const fs::path file = folder_ / "adapter/adapter_model.safetensors";
  const testing::SafetensorsParts parts = testing::SafetensorsParts::read(file);
  const double once = loss("--model " + base_ + " --adapter adapter");
  const std::string module = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.";
  const auto& offsets = parts.header[module + "weight"]["data_offsets"];
  for (const bool changed : {false, true}) {
    testing::SafetensorsParts twice = parts;
    std::string bytes = parts.data.substr(offsets[0], offsets[1].get<std::size_t>() - offsets[0].get<std::size_t>());
    if (changed) bytes[3] = static_cast<char>(bytes[3] ^ 0x80);
    twice.header[module + "default.weight"] = parts.header[module + "weight"];
    twice.header[module + "default.weight"]["data_offsets"] = {twice.data.size(), twice.data.size() + bytes.size()};
    twice.data += bytes;
    twice.write(file);
    if (!changed) EXPECT_EQ(loss("--model " + base_ + " --adapter adapter"), once);
  }
  rejected("export --model " + base_ + " --adapter adapter --merge merged",
           {"adapter/adapter_model.safetensors: two tensors are the same weight of the model, with other values "
            "(expected those of '" +
            module + "default.weight' in adapter/adapter_model.safetensors) at '" + module +
            "weight'; try the file without one of them"});
}

TEST_F(Adapters, AMergedModelHasTheTokenizerOfItsBase) {
  succeeds("fit " + recipe("rank: 2") + " --set train.steps=1");
  succeeds("export out adapter");
  const std::string tekken = R"({"config": {}, "vocab": []})";
  for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
           {"tekken.json", tekken}, {"tokenizer.json", testing::letters_tokenizer()}, {"", ""}}) {
    copy_of("gqa", "base");
    write("base/generation_config.json", "{}");
    if (!name.empty()) write("base/" + name, text);
    succeeds("export --model base --adapter adapter --merge merged");
    for (const char* other : {"tekken.json", "tokenizer.json"})
      EXPECT_EQ(fs::exists(folder_ / "merged" / other), name == other);
    if (!name.empty()) EXPECT_EQ(folder_.read("merged/" + name), text);
    EXPECT_TRUE(fs::exists(folder_ / "merged/generation_config.json"));
    EXPECT_EQ(fs::exists(folder_ / "merged/tokenizer_config.json"), name == "tokenizer.json") << name;
    fs::remove_all(folder_ / "merged");
    fs::remove_all(folder_ / "base");
  }
}

TEST_F(Adapters, ResumeBitwiseOnAnotherMesh) {
  const std::string name = recipe("rank: 3, alpha: 6, dropout: 0.2, targets: [q_proj, down_proj]");
  succeeds("fit " + name + " --set output=whole --ranks 2");
  succeeds("fit " + name + " --set output=parts --set train.steps=3 --ranks 2");
  succeeds("fit " + name + " --set output=parts --ranks 2 --resume");
  succeeds("export whole a");
  succeeds("export parts b");
  EXPECT_EQ(folder_.read("a/adapter_model.safetensors"), folder_.read("b/adapter_model.safetensors"));
  // Another mesh continues, and evaluates, the same adapter.
  succeeds("fit " + name +
           " --set output=parts --set train.steps=8 --ranks 4 --set parallel.context_parallel_degree=2 "
           "--resume");
  succeeds("fit " + name + " --set output=whole --set train.steps=8 --resume");
  const double one = loss("--model whole"), four = loss("--model parts --ranks 2");
  EXPECT_NEAR(one, four, 1e-5 * one);
}

// The frozen base in FP8: training, resume, export and evaluation of the adapter; DoRA is rejected.
TEST_F(Adapters, TrainOnABaseInFp8) {
  const std::string name = recipe("rank: 4, alpha: 8, dropout: 0.1", "whole", "precision: {compute: fp8}\n");
  succeeds("fit " + name + " --ranks 2");
  succeeds("fit " + name + " --set output=parts --set train.steps=3 --ranks 2");
  succeeds("fit " + name + " --set output=parts --ranks 2 --resume");
  succeeds("export whole a");
  succeeds("export parts b");
  EXPECT_EQ(folder_.read("a/adapter_model.safetensors"), folder_.read("b/adapter_model.safetensors"));
  succeeds("fit " + name + " --set output=parts --set train.steps=8 --resume");

  succeeds("fit " + name + " --set output=plain --set precision.compute=float32 --ranks 2");
  const double base = loss("--model " + base_), plain = loss("--model plain"), fp8 = loss("--model whole");
  EXPECT_LT(plain, base - 0.05);
  EXPECT_NEAR(fp8, plain, 0.1 * (base - plain));
  EXPECT_NE(fp8, plain);
  EXPECT_EQ(loss("--model " + base_ + " --adapter a"), fp8);
  succeeds("export whole merged --merge");
  EXPECT_NEAR(loss("--model merged"), fp8, 2e-6 * fp8);

  rejected("fit " + name + " --set output=dora --set adapter.dora=true",
           {"--set: FP8 with DoRA is not supported at adapter.dora; try adapter.dora: false, or precision.compute: "
            "bf16"});
}

TEST_F(Adapters, BadInputIsOneLineEach) {
  const std::string r = recipe("rank: 4");
  const std::string linears = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj or all-linear";
  rejected("fit " + r + " --set adapter.targets=q_prj", {"--set: the model has no such Linear (expected " + linears +
                                                         ", got q_prj) at adapter.targets; try q_proj"});
  succeeds("fit " + r);
  const std::string step = "out/checkpoints/step-00000006";
  const std::string tokens = folder_.read("out/data/train.bin"), text = folder_.read("d.jsonl");
  write("d.jsonl", text + "{\"input_ids\": [1, 2, 3]}\n");  // what a run would prepare
  const testing::Ran other = hawser("fit " + r + " --set adapter.rank=8 --set train.steps=8 --resume");
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find(step + ": the adapter has changed (expected 4, got 8) at adapter.rank"), std::string::npos)
      << other.err;
  EXPECT_EQ(testing::lines_of(other.err).size(), 1u) << other.err;
  EXPECT_TRUE(folder_.read("out/data/train.bin") == tokens);
  write("d.jsonl", text);
  const std::string eval = "eval --data d.jsonl --sequence-length 32 --model ";
  rejected(eval + "out --adapter out",
           {"out: adapters need a model's folder (got a run or a checkpoint) at --adapter; try hawser export out "
            "OUT_DIR, and --model OUT_DIR"});
  rejected(eval + base_ + " --adapter out",
           {"out: no adapter here (expected a folder with adapter_config.json and adapter_model.safetensors, as PEFT "
            "saves it)"});
  succeeds("export out adapter");
  rejected(eval + "adapter",
           {"adapter: an adapter, not a model (expected the folder of its base model); try --model BASE --adapter "
            "adapter; to "
            "train it further, `hawser export --model BASE --adapter adapter --merge FOLDER` and train FOLDER"});
  EXPECT_EQ(json("inspect adapter --json")["adapter"]["rank"], 4);
  EXPECT_NE(hawser("inspect adapter").out.find("LoRA, rank 4, alpha 32"), std::string::npos);
  // An adapter of a base with other shapes, and one with a tensor less.
  const testing::Ran shapes = hawser(eval + tiny("mha").string() + " --adapter adapter");
  EXPECT_EQ(shapes.code, 2);
  EXPECT_NE(
      shapes.err.find(
          "adapter/adapter_model.safetensors: a tensor's shape differs from adapter_config.json and the base model"),
      std::string::npos)
      << shapes.err;
  testing::SafetensorsParts parts = testing::SafetensorsParts::read(folder_ / "adapter/adapter_model.safetensors");
  fs::copy(folder_ / "adapter", folder_ / "nan");
  testing::SafetensorsParts not_finite = parts;
  not_finite.data.replace(0, 4, std::string("\0\0\xc0\x7f", 4));
  not_finite.write(folder_ / "nan/adapter_model.safetensors");
  const testing::Ran merged = hawser("export --model " + base_ + " --adapter nan --merge merged");
  EXPECT_EQ(merged.code, 2);
  EXPECT_NE(merged.err.find("a weight with its adapters is not finite at model.layers.0."), std::string::npos)
      << merged.err;
  EXPECT_FALSE(fs::exists(folder_ / "merged"));
  std::uint64_t end = 0;
  std::string last;
  for (const auto& [name, tensor] : parts.header.items()) {
    if (name == "__metadata__" || tensor["data_offsets"][1].get<std::uint64_t>() < end) continue;
    end = tensor["data_offsets"][1];
    last = name;
  }
  parts.data.resize(parts.header[last]["data_offsets"][0].get<std::size_t>());
  parts.header.erase(last);
  parts.write(folder_ / "adapter/adapter_model.safetensors");
  const testing::Ran missing = hawser(eval + base_ + " --adapter adapter");
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.err.find("adapter: tensors of the adapter are missing (expected 28, got 27) at "),
            std::string::npos)
      << missing.err;
  rejected("export --model " + base_ + " merged",
           {"export: --model without --adapter", "export: --model without --merge"});
  rejected("export out merged --adapter adapter", {"export: --adapter without --model"});
  fs::rename(folder_ / "out", folder_ / "moved");  // a moved run is still whole
  EXPECT_GT(loss("--model moved"), 0);
}

// The base is not the one that the adapter was trained on.
TEST_F(Adapters, AChangedBaseIsRejected) {
  base_ = (folder_ / copy_of("gqa", "base")).string();
  succeeds("fit " + recipe("rank: 2"));
  testing::SafetensorsParts parts = testing::SafetensorsParts::read(folder_ / "base/model.safetensors");
  parts.data[100] = static_cast<char>(parts.data[100] ^ 0x10);
  parts.write(folder_ / "base/model.safetensors");
  const testing::Ran changed = hawser("eval --model out --data d.jsonl --sequence-length 32");
  EXPECT_EQ(changed.code, 2);
  EXPECT_NE(changed.err.find("the frozen weights have changed"), std::string::npos) << changed.err;
  fs::rename(folder_ / "base", folder_ / "gone");
  const testing::Ran gone = hawser("eval --model out --data d.jsonl --sequence-length 32");
  EXPECT_EQ(gone.code, 2);
  EXPECT_NE(gone.err.find("the base model of the adapter is missing"), std::string::npos) << gone.err;
  succeeds("export out adapter");  // without it
}

}  // namespace adapters_test
}  // namespace hawser
