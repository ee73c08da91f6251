// Tests tokenizers of all three formats with files beside them that declare tokens.
#include "text/tokenizers/declared_tokens.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/base64.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::text {
namespace declared_tokens_test {

using Json = nlohmann::ordered_json;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

const fs::path kGolden = fs::path(testing::kSourceFolder) / "tests/golden/tokenizers";

// Tokens that transformers adds and nothing uses: they take an id here, and are not found in a text.
const std::set<std::string> kReserved = {"<|padding|>", "<FILL_ME>", "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"};

const Json& golden() {
  static const Json kJson = Json::parse(read_file(kGolden / "declared.json"));
  return kJson;
}

// The file of a model of declared.json, and its content.
std::pair<std::string, std::string> model_of(const std::string& name) {
  if (golden()["models"].contains(name)) {
    const Json& made = golden()["models"][name];
    return {made["file"], *from_base64(made["base64"].get_ref<const std::string&>())};
  }
  const std::string file = fs::exists(kGolden / name / "tokenizer.json") ? "tokenizer.json" : "tokenizer.model";
  return {file, read_file(kGolden / name / file)};
}

class DeclaredTokensTest : public ::testing::Test {
 protected:
  // A tokenizer in a folder with these files.
  std::unique_ptr<Tokenizer> load(const std::string& model, const Json& files) {
    folder_.emplace();
    const auto [file, content] = model_of(model);
    folder_->write(file, content);
    for (const auto& [name, json] : files.items()) folder_->write(name, json.dump());
    return load_tokenizer(folder_->path(""));
  }
  static Ids encode(const Tokenizer& tokenizer, const std::string& text, bool add_special = false) {
    Ids ids;
    tokenizer.encode(text, ids, add_special);
    return ids;
  }
  std::optional<TemporaryFolder> folder_;
};

TEST_F(DeclaredTokensTest, IdsAreThoseOfTransformers) {
  const Json& texts = golden()["texts"];
  ASSERT_GT(golden()["cases"].size(), 60u);
  for (const auto& [name, expected] : golden()["cases"].items()) {
    std::unique_ptr<Tokenizer> tokenizer;
    try {
      tokenizer = load(expected["model"], expected["files"]);
    } catch (const UserError& error) {
      ADD_FAILURE() << name << ": " << error.what();
      continue;
    }
    const TextFrame frame = tokenizer->frame();
    EXPECT_EQ(frame.before, expected["before"].get<Ids>()) << name;
    EXPECT_EQ(frame.after, expected["after"].get<Ids>()) << name;
    if (!expected["eos"].is_null()) {
      EXPECT_EQ(tokenizer->eos(), expected["eos"].get<std::int32_t>()) << name;
    }
    for (const auto& [content, id] : expected["added"].items()) {
      if (kReserved.contains(content)) continue;
      EXPECT_EQ(tokenizer->id_of(content), id.get<std::int32_t>()) << name << content;
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto text = texts[i].get<std::string>();
      const auto ids = expected["ids"][i].get<Ids>();
      EXPECT_EQ(encode(*tokenizer, text), ids) << name << ", " << text;
      Ids conversation;
      tokenizer->encode_conversation(text, conversation);
      EXPECT_EQ(conversation, ids) << name << ", " << text;
      EXPECT_EQ(tokenizer->decode(ids), expected["decoded"][i].get<std::string>()) << name << ", " << text;
      EXPECT_EQ(tokenizer->decode(ids, true), expected["decoded_without_special"][i].get<std::string>())
          << name << ", " << text;
    }
  }
}

TEST_F(DeclaredTokensTest, AModelAloneKeepsItsOwnIds) {
  for (const char* model : {"sp-bpe-bytes", "sp-unigram", "tekken"}) {
    const auto alone = load(model, Json::object());
    EXPECT_EQ(encode(*alone, "<s>").size() > 1, true) << "text";
    EXPECT_EQ(alone->frame().before, Ids{1});
    // These declare nothing that changes ids.
    const auto same = load(model, {{"tokenizer_config.json", {{"chat_template", "x"}, {"model_max_length", 5}}},
                                   {"special_tokens_map.json", Json::object()},
                                   {"config.json", {{"model_type", "mistral"}}}});
    EXPECT_EQ(same->fingerprint(), alone->fingerprint());
    EXPECT_EQ(same->frame().before, Ids{1});
    EXPECT_EQ(encode(*same, "<s>"), encode(*alone, "<s>"));
  }
}

TEST_F(DeclaredTokensTest, EveryDeclarationThatChangesIdsChangesTheFingerprint) {
  const auto config = [](Json keys) { return Json{{"tokenizer_config.json", std::move(keys)}}; };
  const Json named = {{"tokenizer_class", "LlamaTokenizer"}};
  std::vector<Json> files = {Json::object(), config(named)};
  for (const Json& keys :
       {Json{{"legacy", true}}, Json{{"add_prefix_space", false}}, Json{{"add_bos_token", true}},
        Json{{"add_eos_token", true}}, Json{{"split_special_tokens", true}}, Json{{"eos_token", "<unk>"}},
        Json{{"eos_token", "<end>"}}, Json{{"bos_token", "<begin>"}}, Json{{"additional_special_tokens", {"<x>"}}},
        Json{{"additional_special_tokens", {"<y>"}}}, Json{{"tokenizer_class", "PreTrainedTokenizerFast"}}}) {
    Json all = named;
    all.update(keys);
    files.push_back(config(all));
  }
  Json mistral = config(named);
  mistral["added_tokens.json"] = {{"<x>", 700}};
  files.push_back(mistral);
  mistral["config.json"] = {{"model_type", "mistral"}};
  files.push_back(mistral);
  std::set<std::uint64_t> seen;
  for (const Json& one : files) EXPECT_TRUE(seen.insert(load("sp-bpe-bytes", one)->fingerprint()).second) << one.dump();
  seen.clear();
  for (const Json& one : {Json::object(), config({{"eos_token", "</s>"}}), config({{"eos_token", "<s>"}}),
                          config({{"add_bos_token", true}}), config({{"split_special_tokens", true}}),
                          config({{"extra_special_tokens", {"<x>"}}})}) {
    EXPECT_TRUE(seen.insert(load("tekken", one)->fingerprint()).second) << one.dump();
  }
  const auto plain = load("qwen-style", Json::object())->fingerprint();
  EXPECT_NE(load("qwen-style", config({{"split_special_tokens", true}}))->fingerprint(), plain);
  EXPECT_EQ(load("qwen-style", config({{"split_special_tokens", false}, {"legacy", true}}))->fingerprint(), plain);
}

// A padding that only the files know takes an id, so that the others are those of transformers, and is not used.
TEST_F(DeclaredTokensTest, ANewPaddingTakesAnIdOnly) {
  const auto tokenizer =
      load("sp-bpe-bytes",
           {{"tokenizer_config.json",
             {{"tokenizer_class", "LlamaTokenizer"}, {"pad_token", "[PAD]"}, {"extra_special_tokens", {"<x>"}}}}});
  EXPECT_EQ(tokenizer->id_of("<x>"), 701);
  EXPECT_EQ(tokenizer->id_of("[PAD]"), std::nullopt);
  EXPECT_GT(encode(*tokenizer, "[PAD]").size(), 1u);
}

TEST_F(DeclaredTokensTest, SpecialTokensAndSurfacesOfConvertedFiles) {
  const Json files = {{"tokenizer_config.json", {{"tokenizer_class", "LlamaTokenizer"}, {"legacy", false}}},
                      {"added_tokens.json", {{"<|im_start|>", 700}}},
                      {"special_tokens_map.json", {{"eos_token", "<|im_end|>"}}}};
  for (const char* model : {"sp-bpe-bytes", "tekken"}) {
    const auto tokenizer = load(model, files);
    const std::string text = "<|im_start|>user\nna\u00efve  \u4e2d <s><|im_end|>";
    const Ids ids = encode(*tokenizer, text);
    std::string surfaces;
    for (const std::int32_t id : ids) surfaces += tokenizer->surface(id);
    EXPECT_EQ(surfaces, text) << model;
    EXPECT_FALSE(tokenizer->is_special(ids[0])) << "added_tokens.json says nothing of it";
    EXPECT_TRUE(tokenizer->is_special(ids.back()));
    EXPECT_TRUE(tokenizer->is_special(*tokenizer->id_of("<s>")));
  }
}

// The folder of a checkpoint has no config.json for the class, but a file with what it said.
TEST_F(DeclaredTokensTest, ACheckpointKeepsTheModelTypeOfTheTokenizer) {
  Json files = {{"tokenizer_config.json", {{"tokenizer_class", "LlamaTokenizer"}}},
                {"added_tokens.json", {{"<x>", 700}}},
                {"config.json", {{"model_type", "mistral"}, {"hidden_size", 5}}}};
  const std::string text = "the<x>the";
  const auto original = load("sp-bpe-bytes", files);
  const std::string kept = tokenizer_model_of(folder_->path(""));
  EXPECT_EQ(kept, "{\"model_type\":\"mistral\"}\n");
  EXPECT_EQ(tokenizer_model_of(folder_->path("tokenizer.model")), kept);
  files.erase("config.json");
  EXPECT_NE(encode(*load("sp-bpe-bytes", files), text), encode(*original, text));
  EXPECT_EQ(tokenizer_model_of(folder_->path("")), "");
  files[kTokenizerModelFile] = Json::parse(kept);
  const auto resumed = load("sp-bpe-bytes", files);
  EXPECT_EQ(encode(*resumed, text), encode(*original, text));
  EXPECT_EQ(resumed->fingerprint(), original->fingerprint());
  EXPECT_EQ(tokenizer_model_of(folder_->path("")), kept);
  // Nothing of it depends on config.json.
  load("sp-bpe-bytes", {{"config.json", {{"model_type", "mistral"}}}});
  EXPECT_EQ(tokenizer_model_of(folder_->path("")), "");
  load("qwen-style", {{"tokenizer_config.json", {{"bos_token", "the"}}}, {"config.json", {{"model_type", "mistral"}}}});
  EXPECT_EQ(tokenizer_model_of(folder_->path("")), "");
}

// As transformers' special_tokens_map.
TEST_F(DeclaredTokensTest, ChatTemplatesGetTheTokensOfTheClass) {
  const auto rendered = [&](const char* model, Json config) {
    config["chat_template"] = "{{ bos_token }} {{ eos_token }} {{ unk_token }}";
    load(model, {{"tokenizer_config.json", config}});
    Problems problems;
    const auto found = chat::open_chat_template("", folder_->path(""), "", "", problems);
    return found ? found->render({chat::List{}, {}}).text : problems.lines();
  };
  const Json llama = {{"tokenizer_class", "LlamaTokenizer"}};
  EXPECT_EQ(rendered("sp-bpe-bytes", llama), "<s> </s> <unk>");
  Json own = llama;
  own.update({{"eos_token", "<end>"}, {"unk_token", nullptr}});
  EXPECT_EQ(rendered("sp-bpe-bytes", own), "<s> <end> ");
  EXPECT_EQ(rendered("gemma-like", {{"add_bos_token", true}}), "<bos> <eos> <unk>");
  EXPECT_EQ(rendered("tekken", llama), "<s> </s> <unk>");
  EXPECT_EQ(rendered("tekken", {{"add_bos_token", true}}), "  ");
  EXPECT_EQ(rendered("sp-bpe-bytes", Json::object()), "<s> </s> <unk>") << "the pieces of the model";
}

TEST_F(DeclaredTokensTest, BrokenFilesAreRejectedByName) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    try {
      load("sp-bpe-bytes", {{name, Json::array()}});
      ADD_FAILURE() << name;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find(folder_->path(name)), 0u) << error.what();
    }
  }
}

TEST(Base64, EncodesAndDecodes) {
  EXPECT_EQ(to_base64(""), "");
  EXPECT_EQ(to_base64("f"), "Zg==");
  EXPECT_EQ(to_base64("fo"), "Zm8=");
  EXPECT_EQ(to_base64("foo"), "Zm9v");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
    EXPECT_EQ(from_base64(to_base64(all)), all);
  }
}

}  // namespace declared_tokens_test
}  // namespace hawser::text
