// `ArrowType`: the type of a column of Arrow (arrow_c.h), and of its parts. Internal to ArrowJson.
//
//   const ArrowType rows = arrow_type_of(schema);      // struct<id: int64, tags: list<string>>
//   rows.parts[1].kind                                 // ArrowType::Kind::list, whose parts[0] is a text
//
// Source: the format strings of https://arrow.apache.org/docs/format/CDataInterface.html
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/error.h"
#include "prepare/arrow_c.h"

namespace hawser::prepare {

// A type or a value that has no JSON. `problem.at` is its place in the row: "messages[0].content".
struct ArrowValueError {
  [[noreturn]] static void reject(std::string what, std::string expected = "", std::string got = "",
                                  std::string hint = "") {
    throw ArrowValueError{
        {.what = std::move(what), .expected = std::move(expected), .got = std::move(got), .hint = std::move(hint)}};
  }

  // Runs a function; an error of the part that it reads gets the place of the part, `place`, before its own.
  template <class Function>
  static void within(const std::string& place, const Function& function) {
    try {
      function();
    } catch (ArrowValueError& error) {
      std::string& at = error.problem.at;
      at = at.empty() || at.starts_with('[') ? place + at : cat(place, ".", at);
      throw;
    }
  }

  Problem problem;
};

struct ArrowType {
  enum class Kind {
    none,
    boolean,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    float32,
    float64,
    text,
    large_text,
    text_view,
    fixed_text,
    decimal,
    date_of_days,
    date_of_milliseconds,
    time,
    timestamp,
    list,
    large_list,
    list_view,
    large_list_view,
    fixed_list,
    structure,
    map,
    dictionary,
  };

  Kind kind = Kind::none;
  std::string name;  // of the field
  std::string key;   // the name as JSON, with the colon: "\"name\":"
  std::vector<ArrowType>
      parts;              // fields; the items of a list; key and value of a map; indices and values of a dictionary
  std::int64_t size = 0;  // of a fixed-size value: bytes or items; of a time and a timestamp: units in a second
  int scale = 0;          // of a decimal: digits after the point
  bool zoned = false;     // timestamps are in UTC
  bool is_json = false;   // a text that is JSON
};
using ArrowKind = ArrowType::Kind;

// Throws ArrowValueError for a type that has no JSON (arrow_json.h).
ArrowType arrow_type_of(const ArrowSchema& schema);

}  // namespace hawser::prepare
