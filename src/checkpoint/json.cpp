#include "checkpoint/json.h"

#include <unordered_set>

#include "checkpoint/storage/posix.h"

namespace hawser::checkpoint {
namespace {

struct DuplicateKey {
  std::string key;
};
struct TooDeep {};

}  // namespace

std::optional<Json> parse_json(std::string_view text, const std::string& file, const std::string& what,
                               std::int64_t first_byte, Problems& problems) {
  std::vector<std::unordered_set<std::string>> keys;  // of each open object
  const auto watch = [&keys](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxJsonDepth) throw TooDeep{};
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      if (!keys.back().insert(parsed.get_ref<const std::string&>()).second) {
        throw DuplicateKey{parsed.get<std::string>()};
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), watch);
  } catch (const DuplicateKey& duplicate) {
    problems.add({.file = file, .what = what + ": duplicate key", .got = in_quotes(duplicate.key)});
  } catch (const TooDeep&) {
    problems.add({.file = file,
                  .what = what + ": JSON nested too deeply",
                  .expected = cat("at most ", kMaxJsonDepth, " levels")});
  } catch (const Json::parse_error& error) {
    // error.byte counts the last byte read, from 1.
    const std::int64_t byte = first_byte + static_cast<std::int64_t>(error.byte) - (error.byte > 0 ? 1 : 0);
    problems.add({.file = file, .what = what + ": broken JSON", .at = cat("byte ", byte)});
  } catch (const Json::exception&) {
    problems.add({.file = file, .what = what + ": broken JSON", .got = "a number out of range"});
  }
  return std::nullopt;
}

Json parse_own_json(std::string_view text) {
  Problems problems;
  auto json = parse_json(text, "", "a message between ranks", 0, problems);
  HAWSER_CHECK(json.has_value(), problems.lines());
  return *std::move(json);
}

std::optional<std::int64_t> as_count(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::optional<std::int64_t> count_at(const Json& object, const char* key) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(key);
  return found == object.end() ? std::nullopt : as_count(*found);
}

std::optional<Shape> as_shape(const Json& value) {
  if (!value.is_array() || value.size() > static_cast<std::size_t>(Shape::kMaxRank)) return std::nullopt;
  Shape shape;
  for (const Json& size : value) {
    const auto count = as_count(size);
    if (!count) return std::nullopt;
    shape.push_back(*count);
  }
  return shape;
}

std::optional<std::int64_t> checked_product(const Shape& shape, std::int64_t scale) {
  // A zero makes the product zero, but partial products are computed elsewhere and must fit too.
  std::int64_t product = scale;
  bool zero = false;
  for (const std::int64_t size : shape) {
    if (size == 0) {
      zero = true;
    } else if (__builtin_mul_overflow(product, size, &product)) {
      return std::nullopt;
    }
  }
  return zero ? 0 : product;
}

}  // namespace hawser::checkpoint
