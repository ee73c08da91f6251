#include "prepare/jsonl.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/testing/temporary_folder.h"

namespace hawser::prepare {
namespace jsonl_test {

using Ids = std::vector<std::int32_t>;

// The problems of a line in file "f"; "accepted" if there are none.
std::string rejection(std::string_view text, std::int64_t vocab_size = 100) {
  Problems problems;
  const LinePlace place{.file = "f", .number = 12, .byte = 1000, .vocab_size = vocab_size};
  const auto line = parse_line(text, place, problems);
  EXPECT_EQ(line.has_value(), problems.empty());
  return problems.empty() ? "accepted" : problems.lines();
}

TEST(Jsonl, ReadsTextAndIds) {
  Problems problems;
  const auto text = parse_line(R"({"text": "caf\u00e9", "source": "x"})", {}, problems);
  EXPECT_EQ(text->text, "café");
  const auto ids =
      parse_line(R"({"input_ids": [1,2,3], "labels": [-100,2,3], "document_lengths": [1,2]})", {}, problems);
  EXPECT_EQ(ids->ids, (Ids{1, 2, 3}));
  EXPECT_EQ(ids->labels, (Ids{-100, 2, 3}));
  EXPECT_EQ(ids->document_lengths, (Ids{1, 2}));
  const auto plain = parse_line(R"({"input_ids": [1], "labels": null})", {}, problems);
  EXPECT_TRUE(plain->labels.empty());
  const auto chat = parse_line(R"({"messages": [{"role": "user", "content": "hi"}]})", {}, problems);
  EXPECT_EQ(chat->chat->messages.list().size(), 1u);
  const auto pair = parse_line(R"({"prompt": "a", "completion": " b"})", {}, problems);
  EXPECT_EQ(pair->prompt + *pair->completion, "a b");
  const auto lists = parse_line(
      R"({"prompt": [{"role": "user", "content": "hi"}], "completion": [{"role": "assistant", "content": "ho"}]})", {},
      problems);
  EXPECT_EQ(lists->chat->messages.list().size(), 2u);
  EXPECT_EQ(lists->asked, 1u);
  EXPECT_TRUE(problems.empty());
}

// As tokenizers write it: padding is neither learned nor attended to.
TEST(Jsonl, DropsThePaddingOfAnAttentionMask) {
  const auto read = [](const std::string& mask, const std::string& more = "") {
    Problems problems;
    const auto line = parse_line(
        R"({"input_ids": [1,2,3,4], "labels": [5,6,7,8], "attention_mask": )" + mask + more + "}", {}, problems);
    EXPECT_TRUE(line) << problems.lines();
    return line ? std::pair(line->ids, line->labels) : std::pair<Ids, Ids>();
  };
  EXPECT_EQ(read("[1,1,1,1]"), std::pair(Ids({1, 2, 3, 4}), Ids({5, 6, 7, 8})));
  EXPECT_EQ(read("null"), std::pair(Ids({1, 2, 3, 4}), Ids({5, 6, 7, 8})));
  EXPECT_EQ(read("[1,1,0,0]"), std::pair(Ids({1, 2}), Ids({5, 6})));
  EXPECT_EQ(read("[0,0,0,1]"), std::pair(Ids({4}), Ids({8})));
  EXPECT_EQ(read("[0,1,1,0]", R"(, "document_lengths": [1,1])"), std::pair(Ids({2, 3}), Ids({6, 7})));
  const auto reject = [](const std::string& mask) {
    return rejection(R"({"input_ids": [1,2,3,4], "attention_mask": )" + mask + "}");
  };
  EXPECT_EQ(reject("[1,0,1,1]"),
            "f: attention_mask has zeros between ones (expected zeros at the beginning or the end) at line 12, "
            "attention_mask");
  EXPECT_EQ(reject("[1,1]"),
            "f: attention_mask does not match input_ids (expected 4, got 2) at line 12, attention_mask");
  EXPECT_EQ(reject("[0,0,0,0]"), "f: no ids (expected a 1, got zeros only) at line 12, attention_mask");
  EXPECT_EQ(reject("[1,1,1,2]"),
            "f: attention_mask is not 0 or 1 (expected 0 to 1, got 2) at line 12, attention_mask[3]");
}

TEST(Jsonl, RejectsBadLinesWithTheirPlace) {
  EXPECT_EQ(rejection("{\"text\": ").substr(0, 15), "f: broken JSON:");
  EXPECT_NE(rejection("{\"text\" 5}").find(" at line 12, byte 1008"), std::string::npos);
  EXPECT_NE(rejection("{\"text\": \"\xFF\"}").find("broken JSON"), std::string::npos);
  EXPECT_EQ(rejection("[1]"), "f: line is not an object (expected {...}, got array) at line 12");
  const std::string keys =
      "f: line needs exactly one of these keys (expected text, input_ids, messages, conversations, prompt and "
      "completion, instruction and output, or question and answer, got ";
  const std::string several = ") at line 12; try jq -c 'del(.KEY)' FILE to drop a key";
  EXPECT_EQ(rejection("{}"), keys + "none) at line 12");
  EXPECT_EQ(rejection(R"({"Text":"a","text":null,"instruction":"b"})"), keys + "Text, text, instruction) at line 12");
  EXPECT_EQ(rejection(R"({"question":"a","answer":"b","output":"c"})"),
            keys + "question + output and question + answer" + several);
  EXPECT_EQ(rejection(R"({"text":5})"), "f: wrong type (expected a string, got number) at line 12, text");
  EXPECT_EQ(rejection(R"({"text":"a","messages":[],"conversations":[]})"),
            keys + "messages and conversations" + several);
  EXPECT_EQ(rejection(R"({"messages":[]})"),
            "f: wrong type (expected a list of messages, got an empty list) at line 12, messages");
  EXPECT_EQ(
      rejection(R"({"messages":"hi"})"),
      "f: wrong type (expected a list of messages, got string) at line 12, messages; try a list, or its JSON text");
  EXPECT_EQ(
      rejection(R"({"messages":["hi"]})"),
      "f: wrong type (expected a message: {\"role\": ..., \"content\": ...}, got string) at line 12, messages[0]");
  EXPECT_EQ(rejection(R"({"messages":[{"role":"user","content":"a"},{"from":"gpt","value":"b"}]})"),
            "f: messages of two kinds (expected role and content in all, got from) at line 12, messages[1]");
  EXPECT_EQ(rejection(R"({"messages":[{"role":"user","content":"a"},{"content":"b"}]})"),
            "f: message without a role (expected user, assistant, system or another role, got none) at line 12, "
            "messages[1].role");
  EXPECT_EQ(rejection(R"({"messages":[{"role":"user"}]})"),
            "f: message without content (expected text, got none) at line 12, messages[0].content");
  EXPECT_EQ(rejection(R"({"messages":[{"role":"user","content":5}]})"),
            "f: wrong type (expected text, got number) at line 12, messages[0].content");
  EXPECT_EQ(rejection(R"({"messages":[{"role":"user","content":"a"}],"tools":{}})"),
            "f: wrong type (expected a list of tools, got object) at line 12, tools");
  const auto nested = [](const std::string& before, int levels, const std::string& after) {
    const auto count = static_cast<std::size_t>(levels);
    return before + std::string(count, '[') + std::string(count, ']') + after;
  };
  EXPECT_EQ(rejection(nested(R"({"messages":[{"role":"user","content":)", 150, "}]}")),
            "f: nested too deeply (expected messages with text content) at line 12");
  EXPECT_EQ(rejection(nested(R"({"messages":[{"role":"user","content":)", 300000, "}]}")),
            "f: JSON nested too deeply (expected at most 200 levels) at line 12, byte 1235");
  EXPECT_EQ(rejection(nested(R"({"input_ids":[)", 300000, "]}")),
            "f: JSON nested too deeply (expected at most 200 levels) at line 12, byte 1212");
  EXPECT_EQ(rejection(nested(R"({"more":)", 300000, R"(,"input_ids":[1]})")),
            "f: JSON nested too deeply (expected at most 200 levels) at line 12, byte 1207");
  EXPECT_EQ(rejection(R"({"input_ids":[[1]]})"),
            "f: id outside the vocabulary (expected 0 to 99, got array) at line 12, input_ids[0]");
  EXPECT_EQ(rejection(nested(R"({"text":5, "more":"\")", 300, R"("})")),
            "f: wrong type (expected a string, got number) at line 12, text");
  EXPECT_EQ(rejection(R"({"prompt":"a"})"), "f: prompt without completion (expected both, got prompt) at line 12");
  EXPECT_EQ(rejection(R"({"prompt":"a","completion":""})"),
            "f: empty completion (expected text) at line 12, completion");
  EXPECT_EQ(rejection(R"({"prompt":"a","completion":[]})"),
            "f: wrong type (expected two texts, or two lists of messages, got string and array) at line 12, prompt, "
            "completion");
  EXPECT_EQ(rejection(R"({"input_ids":[]})"), "f: no ids (expected one or more, got none) at line 12, input_ids");
  EXPECT_EQ(rejection(R"({"input_ids":"a"})"),
            "f: wrong type (expected a list of integers, got string) at line 12, input_ids");
  for (const char* id : {"100", "-1", "1.5", "\"a\"", "99999999999999999999", "18446744073709551615", "-9e18"}) {
    EXPECT_EQ(rejection(std::string(R"({"input_ids":[1,)") + id + "]}").substr(0, 43),
              "f: id outside the vocabulary (expected 0 to")
        << id;
  }
  EXPECT_EQ(rejection(R"({"input_ids":[100]})"),
            "f: id outside the vocabulary (expected 0 to 99, got 100) at line 12, input_ids[0]");
  EXPECT_EQ(rejection(R"({"input_ids":[100]})", 0), "accepted");
  EXPECT_EQ(rejection(R"({"input_ids":[1,2],"labels":[1]})"),
            "f: labels do not match input_ids (expected 2, got 1) at line 12, labels");
  EXPECT_EQ(rejection(R"({"input_ids":[1,2],"labels":[1,-99]})"),
            "f: label outside the vocabulary (expected -100, or 0 to 99, got -99) at line 12, labels[1]");
  EXPECT_EQ(rejection(R"({"input_ids":[1,2],"document_lengths":[1,2]})"),
            "f: document_lengths do not add up (expected 2, got 3) at line 12, document_lengths");
  EXPECT_EQ(rejection(R"({"input_ids":[1,2],"document_lengths":[2,0]})").substr(0, 22), "f: bad document length");
  // Text after a zero byte is not ignored.
  const std::string line = R"({"text":"a"})";
  for (const std::string& rest :
       {std::string("\0", 1), std::string("\0]]}", 4), std::string("\0{\"text\":\"b\"}", 13)}) {
    EXPECT_EQ(rejection(line + rest), "f: broken JSON: a zero byte at line 12, byte 1012");
  }
  // A duplicate key at any depth and in any spelling is rejected.
  for (const char* twice : {R"({"text":"a","text":"b"})", R"({"text":"a", "t\u0065xt" : "b"})",
                            R"({"text":"a","more":[{},{"text":1,"text":1}]})",
                            R"({"messages":[{"role":"user","content":"a","text":1,"b":{"c":[1,"text"]},"text":2}]})"}) {
    EXPECT_EQ(rejection(twice), "f: key given twice (expected once, got text) at line 12") << twice;
  }
  for (const char* once :
       {R"({"text":"\"text\":1,\\","b":[{"text":1},{"text":2}],"c":["text","text"],"d":{"text":{"text":""}}})",
        R"({"input_ids":[1,2],"":{},"a":[]})"}) {
    EXPECT_EQ(rejection(once), "accepted") << once;
  }
  // Both problems of a line.
  EXPECT_EQ(rejection(R"({"input_ids":[700],"document_lengths":[0]})").find('\n') != std::string::npos, true);
}

// The roles and contents of a conversation: "user: a | assistant: b".
std::string turns(std::string_view text) {
  Problems problems;
  const auto line = parse_line(text, {.file = "f", .number = 12}, problems);
  if (!line || !line->chat) return problems.lines();
  std::string out;
  const text::chat::List& messages = line->chat->messages.list();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const text::chat::Dict& message = messages[i].dict();
    out += (i == 0 ? "" : " | ") + message.find("role")->text().bytes + ": " + message.find("content")->text().bytes;
    if (i < line->not_trained.size() && line->not_trained[i]) out += " (not trained)";
  }
  return out;
}

// A line as data.columns name it.
std::string renamed(const std::string& text, const std::map<std::string, std::vector<std::string>>& columns) {
  auto json = nlohmann::ordered_json::parse(text);
  std::set<std::string> found;
  LineNames{.columns = columns}.rename_line(json, found);
  return json.dump();
}

TEST(Jsonl, ReadsTheFormsOfConversationsThatDataSetsHave) {
  // ShareGPT.
  EXPECT_EQ(turns(R"({"id": 5, "conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"},
                      {"from": "gpt", "value": "b"}, {"from": "Human", "value": ""}, {"from": "bot", "value": "d"}]})"),
            "system: s | user: a | assistant: b | user:  | assistant: d");
  EXPECT_EQ(turns(R"({"conversations": [{"from": "user", "value": "a"}, {"from": "model", "value": "b"}],
                      "system": "s", "tools": ""})"),
            "system: s | user: a | assistant: b");
  EXPECT_EQ(turns(R"({"conversations": [{"role": "human", "content": "a"}, {"role": "gpt", "content": "b"}]})"),
            "user: a | assistant: b");
  EXPECT_EQ(
      turns(R"({"messages": [{"from": "human", "value": "a"}, {"from": "chatgpt", "value": "b"}], "text": null})"),
      "user: a | assistant: b");
  // Alpaca and other single turns.
  EXPECT_EQ(turns(R"({"instruction": "a", "input": "b", "output": "c"})"), "user: a\n\nb | assistant: c");
  EXPECT_EQ(turns(R"({"instruction": "a", "input": "", "output": "c", "history": []})"), "user: a | assistant: c");
  EXPECT_EQ(turns(R"({"instruction": "a", "context": "b", "response": "c"})"), "user: a\n\nb | assistant: c");
  EXPECT_EQ(turns(R"({"question": "a", "answer": "c", "input": null})"), "user: a | assistant: c");
  EXPECT_EQ(turns(R"({"system_prompt": "s", "question": "a", "response": "c"})"), "system: s | user: a | assistant: c");
  EXPECT_EQ(turns(R"({"prompt": [{"from": "human", "value": "a"}], "completion": [{"from": "gpt", "value": "b"}]})"),
            "user: a | assistant: b");
  // Weights.
  EXPECT_EQ(turns(R"({"messages": [{"role": "user", "content": "a", "weight": 0},
                      {"role": "assistant", "content": "b", "weight": 0}, {"role": "user", "content": "c"},
                      {"role": "assistant", "content": "d", "weight": 1.0}], "system": "s"})"),
            "system: s | user: a (not trained) | assistant: b (not trained) | user: c | assistant: d");
  EXPECT_EQ(turns(R"({"messages": [{"role": "user", "content": "a", "train": null},
                      {"role": "assistant", "content": "b", "train": false}]})"),
            "user: a | assistant: b (not trained)");
}

// The conversation of a line, with its tools.
nlohmann::ordered_json chat_of(std::string_view text) {
  Problems problems;
  const auto line = parse_line(text, {.file = "f", .number = 12}, problems);
  if (!line || !line->chat) return problems.lines();
  const auto json = [](const text::chat::Value& value) {
    return value.is_undefined() ? nlohmann::ordered_json()
                                : nlohmann::ordered_json::parse(text::chat::to_json(value).bytes);
  };
  return {{"messages", json(line->chat->messages)}, {"tools", json(line->chat->tools)}};
}

// Each column of a table may have the JSON text of its value.
TEST(Jsonl, MessagesMayBeTheirJsonText) {
  const std::string messages = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  EXPECT_EQ(turns(cat("{\"messages\": ", nlohmann::json(messages).dump(), "}")), "user: a | assistant: b");
}

// Calls of LLaMA-Factory's ShareGPT are messages of their own, and its tools lack the frame of templates.
TEST(Jsonl, ReadsTheCallsOfLlamaFactory) {
  const auto read = chat_of(R"({"conversations": [{"from": "human", "value": "a"},
      {"from": "function_call", "value": "{\"name\": \"get\", \"arguments\": {\"id\": 7}}"},
      {"from": "observation", "value": "{\"there\": true}"}, {"from": "gpt", "value": "b"}],
      "tools": "[{\"name\": \"get\", \"parameters\": {}}]"})");
  EXPECT_EQ(read["messages"][1]["role"], "assistant") << read;
  EXPECT_EQ(
      read["messages"][1]["tool_calls"],
      nlohmann::ordered_json::parse(R"([{"type": "function", "function": {"name": "get", "arguments": {"id": 7}}}])"))
      << read;
  EXPECT_EQ(read["messages"][2]["role"], "tool");
  EXPECT_EQ(read["messages"][2]["content"], R"({"there": true})");
  EXPECT_EQ(read["tools"],
            nlohmann::ordered_json::parse(R"([{"type": "function", "function": {"name": "get", "parameters": {}}}])"));
  const std::string bad = R"x({"conversations": [{"from": "human", "value": "a"},
      {"from": "function_call", "value": "get(7)"}, {"from": "gpt", "value": "b"}]})x";
  EXPECT_EQ(rejection(bad),
            "f: a function call is no JSON (expected {\"name\": ..., \"arguments\": ...}, or a list of them, got "
            "\"get(7)\") at line 12, conversations[1].value");
}

TEST(Jsonl, FunctionsAreFramedOnce) {
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],)";
  const std::string framed = R"([{"type": "function", "function": {"name": "get"}}])";
  EXPECT_EQ(chat_of(chat + R"("functions": [{"name": "get"}]})")["tools"], nlohmann::ordered_json::parse(framed));
  EXPECT_EQ(chat_of(chat + R"("functions": )" + framed + "}")["tools"], nlohmann::ordered_json::parse(framed));
}

// Keys that a line has beside those that are read.
std::string unread(std::string_view text) {
  Problems problems;
  const auto line = parse_line(text, {.file = "f", .number = 12}, problems);
  std::string out = problems.lines();
  if (line) {
    for (const std::string& key : line->unread) out += (out.empty() ? "" : " ") + key;
  }
  return out;
}

// Data sets of the Hub often have a form beside the one that it was made from.
TEST(Jsonl, OfSeveralFormsTheFirstOfAnOrderIsRead) {
  const std::string messages =
      R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  // HuggingFaceH4/ultrachat_200k, tatsu-lab/alpaca.
  const std::string ultrachat = R"({"prompt": "a", "prompt_id": "x", )" + messages + "}";
  EXPECT_EQ(turns(ultrachat), "user: a | assistant: b");
  EXPECT_EQ(unread(ultrachat), "prompt");
  const std::string alpaca = R"({"instruction": "a", "input": "", "output": "b", "text": "Below is a. b"})";
  EXPECT_EQ(turns(alpaca), "user: a | assistant: b");
  EXPECT_EQ(unread(alpaca), "text");
  const std::string preferences = R"({"prompt": "a", "chosen": [1], "rejected": [2], )" + messages + "}";
  EXPECT_EQ(turns(preferences), "user: a | assistant: b");
  EXPECT_EQ(unread(preferences), "chosen prompt rejected");
  EXPECT_EQ(unread(R"({"text": "a", "input_ids": [5], "labels": [5]})"), "text");
  EXPECT_EQ(unread(R"({"text": "a", "prompt": "b", "completion": "c", "instruction": "d", "output": "e"})"),
            "instruction output text");
  EXPECT_EQ(unread(R"({"text": "a", "prompt": "b", "title": "c"})"), "prompt");
}

// A key in capitals or with a letter too many is not dropped without a word; nor are calls whose tools are elsewhere.
TEST(Jsonl, KeysThatMayBeMisspeltAreNamed) {
  EXPECT_EQ(unread(R"({"instruction": "p", "inputs": "i", "output": "c"})"),
            "inputs (if it is input: data.columns: {input: inputs})");
  EXPECT_EQ(unread(R"({"instruction": "p", "Input": "i", "output": "c"})"),
            "Input (if it is input: data.columns: {input: Input})");
  EXPECT_EQ(unread(R"({"instruction": "p", "input": "i", "inputs": "i", "output": "c", "id": 7, "topic": "x"})"), "");
  const std::string call = R"([{"type": "function", "function": {"name": "get", "arguments": {}}}])";
  const std::string calls =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": )" + call + "}]";
  EXPECT_NE(unread(calls + R"(, "tool_list": [1]})").find("tools (conversations have tool calls and no tools; "),
            std::string::npos)
      << unread(calls + "}");
  EXPECT_EQ(unread(calls + R"(, "tools": [{"type": "function", "function": {"name": "get"}}]})"), "");
}

// A system message or more of the question changes what the model learns.
TEST(Jsonl, KeysThatAFormHasNoPlaceForAreNamedOrRejected) {
  const std::string messages =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  EXPECT_EQ(unread(messages + R"(, "input": "i", "context": "c", "history": []})"), "context input");
  EXPECT_EQ(unread(messages + R"(, "system_prompt": "s"})"), "");
  EXPECT_EQ(unread(R"({"prompt": "p", "completion": "c", "context": "x", "input": "i"})"), "context input");
  EXPECT_EQ(unread(R"({"prompt": "p", "completion": "c", "context": "", "input": null, "system": ""})"), "");
  EXPECT_EQ(unread(R"({"text": "p", "system": "s"})"), "system");
  EXPECT_EQ(unread(R"({"instruction": "p", "output": "c", "context": "x", "system": "s"})"), "");
  for (const std::string key : {"system", "system_prompt"}) {
    std::string line = R"({")" + key + R"(": "s", "prompt": "p", "completion": "c"})";
    EXPECT_EQ(rejection(line),
              "f: " + key + " has no place beside a prompt that is text (expected a conversation) at line 12, " + key +
                  "; try data.columns: {instruction: prompt, output: completion}, which uses the chat template");
    EXPECT_EQ(turns(renamed(line, {{"instruction", {"prompt"}}, {"output", {"completion"}}})),
              "system: s | user: p | assistant: c");
  }
}

TEST(Jsonl, ReadsPackedIdsOfTrl) {
  Problems problems;
  const auto line = parse_line(R"({"input_ids": [5, 6, 7], "seq_lengths": [1, 2]})", {}, problems);
  ASSERT_TRUE(line) << problems.lines();
  EXPECT_EQ(line->document_lengths, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(rejection(R"({"input_ids": [5, 6, 7], "seq_lengths": [1, 1]})"),
            "f: seq_lengths do not add up (expected 3, got 2) at line 12, seq_lengths");
  EXPECT_EQ(
      rejection(R"({"input_ids": [5], "seq_lengths": [1], "document_lengths": [1]})"),
      "f: document_lengths and seq_lengths in one line (expected one of the two, got both) at line 12, seq_lengths");
  // Positions alone tell that there are several documents.
  EXPECT_EQ(unread(R"({"input_ids": [5, 6, 7], "position_ids": [0, 0, 1]})"), "position_ids");
  EXPECT_EQ(unread(R"({"input_ids": [5, 6, 7], "position_ids": [0, 1, 2]})"), "");
  EXPECT_EQ(unread(R"({"input_ids": [5, 6, 7], "position_ids": [0, 0, 1], "seq_lengths": [1, 2]})"), "");
}

// What the error of preference data proposes works.
TEST(Jsonl, TheColumnsThatAreProposedForPreferencesAreRead) {
  const std::string chosen = R"("chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  const std::string answer = R"("chosen": [{"role": "assistant", "content": "b"}])";
  const auto columns = [](const std::string& line) {
    const std::string error = rejection(line + R"(, "rejected": "r"})");
    const std::string begin =
        "f: preference data, which are not supported yet (expected a form of docs/data.md, got chosen "
        "and rejected) at line 12; try data.columns: {";
    EXPECT_TRUE(error.starts_with(begin)) << error;
    return error.substr(begin.size(), error.find('}') - begin.size());
  };
  const auto read = [](const std::string& line, const std::map<std::string, std::vector<std::string>>& names) {
    return turns(renamed(line + R"(, "rejected": "r"})", names));
  };
  // HuggingFaceH4/ultrafeedback_binarized; prompts of TRL; Intel/orca_dpo_pairs.
  const std::string binarized = R"({"prompt": "a", )" + chosen;
  EXPECT_EQ(columns(binarized), "messages: chosen");
  EXPECT_EQ(read(binarized, {{"messages", {"chosen"}}}), "user: a | assistant: b");
  EXPECT_EQ(columns("{" + chosen), "messages: chosen");
  const std::string prompts = R"({"prompt": [{"role": "user", "content": "a"}], )" + answer;
  EXPECT_EQ(columns(prompts), "completion: chosen");
  EXPECT_EQ(read(prompts, {{"completion", {"chosen"}}}), "user: a | assistant: b");
  const std::string orca = R"({"system": "s", "question": "a", "chosen": "b")";
  EXPECT_EQ(columns(orca), "answer: chosen");
  EXPECT_EQ(read(orca, {{"answer", {"chosen"}}}), "system: s | user: a | assistant: b");
  const std::string instruction = R"({"instruction": "a", "chosen": "b")";
  EXPECT_EQ(columns(instruction), "output: chosen");
  EXPECT_EQ(read(instruction, {{"output", {"chosen"}}}), "user: a | assistant: b");
  const std::string system = R"({"system": "s", "prompt": "a", "chosen": "b")";
  EXPECT_EQ(columns(system), "instruction: prompt, output: chosen");
  EXPECT_EQ(read(system, {{"instruction", {"prompt"}}, {"output", {"chosen"}}}), "system: s | user: a | assistant: b");
  // Anthropic/hh-rlhf, and texts.
  Problems problems;
  const std::string texts = R"({"prompt": "a", "chosen": "b")", text = R"({"chosen": "b")";
  EXPECT_EQ(columns(texts), "completion: chosen");
  EXPECT_TRUE(parse_line(renamed(texts + "}", {{"completion", {"chosen"}}}), {}, problems)) << problems.lines();
  EXPECT_EQ(columns(text), "text: chosen");
  EXPECT_TRUE(parse_line(renamed(text + "}", {{"text", {"chosen"}}}), {}, problems)) << problems.lines();
  EXPECT_EQ(unread(renamed(text + R"(, "rejected": "c"})", {{"text", {"chosen"}}})), "");
  EXPECT_EQ(rejection(R"({"prompt": [{}], "chosen": "b", "rejected": "c"})").find("data.columns"), std::string::npos);
}

TEST(Jsonl, RejectsAmbiguousConversations) {
  const std::string from = R"({"conversations":[{"from":"human","value":"a"},)";
  EXPECT_EQ(rejection(from + R"({"from":"gpt","value":null}]})"),
            "f: message without content (expected text, got null) at line 12, conversations[1].value");
  EXPECT_EQ(rejection(from + R"({"from":"gpt","content":"b"}]})"),
            "f: message without content (expected text, got none) at line 12, conversations[1].value");
  EXPECT_EQ(rejection(from + R"({"from":5,"value":"b"}]})"),
            "f: message without a role (expected user, assistant, system or another role, got number) at line 12, "
            "conversations[1].from");
  EXPECT_EQ(rejection(from + R"({"from":"gpt","role":"gpt","value":"b"}]})"),
            "f: message with role and from (expected one of the two, got both) at line 12, conversations[1]");
  EXPECT_EQ(rejection(from + R"({"from":"gpt","value":"b"}],"messages":[]})").substr(0, 42),
            "f: line needs exactly one of these keys (e");
  EXPECT_EQ(rejection(R"({"conversations":"[]"})"),
            "f: wrong type (expected a list of messages, got an empty list) at line 12, conversations");
  EXPECT_EQ(
      rejection(R"({"conversations":"a"})"),
      "f: wrong type (expected a list of messages, got string) at line 12, conversations; try a list, or its JSON "
      "text");
  EXPECT_EQ(rejection(R"({"conversations":[{"from":"system","value":"a"}],"system":"b"})"),
            "f: system message given twice (expected once) at line 12, system");
  EXPECT_EQ(rejection(R"({"instruction":"a","output":"b","system":"c","system_prompt":"d"})"),
            "f: system message given twice (expected once) at line 12, system");
  EXPECT_EQ(rejection(R"({"instruction":"a","output":""})"), "f: empty completion (expected text) at line 12, output");
  EXPECT_EQ(rejection(R"({"instruction":" ","output":"b"})"),
            "f: empty question (expected text) at line 12, instruction");
  EXPECT_EQ(rejection(R"({"instruction":"a","output":["b"]})"),
            "f: wrong type (expected a string, got array) at line 12, output");
  EXPECT_EQ(rejection(R"({"instruction":"a","input":5,"output":"b"})"),
            "f: wrong type (expected a string, got number) at line 12, input");
  EXPECT_EQ(rejection(R"({"instruction":"a","input":"x","context":"y","output":"b"})"),
            "f: input has no place in this line (expected instruction with either input or context) at line 12, input");
  EXPECT_EQ(
      rejection(R"({"question":"a","context":"y","answer":"b"})"),
      "f: context has no place in this line (expected instruction and context, or messages with both) at line 12, "
      "context");
  EXPECT_EQ(rejection(R"({"instruction":"a","output":"b","history":[["c","d"]]})"),
            "f: earlier turns in history are not read (expected messages with all turns) at line 12, history");
  EXPECT_EQ(rejection(R"({"messages":[{"role":"assistant","content":"a","weight":0.5}]})"),
            "f: weight of a message (expected 0 or 1, or true or false, got 0.5) at line 12, messages[0].weight");
  EXPECT_EQ(rejection(R"({"messages":[{"role":"user","content":"a","train":true}]})"),
            "f: only the assistant's messages are trained (expected 0 or false, or no weight) at line 12, messages[0]");
}

TEST(Jsonl, ReadsArraysAndTables) {
  const TemporaryFolder folder;
  Problems problems;
  const auto items = read_jsonl(folder.write("a.json", "[{\"text\": \"a\"},\n {\"text\": 5},\n{bad}]"), 100, problems);
  EXPECT_EQ(items.size(), 1u);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems.all()[0].at, "item 2, text");
  EXPECT_EQ(problems.all()[1].at, "item 3, byte 31");
  const auto rows = read_jsonl(folder.write("a.csv", "question,answer\na,b\n\nc,\n"), 100, problems);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].chat->messages.list().size(), 2u);
  EXPECT_EQ(rows[0].number, 2);
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_EQ(problems.all()[2].line(), folder.path("a.csv") + ": empty completion (expected text) at row 4, answer");
}

TEST(Jsonl, CollectsAllProblemsOfAFile) {
  const TemporaryFolder folder;
  Problems problems;
  const auto lines = read_jsonl(
      folder.write("a.jsonl", "{\"text\":\"a\"}\r\n\n{bad\n{\"input_ids\":[5000]}\n{\"text\":\"b\"}"), 100, problems);
  EXPECT_EQ(lines.size(), 2u);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems.all()[0].at, "line 3, byte 16");
  EXPECT_EQ(problems.all()[1].at, "line 4, input_ids[0]");
  for (const char* empty : {"", "\n\n  \n"}) {
    Problems none;
    EXPECT_TRUE(read_jsonl(folder.write("b.jsonl", empty), 100, none).empty());
    EXPECT_NE(none.lines().find("empty file"), std::string::npos);
  }
  EXPECT_THROW(read_jsonl(folder.path("none.jsonl"), 100, problems), UserError);
}

}  // namespace jsonl_test
}  // namespace hawser::prepare
