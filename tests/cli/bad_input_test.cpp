// What a user may get wrong: one line each, all of it together, exit code 2, nothing on standard output.
#include <functional>

#include "binary.h"

namespace hawser {
namespace {

namespace fs = std::filesystem;
using testing::SafetensorsParts;
using testing::tiny;

class BadInput : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    write("good.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
  }
  // `eval` of the model, on sound data.
  void model_refused(const std::string& model, const std::vector<std::string>& lines) {
    refused("eval --model " + model + " --data good.jsonl --sequence-length 16", lines);
    refused("eval --model " + model + " --data good.jsonl --sequence-length 16 --ranks 2", lines);
  }
  void data_refused(const std::string& content, const std::vector<std::string>& lines) {
    write("bad.jsonl", content);
    refused("eval --model " + tiny("gqa").string() + " --data bad.jsonl --sequence-length 16", lines);
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
  model_refused("missing", {});

  copy_of("gqa", "truncated");
  fs::resize_file(folder_ / "truncated/model.safetensors", 60000);
  model_refused("truncated", {});

  copy_of("gqa", "empty");
  fs::resize_file(folder_ / "empty/model.safetensors", 0);
  model_refused("empty", {});

  model_refused(broken("overlapping",
                       [](nlohmann::json& header) {
                         header["model.norm.weight"]["data_offsets"] = header["lm_head.weight"]["data_offsets"];
                         header["model.norm.weight"]["shape"] = header["lm_head.weight"]["shape"];
                       }),
                {});
  model_refused(broken("overflowing",
                       [](nlohmann::json& header) {
                         header["model.norm.weight"]["shape"] = {std::int64_t{1} << 62, 4, 32};
                       }),
                {});
  model_refused(broken("shape",
                       [](nlohmann::json& header) {
                         header["model.layers.0.self_attn.q_proj.weight"]["shape"] = {16, 64};
                       }),
                {});
  model_refused(broken("absent",
                       [](nlohmann::json& header) {
                         header["other"] = header["model.norm.weight"];
                         header.erase("model.norm.weight");
                       }),
                {});

  copy_of("sharded", "traversal");
  nlohmann::json index = testing::json_of(folder_ / "traversal/model.safetensors.index.json");
  index["weight_map"]["model.norm.weight"] = "../outside.safetensors";
  write("traversal/model.safetensors.index.json", index.dump());
  model_refused("traversal", {});
}

TEST_F(BadInput, Data) {
  data_refused("", {});
  data_refused("\n  \n", {});
  data_refused("{\"input_ids\": [1, 2]}\n\n{\"input_ids\": [1, 2\n", {});
  data_refused("{\"input_ids\": [1, 96]}\n{\"input_ids\": [-1]}\n", {});
  data_refused("{\"input_ids\": [1, 2, 3], \"document_lengths\": [1, 1]}\n", {});
  data_refused("{\"text\": \"no tokenizer here\"}\n", {});
}

}  // namespace
}  // namespace hawser
