// Exported folders hold the model, and the tokenizer's files.
#include <map>

#include "io/json.h"
#include "models/testing/weights_fixture.h"

namespace hawser::models {
namespace export_test {

class ExportTest : public WeightsTest {
 protected:
  // Supplies states from a golden folder.
  StateSource source(checkpoint::SafetensorsFolder& folder) {
    return [&folder](const std::vector<NamedState>& states) {
      for (const NamedState& state : states) {
        for (const Box& box : state.boxes) folder.read(state.name, checkpoint::region_of(box), box.view);
      }
    };
  }
};

TEST_F(ExportTest, AnExportHoldsTheSameModel) {
  for (const std::string& name : golden_names()) {
    SCOPED_TRACE(name);
    const auto model = load_model(golden(name));
    auto weights = open_weights(golden(name));
    for (const std::int64_t shard_bytes : {std::int64_t{5'000'000'000}, std::int64_t{20'000}}) {
      const TemporaryFolder folder;
      const std::string config =
          config_json(model->description(), DType::f32, read_file(golden(name) + "/config.json"));
      export_folder(folder.path("out"), *model, source(weights),
                    {.stored = DType::f32, .config = config, .max_shard_bytes = shard_bytes});
      EXPECT_EQ(std::filesystem::exists(folder.path("out/model.safetensors.index.json")), shard_bytes < 1'000'000);
      const auto again = load_model(folder.path("out"));
      auto exported = open_weights(folder.path("out"));
      Problems problems;
      check_weights(*again, exported, problems);
      EXPECT_EQ(problems.lines(), "");
      EXPECT_EQ(exported.names(), weights.names());
      for (const std::string& tensor_name : weights.names()) {
        EXPECT_EQ(tensor(exported, tensor_name), tensor(weights, tensor_name)) << tensor_name;
      }
    }
  }
}

// Tensors of several pieces, which need not be rows.
TEST_F(ExportTest, AnExportInPiecesIsTheSame) {
  const auto exported = [&](const std::string& path, std::int64_t piece_elements) {
    const auto model = load_model(path);
    auto weights = open_weights(path);
    const WeightSources sources(weights);
    const TemporaryFolder folder;
    export_folder(folder.path("out"), *model, read_weights(*model, sources),
                  {.stored = DType::f32, .config = "{}", .piece_elements = piece_elements});
    return read_file(folder.path("out/model.safetensors"));
  };
  const std::string families = std::string(testing::kSourceFolder) + "/tests/golden/families/";
  for (const std::string& path : {golden("gqa"), families + "gpt_neox"}) {  // the second has rows in another order
    const std::string whole = exported(path, kExportElements);
    for (const std::int64_t piece : {1000, 97, 7}) EXPECT_TRUE(exported(path, piece) == whole) << path << " " << piece;
  }
}

TEST_F(ExportTest, Bf16RoundsAndFilesOfTheTokenizerComeAlong) {
  const auto model = load_model(golden("gqa"));
  auto weights = open_weights(golden("gqa"));
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path("from"));
  folder.write("from/tokenizer.json", "{\"a\": 1}");
  folder.write("from/special_tokens_map.json", "{}");
  folder.write("from/notes.txt", "not of the tokenizer");
  ExportOptions options{.config = config_json(model->description(), DType::bf16),
                        .tokenizer = tokenizer_files(folder.path("from/tokenizer.json"))};
  export_folder(folder.path("out"), *model, source(weights), options);
  auto exported = open_weights(folder.path("out"));
  for (const std::string& name : weights.names()) {
    std::vector<float> expected = tensor(weights, name);
    for (float& value : expected) value = static_cast<float>(Bf16(value));
    EXPECT_EQ(tensor(exported, name), expected);
    EXPECT_STREQ(exported.find(name)->type->name, "BF16");
  }
  EXPECT_EQ(read_file(folder.path("out/tokenizer.json")), "{\"a\": 1}");
  EXPECT_EQ(read_file(folder.path("out/special_tokens_map.json")), "{}");
  EXPECT_FALSE(std::filesystem::exists(folder.path("out/notes.txt")));
  EXPECT_NE(read_file(folder.path("out/tokenizer_config.json")).find("PreTrainedTokenizerFast"), std::string::npos);

  EXPECT_THROW(export_folder(folder.path("out"), *model, source(weights), options), UserError);
  for (const std::string name : {"tokenizer.model", "tekken.json", "tokenizer.json"}) {
    const std::string out = folder.path(name);
    export_folder(out, *model, source(weights), {.config = "{}", .tokenizer = {{name, "..."}}});
    EXPECT_EQ(read_file(std::filesystem::path(out) / name), "...");
    EXPECT_EQ(std::filesystem::exists(out + "/tokenizer_config.json"), name == "tokenizer.json")
        << "it would name a class that needs a tokenizer.json";
  }
  folder.write("tekken/tekken.json", "{}");
  folder.write("tekken/added_tokens.json", "{\"<x>\": 5}");
  std::string names;
  for (const auto& file : tokenizer_files(folder.path("tekken"))) names += file.name + " ";
  EXPECT_EQ(names, "tekken.json added_tokens.json ");
  folder.write("from/tokenizer_config.json", "{\"own\": true}");
  options.replace = true;
  options.tokenizer = tokenizer_files(folder.path("from"));
  export_folder(folder.path("out"), *model, source(weights), options);
  EXPECT_EQ(read_file(folder.path("out/tokenizer_config.json")), "{\"own\": true}");
}

TEST(ExportFiles, TheEndOfTurnIsAddedToTheTokensThatEndAText) {
  const auto added = [](const std::string& generation, const std::string& config, std::int64_t end = 9) {
    std::vector<checkpoint::Attachment> files{{"tokenizer.json", "{}"}};
    if (!generation.empty()) files.push_back({"generation_config.json", generation});
    files = with_end_token(std::move(files), config, end);
    EXPECT_EQ(files.size(), 2u);
    EXPECT_EQ(files.front().text, "{}");
    return files.back().text;
  };
  EXPECT_EQ(added(R"({"eos_token_id": 2, "top_p": 0.90})", "{}"), R"({"eos_token_id": [2, 9], "top_p": 0.90})");
  EXPECT_EQ(added(R"({"eos_token_id":[2,3]})", R"({"eos_token_id": 4})"), R"({"eos_token_id":[2, 3, 9]})");
  for (const std::string there : {R"({"eos_token_id":[2,9]})", R"({"eos_token_id":9})"})
    EXPECT_EQ(added(there, "{}"), there);
  EXPECT_EQ(added(R"({"eos_token_id": null})", R"({"eos_token_id": [4, 5]})"), R"({"eos_token_id": [4, 5, 9]})");
  EXPECT_EQ(added(R"({"top_k": 1})", R"({"eos_token_id": 9})"), R"({"top_k": 1, "eos_token_id": [9]})");
  // A new file has what transformers would otherwise read in config.json.
  EXPECT_EQ(
      io::Json::parse(added("", R"({"eos_token_id": null, "bos_token_id": 0, "pad_token_id": null, "top_k": 7})")),
      io::Json::parse(R"({"bos_token_id": 0, "eos_token_id": [9], "top_k": 7})"));
  EXPECT_THROW(added("[]", "{}"), UserError);
  EXPECT_THROW(added("{", "{}"), UserError);
}

TEST(ExportFiles, OneChatTemplate) {
  using Files = std::map<std::string, std::string>;
  const auto one = [](const Files& from) {
    std::vector<checkpoint::Attachment> files;
    for (const auto& [name, text] : from) files.push_back({name, text});
    Files out;
    for (const auto& [name, text] : with_one_chat_template(std::move(files))) out.emplace(name, text);
    return out;
  };
  const std::string config = "tokenizer_config.json", jinja = "chat_template.jinja",
                    of_processor = "chat_template.json", more = "additional_chat_templates.tool_use.jinja";
  const std::string with = R"({"a": 1.0, "chat_template": "x", "b": 2})", without = R"({"a": 1.0, "b": 2})";
  EXPECT_EQ(one({{config, with}, {jinja, "y"}, {more, "z"}}), Files({{config, without}, {jinja, "y"}, {more, "z"}}));
  EXPECT_EQ(one({{config, with}, {jinja, "x"}, {of_processor, "{}"}}), Files({{config, without}, {jinja, "x"}}));
  EXPECT_EQ(one({{config, with}, {more, "z"}, {of_processor, "{}"}}), Files({{config, with}}));
  const std::string list = R"({"chat_template": [{"name": "default", "template": "x"}]})";
  EXPECT_EQ(one({{config, list}}), Files({{config, list}}));
  EXPECT_EQ(one({{config, list}, {jinja, "y"}}), Files({{config, "{}"}, {jinja, "y"}}));
  for (const Files& as_is :
       {Files{{of_processor, "{}"}, {"tokenizer.json", "{}"}}, Files{{config, without}, {more, "z"}},
        Files{{config, "no JSON"}, {jinja, "y"}}, Files{{config, without}, {jinja, "y"}}}) {
    EXPECT_EQ(one(as_is), as_is);
  }
}

TEST_F(ExportTest, ASourceThatFailsLeavesNothing) {
  const auto model = load_model(golden("gqa"));
  const TemporaryFolder folder;
  const StateSource failing = [](const std::vector<NamedState>&) { throw UserError("no"); };
  EXPECT_THROW(export_folder(folder.path("out"), *model, failing, {.config = "{}"}), UserError);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace export_test
}  // namespace hawser::models
