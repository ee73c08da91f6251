#include "text/chat/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/calendar.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "base/training_options.h"
#include "text/chat/from_json.h"

namespace hawser::text::chat {
namespace chat_template_test {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kRoot = testing::kSourceFolder;

// Output of transformers for random conversations; see tests/golden/README.md.
const Json& golden() {
  static const Json kGolden = Json::parse(read_file(kRoot / "tests/golden/chat/expected.json"));
  return kGolden;
}

std::vector<Range> ranges_of(const Json& list) {
  std::vector<Range> out;
  for (const Json& item : list) out.push_back({item[0], item[1]});
  return out;
}

constexpr const char* kMistral3 = "built-in mistral-v3";

// Compares the texts of a template for one group of conversations; returns the number of texts.
int check(const ChatTemplate& with, const std::string& group, const Json& expected, const std::string& what) {
  int texts = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Json& one = golden()[group][i / 2];
    if (what == kMistral3 && one["messages"].front()["role"] == "system" && one["messages"].back()["role"] != "user") {
      continue;  // the published template leaves the system message out; see TheSystemMessageOfMistralIsWritten
    }
    const Conversation conversation{from_json(one["messages"]),
                                    one["tools"].is_null() ? Value() : from_json(one["tools"])};
    const std::string where = what + ", " + group + " " + std::to_string(i);
    try {
      const Rendered rendered = with.render(conversation, i % 2 == 1);
      EXPECT_FALSE(expected[i]["text"].is_null()) << where << " was rejected";
      if (expected[i]["text"].is_null()) continue;
      EXPECT_EQ(rendered.text, expected[i]["text"].get<std::string>()) << where;
      if (expected[i].contains("generated")) {
        EXPECT_EQ(rendered.generations, ranges_of(expected[i]["generated"])) << where;
      }
      ++texts;
    } catch (const TemplateError& error) {
      EXPECT_TRUE(expected[i]["text"].is_null()) << where << ": " << error.what() << " at line " << error.line;
    }
  }
  return texts;
}

std::map<std::string, std::string> tokens_of(const Json& of) {
  return of["tokens"].get<std::map<std::string, std::string>>();
}

// The recipe reader has its own list of names, which separates them from files.
TEST(ChatTemplate, NamesMatchTheRecipeReader) {
  std::vector<std::string> names;
  for (const NamedTemplate& one : named_templates()) names.emplace_back(one.name);
  EXPECT_EQ(names, std::vector<std::string>(kChatTemplateNames.begin(), kChatTemplateNames.end()));
}

TEST(ChatTemplate, BuiltInTemplatesMatchThoseOfTheModels) {
  int texts = 0;
  for (const auto& [name, of] : golden()["templates"].items()) {
    if (of["named"].is_null()) continue;
    Problems problems;
    const auto named = open_chat_template(of["named"], "", "", "data.chat_template", problems);
    ASSERT_TRUE(named) << problems.lines();
    texts += check(*named, "plain", of["plain"], "built-in " + name);
    if (of.contains("tools")) texts += check(*named, "tools", of["tools"], "built-in " + name);
  }
  EXPECT_GT(texts, 480);
}

// What a template says about tools is what it does.
TEST(ChatTemplate, BuiltInTemplatesWithToolsWriteCalls) {
  for (const NamedTemplate& one : named_templates()) {
    EXPECT_EQ(ChatTemplate(one.source, one.tokens, one.name).drops_calls(), !one.tools) << one.name;
  }
  EXPECT_EQ(named_templates_with_tools(), "chatml, qwen-2.5, qwen-3, llama-3.1, mistral-v3");
}

// Published templates, which scripts/fetch-inputs downloads.
TEST(ChatTemplate, PublishedTemplatesMatchTransformers) {
  const fs::path folder = kRoot / "inputs/chat_templates";
  ASSERT_TRUE(fs::exists(folder)) << "no published templates; try scripts/fetch-inputs --what chat";
  int texts = 0, generations = 0;
  for (const auto& [name, of] : golden()["templates"].items()) {
    const fs::path file = folder / (name + ".jinja");
    if (!fs::exists(file)) continue;
    const ChatTemplate own(read_file(file), tokens_of(of), name);
    texts += check(own, "plain", of["plain"], name);
    if (of.contains("tools")) texts += check(own, "tools", of["tools"], name);
    generations += name.ends_with("training");
  }
  EXPECT_GT(texts, 500);
  EXPECT_EQ(generations, 3);
}

Rendered render(const std::string& source, const std::string& messages = R"([{"role": "user", "content": "hi"}])") {
  return ChatTemplate(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "t")
      .render({from_json(Json::parse(messages)), {}});
}

// Each line: a template and Jinja's output.
TEST(ChatTemplate, MatchesJinja) {
  const std::vector<std::pair<std::string, std::string>> kCases = {
      {"{{ 1 + 2 * 3 ** 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 - 3 - 4 }}", "19 3 -4 2 3.5 -5"},
      {"{{ 'a' ~ 1 ~ none ~ true ~ x }}", "a1NoneTrue"},
      {"{{ 'a' + 'b' * 3 }}{{ [1] + [2, 'x'] }}{{ {'k': [1.0, none]} }}", "abbb[1, 2, 'x']{'k': [1.0, None]}"},
      {"{{ 1 < 2 < 3 }}{{ 3 > 2 > 2 }}{{ 'a' in 'cat' }}{{ 'x' not in ['x'] }}", "TrueFalseTrueFalse"},
      {"{{ not 1 == 2 }}{{ 1 and 0 or 5 }}{{ '' or none }}", "True5None"},
      {"{{ 'yes' if 1 else 'no' }}{{ 'yes' if 0 }}", "yes"},
      {"{{ 'a' + ' b ' | trim + 'c' }}", "abc"},
      {"{{ 'héllo'[1:3] }}{{ 'héllo'[-1] }}{{ 'héllo'[::-1] }}{{ [1,2,3,4][1:-1] }}{{ [1,2][5:] }}",
       "éloolléh[2, 3][]"},
      {"{% for i in range(3) %}{{ i }}{% if not loop.last %},{% endif %}{% else %}none{% endfor %}", "0,1,2"},
      {"{% for i in [] %}{{ i }}{% else %}none{% endfor %}", "none"},
      {"{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{{ loop.index }}{{ loop.revindex0 }}{% endfor %}",
       "a111b220"},
      {"{% for i in range(6) if i is odd %}{{ loop.length }}{{ i }}{% endfor %}", "313335"},
      {"{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
       "0134"},
      {"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
      {"{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "4"},
      {"{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}", "A1B"},
      {"{% macro m(a, b='z') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m('x', b=2) }}", "<1z><x2>"},
      {"{% set a, b = 1, 'two' %}{{ b }}{{ a }}", "two1"},
      {"{{ x is defined }}{{ none is none }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ 4 is "
       "divisibleby 2 }}"
       "{{ 1 is not number }}",
       "FalseTrueTrueTrueTrueTrueFalse"},
      {"{{ {'a': 'é\"', 'b': [1, 2.5, true, none], 'c': {}} | tojson }}",
       R"({"a": "é\"", "b": [1, 2.5, true, null], "c": {}})"},
      {"{{ '\"\\\\/\\n\\r\\t\\b\\f\\0\\x1f\\x7f' | tojson }}", R"("\"\\/\n\r\t\b\f\u0000\u001f)"
                                                               "\x7f\""},
      {"{{ {'a': [1, {}]} | tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    {}\n  ]\n}"},
      {"{{ ' a b  c '.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}",
       "['a', 'b', 'c']['a', 'b', '', 'c']['a', 'b,c']['a,b', 'c']"},
      {"{{ 'xxaxx'.strip('x') }}{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ '\u3000a\u00a0'.strip() }}", "aa | a|a"},
      {"{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abab'.replace('a', 'x', 1) }}", "TrueTruexbab"},
      {"{{ [3, 1, 2] | sort | join('-') }}{{ [1, 2, 1] | unique | list }}{{ [1, 2] | sum }}{{ 'abc' | reverse }}",
       "1-2-3[1, 2]3cba"},
      {"{{ [{'n': 'a', 'v': 1}, {'n': 'b', 'v': 0}] | selectattr('v') | map(attribute='n') | join }}", "a"},
      {"{{ ['a', 'b'] | reject('equalto', 'a') | list }}{{ [' x '] | map('trim') | list }}", "['b']['x']"},
      {"{{ x | default('d') }}{{ '' | default('e', true) }}{{ ' 42 ' | int + 1 }}{{ 'a' | length }}", "de431"},
      {"{{ {'b': 1, 'a': 2} | dictsort | map('first') | join }}{{ {'a': 1}.get('z', 9) }}{{ {'a': 1} | items | "
       "map('last') | list }}",
       "ab9[1]"},
      {"{{ 'it\\'s' \"\\n\\x41\\u00e9\" }}", "it's\nAé"},
      {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
      {"a \n {%- if true -%} \n b \n {%- endif -%} \n c", "abc"},
      {"a {# comment #} b\n{# line #}\nc\n\n", "a  b\nc\n"},
      {"  {%+ if true %}x{% endif +%}\ny", "  x\ny"},
      {"{{ messages[0].role }}{{ messages[0]['nothing'] }}{{ messages[-1].content }}{{ bos_token }}", "userhi<s>"},
      {"{{ 0.1 }} {{ 1e16 }} {{ 1e-5 }} {{ 100.0 }} {{ 3 | float }}", "0.1 1e+16 1e-05 100.0 3.0"},
  };
  for (const auto& [source, expected] : kCases) {
    try {
      EXPECT_EQ(render(source).text, expected) << source;
    } catch (const std::exception& error) {
      ADD_FAILURE() << source << ": " << error.what();
    }
  }
}

std::string rejection(const std::string& source) {
  try {
    render(source);
  } catch (const UserError& error) {
    return error.what();
  } catch (const TemplateError& error) {
    return cat("while rendering, line ", error.line, ": ", error.what());
  }
  return "accepted";
}

TEST(ChatTemplate, RejectsUnsupportedConstructs) {
  const auto unread = [](const std::string& what, int line = 1) {
    return cat("t: chat template: ", what, " at template line ", line,
               "; try a template within the subset of Jinja in docs/data.md as data.chat_template");
  };
  EXPECT_EQ(rejection("\n\n{{ 'x' | wordwrap }}"), unread("filter 'wordwrap' is not supported", 3));
  EXPECT_EQ(rejection("{{ 1 is prime }}"), unread("test 'prime' is not supported"));
  EXPECT_EQ(rejection("{% include 'x' %}"), unread("{% include %} is not supported"));
  EXPECT_EQ(rejection("{% if 1 %}\n x"), unread("{% if %} without {% endif %}", 2));
  EXPECT_EQ(rejection("{{ 'x"), unread("unterminated string"));
  EXPECT_EQ(rejection("{# x"), unread("unterminated comment"));
  EXPECT_EQ(rejection("{{ (1 }}"), unread("unexpected '}'"));
  EXPECT_EQ(rejection("{{ }}"), unread("missing expression"));
  EXPECT_EQ(rejection("{% endfor %}"), unread("unexpected 'endfor'"));
  EXPECT_EQ(rejection("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"),
            unread("nested too deeply"));
  EXPECT_EQ(rejection("{{ x.y }}"), "while rendering, line 1: 'x' is undefined");
  EXPECT_EQ(rejection("\n{{ 'a' + 1 }}"), "while rendering, line 2: cannot compute str + int");
  EXPECT_EQ(rejection("{{ raise_exception('not like this') }}"), "while rendering, line 1: not like this");
  EXPECT_EQ(rejection("{{ 'a'.encode() }}"), "while rendering, line 1: method 'encode' of str is not supported");
  EXPECT_EQ(rejection("{{ 'É' | lower }}"), "while rendering, line 1: lower of text beyond ASCII is not supported");
  EXPECT_EQ(rejection("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
            "while rendering, line 1: macros nested too deeply");
  EXPECT_EQ(rejection("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"),
            "while rendering, line 0: the template runs too long");
}

TEST(ChatTemplate, BoundsMemoryAndTime) {
  const auto while_rendering = [](const std::string& what) { return "while rendering, line 1: " + what; };
  const std::string without_end = while_rendering("the template runs too long");
  const std::string large = while_rendering("value exceeds 64 MiB");
  const auto often = [](const std::string& start, const std::string& body, const std::string& end = "") {
    return "{% set ns = namespace(" + start + ") %}{% for i in range(60) %}" + body + "{% endfor %}" + end;
  };
  EXPECT_EQ(rejection("{% for i in range(10**9) %}x{% endfor %}"), while_rendering("range too long"));
  EXPECT_EQ(rejection(often("x='ab'", "{% set ns.x = ns.x + ns.x %}")), large);
  EXPECT_EQ(rejection(often("x='ab'", "{% set ns.x = ns.x ~ ns.x %}")), large);
  EXPECT_EQ(rejection(often("x=[1]", "{% set ns.x = ns.x + ns.x %}")), large);
  EXPECT_EQ(rejection(often("x=[1]", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x }}")), large);
  EXPECT_EQ(rejection("{% set x = 'a' * 1000000 %}{{ x | replace('a', x) }}"), large);
  EXPECT_EQ(rejection("{% set x = 'a' * 1000000 %}{{ x | list | join(x) }}"), large);
  EXPECT_EQ(rejection("{{ ('\\n' * 1000000) | indent(1000, true, true) }}"), large);
  EXPECT_EQ(rejection("{{ ([1] * 1500000) | tojson(indent=64) }}"), while_rendering("tojson output exceeds 64 MiB"));
  for (const char* large_number :
       {"{{ 1e300 | int }}", "{{ -1e300 | int }}", "{{ (-9223372036854775807 - 1) | abs }}"}) {
    EXPECT_EQ(rejection(large_number), while_rendering("number too large")) << large_number;
  }
  EXPECT_EQ(render("{{ (1e308 * 10 - 1e308 * 10) | int(7) }}{{ -3 | abs }}{{ 2.9 | int }}").text, "732");
  EXPECT_EQ(rejection("{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}"),
            "while rendering, line 0: values nested too deeply");
  EXPECT_EQ(rejection("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}").substr(0, 64),
            "while rendering, line 0: a namespace inside another value is not");
  EXPECT_EQ(rejection("{% set ns = namespace() %}{{ [ns] }}").substr(0, 64),
            "while rendering, line 1: a namespace inside another value is not");
  EXPECT_EQ(
      rejection("{% set x = 'a' * 30000000 %}{% for i in range(99999) %}{% if x | upper %}{% endif %}{% endfor %}"),
      without_end);
  EXPECT_EQ(rejection("{{ range(99999) | unique | length }}"), while_rendering("more than 10000 unique items"));
  EXPECT_EQ(render("{{ ('a' * 30000000) | replace('a' * 15000000 + 'b', '') | length }}").text, "30000000");
  EXPECT_EQ(render("{{ ('a' * 1000000).rsplit('a') | length }}").text, "1000001");
  EXPECT_EQ(rejection("{{ 'a'.strip('b' * 2000) }}"), while_rendering("strip argument too long"));
  EXPECT_EQ(rejection("{{ 'a'.rfind('b' * 2000) }}"), while_rendering("rfind argument too long"));
  EXPECT_EQ(rejection("{{ 'a'.rsplit('b' * 2000) }}"), while_rendering("rsplit separator too long"));
  for (const char* more :
       {" + 1", " ~ 1", " * 1", " ** 1", " and 1", " or 1", ".a", "[0]", "()", " | trim", " is none"}) {
    std::string chain = "1";
    for (int i = 0; i < 5000; ++i) chain += more;
    EXPECT_NE(rejection("{{ " + chain + " }}").find("too many operators in a row"), std::string::npos) << more;
  }
  // Recursive macros with the maximum nesting of blocks and brackets.
  const auto repeated = [](const char* text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  EXPECT_EQ(rejection("{% macro m() %}" + repeated("{% if 1 %}", 140) + "{{ m() }}" + repeated("{% endif %}", 140) +
                      "{% endmacro %}{{ m() }}"),
            while_rendering("macros nested too deeply"));
  EXPECT_EQ(
      rejection("{% macro m() %}{{ " + repeated("[", 30) + "m()" + repeated("]", 30) + " }}{% endmacro %}{{ m() }}"),
      while_rendering("macros nested too deeply"));
}

TEST(ChatTemplate, TracksTheMessageOfEachText) {
  const std::string messages =
      R"([{"role": "user", "content": "  ask "}, {"role": "assistant", "content": "<x>\nan|swer\n"},
          {"role": "assistant", "content": ""}])";
  const Rendered rendered = render(
      "{% for m in messages %}[{{ m.role }}]{% set c = ('(' + m.content + ')').split('|') | join('/') %}{{ c[1:-1] | "
      "trim }}"
      "{% endfor %}",
      messages);
  EXPECT_EQ(rendered.text, "[user]ask[assistant]<x>\nan/swer[assistant]");
  ASSERT_EQ(rendered.contents.size(), 3u);
  EXPECT_EQ(rendered.contents[0], (Range{6, 9}));
  EXPECT_EQ(rendered.contents[1], (Range{20, 31}));
  EXPECT_EQ(rendered.contents[2], (Range{42, 42}));
  EXPECT_FALSE(render("{{ messages | length }}", messages).contents[0]);
  // The range of a message includes escapes.
  const Rendered json = render("{{ messages[1].content | tojson }}.", messages);
  EXPECT_EQ(json.text, R"("<x>\nan|swer\n".)");
  EXPECT_EQ(json.contents[1], (Range{1, 15}));
}

std::string contents_of(const std::string& name, const std::string& messages) {
  Problems problems;
  const auto with = open_chat_template(name, "", "", "data.chat_template", problems);
  try {
    return with->render({from_json(Json::parse(messages)), {}}).text;
  } catch (const TemplateError& error) {
    return cat("rejected: ", error.what());
  }
}

TEST(ChatTemplate, WritesNoContentAsPythonPrintsIt) {
  const auto asked = [](const std::string& content, const std::string& more = "") {
    return R"([{"role": "user", "content": )" + content + R"(}, {"role": "assistant", "content": "so")" + more + "}]";
  };
  const auto answered = [](const std::string& content, const std::string& more = "") {
    return R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": )" + content + more + "}]";
  };
  const std::string parts = R"([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])";
  const std::string image = R"([{"type": "text", "text": "one"}, {"type": "image", "image": "x.png"}])";
  for (const NamedTemplate& named : named_templates()) {
    EXPECT_EQ(contents_of(named.name, asked(parts)), contents_of(named.name, asked(R"("one\ntwo")"))) << named.name;
    EXPECT_EQ(contents_of(named.name, answered(parts)), contents_of(named.name, answered(R"("one\ntwo")")))
        << named.name;
    EXPECT_EQ(contents_of(named.name, asked(image)),
              "rejected: messages[0].content[1]: a part of type image; the template takes text only");
    EXPECT_EQ(contents_of(named.name, answered("null")),
              "rejected: messages[1].content is null; without tool calls it must be text");
    // An answer that is a tool call, which some built-in templates write.
    const std::string call =
        R"(, "tool_calls": [{"id": "abcdefgh1", "function": {"name": "f", "arguments": {"x": "y"}}}])";
    const std::string text = contents_of(named.name, answered("null", call));
    if (named.tools) EXPECT_EQ(text.find("None"), text.npos) << named.name << ": " << text;
    EXPECT_EQ(text.find(R"({"x": "y"})") != text.npos, named.tools) << named.name << ": " << text;
  }
  EXPECT_EQ(contents_of("smollm2", answered("null", R"(, "tool_calls": [{"function": {"name": "f"}}])")),
            "rejected: the content of a message is null, and the template takes text only");
  // A call in the form before tool_calls.
  EXPECT_EQ(render("{{ messages[1].function_call.name }}",
                   answered("null", R"(, "function_call": {"name": "f", "arguments": "{}"})"))
                .text,
            "f");
  // A template that reads parts gets them as they are, and may reject what it does not know.
  const std::string reads =
      "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
      "<{{ p.type }}>{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
  EXPECT_EQ(render(reads, asked(parts)).text, "<text>one<text>twoso");
  EXPECT_EQ(render(reads, asked(image)).text, "<text>one<image>so");
}

// Values that a template would write as Python prints them become what it can write.
TEST(ChatTemplate, GetsArgumentsAndResultsThatItCanWrite) {
  const auto conversation = [](const std::string& arguments, const std::string& result) {
    return R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": )" +
           arguments + R"(}}]}, {"role": "tool", "name": "f", "tool_call_id": "abcdefgh1", "content": )" + result +
           "}]";
  };
  const std::string calls = "{% for m in messages %}{% for c in m.tool_calls %}";
  const std::string rest = "{% endfor %}{% if m.role == 'tool' %}={{ m.content }}{% endif %}{% endfor %}";
  const std::string object = R"({"a": 1})", text = R"("{\"a\":1}")";
  // Writes arguments as JSON: text would be in quotes.
  const std::string writes_json = calls + "{{ c.function.arguments | tojson }}" + rest;
  EXPECT_EQ(render(writes_json, conversation(object, R"("r")")).text, R"({"a": 1}=r)");
  EXPECT_EQ(render(writes_json, conversation(text, object)).text, R"({"a": 1}={"a": 1})");
  EXPECT_EQ(render(writes_json, conversation(R"("no JSON")", R"("r")")).text, R"("no JSON"=r)");
  // Takes both: text stays as it is written.
  const std::string takes_both =
      calls +
      "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}"
      "{% endfor %}{% if m.role == 'tool' %}="
      "{{ m.content if m.content is string else m.content | tojson }}{% endif %}{% endfor %}";
  EXPECT_EQ(render(takes_both, conversation(text, object)).text, R"({"a":1}={"a": 1})");
  // Takes an object only.
  const std::string reads_items =
      calls + "{% for k, v in c.function.arguments.items() %}{{ k }}:{{ v }}{% endfor %}" + rest;
  EXPECT_EQ(render(reads_items, conversation(text, R"("r")")).text, "a:1=r");
}

TEST(ChatTemplate, WritesTheDateOfTheConversation) {
  const std::string source =
      "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y, %A') }}{% endif %}{{ messages[0].content }}";
  const Rendered fixed = render(source);
  EXPECT_EQ(fixed.text, "26 Jul 2024, Fridayhi");
  EXPECT_TRUE(fixed.asked_time);
  EXPECT_FALSE(render("{{ messages[0].content }}").asked_time);
  const ChatTemplate with(source, {}, "t");
  const Value messages = from_json(Json::parse(R"([{"role": "user", "content": "hi"}])"));
  EXPECT_EQ(with.render({.messages = messages, .time = *parse_day("2026-01-01")}).text, "01 Jan 2026, Thursdayhi");
  EXPECT_EQ(render("{{ strftime_now('') }}").text, "");
  EXPECT_EQ(render("{{ strftime_now('%%') }}").text, "%");
}

// `documents`, and the variables of a line, as apply_chat_template's keyword arguments.
TEST(ChatTemplate, ReadsDocumentsAndVariables) {
  const ChatTemplate with("{{ bos_token }}{{ thinking }}{% for d in documents or [] %}[{{ d.text }}]{% endfor %}",
                          {{"bos_token", "<s>"}}, "t");
  Conversation conversation{.messages = List{}, .documents = from_json(Json::parse(R"([{"text": "one"}])"))};
  EXPECT_EQ(with.render(conversation).text, "<s>[one]");
  conversation.variables.set("thinking", true);
  conversation.variables.set("bos_token", "");
  EXPECT_EQ(with.render(conversation).text, "True[one]");
}

// As the published template, whose prompt for an answer without thoughts has empty ones.
TEST(ChatTemplate, Qwen3ThinksUnlessItIsToldNotTo) {
  Problems problems;
  Conversation conversation{.messages = from_json(Json::parse(R"([{"role": "user", "content": "a"}])"))};
  const auto prompt = [&](const std::string& name) {
    return open_chat_template(name, "", "", "data.chat_template", problems)->render(conversation, true).text;
  };
  const std::string published = (fs::path(testing::kSourceFolder) / "inputs/chat_templates/qwen-3.jinja").string();
  const std::string usual = "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt("qwen-3"), usual);
  conversation.variables.set("enable_thinking", true);
  EXPECT_EQ(prompt("qwen-3"), usual);
  conversation.variables.set("enable_thinking", false);
  EXPECT_EQ(prompt("qwen-3"), usual + "<think>\n\n</think>\n\n");
  EXPECT_EQ(prompt("qwen-3"), prompt(published));
}

// A .model without declarations, beside a template of its own: transformers names the model's pieces.
TEST(ChatTemplate, ABareModelFileNamesItsTokens) {
  const TemporaryFolder folder;
  const fs::path model = fs::path(testing::kSourceFolder) / "inputs/tokenizers/mistral-v1/tokenizer.model";
  fs::create_directories(folder.path("bare"));
  fs::copy_file(model, folder.path("bare/tokenizer.model"));
  const std::string source = "{{ bos_token }}|{{ eos_token }}";
  const auto text = [&] {
    Problems problems;
    const auto found = open_chat_template("", folder.path("bare"), "", "data.chat_template", problems);
    return found ? found->render({.messages = List{}}).text : "none" + problems.lines();
  };
  folder.write("bare/tokenizer_config.json", R"({"chat_template": ")" + source + R"("})");
  EXPECT_EQ(text(), "<s>|</s>");
  fs::remove(folder.path("bare/tokenizer_config.json"));
  folder.write("bare/chat_template.jinja", source);
  EXPECT_EQ(text(), "<s>|</s>");
}

// The end of text of a built-in template that the tokenizer has no token for.
TEST(ChatTemplate, ABuiltInOneTakesTheEndOfTextOfTheTokenizer) {
  Problems problems;
  const std::string gpt2 = (fs::path(testing::kSourceFolder) / "inputs/tokenizers/gpt2/tokenizer.json").string();
  const std::string llama =
      (fs::path(testing::kSourceFolder) / "inputs/tokenizers/mistral-v1/tokenizer.model").string();
  const auto eos = [&](const std::string& tokenizer) {
    return open_chat_template("zephyr", tokenizer, "", "data.chat_template", problems)->eos_token();
  };
  EXPECT_EQ(eos(gpt2), "<|endoftext|>");
  EXPECT_EQ(eos(llama), "</s>");
  EXPECT_TRUE(problems.empty()) << problems.lines();
}

// As mistral-common encodes it: before the last question, also if that is answered.
TEST(ChatTemplate, TheSystemMessageOfMistralIsWritten) {
  const std::string asked = R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
                                {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"})";
  EXPECT_EQ(contents_of("mistral-v3", asked + "]"), "<s>[INST] a[/INST] b</s>[INST] S\n\nc[/INST]");
  EXPECT_EQ(contents_of("mistral-v3", asked + R"(, {"role": "assistant", "content": "d"}])"),
            "<s>[INST] a[/INST] b</s>[INST] S\n\nc[/INST] d</s>");
}

TEST(ChatTemplate, OpensByNameByFileAndNextToTheTokenizer) {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& wanted, const std::string& tokenizer) {
    Problems problems;
    const auto found = open_chat_template(wanted, tokenizer, folder.path(""), "data.chat_template", problems);
    if (!problems.empty()) {
      std::string text = problems.lines();
      const std::string name = folder.path("");
      for (std::size_t at; (at = text.find(name)) != text.npos;) text.erase(at, name.size());
      return text;
    }
    Dict message;
    message.items = {{"role", "user"}, {"content", "hi"}};
    return found ? found->render({List{message}, {}}).text : "none";
  };
  fs::create_directories(folder.path("model"));
  EXPECT_EQ(open("", ""), "none");
  EXPECT_EQ(open("", "model/tokenizer.json"), "none");
  EXPECT_EQ(open("zephyr", ""), "<|user|>\nhi</s>\n");
  folder.write(
      "model/tokenizer_config.json",
      R"({"eos_token": {"content": "<end>"}, "bos_token": "<begin>", "chat_template": "{{ bos_token }}config"})");
  EXPECT_EQ(open("", "model/tokenizer.json"), "<begin>config");
  EXPECT_EQ(open("", "model"), "<begin>config");
  EXPECT_EQ(open("zephyr", "model"), "<|user|>\nhi<end>\n");
  folder.write("model/special_tokens_map.json", R"({"eos_token": "<map>", "bos_token": null})");  // overrides it
  EXPECT_EQ(open("", "model"), "config");
  EXPECT_EQ(open("zephyr", "model"), "<|user|>\nhi<map>\n");
  fs::remove(folder.path("model/special_tokens_map.json"));
  folder.write("own.jinja", "{{ eos_token }}own");
  EXPECT_EQ(open("own.jinja", "model"), "<end>own");
  EXPECT_EQ(open("model/tokenizer_config.json", ""), "<begin>config");
  folder.write("model/chat_template.jinja", "{{ bos_token }}file");
  EXPECT_EQ(open("", "model"), "<begin>file");
  EXPECT_EQ(open("model", ""), "<begin>file");
  folder.write("many.json",
               R"({"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(open("many.json", ""), "d");
  EXPECT_EQ(
      open("chatm", ""),
      "chatm: no such chat template (expected a file, or one of chatml, smollm2, qwen-2.5, qwen-3, llama-2, llama-3, "
      "llama-3.1, mistral-v1, mistral-v3, zephyr, gemma, gemma-3, phi-3) at data.chat_template");
  folder.write("none.json", "{}");
  EXPECT_EQ(open("none.json", ""), "none.json: no chat template in it (expected chat_template) at data.chat_template");
  folder.write("broken.json", "{");
  EXPECT_EQ(open("broken.json", ""), "broken.json: broken JSON at byte 1");
  folder.write("wrong.json", R"({"chat_template": 5})");
  EXPECT_EQ(open("wrong.json", ""), "wrong.json: wrong type (expected a string) at chat_template");
}

// As transformers' get_chat_template and AutoTokenizer.from_pretrained choose among several templates.
TEST(ChatTemplate, ToolUseIsTheTemplateOfConversationsWithTools) {
  const TemporaryFolder folder;
  Dict message;
  message.items = {{"role", "user"}, {"content", "hi"}};
  const Conversation plain{List{message}, {}}, tools{List{message}, List{}};
  const auto open = [&](const std::string& wanted, const std::string& tokenizer) {
    Problems problems;
    const auto found = open_chat_template(wanted, tokenizer, folder.path(""), "data.chat_template", problems);
    if (!found) return "none" + problems.lines();
    return cat(found->used_for(plain).render(plain).text, " ", found->used_for(tools).render(tools).text);
  };
  folder.write("list/tokenizer_config.json", R"({"eos_token": "<end>", "chat_template": [
      {"name": "default", "template": "d{{ eos_token }}"}, {"name": "tool_use", "template": "t{{ eos_token }}"}]})");
  EXPECT_EQ(open("", "list/tokenizer.json"), "d<end> t<end>");
  EXPECT_EQ(open("list", ""), "d<end> t<end>");
  EXPECT_EQ(open("list/tokenizer_config.json", ""), "d<end> t<end>");
  folder.write("files/chat_template.jinja", "fd");
  folder.write("files/additional_chat_templates/rag.jinja", "fr");
  EXPECT_EQ(open("", "files"), "fd fd");
  folder.write("files/additional_chat_templates/tool_use.jinja", "ft");
  EXPECT_EQ(open("", "files"), "fd ft");
  EXPECT_EQ(open("files", "list"), "fd ft");
  EXPECT_EQ(open("files/chat_template.jinja", "list"), "fd fd") << "a file is one template";
  EXPECT_EQ(open("zephyr", "list"), "<|user|>\nhi<end>\n <|user|>\nhi<end>\n");
  // The list is not read beside files.
  folder.write("list/chat_template.jinja", "fd");
  EXPECT_EQ(open("", "list"), "fd fd");

  // What is attached to a checkpoint renders alike.
  folder.write("other/tokenizer_config.json", R"({"eos_token": "<own>"})");
  fs::remove(folder.path("list/chat_template.jinja"));
  for (const TemplateFile& file : as_tokenizers_own("list", "other", folder.path(""))) {
    folder.write("other/" + file.name, file.text);
  }
  EXPECT_EQ(open("", "other"), "d<end> t<end>");
  EXPECT_EQ(as_tokenizers_own("zephyr", "list", folder.path("")).size(), 1u);

  // It is part of the identity of the data, and one that is not supported matters to conversations with tools alone.
  const ChatTemplate none("d", {}, "f"), one("d", {}, "f", ToolUse{"t", "g"}), other("d", {}, "f", ToolUse{"u", "g"});
  EXPECT_NE(none.fingerprint(), one.fingerprint());
  EXPECT_NE(one.fingerprint(), other.fingerprint());
  const ChatTemplate broken("d", {}, "f", ToolUse{"\n{% nothing %}", "g"});
  EXPECT_EQ(broken.used_for(plain).render(plain).text, "d");
  try {
    broken.used_for(tools);
    FAIL() << "a template that is not supported";
  } catch (const UserError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("g: chat template: ")) << error.what();
    EXPECT_NE(std::string(error.what()).find("at template line 2"), std::string::npos) << error.what();
  }
}

}  // namespace chat_template_test
}  // namespace hawser::text::chat
