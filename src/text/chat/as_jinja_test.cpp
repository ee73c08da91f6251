// Templates on which a plain reading of Jinja differs from jinja2: each with the text of jinja2 3.1.6 as transformers
// configures it, or with the rejection.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "io/json.h"
#include "text/chat/chat_template.h"
#include "text/chat/from_json.h"

namespace hawser::text::chat {
namespace as_jinja_test {

using Json = nlohmann::ordered_json;
using Cases = std::vector<std::pair<std::string, std::string>>;

std::string rendered(const std::string& source) {
  static const Value kMessages = from_json(Json::parse(
      R"([{"role": "user", "content": "hi",
          "props": {"items": {"type": "string"}, "get": 1, "pop": 2, "values": [1]}}])"));
  try {
    return ChatTemplate(source, {}, "t").render({kMessages, {}}).text;
  } catch (const TemplateError& error) {
    return cat("rejected: ", error.what());
  } catch (const UserError& error) {
    return cat("rejected: ", error.what());
  }
}

void check(const Cases& cases) {
  for (const auto& [source, expected] : cases) EXPECT_EQ(rendered(source), expected) << source;
}

TEST(ChatTemplateAsJinja, FiltersAndTheirArguments) {
  check({
      {"{{ [1, 2] | sum(start=5) }} {{ [{'a': 1}] | sum('a', 2) }} {{ [] | sum }}", "8 3 0"},
      {"{{ 'x' | float(2.5) }} {{ 'x' | float }} {{ '1_0.5' | float }} {{ none | float }} {{ '+.5' | float }} {{ ' 1e3 "
       "' | float }} {{ 'x' | float('d') }}",
       "2.5 0.0 10.5 0.0 0.5 1000.0 d"},
      {"{{ '1_000' | int }} {{ '+-5' | int }} {{ '++5' | int }} {{ '+5' | int }} {{ '-5' | int }} {{ '5_' | int(7) }} "
       "{{ '1__0' | int(7) }} {{ '5.9' | int }} {{ '1e16' | int }} {{ 'inf' | int(3) }} {{ '' | int(4) }} {{ '0x1f' | "
       "int(5) }} {{ [] | int(6) }}",
       "1000 0 0 5 -5 7 7 5 10000000000000000 3 4 5 6"},
      {"{{ ['a', 'A', 'b'] | unique | join(',') }} {{ ['a', 'A', 'b'] | unique(true) | join(',') }} {{ [{'k': 'x'}, "
       "{'k': 'X'}] | unique(attribute='k') | list }}",
       "a,b a,A,b [{'k': 'x'}]"},
      {"{{ ['a', 'B'] | min }} {{ ['b', 'A'] | max }} {{ ['a', 'B'] | min(true) }} {{ ['a', 'A'] | max }} {{ [{'k': "
       "2}, {'k': 1}] | min(attribute='k') }} {{ [] | max }}",
       "a b B a {'k': 1} "},
      {"{{ ['b', 'A', 'a'] | sort | join }} {{ ['b', 'A', 'a'] | sort(true, true) | join }} {{ {'b': 1, 'A': 2} | "
       "dictsort | map('first') | join }}",
       "Aab baA Ab"},
      {"{{ {'b': '\303\251', 'a': [1]} | tojson(false, 2) }} {{ [1] | tojson(indent=none, separators=none) }} {{ [1] | "
       "tojson(indent=-1) }}",
       "{\n  \"b\": \"\303\251\",\n  \"a\": [\n    1\n  ]\n} [1] [\n1\n]"},
      {"{{ 'they\\'re (here) a-bC <d {e [f' | title }} {{ 'they\\'re A1b' | title }} {{ \"they're\".title() }}",
       "They're (Here) A-Bc <D {E [F They're A1b They'Re"},
      {"{{ 'a\\r\\nb\\x0bc' | indent(2) }} {{ 'a\\n\\nb\\x85\\u2028c\\n' | indent(1) }} {{ '\\n' | indent(2, true, "
       "true) }}|{{ 'a\\nb' | indent('>', first=true) }}",
       "a\n  b\n  c a\n\n b\n\n c\n   \n  |>a\n>b"},
      {"{{ ['a', 'b'] | join(d='-') }} {{ [{'a': 1}] | join(attribute='a') }} {{ 'aXbX'.split(sep='X', maxsplit=1) }}",
       "a-b 1 ['a', 'bX']"},
      {"{{ ' a  b c \\n\\n'.split(none, 1) }}{{ ' a b \\t'.split(maxsplit=0) }}{{ ' a b '.split(none, 2) }}{{ ' a b "
       "'.split(none, -1) }}{{ '  '.split(none, 0) }}{{ 'a b\\u00a0\\u3000'.split(none, 1) }}",
       "['a', 'b c \\n\\n']['a b \\t']['a', 'b']['a', 'b'][]['a', 'b\\xa0\\u3000']"},
      {"{{ [{'a': 1}, {}] | map(attribute='a', default=0) | list }} {{ [' a'] | map('trim') | list }} {{ ['xa'] | "
       "map('trim', chars='x') | list }}",
       "[1, 0] ['a'] ['a']"},
      {"{{ 1 is sameas true }} {{ true is sameas true }} {{ none is sameas none }} {{ 0 is sameas false }} {{ x is "
       "sequence }} {{ x is iterable }}",
       "False True True False True True"},
  });
}

TEST(ChatTemplateAsJinja, LineEndsAndEscapes) {
  check({
      {"a\r\n{% if true %}\r\nb\r{% endif %}\r\nc\r\n", "a\nb\nc"},
      {"{{ '\\101\\x41\\u00e9\\0\\1012\\q\\7' | tojson }}", "\"AA\303\251\\u0000A2\\\\q\\u0007\""},
      {"a\343\200\200{%- if 1 -%}\302\240b{% endif %}", "ab"},
      {"{{ 'x\r\ny' | tojson }}", "\"x\\ny\""},
  });
}

TEST(ChatTemplateAsJinja, AttributesOfPython) {
  check({
      {"{% set p = messages[0].props %}{{ p.items.type }}|{{ p['items'].type }}|{{ p['items']['type'] }}|{{ "
       "p.get('get') }}",
       "|string|string|1"},
      {"{% set p = messages[0].props %}{% for k, v in p.items() %}{{ k }}{% endfor %}{{ p.values is defined }}{{ p.pop "
       "}}|{{ p['pop'] }}|{{ p.keys is callable }}",
       "itemsgetpopvaluesTrue|2|True"},
      {"{% set m = messages[0] %}{{ m.items is defined }}{{ m['items'] is defined }}{{ m.update is defined }}{% if "
       "m.items %}yes{% endif %}{{ m.content.upper is defined }}{{ [1].append is defined }}{{ [1].index is defined }}",
       "TrueTrueFalseyesTrueFalseTrue"},
      {"{% set n = namespace(items=1, get=2) %}{{ n.items }}{{ n.get }}{{ n.values is defined }}{{ 'abc'['x'] is "
       "defined }}",
       "12FalseFalse"},
      {"{{ messages | map(attribute='content') | join }}{{ messages | selectattr('role') | list | length }}{{ "
       "messages[0].props | items | map('first') | join(',') }}",
       "hi1items,get,pop,values"},
  });
}

// Jinja runs `else` unless an iteration reaches the end of the body, and gives it a scope.
TEST(ChatTemplateAsJinja, ElseOfLoops) {
  check({
      {"{% for i in [1, 2] %}{{ i }}{% continue %}{% else %}E{% endfor %}", "12E"},
      {"{% for i in [1, 2] %}{{ i }}{% break %}{% else %}E{% endfor %}", "1E"},
      {"{% for i in [1, 2] %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% else %}E{% endfor %}", "12"},
      {"{% for i in [1, 2] %}{{ i }}{% if i == 1 %}{% continue %}{% endif %}{% else %}E{% endfor %}", "12"},
      {"{% for i in [1, 2] if i > 1 %}{{ i }}{% continue %}{% else %}E{% endfor %}", "2E"},
      {"{% for i in [1, 2] %}{% for k in [3] %}{{ k }}{% break %}{% else %}{% continue %}{% endfor %}x{% else %}E{% "
       "endfor %}",
       "33E"},
      {"{% for i in [1, 2] %}{% for k in [3, 4] %}{% continue %}{% else %}{{ i }}{% break %}{% endfor %}x{% endfor %}",
       "1"},
      {"{% set x = 1 %}{% for i in [] %}{% else %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", "21"},
  });
}

// A filter of a loop sees what the body has set before.
TEST(ChatTemplateAsJinja, FiltersOfLoops) {
  const std::string start = "{% set ns = namespace(d=0) %}{% for i in [1, 2, 3] if not ns.d %}{{ i }}";
  const std::string stop = "{% set ns.d = 1 %}";
  check({
      {start + stop + "{% else %}E{% endfor %}", "1"},
      {start + "{{ loop.last }}" + stop + "{% endfor %}", "1False2True"},
      {start + stop + "{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{% endfor %}", "1True11"},
      {start + "{{ loop.length }}" + stop + "{{ loop['last'] }}{{ loop.revindex0 }}{% endfor %}",
       "13False223False133True0"},
      {start + "{{ loop.nextitem }}" + stop + "{{ loop.last }}{{ loop.nextitem is defined }}{% endfor %}",
       "12FalseTrue2TrueFalse"},
      {"{% set x = 9 %}{% for i in [1, 2, 9] if i != x %}{% set x = 2 %}{{ i }}{{ loop.previtem }}{{ loop.last }}{% "
       "endfor %}",
       "1False21True"},
      {"{% for i in [1, 2, 3, 4] if i is odd %}{{ i }}/{{ loop.length }}{{ loop.cycle('a', 'b') }}{{ loop == loop }}{% "
       "for k in [i] if k == i and loop is undefined %}{{ k }}{% endfor %}{% endfor %}",
       "1/2aTrue3/2bTrue"},
  });
  EXPECT_EQ(rendered("{% for i in [1, 2] if i %}{{ loop.last() }}{% endfor %}"),
            "rejected: expected a function, got bool");
}

// What a block of set or generation sets is its own; break and continue leave a block of set without an assignment.
TEST(ChatTemplateAsJinja, BlocksOfSetAndGeneration) {
  check({
      {"{% set x %}{% set y = 2 %}{{ y }}{% endset %}{{ x }}|{{ y }}", "2|"},
      {"{% set x = 1 %}{% set x %}{{ x }}{% set x = 2 %}{{ x }}{% endset %}{{ x }}", "12"},
      {"{% set x %}{% macro m() %}a{% endmacro %}{{ m() }}{% endset %}{{ x }}{{ m is defined }}", "aFalse"},
      {"{% for a in [1, 2] %}{% set x %}a{% break %}{% endset %}{{ x }}{% else %}E{% endfor %}{{ x }}", "E"},
      {"{% for a in [1, 2] %}{% set x = 'o' %}{% set x %}{{ a }}{% if a == 1 %}{% continue %}{% endif %}{% endset %}{{ "
       "x }}{% endfor %}",
       "2"},
      {"{% set x = 1 %}{% generation %}{{ x }}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", "121"},
      {"{% generation %}{% macro m() %}a{% endmacro %}{{ m() }}{% endgeneration %}{{ m is defined }}", "aFalse"},
      {"{% for a in [1] %}{% generation %}{% for b in [1, 2] %}{{ b }}{% break %}{% endfor %}{% endgeneration %}{% "
       "endfor %}",
       "1"},
  });
  EXPECT_EQ(rendered("{% for a in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}").substr(0, 57),
            "rejected: t: chat template: {% break %} outside a loop at");
}

TEST(ChatTemplateAsJinja, Macros) {
  check({
      {"{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "12"},
      {"{% for i in [1, 2] %}{% macro m(a) %}{{ i }}{{ a }}{{ y }}{{ loop.index }}{% endmacro %}{% set y = i * 5 %}{{ "
       "m('x') }};{% endfor %}",
       "1x51;2x102;"},
      {"{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% for x in [2] %}{{ m() }}{% endfor %}", "11"},
      {"{% macro a(p) %}{% macro b() %}{{ p }}{% endmacro %}{{ b() }}{% endmacro %}{{ a(3) }}", "3"},
  });
}

TEST(ChatTemplateAsJinja, NumbersAndTexts) {
  check({
      {"{{ 5.3 % 0.1 }} {{ -5.3 % 0.1 }} {{ 5.3 % -0.1 }} {{ 7.5 // -2 }} {{ -0.0 }} {{ 0.0 // -3 }} {{ 6.0 % -3 }} {{ "
       "1.0 // 0.1 }} {{ -3 % 2.0 }} {{ -true }} {{ +3 }}",
       "0.09999999999999953 4.718447854656915e-16 -4.718447854656915e-16 -4.0 -0.0 -0.0 -0.0 9.0 1.0 -1 3"},
      {"{{ range(3) }} {{ range(1, 10, 2) }} {{ range(3) | list }} {{ range(3)[1] }} {{ (1,) }} {{ (1, 'a') }} {{ () "
       "}} {{ [(1, 2)] | tojson }} {{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ (1, 2) == [1, 2] }} {{ (1,) + (2,) "
       "}} {{ (1, 2, 3)[1:] }}",
       "range(0, 3) range(1, 10, 2) [0, 1, 2] 1 (1,) (1, 'a') () [[1, 2]] dict_items([('a', 1)]) dict_keys(['a']) "
       "False (1, 2) (2, 3)"},
      {"{{ ['\\u200b\\u00a0\303\251\\ud7ff\\ue000\\U0001F600\\x7f\\x1f'] }} {{ 9007199254740993 == 9007199254740992.0 "
       "}} {{ 9007199254740993 > 9007199254740992 }} {{ x is callable }}",
       "['\\u200b\\xa0\303\251\\ud7ff\\ue000\360\237\230\200\\x7f\\x1f'] False True True"},
      {"{% if [] | select %}yes{% endif %}{% set g = [1, 2] | map('string') %}{{ g is sequence }}{{ g is iterable }}{% "
       "for i in g %}{{ i }}{{ loop.length }}{% endfor %}{{ [1, 2] | reverse | join }}",
       "yesFalseTrue122221"},
  });
}

// Python escapes the text that a `safe` one is added to.
TEST(ChatTemplateAsJinja, TextsOfFilterSafe) {
  check({
      {"{{ 'a<' ~ 'b<' | safe }} {{ ('b<' | safe) ~ 'a<' ~ 1 }} {{ ('<b' | safe) | tojson }}", "a<b< b<a<1 \"<b\""},
      {"{% set x = 'a<' | safe if true else '' %}{{ x }}{{ x == 'a<' }}{{ x | length }}{{ x | default('k') }}",
       "a<True2a<"},
      {"{{ none | safe is none }} {{ 5 | safe is string }} {{ [1] | safe }} {{ 'a<' | safe | string }}",
       "False True [1] a<"},
      {"{% set n = namespace(a='<' | safe) %}{% set n.b = '>' | safe %}{{ n.a }}{{ n.b }}", "<>"},
      {"{% for c in 'a<' | safe %}{{ c + '<' }}{% endfor %}", "a<<<"},
  });
  for (const char* source :
       {"{{ 'a<' + ('b<' | safe) }}", "{{ ('b<' | safe) + 'a<' }}", "{{ '<' | safe | string + '<' }}",
        "{{ ('a' | safe) * 2 }}", "{{ ('a' | safe)[0] }}", "{{ ('ab' | safe)[1:] }}", "{{ ('a' | safe).strip() }}",
        "{{ 'a' | safe | trim }}", "{{ 'a' | replace('a', '<' | safe) }}", "{{ ['<' | safe] }}",
        "{{ {'a': '<' | safe} }}", "{{ dict(a='<' | safe) }}", "{{ ['a'] | map('safe') | join }}"}) {
    EXPECT_TRUE(rendered(source).starts_with("rejected: text of filter 'safe' ")) << source << rendered(source);
  }
}

TEST(ChatTemplateAsJinja, RejectsWhatItWouldRenderDifferently) {
  for (const char* source : {"{{ 'ff' | int(0, 16) }}",
                             "{{ [1] | tojson(4) }}",
                             "{{ [1] | tojson(sort_keys=true) }}",
                             "{{ {'a': 1} | tojson(separators=[',', ':']) }}",
                             "{{ 'abc'.startswith('b', 1) }}",
                             "{{ 'abcb'.find('b', 2) }}",
                             "{{ 'abcb'.count('b', 2) }}",
                             "{{ 'a' | upper(1) }}",
                             "{{ 'a' | trim(nothing=1) }}",
                             "{{ {'b': 1} | dictsort(reverse=true) }}",
                             "{{ 2 is odd(1) }}",
                             "{{ [1] | select(x=1) | list }}",
                             "{{ range(stop=3) | list }}",
                             "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
                             "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}",
                             "{{ 1000 is sameas 1000 }}",
                             "{{ '\331\241' | int }}",
                             "{{ '99999999999999999999' | int }}",
                             "{{ lipsum is defined }}",
                             "{{ cycler('a').next() }}",
                             "{{ range }}",
                             "{{ [1] | map('string') }}",
                             "{% set g = [1] | map('string') %}{{ g | join }}{{ g | join }}",
                             "{{ namespace(a=1) }}",
                             "{% for i in [1] %}{{ loop.depth }}{% endfor %}",
                             "{{ 'a'.__class__ }}",
                             "{{ '\\N{DASH}' }}",
                             "{{ '\\\303\251' }}",
                             "{{ 2.5.real }}",
                             "{{ 0 ** -1 }}",
                             "{{ (-8) ** 0.5 }}"}) {
    EXPECT_EQ(rendered(source).substr(0, 9), "rejected:") << source;
  }
  EXPECT_EQ(rendered("{% set n = 'nan' | float %}{{ n == n }}{{ n != 1 }}"), "FalseTrue");
  EXPECT_EQ(rendered("{{ 'nan' | float > 1 }}"), "rejected: cannot compare nan and a number");
}

// Numbers as json.loads and json.dumps of Python treat them.
TEST(AsJinja, NumbersOfMessages) {
  const auto value = [](const std::string& json) {
    const auto [read, error] = io::read_exact_json(json);
    EXPECT_FALSE(error) << json;
    return from_json(read);
  };
  for (const char* whole :
       {"9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615",
        "18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"}) {
    EXPECT_EQ(value(whole).repr(), whole);
    EXPECT_EQ(to_json(value(cat("{\"n\": [", whole, "]}"))).bytes, cat("{\"n\": [", whole, "]}"));
    EXPECT_TRUE(find_test("integer")(value(whole), {}));
    EXPECT_TRUE(find_test("number")(value(whole), {}));
    EXPECT_TRUE(equal(value(whole), value(whole)));
    EXPECT_TRUE(value(whole).truth());
  }
  const std::vector<std::pair<std::string, std::string>> kReals = {
      {"6.02e23", "6.02e+23"},
      {"1E30", "1e+30"},
      {"1e16", "1e+16"},
      {"123456789012345680.0", "1.2345678901234568e+17"},
      {"1e15", "1000000000000000.0"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"-0.0", "-0.0"},
      {"-0", "0"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"}};
  for (const auto& [json, text] : kReals) EXPECT_EQ(value(json).repr(), text) << json;
  EXPECT_FALSE(equal(value("18446744073709551616"), value("18446744073709551617")));
  EXPECT_THROW(arithmetic("+", value("18446744073709551616"), value("1")), TemplateError);
  EXPECT_THROW(compare(value("18446744073709551616"), value("1")), TemplateError);
}

}  // namespace as_jinja_test
}  // namespace hawser::text::chat
