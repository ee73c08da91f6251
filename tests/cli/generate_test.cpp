// hawser generate: prompts of a file, sampling, stop texts, conversations, and the kinds of --model.
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace generate_test {

namespace fs = std::filesystem;
using testing::lines_of;
using testing::Ran;
using testing::tiny;

class Generate : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    copy_of("tied", "model");
    write("model/tokenizer.json", testing::letters_tokenizer());
  }

  std::vector<nlohmann::json> answers(const std::string& arguments) {
    const Ran ran = hawser("generate --model model " + arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
    std::vector<nlohmann::json> out;
    for (const std::string& line : lines_of(ran.out)) out.push_back(nlohmann::json::parse(line));
    return out;
  }
};

constexpr const char* kChat = " generate --model model --chat --chat-template chatml --max-tokens 6";

constexpr const char* kPrompts =
    "{\"prompt\": \"to be\"}\n"
    "{\"input_ids\": [5, 6, 7, 8, 9, 10, 11, 12, 13]}\n"
    "\n"
    "{\"prompt\": \"or not\"}\n"
    "{\"prompt\": \"x\"}\n"
    "{\"prompt\": \"that is the question\"}\n";

// Equal answers alone, in batches of any size, in another order of ending, sampled or greedy.
TEST_F(Generate, RejectsAPromptThatIsNotUtf8) {
  rejected("generate --model model --prompt \"$(printf 'ab\\377\\376')\"",
           {"not UTF-8 at --prompt, byte 2; try iconv -t utf-8"});
}

TEST_F(Generate, AFilesAnswersDoNotDependOnTheBatch) {
  write("prompts.jsonl", kPrompts);
  for (const std::string draw : {"", " --temperature 1.2 --top-k 30 --top-p 0.95 --seed 3"}) {
    const std::string same = "--prompts prompts.jsonl --json --max-tokens 40 --stop qq --batch ";
    const auto one = answers(same + "1" + draw);
    ASSERT_EQ(one.size(), 5u);
    EXPECT_EQ(one[0]["line"], 1);
    EXPECT_EQ(one[0]["prompt"], "to be");
    EXPECT_EQ(one[1]["prompt_ids"].size(), 9u);
    EXPECT_FALSE(one[1].contains("prompt"));
    EXPECT_EQ(one[4]["line"], 6);
    for (const auto& answer : one) EXPECT_LE(answer["ids"].size(), 40u);
    for (const char* batch : {"2", "3", "16"}) EXPECT_EQ(answers(same + batch + draw), one) << batch << draw;
  }
  const std::string drawn = "--prompts prompts.jsonl --json --max-tokens 20 --temperature 1.2";
  EXPECT_EQ(answers(drawn), answers(drawn + " --seed 0"));
  EXPECT_NE(answers(drawn), answers(drawn + " --seed 1"));
}

TEST_F(Generate, AFilesAnswerIsThatOfItsPromptAlone) {
  write("prompts.jsonl", kPrompts);
  const auto all = answers("--prompts prompts.jsonl --json --max-tokens 12");
  const auto alone = answers("--prompt 'or not' --json --max-tokens 12");
  for (const char* key : {"ids", "text", "ended", "end", "prompt_ids"}) EXPECT_EQ(all[2][key], alone[0][key]) << key;
  EXPECT_TRUE(alone[0].contains("tokens_per_second"));
  // A text file, and a compressed one.
  write("prompts.txt", "or not\nx\n");
  const auto plain = answers("--prompts prompts.txt --max-tokens 12");
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_EQ(plain[0]["text"], alone[0]["text"]);
  EXPECT_FALSE(plain[0].contains("ids"));
  ASSERT_EQ(shell("gzip -k " + folder_.path("prompts.txt")).code, 0);
  EXPECT_EQ(answers("--prompts prompts.txt.gz --max-tokens 12"), plain);
}

TEST_F(Generate, AnswersGoToAFileWrittenAtTheEnd) {
  write("prompts.jsonl", kPrompts);
  const Ran ran = hawser("generate --model model --prompts prompts.jsonl --max-tokens 5 --output out.jsonl");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("hawser: prompts "), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(" tokens/s"), std::string::npos) << ran.err;
  const Ran shown = hawser("generate --model model --prompts prompts.jsonl --max-tokens 5");
  EXPECT_EQ(folder_.read("out.jsonl"), shown.out);
  EXPECT_EQ(lines_of(shown.out).size(), 5u);
  EXPECT_FALSE(fs::exists(folder_ / "out.jsonl.tmp"));

  const Ran missing = hawser("generate --model model --prompts prompts.jsonl --output nowhere/out.jsonl");
  EXPECT_EQ(missing.code, 2) << missing.err;
  EXPECT_NE(missing.err.find("nowhere/out.jsonl"), std::string::npos) << missing.err;
  // Rejected before anything is created.
  EXPECT_EQ(hawser("generate --model model --prompts prompts.jsonl --output other.jsonl --memory 1MB").code, 4);
  EXPECT_FALSE(fs::exists(folder_ / "other.jsonl"));
  EXPECT_FALSE(fs::exists(folder_ / "other.jsonl.tmp"));
}

TEST_F(Generate, BadLinesAreReportedTogetherBeforeAnythingRuns) {
  write("prompts.jsonl", "{\"prompt\": 1}\n{\"prompt\": \"fine\"}\n{\"text\": \"a\"}\n{\"input_ids\": [1, 9999]}\n");
  const Ran ran = hawser("generate --model model --prompts prompts.jsonl --output out.jsonl");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  const std::string file = "hawser: prompts.jsonl: ";
  for (const std::string& line :
       {file + "wrong type (expected a text or a list of messages, got number) at line 1, prompt",
        file + "line needs exactly one of these keys (expected prompt, messages, conversations, instruction, question "
               "or input_ids, got none) at line 3",
        file + "id outside the vocabulary"}) {
    EXPECT_NE(ran.err.find(line), std::string::npos) << line << "\nin\n" << ran.err;
  }
  EXPECT_EQ(ran.err.find("line 2"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "out.jsonl.tmp"));
}

TEST_F(Generate, WhatDoesNotFitSuggestsSmallerOptions) {
  write("prompts.jsonl", kPrompts);
  const std::string same = "generate --model model --prompts prompts.jsonl --memory 40MB --max-tokens ";
  const Ran batch = hawser(same + "20000 --batch 5");
  EXPECT_EQ(batch.code, 4) << batch.err;
  EXPECT_NE(batch.err.find("try a smaller --batch, or fewer --max-tokens"), std::string::npos) << batch.err;
  const Ran tokens = hawser(same + "1000000");
  EXPECT_EQ(tokens.code, 4) << tokens.err;
  EXPECT_NE(tokens.err.find("try fewer --max-tokens"), std::string::npos) << tokens.err;
  // One token is the fewest, and no option makes the model smaller.
  const Ran one = hawser("generate --model model --prompt-ids 5 --max-tokens 1 --memory 1KiB");
  EXPECT_EQ(one.code, 4) << one.err;
  EXPECT_NE(one.err.find("does not fit"), std::string::npos) << one.err;
  EXPECT_EQ(one.err.find("; try"), std::string::npos) << one.err;
  const Ran chat = hawser("generate --model model --chat --chat-template chatml --memory 40MB --context 100000");
  EXPECT_EQ(chat.code, 4) << chat.err;
  EXPECT_NE(chat.err.find("try a smaller --context"), std::string::npos) << chat.err;
}

TEST_F(Generate, AStopTextEndsTheAnswerBeforeIt) {
  const auto whole = answers("--prompt 'to be' --max-tokens 40 --json")[0];
  const std::string text = whole["text"];
  ASSERT_GT(text.size(), 12u);
  EXPECT_EQ(whole["end"], "length");
  const std::string stop = text.substr(8, 3);
  const auto got = answers("--prompt 'to be' --max-tokens 40 --json --stop 'no such text' --stop '" + stop + "'")[0];
  EXPECT_EQ(got["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(got["end"], "stop text");
  EXPECT_EQ(got["ended"], true);
  const Ran shown = hawser("generate --model model --prompt 'to be' --max-tokens 40 --stop '" + stop + "'");
  EXPECT_EQ(shown.out, "to be" + text.substr(0, text.find(stop)) + "\n");
}

TEST_F(Generate, NamesTheKeysOfTheGenerationConfigThatItDoesNotApply) {
  write("model/generation_config.json", "{\"repetition_penalty\": 1.05, \"num_beams\": 3, \"temperature\": 0.7}");
  const Ran ran = hawser("generate --model model --prompt 'to be' --max-tokens 5");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(lines_of(ran.err)[0],
            "hawser: warning: generate does not apply repetition_penalty, num_beams of generation_config.json; "
            "transformers may choose other tokens");
}

// As with transformers' stop_strings. The text of an answer has no special tokens.
TEST_F(Generate, AStopTextMayBeASpecialToken) {
  const std::string ask = "--prompt 'to be' --max-tokens 40 --json";
  const nlohmann::json ids = answers(ask)[0]["ids"];
  nlohmann::json tokenizer = nlohmann::json::parse(testing::letters_tokenizer());
  nlohmann::json& vocabulary = tokenizer["model"]["vocab"];
  nlohmann::json id;
  for (std::size_t i = 3; i < ids.size() && id.is_null(); ++i) {
    for (const auto& [letter, number] : vocabulary.items()) {
      if (number == ids[i] && std::string("to be").find(letter) == std::string::npos && letter != "\u0120") id = number;
    }
  }
  ASSERT_TRUE(id.is_number()) << ids;
  for (auto letter = vocabulary.begin(); letter != vocabulary.end(); ++letter) {
    if (letter.value() != id) continue;
    vocabulary.erase(letter);
    break;
  }
  vocabulary["<|end|>"] = id;
  tokenizer["added_tokens"].push_back({{"id", id},
                                       {"content", "<|end|>"},
                                       {"single_word", false},
                                       {"lstrip", false},
                                       {"rstrip", false},
                                       {"normalized", false},
                                       {"special", true}});
  write("model/tokenizer.json", tokenizer.dump());
  const auto whole = answers(ask)[0];
  ASSERT_EQ(whole["ids"], ids);
  const auto got = answers(ask + " --stop '<|end|>'")[0];
  EXPECT_EQ(got["ids"].back(), id);
  EXPECT_EQ(std::count(got["ids"].begin(), got["ids"].end(), id), 1);
  EXPECT_EQ(got["end"], "stop text");
  EXPECT_TRUE(whole["text"].get<std::string>().starts_with(got["text"].get<std::string>()));
  EXPECT_EQ(got["text"].get<std::string>().size(), got["ids"].size() - 1);
  rejected("generate --model model --prompt 'to be' --stop 'x<|end|>' --stop qq",
           {"a special token within a text (expected the token alone, or text without it, got <|end|>) at --stop"});
}

// ---- conversations ----

TEST_F(Generate, AChatAnswersEachLineAndForgetsOnReset) {
  const auto chat = [&](const std::string& lines, const std::string& more = "") {
    const Ran ran = shell("(printf '" + lines + "' | " + testing::kHawser + kChat + " --context 400" + more + ")");
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran;
  };
  const Ran two = chat("to be\\n\\nor not\\n");
  const std::string first = chat("to be\\n").out;
  EXPECT_TRUE(two.out.starts_with(first)) << two.out << "\n" << first;
  EXPECT_GT(two.out.size(), first.size());
  EXPECT_EQ(chat("or not\\n/reset\\nto be\\n/exit\\nor not\\n").out, chat("or not\\n").out + first);
  EXPECT_NE(two.err.find("hawser: prompts "), std::string::npos) << two.err;

  // A turn's answer equals that of the complete conversation as one prompt.
  nlohmann::json line;
  line["messages"] = {{{"role", "user"}, {"content", "to be"}},
                      {{"role", "assistant"}, {"content", first.substr(0, first.size() - 1)}},
                      {{"role", "user"}, {"content", "or not"}}};
  write("chat.jsonl", line.dump() + "\n");
  const auto at_once = answers("--prompts chat.jsonl --chat-template chatml --max-tokens 6");
  ASSERT_EQ(at_once.size(), 1u);
  EXPECT_EQ(at_once[0]["text"].get<std::string>() + "\n", two.out.substr(first.size()));
  // The second turn computed only the new tokens.
  const auto computed = [](const Ran& ran) {
    return std::stoul(ran.err.substr(ran.err.find("hawser: prompts ") + std::strlen("hawser: prompts ")));
  };
  const std::size_t all =
      answers("--prompts chat.jsonl --chat-template chatml --max-tokens 6 --json")[0]["prompt_ids"].size();
  EXPECT_LE(computed(two), all);
  EXPECT_GT(computed(two), all / 2);
  nlohmann::json with_system;
  with_system["messages"] = {{{"role", "system"}, {"content", "say little"}}, {{"role", "user"}, {"content", "to be"}}};
  write("told.jsonl", with_system.dump() + "\n");
  EXPECT_EQ(answers("--prompts told.jsonl --chat-template chatml --max-tokens 6")[0]["text"].get<std::string>() + "\n",
            chat("to be\\n", " --system 'say little'").out);
}

// --tools and /tool are the `tools` and the message of role tool that a line of --prompts has.
TEST_F(Generate, AChatHasTools) {
  const nlohmann::json tools = {{{"type", "function"}, {"function", {{"name", "look"}, {"parameters", {}}}}}};
  write("tools.json", tools.dump());
  const std::string all = std::string(kChat) + " --context 1000 --tools tools.json)";
  const auto chat = [&](const std::string& lines) {
    const Ran ran = shell("(printf '" + lines + "' | " + testing::kHawser + all);
    EXPECT_EQ(ran.code, 0) << ran.err;
    return ran.out;
  };
  const std::string first = chat("to be\\n"), both = chat("to be\\n/tool {}\\n");
  nlohmann::json messages = {{{"role", "user"}, {"content", "to be"}}};
  const auto answer = [&] {
    write("line.jsonl", nlohmann::json{{"messages", messages}, {"tools", tools}}.dump() + "\n");
    return answers("--prompts line.jsonl --chat-template chatml --max-tokens 6")[0]["text"].get<std::string>() + "\n";
  };
  EXPECT_EQ(first, answer());
  messages.push_back({{"role", "assistant"}, {"content", first.substr(0, first.size() - 1)}});
  messages.push_back({{"role", "tool"}, {"content", "{}"}});
  EXPECT_EQ(both, first + answer());
  write("none.json", "{}");
  const Ran none = hawser("generate --model model --chat --chat-template chatml --tools none.json");
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("none.json: no list of tools (expected [{"), std::string::npos) << none.err;
  EXPECT_NE(hawser("generate --model model --prompt a --tools tools.json").err.find("--tools without --chat"),
            std::string::npos);
}

TEST_F(Generate, LinesWithASlashAreCommandsOfTheChat) {
  const auto chat = [&](const std::string& lines) {
    return shell("(printf '" + lines + "' | " + testing::kHawser + kChat + ")");
  };
  const Ran unknown = chat("/help\\n/quit\\n/reset\\n");
  EXPECT_EQ(unknown.code, 0);
  EXPECT_EQ(unknown.out, "") << "nothing went to the model";
  for (const char* line : {"hawser: /exit ends the chat\n", "hawser: unknown command /quit; try /help\n"}) {
    EXPECT_NE(unknown.err.find(line), std::string::npos) << unknown.err;
  }
  EXPECT_EQ(chat("/quit\\n").code, 2) << "the last line of a script";
  // A space before the slash, or a second slash, makes it a text.
  EXPECT_EQ(chat(" /quit\\n").code, 0);
  EXPECT_NE(chat(" /quit\\n").out, "");
  EXPECT_NE(chat("/usr/bin\\n/exit\\n").out, "");
}

TEST_F(Generate, AChatMarksAnswersThatAreCut) {
  const auto chat = [&](const std::string& options) {
    return shell("(echo 'to be' | " + std::string(testing::kHawser) +
                 " generate --model model --chat --chat-template chatml " + options + ")");
  };
  // Greedy text of this model has no end, and its default would be 512 tokens of the model's 128.
  const Ran usual = chat("");
  EXPECT_NE(usual.err.find("hawser: the answer was cut: the conversation has 128 tokens; /reset clears it, a larger "
                           "--context allows more\n"),
            std::string::npos)
      << usual.err;
  EXPECT_NE(chat("--max-tokens 6").err.find("hawser: the answer was cut at 6 tokens; a larger --max-tokens allows"),
            std::string::npos);
  const std::string longer = chat("--context 600").err;
  EXPECT_NE(longer.find("hawser: the answer was cut at 512 tokens; "), std::string::npos) << longer;
}

TEST_F(Generate, SuggestsAChatForAModelWithATemplate) {
  const std::string hint =
      "a text prompt does not apply the chat template that this model has; --chat and prompts with \"messages\" do\n";
  const std::string generate = "generate --model model --max-tokens 2 --prompt x";
  EXPECT_EQ(on_terminal(generate).out.find(hint), std::string::npos) << "no template";
  write("model/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const std::string out = on_terminal(generate).out;
  EXPECT_NE(out.find(hint), std::string::npos) << out;
  EXPECT_EQ(hawser(generate).err.find(hint), std::string::npos) << "not on a terminal";
}

TEST_F(Generate, AChatWithoutSpaceReportsItAndContinues) {
  const std::string longer(200, 'a');
  const Ran ran = shell("(printf '" + longer + "\\nx\\n' | " + testing::kHawser + kChat + " --context 150)");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("hawser: the conversation is too long (expected at most 150 tokens, got "), std::string::npos)
      << ran.err;
  EXPECT_FALSE(ran.out.empty());
}

TEST_F(Generate, AChatWithoutATemplateSuggestsTheOption) {
  const Ran ran = hawser("generate --model model --chat");
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("model: messages need a chat template, and the model has none at --chat; try --chat-template "
                         "chatml, or another name or file"),
            std::string::npos)
      << ran.err;
  EXPECT_NE(hawser("generate --model model --chat --chat-template nothing").err.find("nothing: no such chat template"),
            std::string::npos);
  // Once, though the conversation contains it twice.
  const Ran wrong = hawser("generate --model model --chat --chat-template nothing");
  EXPECT_EQ(lines_of(wrong.err).size(), 1u) << wrong.err;
}

constexpr const char* kNoSystem =
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if m.content == 'bad' %}{{ raise_exception('a bad word') }}{% endif %}{{ m.content }}{% endfor %}";

TEST_F(Generate, ARejectedSystemTextIsReportedBeforeAnyInput) {
  write("no_system.jinja", kNoSystem);
  const Ran ran = hawser("generate --model model --chat --chat-template no_system.jinja --system 'say little'");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(lines_of(ran.err).size(), 1u) << ran.err;
  EXPECT_NE(ran.err.find("no system role"), std::string::npos) << ran.err;
  EXPECT_TRUE(ran.err.ends_with(" at --system\n")) << ran.err;
}

TEST_F(Generate, ARejectedLastTurnSetsTheExitCode) {
  write("no_system.jinja", kNoSystem);
  const auto code = [&](const std::string& lines, const std::string& options) {
    return shell("(printf '" + lines + "' | " + testing::kHawser + " generate --model model --chat --max-tokens 4 " +
                 options + ")")
        .code;
  };
  const std::string same = "--chat-template no_system.jinja";
  EXPECT_EQ(code("to be\\nbad\\n", same), 2);
  EXPECT_EQ(code("bad\\n", same), 2);
  EXPECT_EQ(code("bad\\nto be\\n", same), 0);
  EXPECT_EQ(code(std::string(100, 'a') + "\\n", same + " --context 50"), 2);
}

TEST_F(Generate, PromptsMayComeFromStandardInput) {
  write("prompts.jsonl", kPrompts);
  const std::string same = "generate --model model --max-tokens 5 --prompts ";
  const Ran piped = shell("(cat prompts.jsonl | " + std::string(testing::kHawser) + " " + same + "-)");
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_EQ(piped.out, hawser(same + "prompts.jsonl").out);
  rejected(same + "-", {"standard input: no prompts (expected one line or more) at --prompts"});
  const Ran wrong = shell("(echo '{}' | " + std::string(testing::kHawser) + " " + same + "-)");
  EXPECT_TRUE(wrong.err.starts_with("hawser: standard input: line needs exactly one of these keys ")) << wrong.err;
}

// ---- options ----

TEST_F(Generate, WrongOptionsAreReportedTogether) {
  const Ran ran = hawser(
      "generate --prompt a --prompts b.txt --batch 0 --temperature warm --top-p 2 --system s --max-tokens 1.5 --seed "
      "-1");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  for (const char* line :
       {"generate: --model is missing", "generate: both --prompt and --prompts (expected one of --prompt, ",
        "wrong value (expected a whole number of at least 1, got 0) at --batch",
        "wrong value (expected a number from 0 to 100, got warm) at --temperature",
        "wrong value (expected a number from 1e-06 to 1, got 2) at --top-p", "generate: --system without --chat",
        "wrong value (expected a whole number of at least 1, got 1.5) at --max-tokens",
        "wrong value (expected a whole number of at least 0, got -1) at --seed"}) {
    EXPECT_NE(ran.err.find(line), std::string::npos) << line << "\nin\n" << ran.err;
  }
  // A wrong value causes no further message.
  rejected("generate --model model --prompt a --top-p 0",
           {"wrong value (expected a number from 1e-06 to 1, got 0) at --top-p"});
  rejected("generate --model model --prompt a --top-p 0.5 --temperature warm",
           {"wrong value (expected a number from 0 to 100, got warm) at --temperature"});
  EXPECT_TRUE(
      hawser("generate --model model --prompt a --max-tokens 1").err.starts_with("hawser: prompts 1 token at "));
  rejected("generate --model model --prompt a --top-k 5",
           {"generate: --top-k without a --temperature above 0 (the default is greedy)"});
}

// ---- tensor ranks ----

// The text, the ids and the ends of one rank, in a file too; also of a run that tensor ranks have trained.
TEST_F(Generate, OnTensorRanksAnswersAsOnOne) {
  write("prompts.jsonl", kPrompts);
  const std::string all = "--prompts prompts.jsonl --json --max-tokens 20 --batch 3";
  for (const std::string draw : {"", " --temperature 1.1 --seed 4"}) {
    const auto one = answers(all + draw);
    EXPECT_EQ(one.size(), 5u);
    for (const char* ranks : {" --ranks 2", " --ranks 4"}) EXPECT_EQ(answers(all + draw + ranks), one) << ranks << draw;
  }
  ASSERT_EQ(hawser("generate --model model --ranks 2 --output file.jsonl " + all).code, 0);
  ASSERT_EQ(hawser("generate --model model --output alone.jsonl " + all).code, 0);
  EXPECT_EQ(folder_.read("file.jsonl"), folder_.read("alone.jsonl"));
  const Ran text = hawser("generate --model model --prompt 'to be' --max-tokens 8 --ranks 2");
  EXPECT_EQ(text.out, hawser("generate --model model --prompt 'to be' --max-tokens 8").out);
  EXPECT_NE(text.err.find("answers 8 tokens at"), std::string::npos) << text.err;
  EXPECT_EQ(text.err.find("answers 8 tokens at", text.err.find("answers 8 tokens at") + 1), std::string::npos);
}

TEST_F(Generate, RejectsRanksThatDoNotDivideTheModel) {
  rejected("generate --model model --prompt a --ranks 3",
           {"tensor ranks do not divide the attention heads (expected a divisor of 4 heads, got 3) at --ranks; try "
            "--ranks 2 or 4"});
  write("prompts.jsonl", kPrompts);
  rejected("generate --model model --prompts - --ranks 2",
           {"prompts from standard input on several ranks (expected a file, got -) at --prompts"});
  rejected("generate --model model --chat --chat-template chatml --ranks 2",
           {"a chat runs on one rank (expected 1, got 2) at --ranks"});
}

// ---- kinds of --model ----

// A checkpoint of two ranks, a run folder and its best give the same as the exported folder.
TEST_F(Generate, ContinuesFromCheckpointsOfTwoRanks) {
  write("words.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that is the question\"}\n");
  write("tune.yaml",
        "model: {path: model}\n"
        "data: {train: words.jsonl, validation: words.jsonl, sequence_length: 16}\n"
        "train: {steps: 4, global_batch_size: 2, evaluate_every: 2}\n"
        "checkpoint: {every_steps: 2}\n"
        "output: tuned\n");
  const Ran fit = hawser("fit tune.yaml --ranks 2");
  ASSERT_EQ(fit.code, 0) << fit.err;
  ASSERT_EQ(hawser("export tuned out").code, 0);
  ASSERT_EQ(hawser("export tuned/best best").code, 0);
  const auto inside = hawser("export tuned tuned/best/model");
  EXPECT_EQ(inside.code, 2);
  EXPECT_NE(inside.err.find("tuned/best/model: in a checkpoint"), std::string::npos) << inside.err;
  for (const std::string command :
       {"fit tune.yaml --ranks 1 --set output=tuned/best/x", "fit tune.yaml --ranks 2 --set output=tuned/best",
        "fit tune.yaml --ranks 1 --set data.prepared=tuned/checkpoints/step-00000004/x",
        "prepare tune.yaml --set data.prepared=tuned/best/x",
        "generate --model out --prompts words.jsonl --output tuned/best/x",
        "recipe init --model out --data words.jsonl --output tuned/best/x"}) {
    const auto lost = hawser(command);
    EXPECT_EQ(lost.code, 2) << command;
    EXPECT_NE(lost.err.find(": in a checkpoint, which is removed with all files in it"), std::string::npos)
        << command << lost.err;
  }
  EXPECT_FALSE(fs::exists(folder_ / "tuned/best/x"));
  const auto ids = [&](const std::string& model) {
    return json("generate --prompt 'to be' --max-tokens 12 --json --model " + model)["ids"];
  };
  EXPECT_EQ(ids("tuned"), ids("out"));
  EXPECT_EQ(ids("tuned/checkpoints/step-00000004"), ids("out"));
  EXPECT_EQ(ids("tuned/best"), ids("best"));
}

}  // namespace generate_test
}  // namespace hawser
