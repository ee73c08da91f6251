#include "io/json_text.h"

#include <gtest/gtest.h>

#include "io/json.h"

namespace hawser::io {
namespace json_text_test {

TEST(JsonText, AKeyIsRemovedAndAllElseStays) {
  const std::string object = "{\n \"a\" : [1, {\"b\": \"}\"}],\n \"b\": \"x\\\"}, \\\\\",\n\t\"c\":1e3\n}\n";
  EXPECT_EQ(without_key(object, "a"), "{\n \"b\": \"x\\\"}, \\\\\",\n\t\"c\":1e3\n}\n");
  EXPECT_EQ(without_key(object, "b"), "{\n \"a\" : [1, {\"b\": \"}\"}],\n \"c\":1e3\n}\n");
  EXPECT_EQ(without_key(object, "c"), "{\n \"a\" : [1, {\"b\": \"}\"}],\n \"b\": \"x\\\"}, \\\\\"\n}\n");
  EXPECT_EQ(without_key(object, "d"), object);
  EXPECT_EQ(without_key("{\"a\":null}", "a"), "{}");
  EXPECT_EQ(without_key("{\"a\":1, \"b\":2}", "b"), "{\"a\":1}");
  EXPECT_EQ(without_key("{}", "a"), "{}");
  EXPECT_EQ(without_key("{\"\\u0061\": 1, \"b\": 2}", "a"), "{\"b\": 2}");
}

TEST(JsonText, AValueIsReplacedOrAdded) {
  EXPECT_EQ(with_value("{\"a\": 0, \"b\":2}", "a", "[0, 1]"), "{\"a\": [0, 1], \"b\":2}");
  EXPECT_EQ(with_value("{\"a\": 0, \"b\":2}", "b", "null"), "{\"a\": 0, \"b\":null}");
  EXPECT_EQ(with_value("{\n  \"a\": 0,\n  \"b\": 2\n}\n", "c", "3"), "{\n  \"a\": 0,\n  \"b\": 2,\n  \"c\": 3\n}\n");
  EXPECT_EQ(with_value("{\n \"a\": 0\n}", "c", "3"), "{\n \"a\": 0,\n \"c\": 3\n}");
  EXPECT_EQ(with_value("{\"a\": 0}", "c\"", "3"), "{\"a\": 0, \"c\\\"\": 3}");
  EXPECT_EQ(with_value(" { }", "c", "3"), " {\"c\": 3}");
}

TEST(JsonText, TheResultIsTheObjectOfAParser) {
  const std::string object =
      "{\"list\": [[], {}, \"]\"], \"nested\": {\"list\": {\"x\": [1]}}, \"n\": -1.5e-3,\"t\":true , \"s\": \"\"}";
  const Json all = Json::parse(object);
  for (const auto& [key, value] : all.items()) {
    Json rest = all;
    rest.erase(key);
    EXPECT_EQ(Json::parse(without_key(object, key)), rest) << key;
    Json other = all;
    other[key] = Json::array({1, "}"});
    EXPECT_EQ(Json::parse(with_value(object, key, "[1, \"}\"]")), other) << key;
  }
  Json more = all;
  more["x"] = 1;
  EXPECT_EQ(Json::parse(with_value(object, "x", "1")), more);
}

}  // namespace json_text_test
}  // namespace hawser::io
