// Conversations, archives and token files in the commands: prepare, inspect data, fit, eval.
#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace chat_data_test {

namespace fs = std::filesystem;
using testing::tiny;

class ChatData : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    copy_of("tied", "model");
    write("model/tokenizer.json", testing::letters_tokenizer());
    write(
        "model/tokenizer_config.json",
        "{\"eos_token\": \"~\", \"chat_template\": \"{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>"
        "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}\"}");
    write(
        "chat.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"abc\"}, {\"role\": \"assistant\", \"content\": \"de\"}, "
        "{\"role\": \"user\", \"content\": \"f\"}, {\"role\": \"assistant\", \"content\": \"ghi\"}]}\n"
        "{\"prompt\": \"jk\", \"completion\": \"lm\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"n\"}, {\"role\": \"assistant\", \"content\": \"op\"}]}\n");
    write("recipe.yaml", recipe("{train: chat.jsonl, sequence_length: 32}"));
  }
  static std::string recipe(const std::string& data) {
    return "model: {path: model}\ndata: " + data +
           "\ntrain: {steps: 2, global_batch_size: 2}\nprecision: {compute: float32}\noutput: run\n";
  }
};

TEST_F(ChatData, IsPreparedShownTrainedAndEvaluated) {
  const nlohmann::json prepared = json("prepare recipe.yaml --json");
  EXPECT_EQ(prepared["train"]["documents"], 3);
  EXPECT_EQ(prepared["train"]["tokens"], 15 + 5 + 6);
  EXPECT_EQ(prepared["train"]["learned"], 3 + 4 + 3 + 3);
  EXPECT_EQ(prepared["train"]["packing"]["sequences"], 1);
  EXPECT_NEAR(prepared["train"]["packing"]["fill"].get<double>(), 26.0 / 32.0, 1e-9);

  const testing::Ran shown = hawser("inspect data recipe.yaml");
  EXPECT_EQ(shown.code, 0) << shown.err;
  for (const char* part : {"sequence 0: 26 tokens, 3 documents, 13 learned", "[[<abc>]]de~[[<f>]]ghi~", "[[jk]]lm~",
                           "[[<n>]]op~", "-- document 1 of 3, ", "packed   into 1 sequence of 32 tokens, 81.2% full"}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  }
  EXPECT_EQ(shown.out.find('\033'), std::string::npos) << "no terminal, no colour";
  const nlohmann::json same =
      json("inspect data run/data/train.bin --tokenizer model/tokenizer.json --samples 1 --json");
  EXPECT_EQ(same["samples"][0]["documents"][0]["parts"][1]["text"], "de~");
  EXPECT_EQ(same["samples"][0]["documents"][0]["parts"][0]["masked"], true);
  EXPECT_EQ(same["statistics"]["lengths"]["count"], 3);
  rejected("inspect data recipe.yaml --first 99999",
           {"recipe.yaml: no such sequence (expected 0: there is one sequence, got 99999) at --first"});
  rejected("inspect data run/data/train.bin --first 3",
           {"run/data/train.bin: no such sequence (expected at most 2: there are 3 sequences, got 3) at --first"});

  // The loss of the answers is the same for text and token file.
  const nlohmann::json text = json("eval --model model --data chat.jsonl --sequence-length 32");
  const nlohmann::json tokens = json("eval --model model --data run/data/train --sequence-length 32");
  EXPECT_EQ(text["tokens"], 13);
  EXPECT_EQ(tokens["tokens"], 13);
  EXPECT_NEAR(text["loss"].get<double>(), tokens["loss"].get<double>(), 1e-6);
  EXPECT_EQ(hawser("fit recipe.yaml").code, 0);

  const nlohmann::json named = json("prepare recipe.yaml --json --set data.chat_template=chatml");
  EXPECT_EQ(named["made_now"], true) << "another template makes other ids";
}

// eval, generate and exported models use the template of the training, wherever it came from.
TEST_F(ChatData, TheTemplateOfTheTrainingIsKept) {
  write("own/tokenizer_config.json", "{\"eos_token\": \"!\"}");
  write("own/mine.jinja",
        "{% for m in messages %}{% if m.role == 'user' %}({{ m.content }}){% else %}"
        "{{ m.content + eos_token }}{% endif %}{% endfor %}");
  const std::string set = " --set data.chat_template=own/mine.jinja --set train.steps=1";
  EXPECT_EQ(hawser("fit recipe.yaml" + set).code, 0);
  EXPECT_EQ(hawser("export run exported").code, 0);
  const double prepared = json("eval --model run --data run/data/train --sequence-length 32")["loss"];
  const double other = json("eval --model model --data chat.jsonl --sequence-length 32")["loss"];
  fs::remove_all(folder_ / "own");
  write("ask.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"abc\"}]}\n");
  for (const std::string from : {"run", "exported"}) {
    EXPECT_NEAR(json("eval --model " + from + " --data chat.jsonl --sequence-length 32")["loss"].get<double>(),
                prepared, 1e-5)
        << from;
    EXPECT_EQ(json("generate --model " + from + " --prompts ask.jsonl --max-tokens 1 --json")["prompt"], "(abc)");
  }
  EXPECT_GT(std::abs(other - prepared), 1e-4);
  // A resume with the same template is no change of the tokenizer.
  write("own/tokenizer_config.json", "{\"eos_token\": \"!\"}");
  write("own/mine.jinja",
        "{% for m in messages %}{% if m.role == 'user' %}({{ m.content }}){% else %}"
        "{{ m.content + eos_token }}{% endif %}{% endfor %}");
  const testing::Ran resumed =
      hawser("fit recipe.yaml --resume --set data.chat_template=own/mine.jinja --set train.steps=2");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
}

// JSON has the text as it is, a terminal's output what a terminal can show.
TEST_F(ChatData, TextIsNotEscapedInJson) {
  write("text.jsonl", "{\"input_ids\": [0, 1, 95], \"labels\": [0, 1, 95]}\n");
  nlohmann::json tokenizer = nlohmann::json::parse(testing::letters_tokenizer());
  tokenizer["model"]["vocab"]["\u010d"] = 95;  // a carriage return in the byte-level alphabet
  write("model/tokenizer.json", tokenizer.dump());
  write("recipe.yaml", recipe("{train: text.jsonl, sequence_length: 8}"));
  ASSERT_EQ(hawser("prepare recipe.yaml").code, 0);
  EXPECT_EQ(json("inspect data recipe.yaml --json")["samples"][0]["documents"][0]["parts"][0]["text"], "!\"\r");
  EXPECT_NE(hawser("inspect data recipe.yaml").out.find("!\"^M"), std::string::npos);
}

// Tokenizers with several templates: `tool_use` is for conversations with tools, as in transformers.
TEST_F(ChatData, ConversationsWithToolsAreFormattedByToolUse) {
  const std::string plain =
      "{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>{% else %}{{ m.content + eos_token }}{% endif "
      "%}"
      "{% endfor %}";
  const std::string tool_use = "{% for t in tools %}[{{ t.name }}]{% endfor %}" + plain;
  const std::string ask = "{\"messages\": [{\"role\": \"user\", \"content\": \"abc\"}";
  const std::string tools = "], \"tools\": [{\"name\": \"add\"}]}\n";
  const std::string answer = ", {\"role\": \"assistant\", \"content\": \"de\"}";
  write("chat.jsonl", ask + answer + tools + ask + answer + "]}\n");
  write("ask.jsonl", ask + tools + ask + "]}\n");
  const auto check = [&](const std::string& where, const std::string& set = "") {
    ASSERT_EQ(hawser("fit recipe.yaml --set train.steps=1" + set).code, 0) << where;
    const std::string shown =
        hawser("inspect data run/data/train.bin --tokenizer model/tokenizer.json --samples 2").out;
    EXPECT_NE(shown.find("[[[add]<abc>]]de~"), std::string::npos) << where << "\n" << shown;
    EXPECT_NE(shown.find("[[<abc>]]de~"), std::string::npos) << where << "\n" << shown;
    ASSERT_EQ(hawser("export run exported").code, 0) << where;
    for (const char* model : {"run", "exported"}) {
      const auto answers =
          testing::lines_of(hawser(std::string("generate --prompts ask.jsonl --max-tokens 1 --model ") + model).out);
      ASSERT_EQ(answers.size(), 2u) << where << model;
      EXPECT_EQ(nlohmann::json::parse(answers[0])["prompt"], "[add]<abc>") << where << model;
      EXPECT_EQ(nlohmann::json::parse(answers[1])["prompt"], "<abc>") << where << model;
    }
  };
  nlohmann::json config{{"eos_token", "~"}};
  write("model/tokenizer_config.json", config.dump());
  write("model/chat_template.jinja", plain);
  write("model/additional_chat_templates/tool_use.jinja", tool_use);
  write("model/additional_chat_templates/rag.jinja", "rag");
  check("files");
  EXPECT_EQ(folder_.read("exported/additional_chat_templates/tool_use.jinja"), tool_use);
  EXPECT_EQ(folder_.read("exported/additional_chat_templates/rag.jinja"), "rag");
  EXPECT_EQ(hawser("fit recipe.yaml --resume --set train.steps=2").code, 0);
  fs::remove_all(folder_ / "run");
  fs::rename(folder_ / "exported", folder_ / "again");
  // An exported model is a model.
  EXPECT_EQ(hawser("fit recipe.yaml --set train.steps=1 --set model.path=again").code, 0);
  ASSERT_EQ(hawser("export run exported").code, 0);
  EXPECT_EQ(folder_.read("exported/additional_chat_templates/tool_use.jinja"), tool_use);

  fs::remove_all(folder_ / "exported");
  fs::remove_all(folder_ / "run");  // of the other model
  fs::remove_all(folder_ / "model/additional_chat_templates");
  fs::remove(folder_ / "model/chat_template.jinja");
  config["chat_template"] = {{{"name", "default"}, {"template", plain}},
                             {{"name", "tool_use"}, {"template", tool_use}}};
  write("model/tokenizer_config.json", config.dump());
  check("list");
  EXPECT_EQ(testing::json_of(folder_ / "exported/tokenizer_config.json"), config);

  // A template of the recipe: the tokenizer's is not used, also with tools.
  fs::remove_all(folder_ / "exported");
  write("own/tokenizer_config.json", config.dump());
  config["chat_template"] = {{{"name", "default"}, {"template", "no"}}, {{"name", "tool_use"}, {"template", "no"}}};
  write("model/tokenizer_config.json", config.dump());
  check("recipe", " --set data.chat_template=own");
}

TEST_F(ChatData, IsInColourOnATerminal) {
  ASSERT_EQ(shell("command -v script > /dev/null").code, 0) << "util-linux's script is not there";
  ASSERT_EQ(hawser("prepare recipe.yaml").code, 0);
  const std::string show = "script -qec '" + std::string(testing::kHawser) + " inspect data recipe.yaml' /dev/null";
  const testing::Ran colour = shell("TERM=xterm " + show), plain = shell("NO_COLOR=1 TERM=xterm " + show);
  EXPECT_NE(colour.out.find("\033[2;31m<abc>\033[0mde~"), std::string::npos) << colour.out;
  EXPECT_EQ(plain.out.find('\033'), std::string::npos) << plain.out;
  EXPECT_NE(plain.out.find("[[<abc>]]de~"), std::string::npos) << plain.out;
}

TEST_F(ChatData, ReportsWhatIsWrong) {
  const std::string chat = folder_.path("bad.jsonl");
  write("bad.jsonl", "{\"messages\": []}\n{\"prompt\": \"a\"}\n");
  write("bad.yaml", recipe("{train: bad.jsonl, sequence_length: 32}"));
  rejected("prepare bad.yaml",
           {chat + ": wrong type (expected a list of messages, got an empty list) at line 1, messages",
            chat + ": prompt without completion (expected both, got prompt) at line 2"});
  rejected("prepare recipe.yaml --set data.chat_template=chatmal",
           {(folder_ / "chatmal").string() +
            ": no such chat template (expected a file, or one of chatml, smollm2, qwen-2.5, qwen-3, llama-2, "
            "llama-3, "
            "llama-3.1, mistral-v1, mistral-v3, zephyr, gemma, gemma-3, phi-3) at data.chat_template, --set"});
  write("model/tokenizer_config.json", "{\"chat_template\": \"{{ messages | wordwrap }}\"}");
  const std::string config = folder_.path("model/tokenizer_config.json");
  rejected(
      "prepare recipe.yaml",
      {config + ": chat template: filter 'wordwrap' is not supported at template line 1; try a template within the "
                "subset of Jinja in docs/data.md as data.chat_template"});
  EXPECT_FALSE(fs::exists(folder_ / "run/data/unfinished"));
  rejected("inspect data recipe.yaml", {"recipe.yaml: its data is not prepared (expected " +
                                        folder_.path("run/data/train.idx") + "); try hawser prepare recipe.yaml"});
  rejected("inspect data", {"inspect data: RECIPE is missing; try hawser inspect data RECIPE"});
  rejected("inspect checkpoint", {"inspect checkpoint: DIR is missing; try hawser inspect checkpoint DIR"});
  EXPECT_NE(hawser("inspect --help").out.find("hawser inspect PATH [RECIPE] [options]"), std::string::npos);
  rejected(
      "inspect run recipe.yaml",
      {"inspect expects one path (got recipe.yaml); try hawser inspect data RECIPE, or hawser inspect checkpoint DIR"});
}

// Megatron-LM's layout, read by a program that shares no code with Hawser.
TEST_F(ChatData, TokenFilesAreThoseOfMegatron) {
  ASSERT_EQ(shell("python3 --version").code, 0) << "python3 is not there";
  write("ids.jsonl", "{\"input_ids\": [1, 2, 3, 95], \"document_lengths\": [3, 1]}\n{\"input_ids\": [5]}\n");
  nlohmann::json config = testing::json_of(tiny("tied") / "config.json");
  for (const auto& [vocabulary, type] : {std::pair(96, "H"), std::pair(70000, "i")}) {
    config["vocab_size"] = vocabulary;
    write("config.json", config.dump());
    write("ids.yaml", "model: {config: config.json}\ndata: {train: ids.jsonl, sequence_length: 4}\noutput: " +
                          std::string(type) + "\n");
    ASSERT_EQ(hawser("prepare ids.yaml").code, 0);
    const testing::Ran read = shell(cat("python3 ", testing::kSourceFolder, "/tests/cli/read_indexed.py ") +
                                    std::string(type) + "/data/train");
    ASSERT_EQ(read.code, 0) << read.err;
    const nlohmann::json held = nlohmann::json::parse(read.out);
    EXPECT_EQ(held["type"], type);
    EXPECT_EQ(held["documents"], nlohmann::json::parse("[[[1, 2, 3], [95]], [[5]]]"));
  }
}

}  // namespace chat_data_test
}  // namespace hawser
