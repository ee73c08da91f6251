// What an exported folder knows of its run besides weights: the tokens that end an answer, one chat template, and the
// tokenizer of an adapter.
#include "base/cat.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace export_test {

namespace fs = std::filesystem;

constexpr int kEnd = 95;  // <|im_end|>
constexpr const char* kTurns =
    "{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>{% else %}{{ m.content + '<|im_end|>' }}{% endif "
    "%}{% endfor %}";
constexpr const char* kGeneration = "{\n \"eos_token_id\": 2,\n \"top_k\": 50\n}\n";

class Export : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    copy_of("tied", "model");
    nlohmann::json tokenizer = nlohmann::json::parse(testing::letters_tokenizer());
    tokenizer["added_tokens"].push_back({{"id", kEnd},
                                         {"content", "<|im_end|>"},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", true}});
    write("model/tokenizer.json", tokenizer.dump());
    write("model/tokenizer_config.json", "{\"eos_token\": \"#\"}");
    write("model/generation_config.json", kGeneration);
    write("turns.jinja", kTurns);
    std::string lines;
    for (const char* answer : {"de", "ghi", "no"}) {
      lines += nlohmann::json{{"messages",
                               {{{"role", "user"}, {"content", "abc"}}, {{"role", "assistant"}, {"content", answer}}}}}
                   .dump() +
               "\n";
    }
    write("chat.jsonl", lines);
    write("ask.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"abc\"}]}\n");
    write("recipe.yaml",
          "model: {path: model}\ndata: {train: chat.jsonl, sequence_length: 32, chat_template: turns.jinja}\n"
          "train: {steps: 1, global_batch_size: 2}\nprecision: {compute: float32}\noutput: run\n");
  }
  testing::Ran succeeds(const std::string& arguments) {
    testing::Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
    return ran;
  }
  // Trains and exports anew; returns what export printed to standard error.
  std::string exported(const std::string& set = "", const std::string& arguments = "run exported") {
    fs::remove_all(folder_ / "run");
    fs::remove_all(folder_ / "exported");
    succeeds("fit recipe.yaml" + set);
    return succeeds("export " + arguments).err;
  }
  std::string generation() { return folder_.read("exported/generation_config.json"); }
};

TEST_F(Export, TheEndOfTurnIsAmongTheTokensThatEndAText) {
  EXPECT_EQ(exported(), "");
  EXPECT_EQ(generation(), "{\n \"eos_token_id\": [2, 95],\n \"top_k\": 50\n}\n");
  EXPECT_EQ(testing::json_of(folder_ / "exported/config.json")["eos_token_id"], 2);
  write("model/generation_config.json", "{\"eos_token_id\": [7, 2]}");
  exported();
  EXPECT_EQ(generation(), "{\"eos_token_id\": [7, 2, 95]}");
  // Without ids of its own the file gets those of config.json.
  write("model/generation_config.json", "{\"do_sample\": true}");
  exported();
  EXPECT_EQ(generation(), "{\"do_sample\": true, \"eos_token_id\": [2, 95]}");
  fs::remove(folder_ / "model/generation_config.json");
  exported();
  EXPECT_EQ(nlohmann::json::parse(generation()), nlohmann::json({{"bos_token_id", 1}, {"eos_token_id", {2, 95}}}));
  // A second tuning finds the token there.
  const std::string before = generation();
  fs::rename(folder_ / "exported", folder_ / "again");
  exported(" --set model.path=again");
  EXPECT_EQ(generation(), before);
}

TEST_F(Export, RunsWithoutConversationsKeepTheirTokens) {
  write("text.jsonl", "{\"text\": \"abcdefgh\"}\n{\"text\": \"ijk\"}\n");
  EXPECT_EQ(exported(" --set data.train=text.jsonl"), "");
  EXPECT_EQ(generation(), kGeneration);
  write("answers.jsonl", "{\"prompt\": \"abc\", \"completion\": \"de\"}\n");
  EXPECT_EQ(exported(" --set data.train=answers.jsonl"), "");
  EXPECT_EQ(generation(), kGeneration);
  fs::remove(folder_ / "model/generation_config.json");
  EXPECT_EQ(exported(" --set data.train=answers.jsonl"), "");
  EXPECT_FALSE(fs::exists(folder_ / "exported/generation_config.json"));
}

TEST_F(Export, ConversationsMayBeOfTokenFilesOrBeforeAResume) {
  exported();
  const std::string expected = generation();
  succeeds("fit recipe.yaml --set data.train=run/data/train --set output=of-tokens");
  succeeds("export of-tokens of-tokens-exported");
  EXPECT_EQ(folder_.read("of-tokens-exported/generation_config.json"), expected);
  write("text.jsonl", "{\"text\": \"abcdefgh\"}\n{\"text\": \"ijk\"}\n");
  succeeds("fit recipe.yaml --resume --set train.steps=2 --set data.train=text.jsonl");
  succeeds("export run of-both");
  EXPECT_EQ(folder_.read("of-both/generation_config.json"), expected);
}

TEST_F(Export, ATurnThatEndsInNoTokenIsANote) {
  write("turns.jinja",
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %} THE END{% endif %}\n"
        "{% endfor %}");
  const std::string note = exported();
  EXPECT_NE(note.find("hawser: note: "), std::string::npos) << note;
  EXPECT_NE(note.find("the chat template ends a turn with no single token"), std::string::npos) << note;
  EXPECT_EQ(testing::lines_of(note).size(), 1u) << note;
  EXPECT_EQ(generation(), kGeneration);
}

TEST_F(Export, TheChatTemplateIsInOnePlace) {
  const std::string config = "{\n \"eos_token\": \"#\",\n \"chat_template\": \"old {{ '}' }}\",\n \"own\": [1.50]\n}\n";
  const std::string without = "{\n \"eos_token\": \"#\",\n \"own\": [1.50]\n}\n";
  const auto file = [&](const char* name) { return folder_.read(std::string("exported/") + name); };
  write("model/tokenizer_config.json", config);
  write("model/chat_template.json", "{\"chat_template\": \"older\"}");
  exported();
  EXPECT_EQ(file("tokenizer_config.json"), without);
  EXPECT_EQ(file("chat_template.jinja"), kTurns);
  EXPECT_FALSE(fs::exists(folder_ / "exported/chat_template.json"));
  // The model's own file, which transformers reads first, as training does.
  write("model/chat_template.jinja", kTurns);
  exported(" --set data.chat_template=");
  EXPECT_EQ(file("tokenizer_config.json"), without);
  EXPECT_EQ(file("chat_template.jinja"), kTurns);
  // A recipe's template takes the place of all the model's.
  write("model/chat_template.jinja", "old");
  write("model/additional_chat_templates/tool_use.jinja", "old");
  exported();
  EXPECT_EQ(file("chat_template.jinja"), kTurns);
  EXPECT_FALSE(fs::exists(folder_ / "exported/additional_chat_templates"));
  // Without chat_template.jinja, transformers would not read the default beside these.
  fs::remove(folder_ / "model/chat_template.jinja");
  const std::string own = nlohmann::json{{"chat_template", kTurns}, {"eos_token", "#"}}.dump();
  write("model/tokenizer_config.json", own);
  exported(" --set data.chat_template=");
  EXPECT_EQ(file("tokenizer_config.json"), own);
  EXPECT_FALSE(fs::exists(folder_ / "exported/chat_template.jinja"));
  EXPECT_FALSE(fs::exists(folder_ / "exported/additional_chat_templates"));
}

// A folder of PEFT has the tokenizer and the template that the adapter was trained with, and commands read them there.
TEST_F(Export, AnAdapterHasItsTokenizerAndTemplate) {
  write("model/tokenizer_config.json", "{\"eos_token\": \"#\", \"chat_template\": \"old {{ messages[0].content }}\"}");
  const std::string set =
      " --set adapter.kind=lora --set adapter.rank=2 --set train.steps=4 "
      "--set optimizer.learning_rate=0.02";
  EXPECT_EQ(exported(set), "");
  EXPECT_EQ(folder_.read("exported/tokenizer.json"), folder_.read("model/tokenizer.json"));
  EXPECT_EQ(folder_.read("exported/tokenizer_config.json"),
            "{\"eos_token\": \"#\", \"tokenizer_class\": \"PreTrainedTokenizerFast\"}");
  EXPECT_EQ(folder_.read("exported/chat_template.jinja"), kTurns);
  EXPECT_EQ(generation(), "{\n \"eos_token_id\": [2, 95],\n \"top_k\": 50\n}\n");
  EXPECT_FALSE(fs::exists(folder_ / "exported/config.json"));

  const std::string with = "--model model --adapter exported";
  const auto prompt = [&](const std::string& model) {
    return json("generate " + model + " --prompts ask.jsonl --max-tokens 1 --json")["prompt"];
  };
  const auto loss = [&](const std::string& model) {
    return json("eval " + model + " --data chat.jsonl --sequence-length 32")["loss"].get<double>();
  };
  EXPECT_EQ(prompt(with), "<abc>");
  EXPECT_EQ(prompt("--model model"), "old abc");
  EXPECT_EQ(prompt(with + " --chat-template model"), "old abc");
  EXPECT_EQ(loss(with), loss("--model run"));
  // A template alone, with the tokenizer of the base; and the tokenizer alone, with the template of the base.
  fs::copy(folder_ / "exported", folder_ / "alone");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) fs::remove(folder_ / "alone" / name);
  EXPECT_EQ(prompt("--model model --adapter alone"), "<abc>");
  EXPECT_EQ(loss("--model model --adapter alone"), loss("--model run"));
  fs::remove(folder_ / "alone/chat_template.jinja");
  EXPECT_EQ(prompt("--model model --adapter alone"), "old abc");
  fs::copy(folder_ / "exported/tokenizer.json", folder_ / "alone/tokenizer.json");
  EXPECT_EQ(prompt("--model model --adapter alone"), "old abc");

  for (const std::string arguments : {"run merged --merge", "--model model --adapter exported --merge merged"}) {
    succeeds("export " + arguments);
    EXPECT_EQ(folder_.read("merged/chat_template.jinja"), kTurns) << arguments;
    EXPECT_EQ(folder_.read("merged/generation_config.json"), generation()) << arguments;
    EXPECT_FALSE(testing::json_of(folder_ / "merged/tokenizer_config.json").contains("chat_template")) << arguments;
    EXPECT_EQ(prompt("--model merged"), "<abc>") << arguments;
    fs::remove_all(folder_ / "merged");
  }
  // Without conversations: the tokenizer, and no tokens of the base model.
  write("text.jsonl", "{\"text\": \"abcdefgh\"}\n");
  EXPECT_EQ(exported(set + " --set data.train=text.jsonl"), "");
  EXPECT_TRUE(fs::exists(folder_ / "exported/tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder_ / "exported/generation_config.json"));
}

// An answer of the exported model ends where it ends in a chat with the run.
TEST_F(Export, TheExportedModelStopsWhereTheRunDoes) {
  exported(" --set train.steps=60 --set optimizer.learning_rate=0.02 --set optimizer.schedule=constant");
  const auto answer = [&](const std::string& arguments) {
    return json("generate " + arguments + " --max-tokens 30 --json");
  };
  const auto of_run = answer("--model run --prompts ask.jsonl");
  EXPECT_EQ(of_run["end"], "end token") << of_run;
  EXPECT_EQ(of_run["ids"].back(), kEnd) << of_run;
  EXPECT_EQ(answer("--model exported --prompts ask.jsonl"), of_run);
  EXPECT_EQ(answer("--model exported --prompt '<abc>'")["ids"], of_run["ids"]) << "as raw text, too";
}

// Two names of one weight: equal bytes are one weight, others are an error that names both.
TEST_F(Export, TwoNamesOfOneWeightAreReported) {
  const fs::path file = folder_ / "model/model.safetensors";
  const testing::SafetensorsParts model = testing::SafetensorsParts::read(file);
  const std::string norm = "model.norm.weight";
  const auto with_second = [&](const std::string& name, bool changed) {
    testing::SafetensorsParts parts = model;
    const auto& offsets = model.header[norm]["data_offsets"];
    std::string bytes = model.data.substr(offsets[0], offsets[1].get<std::size_t>() - offsets[0].get<std::size_t>());
    if (changed) bytes[1] = static_cast<char>(bytes[1] ^ 1);
    parts.header[name] = model.header[norm];
    parts.header[name]["data_offsets"] = {parts.data.size(), parts.data.size() + bytes.size()};
    parts.data += bytes;
    parts.write(file);
  };
  write("ids.jsonl", testing::forty_documents());
  const std::string eval = "eval --model model --data ids.jsonl --sequence-length 32";
  const double loss = json(eval)["loss"];
  for (const std::string name : {"norm.weight", "module.model.norm.weight", "_orig_mod.model.norm.weight",
                                 "base_model.model.model.norm.weight"}) {
    with_second(name, false);
    EXPECT_EQ(json(eval)["loss"], loss) << name;
    with_second(name, true);
    rejected(eval,
             {"model/model.safetensors: two tensors are the same weight of the model, with other values (expected "
              "those of 'model.norm.weight' in model/model.safetensors) at '" +
              name + "'; try the file without one of them"});
  }
}

// A checkpoint before the last one may be better: commands say so, and take it.
TEST_F(Export, TheBestCheckpointIsNamedAndTaken) {
  const std::string note = "the checkpoint of step 2 was better than the last one: validation loss ";
  const std::string evaluated = " --set data.validation=chat.jsonl --set train.evaluate_every=1 --set train.steps=";
  ASSERT_EQ(hawser("export run none --best").code, 2);
  succeeds("fit recipe.yaml" + evaluated + "2");
  EXPECT_EQ(succeeds("export run last").err, "");
  const testing::Ran worse = hawser("fit recipe.yaml --resume --set optimizer.learning_rate=3" + evaluated + "4");
  EXPECT_EQ(worse.code, 6) << worse.err;  // diverged
  EXPECT_NE(succeeds("export run newest").err.find(note), std::string::npos);
  EXPECT_EQ(succeeds("export run best --best").err, "");
  EXPECT_EQ(folder_.read("best/model.safetensors"), folder_.read("last/model.safetensors"));
  EXPECT_NE(folder_.read("newest/model.safetensors"), folder_.read("last/model.safetensors"));
  const std::string generate = "generate --prompt abc --max-tokens 4 --model ", eval = " --data chat.jsonl";
  EXPECT_EQ(succeeds(generate + "run --best").out, succeeds(generate + "last").out);
  EXPECT_NE(succeeds(generate + "run").err.find(note), std::string::npos);
  EXPECT_DOUBLE_EQ(json("eval --model run --best" + eval)["loss"].get<double>(),
                   json("eval --model run/best" + eval)["loss"].get<double>());
  EXPECT_NE(succeeds("eval --model run" + eval).err.find(note), std::string::npos);
  rejected("export model out --best",
           {"model: not a run's folder (expected one, of which --best takes a checkpoint) at "
            "--best"});
  fs::remove_all(folder_ / "run/best");
  rejected("export run out --best",
           {"run: no best checkpoint (expected OUTPUT/best of a run that evaluates) at --best; "
            "try its last checkpoint, without --best"});
}

// A run whose validation loss does not improve ends, also when it is resumed.
TEST_F(Export, EarlyStoppingEndsARun) {
  const std::string stops =
      " --set data.validation=chat.jsonl --set train.evaluate_every=1 --set train.early_stopping.patience=2 --set "
      "train.steps=50 --set optimizer.learning_rate=3 --set optimizer.schedule=constant";
  const testing::Ran ran = hawser("fit recipe.yaml" + stops);
  const auto at = ran.err.find("early stopping after step ");
  ASSERT_NE(at, std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("no lower validation loss in 2 evaluations; the lowest was "), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(", by early stopping"), std::string::npos) << ran.err;
  const int step = std::stoi(ran.err.substr(at + 26));
  EXPECT_LT(step, 50);
  EXPECT_TRUE(fs::exists(folder_ / cat("run/checkpoints/step-", std::string(8 - cat(step).size(), '0'), step)));
  EXPECT_NE(folder_.read("run/report.html").find("<b>early stopping</b>"), std::string::npos);
  const testing::Ran again = hawser("fit recipe.yaml --resume" + stops);
  EXPECT_NE(again.err.find(cat("early stopping after step ", step)), std::string::npos) << again.err;
  const testing::Ran longer = hawser("fit recipe.yaml --resume" + stops + " --set train.early_stopping.patience=3");
  EXPECT_NE(longer.err.find(cat("early stopping after step ", step + 1)), std::string::npos) << longer.err;
  EXPECT_NE(longer.err.find("training has changed: train.early_stopping.patience was 2 and is 3"), std::string::npos)
      << longer.err;
  EXPECT_NE(longer.err.find("; early stopping after 3 evaluations without a lower validation loss"), std::string::npos);
  EXPECT_NE(hawser("plan recipe.yaml" + stops).out.find("at most: early stopping"), std::string::npos);
  const testing::Ran two = hawser("fit recipe.yaml --force --ranks 2" + stops);
  EXPECT_NE(two.err.find(cat("early stopping after step ", step)), std::string::npos) << two.err;
  rejected(
      "fit recipe.yaml --force" + stops + " --set train.evaluate_every=0",
      {"--set: early stopping without evaluations (expected train.evaluate_every) at train.early_stopping.patience; "
       "try train.evaluate_every: N, in steps"});
}

}  // namespace export_test
}  // namespace hawser
