#include "io/json.h"

#include <gtest/gtest.h>

namespace hawser::io {
namespace json_test {

using Kind = JsonError::Kind;

std::optional<Kind> rejection(std::string_view text) {
  const auto read = read_json(text);
  EXPECT_TRUE(!read.error || read.json.is_null());
  EXPECT_EQ(read_json<OrderedJson>(text).error.has_value(), read.error.has_value());
  return read.error ? std::optional(read.error->kind) : std::nullopt;
}

TEST(ReadJson, ReadsValuesAndKeepsOrderOnRequest) {
  EXPECT_EQ(read_json(R"({"b":[1,2.5,"x"],"a":null})").json.dump(), R"({"a":null,"b":[1,2.5,"x"]})");
  EXPECT_EQ(read_json<OrderedJson>(R"({"b":1,"a":2})").json.dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(json_or_null("7"), 7);
  EXPECT_TRUE(json_or_null("{").is_null());
}

TEST(ReadJson, RejectsWhatParsersAcceptOrRecurseOver) {
  EXPECT_EQ(rejection(R"({"a":1,)"), Kind::syntax);
  EXPECT_EQ(rejection(""), Kind::syntax);
  EXPECT_EQ(rejection("1 2"), Kind::syntax);
  EXPECT_EQ(rejection("1e999"), Kind::number);
  EXPECT_EQ(rejection(std::string_view("{}\0{", 4)), Kind::zero_byte);
  EXPECT_EQ(rejection(R"([{"a":1,"b":{"a":1}},{"a":2}])"), std::nullopt);
  EXPECT_EQ(rejection(R"([{"b":{"\u0061":1,"a":2}}])"), Kind::duplicate_key);
  EXPECT_EQ(read_json(R"({"x\"y":1,"x\"y":2})").error->detail, "x\"y");
  const auto nested = [](int levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  EXPECT_EQ(rejection(nested(kMaxJsonDepth)), std::nullopt);
  EXPECT_EQ(rejection(nested(kMaxJsonDepth + 1)), Kind::depth);
  EXPECT_EQ(rejection(std::string(3'000'000, '{')), Kind::depth);
  EXPECT_EQ(rejection("\"" + nested(500) + "\""), std::nullopt);  // brackets in a string
}

TEST(ParseJson, NamesFileDocumentAndByte) {
  const auto line = [](std::string_view text) {
    Problems problems;
    const bool parsed = parse_json(text, "f", "header", 8, problems).has_value();
    EXPECT_EQ(parsed, problems.empty());
    return problems.lines();
  };
  EXPECT_EQ(line("{}"), "");
  EXPECT_EQ(line("{x"), "f: header: broken JSON at byte 9");
  EXPECT_EQ(line(R"({"a":1,"a":2})"), "f: header: duplicate key (got 'a')");
  EXPECT_EQ(line("[1e999]"), "f: header: broken JSON (got a number out of range)");
  EXPECT_EQ(line(std::string(kMaxJsonDepth + 1, '[')),
            "f: header: JSON nested too deeply (expected at most 200 levels) at byte 208");
}

TEST(AsCount, IsANonNegativeInteger) {
  EXPECT_EQ(as_count(Json(7u)), 7);
  EXPECT_EQ(as_count(Json(std::uint64_t{1} << 63)), std::nullopt);
  EXPECT_EQ(as_count(Json(-1)), std::nullopt);
  EXPECT_EQ(as_count(Json(1.0)), std::nullopt);
  EXPECT_EQ(count_at(Json{{"n", 3u}}, "n"), 3);
  EXPECT_EQ(count_at(Json{{"n", 3u}}, "m"), std::nullopt);
  EXPECT_EQ(count_at(Json(3u), "n"), std::nullopt);
}

}  // namespace json_test
}  // namespace hawser::io
