#include "prepare/answers.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "prepare/testing/learned_text.h"
#include "text/chat/from_json.h"
#include "text/chat/turn_ends.h"
#include "text/tokenizers/framed_text.h"

namespace hawser::prepare {
namespace answers_test {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;
using Json = nlohmann::ordered_json;

TEST(Answers, LeaveOutMessagesWithoutWeight) {
  const Learned learned(kQuickstart, "chatml");
  const std::string user = R"({"role": "user", "content": "a"})";
  const auto line = [&](const std::string& first, const std::string& second) {
    return R"({"messages": [)" + user + R"(, {"role": "assistant", "content": "bc")" + first + "}, " + user +
           R"(, {"role": "gpt", "content": "e")" + second + "}]}";
  };
  const std::string both = learned(line("", ""));
  EXPECT_NE(both.find("//"), std::string::npos);
  const std::string last = learned(line(R"(, "weight": 0)", R"(, "weight": 1)"));
  EXPECT_EQ("//" + last, both.substr(both.find("//")));
  EXPECT_EQ(learned(line("", R"(, "train": false)")), both.substr(0, both.find("//")));
  EXPECT_EQ(learned(line(R"(, "weight": 0)", R"(, "weight": 0)")),
            "f: no target tokens: no assistant turn with a weight at line 7");
}

// Blocks that name what is learned do not make a turn without a weight learned.
TEST(Answers, LeaveOutBlocksOfMessagesWithoutWeight) {
  const std::string source =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}";
  const auto learned = [&](const char* first) {
    const std::string said = R"({"role": "assistant", "content": "bc", "weight": )";
    return learned_by(source, kChatMl, line_with(kAsk + said + first + "}, " + kAsk + kSay));
  };
  EXPECT_EQ(learned("1"), "bc<|im_end|> / a<|im_end|>");
  EXPECT_EQ(learned("0"), "a<|im_end|>");
}

TEST(Answers, RejectRolesThatTheTemplateDoesNotName) {
  const Learned learned(kQuickstart, "chatml");
  const auto line = [](const std::string& role) {
    return R"({"conversations": [{"from": ")" + role +
           R"(", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]})";
  };
  EXPECT_EQ(
      learned(line("narrator")),
      "f: unknown role (expected system, user (human), assistant (gpt, bot, model, chatbot), tool, or a role that "
      "the chat template names, got narrator) at line 7");
  EXPECT_EQ(learned(line("function_result")).substr(0, 15), "f: unknown role");
  EXPECT_EQ(learned(line("tool")).find("unknown role"), std::string::npos);
  const auto tokenizer = text::load_tokenizer((kRoot / kQuickstart).string());
  const auto own = std::make_shared<const text::chat::ChatTemplate>(
      "{% for m in messages %}{% if m.role == 'narrator' %}({{ m.content }}){% else %}{{ m.content }}{% endif %}{% "
      "endfor %}",
      std::map<std::string, std::string>{}, "own.jinja");
  Problems problems;
  auto read = parse_line(line("narrator"), {.file = "f"}, problems);
  EXPECT_TRUE(AnswerEncoder(*tokenizer, own, {}).encode(*read, {.file = "f"}, problems)) << problems.lines();
}

TEST(Answers, EqualTransformersMasks) {
  const Json golden = Json::parse(std::ifstream(kRoot / "tests/golden/chat/expected.json"));
  int checked = 0;
  for (const auto& [tokenizer, name, file] :
       {std::tuple("llama3", "llama-3", "inputs/tokenizers/llama3/tokenizer.json"),
        std::tuple("smollm2", "chatml", "inputs/smollm2/tokenizer.json")}) {
    if (!fs::exists(kRoot / file)) continue;
    const auto opened = text::load_tokenizer((kRoot / file).string());
    const AnswerEncoder encoder(*opened, named(name), {});
    const Json& expected = golden["answers"][tokenizer];
    for (std::size_t i = 0; i < expected.size(); ++i) {
      Json messages = golden["plain"][i]["messages"];
      for (Json& message : messages) message.erase("reasoning_content");  // these templates do not write it
      Line line{.chat = text::chat::Conversation{.messages = text::chat::from_json(messages)}};
      Problems problems;
      ASSERT_TRUE(encoder.encode(line, {}, problems)) << problems.lines();
      const Ids ids = expected[i]["ids"];
      const std::vector<int> answers = expected[i]["answers"];
      Ids labels;
      for (std::size_t t = 0; t < ids.size(); ++t) labels.push_back(answers[t] ? ids[t] : kIgnoredLabel);
      EXPECT_EQ(line.ids, ids) << tokenizer << " " << i;
      EXPECT_EQ(line.labels, labels) << tokenizer << " " << i;
      ++checked;
    }
  }
  EXPECT_GT(checked, 0) << "run scripts/fetch-inputs to download the tokenizers";
}

TEST(Answers, IncludeTheEndOfTurnToken) {
  ASSERT_TRUE(fs::exists(kRoot / "inputs/smollm2/tokenizer.json")) << "run scripts/fetch-inputs to download it";
  const Learned smollm2("inputs/smollm2/tokenizer.json", "chatml");
  EXPECT_EQ(smollm2(kTwoTurns), "bc|<|im_end|>|//e|<|im_end|>|");
  EXPECT_EQ(smollm2(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]})"),
            "<|im_end|>|");
  // With `prompt` and `completion`, only the completion is labeled.
  EXPECT_EQ(smollm2(R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                   {"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})"),
            "d|<|im_end|>|");
  // Text of the template after the generation prompt is part of the answer.
  const Learned qwen("inputs/smollm2/tokenizer.json", "qwen-3");
  const std::string thoughts = qwen(kTwoTurns);
  EXPECT_TRUE(thoughts.starts_with("bc|<|im_end|>|//<|")) << thoughts;
  EXPECT_TRUE(thoughts.ends_with("e|<|im_end|>|")) << thoughts;
  EXPECT_NE(thoughts.find("think"), std::string::npos) << thoughts;
}

TEST(Answers, EndWithTheTemplatesEosTextWithoutSpecialTokens) {
  // The quickstart's tokenizer has none of these as special tokens.
  const Learned llama2(kQuickstart, "llama-2"), chatml(kQuickstart, "chatml");
  const auto joined = [](std::string text) {
    std::erase(text, '|');
    return text;
  };
  EXPECT_EQ(joined(llama2(kTwoTurns)), " bc </s>// e </s>");
  EXPECT_EQ(joined(chatml(kTwoTurns)), "bc//e") << "chatml has no end-of-text token";
}

// The last text of a call is not its end: a mask that ends there would never train the closing brackets.
TEST(Answers, OfToolCallsEndWithASpecialTokenOrTheEosText) {
  const std::string calls =
      R"({"messages": [{"role": "user", "content": "w?"}, {"role": "assistant", "content": "", "tool_calls":
         [{"type": "function", "function": {"name": "get", "arguments": {"city": "Paris", "days": 3}}}]},
         {"role": "user", "content": "and?"}]})";
  ASSERT_TRUE(fs::exists(kRoot / "inputs/smollm2/tokenizer.json")) << "run scripts/fetch-inputs to download it";
  const auto learned_with = [&](const std::string& name) {
    return Learned("inputs/smollm2/tokenizer.json", (kRoot / "inputs/chat_templates" / name).string())(calls);
  };
  std::string learned = learned_with("qwen-2.5.jinja");
  std::erase(learned, '|');
  EXPECT_NE(learned.find(R"("days": 3}})"), std::string::npos) << learned;
  EXPECT_NE(learned.find("im_end"), std::string::npos) << learned;
  // Its <|eot_id|> is no token here.
  EXPECT_NE(learned_with("llama-3.1.jinja").find("messages[1]: where its tool calls end is not known"),
            std::string::npos)
      << learned_with("llama-3.1.jinja");
}

// The message names the templates that write calls, also where the template fails on the content null of a call.
TEST(Answers, RejectToolCallsThatTheTemplateLeavesOut) {
  const auto line = [](const std::string& content, const std::string& more = "") {
    return R"({"messages": [{"role": "user", "content": "get"}, {"role": "assistant", "content": )" + content +
           R"(, "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": {}}}]})" + more + "]}";
  };
  const std::string left_out =
      "f: the chat template does not write the tool calls of messages[1] at line 7; try a data.chat_template that "
      "writes them: chatml, qwen-2.5, qwen-3, llama-3.1, mistral-v3";
  const Learned smollm2(kQuickstart, "smollm2");
  EXPECT_EQ(smollm2(line(R"("")")), left_out);
  EXPECT_EQ(smollm2(line("null")), left_out);
  const TemporaryFolder folder;
  const std::string adds = folder.write("t.jinja", "{% for m in messages %}{{ m.role + m.content }}{% endfor %}");
  EXPECT_EQ(Learned(kQuickstart, adds)(line("null")), left_out);
  // A template that writes calls fails for another reason, and says that.
  const std::string writes =
      folder.write("calls.jinja",
                   "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }}{% endfor %}"
                   "{% if m.role == 'tool' %}{{ raise_exception('no results') }}{% endif %}{% endfor %}");
  const std::string rejected = Learned(kQuickstart, writes)(line("null", R"(, {"role": "tool", "content": "r"})"));
  EXPECT_NE(rejected.find("no results at line 7"), std::string::npos) << rejected;
}

TEST(Answers, OfAPromptAreTheCompletionAndTheEndOfText) {
  const Learned quickstart(kQuickstart, "chatml");
  const auto tokenizer = text::load_tokenizer((kRoot / kQuickstart).string());
  const Ids eos{*tokenizer->eos()};
  const std::string end = tokenizer->decode(eos);
  std::string learned = quickstart(R"({"prompt": "Question: what?\nAnswer:", "completion": " the whale"})");
  std::erase(learned, '|');
  std::string plain_end = end;
  std::erase(plain_end, '|');
  EXPECT_EQ(learned, " the whale" + plain_end);
  // A token across the boundary is labeled.
  learned = quickstart(R"({"prompt": "Answer: ", "completion": "the"})");
  std::erase(learned, '|');
  EXPECT_EQ(learned, " the" + plain_end);
}

// WordPiece: decoding does not give the text back, and an unknown word is one token, which any part of it has too.
TEST(Answers, ATokenOverTheBoundaryIsLabeled) {
  const Learned learned("inputs/tokenizers/minilm/tokenizer.json", "chatml");
  EXPECT_EQ(learned(R"({"prompt": "an unbel", "completion": "ievable day"})"), "unbelievable|day|[SEP]|");
  EXPECT_EQ(learned(R"({"prompt": "is it? \ud83d\ude00wor", "completion": "d answer"})"), "[UNK]|answer|[SEP]|");
  EXPECT_EQ(learned(R"({"prompt": "is it? \ud83d\ude00", "completion": " answer"})"), "answer|[SEP]|");
  EXPECT_EQ(learned(R"({"prompt": "is it? \ud83d\ude00", "completion": ". answer"})"), ".|answer|[SEP]|");
  EXPECT_EQ(learned(R"({"prompt": "an \n", "completion": " answer"})"), "answer|[SEP]|");  // these spaces are dropped
}

// A normalizer that makes one space of several: the token of a space on both sides.
TEST(Answers, OneSpaceOfSeveralIsOverTheBoundary) {
  const Learned learned("tests/golden/tokenizers/t5-style/tokenizer.json", "chatml");
  EXPECT_EQ(learned(R"({"prompt": "so\n", "completion": " zq"})"), " |z|q|</s>|");
  EXPECT_EQ(learned(R"({"prompt": "so", "completion": "\n zq"})"), " |z|q|</s>|");
  EXPECT_EQ(learned(R"({"prompt": "so\n ", "completion": "zq"})"), "z|q|</s>|");
}

// The token before the boundary has no byte of the completion, though the prompt alone ends in another token.
TEST(Answers, ATokenBeforeTheBoundaryIsNotLabeled) {
  const Learned learned("inputs/tokenizers/mistral-v3/tokenizer.model", "mistral-v3");
  EXPECT_EQ(learned(R"({"prompt": "def f():\n    ", "completion": "return 1"})"), "return||1||");
  EXPECT_EQ(learned(R"({"prompt": "def f():\n   ", "completion": " return 1"})"), "return||1||");
}

TEST(Answers, ACompletionMayHaveItsEndOfText) {
  const Learned learned(kQuickstart, "chatml");
  EXPECT_EQ(learned(R"({"prompt": "a ", "completion": "b<|endoftext|>"})"), " b|<|endoftext|>|");
  EXPECT_EQ(learned(R"({"prompt": "a ", "completion": "b"})"), " b|<|endoftext|>|");
}

// The ids are those of mistral-common. In texts that are no conversations, these files encode control tokens as text.
TEST(Answers, ControlTokensOfConversationsAreTokens) {
  const auto ids_of = [](const std::string& tokenizer_file, std::shared_ptr<const text::chat::ChatTemplate> chat,
                         Ids learned) {
    const auto tokenizer = text::load_tokenizer((kRoot / "inputs/tokenizers" / tokenizer_file).string());
    EXPECT_TRUE(tokenizer->has_special_as_text());
    const AnswerEncoder encoder(*tokenizer, std::move(chat), {});
    Problems problems;
    auto line = parse_line(R"({"messages": [{"role": "user", "content": "hello"},
                                            {"role": "assistant", "content": "yes"},
                                            {"role": "user", "content": "x"}]})",
                           {.file = "f", .number = 7}, problems);
    EXPECT_TRUE(line && encoder.encode(*line, {.file = "f", .number = 7}, problems)) << problems.lines();
    std::erase(line->labels, kIgnoredLabel);
    EXPECT_EQ(line->labels, learned);
    return line->ids;
  };
  EXPECT_EQ(ids_of("mistral-v1/tokenizer.model", named("mistral-v1"), {5081, 2}),
            (Ids{1,    733, 16289, 28793, 6312,  28709, 733, 28748, 16289, 28793,
                 5081, 2,   733,   16289, 28793, 1318,  733, 28748, 16289, 28793}));
  EXPECT_EQ(ids_of("mistral-v3/tokenizer.model", named("mistral-v3"), {5849, 2}),
            (Ids{1, 3, 7080, 29477, 4, 5849, 2, 3, 2086, 4}));
  const auto without_spaces = std::make_shared<const text::chat::ChatTemplate>(
      "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}"
      "{{ m.content + eos_token }}{% endif %}{% endfor %}",
      std::map<std::string, std::string>{{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "f");
  EXPECT_EQ(ids_of("tekken-240911/tekken.json", without_spaces, {13059, 2}),
            (Ids{1, 3, 29706, 4, 13059, 2, 3, 1120, 4}));
}

// TextFrame is found without encoding a text: this tokenizer has tokens for "b" and "c" only.
TEST(Answers, NeedNoEncodableProbeText) {
  const auto ids_of = [](const std::string& post_processor, const std::string& text) {
    const std::string path = (fs::path(::testing::TempDir()) / "two-letters.json").string();
    std::ofstream(path) << R"({"post_processor":)" << post_processor
                        << R"(,"added_tokens":[{"id":2,"content":"</s>","special":true}],)"
                        << R"("model":{"type":"BPE","vocab":{"b":0,"c":1},"merges":[]}})";
    const auto tokenizer = text::load_tokenizer(path);
    Ids none;
    tokenizer->encode("a", none, false);
    EXPECT_TRUE(none.empty());
    const AnswerEncoder encoder(*tokenizer, named("chatml"), {});
    Problems problems;
    auto line = parse_line(text, {.file = "f", .number = 7}, problems);
    EXPECT_TRUE(line && encoder.encode(*line, {.file = "f", .number = 7}, problems)) << problems.lines();
    return line->ids;
  };
  const std::string framed =
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"</s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],
          "pair":[],"special_tokens":{"</s>":{"id":"</s>","ids":[2],"tokens":["</s>"]}}})";
  const std::string prompt = R"({"prompt": "b", "completion": "cac"})";
  EXPECT_EQ(ids_of("null", prompt), (Ids{0, 1, 1, 2}));
  EXPECT_EQ(ids_of(framed, prompt), (Ids{2, 0, 1, 1, 2}));
  EXPECT_EQ(ids_of("null", R"({"messages": [{"role": "assistant", "content": "bc"}]})").back(), 1);
}

TEST(Answers, RejectMessagesThatTheTemplateLeavesOut) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("t.jinja", "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}");
  const Learned leaves(kQuickstart, file);
  EXPECT_EQ(
      leaves(R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                                    {"role": "assistant", "content": "b"}]})"),
      "f: the chat template does not write messages[0] (system) at line 7; try conversations without it, or another "
      "data.chat_template");
  EXPECT_EQ(leaves(R"({"messages": [{"role": "system", "content": " "}, {"role": "user", "content": "a"},
                                    {"role": "assistant", "content": "b"}]})")
                .find("does not write"),
            std::string::npos)
      << "there is nothing to write";
}

// The keys by which trainers switch the loss of a message off.
TEST(Answers, LeaveOutMessagesByTheKeysOfOtherTrainers) {
  const std::string source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}";
  for (const char* off : {R"("loss": false)", R"("training": false)", R"("loss_mask": 0)", R"("weight": 0.0)"}) {
    const std::string bad = cat(R"({"role": "assistant", "content": "bad", )", off, "}, ");
    EXPECT_EQ(learned_by(source, kChatMl, line_with(kAsk + bad + kAsk + kSay)), "a<|im_end|>") << off;
  }
  EXPECT_NE(
      learned_by(source, kChatMl, line_with(kAsk + R"({"role": "assistant", "content": "b", "loss": "no"})"))
          .find("weight of a message (expected 0 or 1, or true or false, got \"no\") at line 1, messages[1].loss"),
      std::string::npos);
}

// The calls of a message are told from other texts that have the name of the function: a content, a header, a second
// call of the function.
TEST(Answers, RejectToolCallsWhoseNamesStandElsewhere) {
  const std::string drops = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
  const std::string first =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% if m.tool_calls %}"
      "{{ m.tool_calls[0].function | tojson }}{% endif %}<|im_end|>\n{% endfor %}";
  const auto call = [](const std::string& name, const std::string& more = "") {
    return R"({"function": {"name": ")" + name + R"(", "arguments": {"n": 1}}})" + more;
  };
  const auto line = [](const std::string& content, const std::string& calls, const std::string& role = "tool") {
    return line_with(kAsk + R"({"role": "assistant", "content": ")" + content + R"(", "tool_calls": [)" + calls +
                     R"(]}, {"role": ")" + role + R"(", "content": "r"}, )" + kSay);
  };
  const std::string left_out = "f: the chat template does not write the tool calls of messages[1] at line 1";
  EXPECT_TRUE(learned_by(drops, kChatMl, line("Let me search.", call("search"))).starts_with(left_out));
  EXPECT_TRUE(learned_by(drops, kChatMl, line("ok", call("tool"))).starts_with(left_out));
  EXPECT_TRUE(learned_by(drops, kChatMl, line("ok", call("function"), "function")).starts_with(left_out));
  EXPECT_TRUE(learned_by(first, kChatMl, line("", call("get", ", ") + call("get"))).starts_with(left_out));
  EXPECT_EQ(learned_by(first, kChatMl, line("", call("get"))),
            R"({"name": "get", "arguments": {"n": 1}}<|im_end|> / a<|im_end|>)");
  // Python's form of a call hides where the name comes from.
  const std::string printed =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls %}"
      "{{ c.function | string }}{% endfor %}<|im_end|>\n{% endfor %}";
  EXPECT_EQ(learned_by(printed, kChatMl, line("x", call("get"))),
            "x{'name': 'get', 'arguments': {'n': 1}}<|im_end|> / a<|im_end|>");
  const std::string names =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls %}"
      "{{ c.function.name }}{% endfor %}<|im_end|>\n{% endfor %}";
  EXPECT_TRUE(learned_by(names, kChatMl, line("", call("get")))
                  .starts_with("f: the chat template does not write the arguments of the tool calls of messages[1]"));
}

TEST(Answers, RejectAFunctionCallThatTheTemplateLeavesOut) {
  const Learned chatml(kQuickstart, "chatml");
  for (const char* content : {"I will use calc now", ""}) {
    EXPECT_EQ(chatml(line_with(kAsk + R"({"role": "assistant", "content": ")" + content +
                               R"(", "function_call": {"name": "calc", "arguments": "{}"}}, )" + kSay)),
              "f: the chat template does not write the function_call of messages[1] at line 7; try tool_calls in place "
              "of function_call, and the role tool in place of function (docs/data.md, Tools)");
  }
}

// The line and the message are named.
TEST(Answers, RejectCallsThatCannotBeRead) {
  const Learned chatml(kQuickstart, "chatml");
  const auto with = [&](const std::string& calls) {
    return chatml(line_with(kAsk + R"({"role": "assistant", "content": "", "tool_calls": )" + calls + "}, " + kSay));
  };
  const auto arguments = [&](const std::string& given) {
    return with(R"([{"type": "function", "function": {"name": "get", "arguments": )" + given + "}}]");
  };
  const std::string at = " at line 7, messages[1].tool_calls[0].function.arguments; try {} for no arguments";
  EXPECT_EQ(arguments(R"("{bad")"),
            "f: the arguments of a tool call are no JSON (expected an object, or its JSON text, got \"{bad\")" + at);
  EXPECT_EQ(arguments(R"("")"),
            "f: the arguments of a tool call are no JSON (expected an object, or its JSON text, got \"\")" + at);
  for (const char* null : {"null", R"("null")"}) {
    EXPECT_EQ(arguments(null), "f: the arguments of a tool call are null (expected an object, or its JSON text)" + at);
  }
  const std::string no_object = "f: the arguments of a tool call are no object (expected an object, or its JSON text, ";
  for (const auto& [other, shown] :
       {std::pair("[1]", "array"), {"7", "7"}, {R"("[1]")", R"("[1]")"}, {R"("7")", R"("7")"}}) {
    EXPECT_EQ(arguments(other),
              cat(no_object, "got ", shown, ") at line 7, messages[1].tool_calls[0].function.arguments"));
  }
  EXPECT_NE(arguments(R"("\"{}\"")").find("; try the object's JSON text, not the text of that text"),
            std::string::npos);
  EXPECT_EQ(with(R"([{"type": "function", "function": {"name": "get", "parameters": {}}}])"),
            "f: a tool call without arguments (expected an object, or its JSON text) at line 7, "
            "messages[1].tool_calls[0].function.arguments; try arguments in place of parameters");
  EXPECT_EQ(arguments(R"("{}")").find("the arguments"), std::string::npos) << arguments(R"("{}")");
  EXPECT_EQ(
      with(R"("{}")"),
      "f: wrong type (expected a list of tool calls, got string) at line 7, messages[1].tool_calls; try the list in "
      "place of its JSON text");
  const std::string call = R"([{"type": "function", "function": {"name": "get", "arguments": {}}}])";
  EXPECT_EQ(with(nlohmann::json(call).dump()), with(call)) << "a list may be its JSON text";
  EXPECT_NE(with("[3]").find("got number) at line 7, messages[1].tool_calls[0]"), std::string::npos) << with("[3]");
}

TEST(Answers, NameKeysThatNothingReads) {
  const auto unread = [](const std::string& text) {
    const TemporaryFolder folder;
    const auto tokenizer = text::load_tokenizer(folder.write("t.json", tokenizer_of_bytes({"<e>"})));
    const auto chat = std::make_shared<const text::chat::ChatTemplate>(
        "{% for m in messages %}{{ m.content }}{{ m.audio_text }}<e>{% endfor %}", std::map<std::string, std::string>{},
        "t");
    Problems problems;
    auto line = parse_line(text, {.file = "f"}, problems);
    EXPECT_TRUE(line && AnswerEncoder(*tokenizer, chat, {}).encode(*line, {.file = "f"}, problems)) << problems.lines();
    return std::vector<std::string>(line->unread.begin(), line->unread.end());
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(unread(R"({"id": 1, "images": [], "score": 2, "loss_mask": null, "messages": [
      {"role": "user", "content": "a", "time": 3, "audio_text": "x"},
      {"role": "assistant", "content": "b", "training_detail": [1], "thought": "t", "refusal": "no"}]})"),
            (Names{"images", "messages.refusal", "messages.thought", "messages.training_detail"}));
  EXPECT_EQ(unread(R"({"messages": [{"role": "assistant", "content": "b"}], "tools": [], "documents": "[{}]",
                       "chat_template_kwargs": {"enable_thinking": false}})"),
            (Names{"chat_template_kwargs.enable_thinking", "documents",
                   "tools (the chat template writes none; data.chat_template: chatml, qwen-2.5, qwen-3, llama-3.1, "
                   "mistral-v3 write them)"}));
}

// As apply_chat_template writes its result, with the tokens before a text in the text.
TEST(Answers, ABeginOfTextIsThereOnce) {
  const auto tokenizer = text::load_tokenizer((kRoot / "inputs/tokenizers/minilm/tokenizer.json").string());
  const auto ids = [&](const std::string& prompt) {
    const AnswerEncoder encoder(*tokenizer, nullptr, {});
    Line line{.prompt = prompt, .completion = " answer"};
    Problems problems;
    EXPECT_TRUE(encoder.encode(line, {}, problems));
    EXPECT_EQ(line.ids.size(), line.labels.size());
    return line.ids;
  };
  EXPECT_EQ(ids("[CLS] is it?"), ids("is it?"));
  EXPECT_EQ(text::encode_framed(*tokenizer, "[CLS] is it? [SEP]"), text::encode_framed(*tokenizer, "is it?"));
  EXPECT_EQ(text::encode_framed(*tokenizer, "[CLS]").size(), 2u);
}

TEST(Answers, RejectBadConversations) {
  const Learned mistral(kQuickstart, "mistral-v3");
  EXPECT_EQ(mistral(R"({"messages": [{"role": "assistant", "content": "a"}]})"),
            "f: chat template mistral-v3, line 8: after an optional system message, user and assistant must "
            "alternate, the user first at line 7");
  EXPECT_EQ(mistral(R"({"messages": [{"role": "user", "content": "a"}]})"),
            "f: no target tokens: the rendered conversation has no assistant turn at line 7");
  const auto tokenizer = text::load_tokenizer((kRoot / kQuickstart).string());
  const AnswerEncoder none(*tokenizer, nullptr, {});
  Problems problems;
  auto line = parse_line(kTwoTurns, {.file = "f"}, problems);
  EXPECT_FALSE(none.encode(*line, {.file = "f"}, problems));
  EXPECT_EQ(problems.lines(),
            "f: messages need a chat template at line 1; try data.chat_template: chatml, or another name");
}

}  // namespace answers_test
}  // namespace hawser::prepare
