#include "prepare/json_line.h"

#include "io/json.h"

namespace hawser::prepare {

std::optional<io::OrderedJson> parse_json_line(std::string_view text, const LinePlace& place, Problems& problems) {
  const auto reject = [&](Problem problem, std::optional<std::int64_t> byte = std::nullopt) {
    problem.file = place.file;
    problem.at = place.at(byte ? cat("byte ", place.byte + *byte) : "");
    problems.add(std::move(problem));
    return std::nullopt;
  };
  auto [json, error] = io::read_exact_json(text);
  if (!error) {
    if (json.is_object()) return std::move(json);
    return reject({.what = cat(place.unit, " is not an object"), .expected = "{...}", .got = json.type_name()});
  }
  switch (error->kind) {
    case io::JsonError::Kind::depth:
      return reject({.what = "JSON nested too deeply", .expected = cat("at most ", io::kMaxJsonDepth, " levels")},
                    error->byte);
    case io::JsonError::Kind::syntax:
      return reject({.what = "broken JSON: " + error->detail, .cause = "broken JSON"}, error->byte);
    case io::JsonError::Kind::number:
      return reject({.what = "broken JSON: a number is too large", .cause = "broken JSON"});
    case io::JsonError::Kind::zero_byte:
      return reject({.what = "broken JSON: a zero byte"}, error->byte);
    case io::JsonError::Kind::duplicate_key:
      return reject({.what = "key given twice", .expected = "once", .got = error->detail});
  }
  return std::nullopt;
}

std::string shown(const io::OrderedJson& value) {
  if (value.is_binary()) return {value.get_binary().begin(), value.get_binary().end()};
  return value.is_structured() ? value.type_name() : value.dump();
}

}  // namespace hawser::prepare
