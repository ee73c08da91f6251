// `JsonReader`: lookups and error reports shared by the readers of JSON tokenizer files.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/tokenizers/declared_tokens.h"
#include "text/tokenizers/pipeline_tokenizer.h"

namespace hawser::text {

using Json = nlohmann::json;

// Far above any vocabulary; bounds the memory that a wrong id could allocate.
inline constexpr std::int64_t kMaxIds = std::int64_t{1} << 24;

class JsonReader {
 public:
  explicit JsonReader(std::string path) : path_(std::move(path)) {}

  // Parses the file's text, which must be a JSON object. Throws UserError otherwise.
  Json parse(std::string_view text) const;

  void reject(std::string what, std::string at) {
    problems_.add({.file = path_, .what = std::move(what), .at = std::move(at)});
  }
  void add(Problem problem) { problems_.add(std::move(problem)); }
  void unsupported(std::string_view kind, const Json& object, const std::string& at) {
    reject(cat(kind, " not supported: ", object.is_null() ? "null" : type_of(object)), at);
  }
  void wrong_type(const char* expected, const Json& value, const std::string& at) {
    problems_.add({.file = path_, .what = "wrong type", .expected = expected, .got = value.type_name(), .at = at});
  }

  // Runs a part of a reader. Adds JSON exceptions and std::invalid_argument as problems at `name`.
  template <class Body>
  void section(const std::string& name, Body body) {
    try {
      body();
    } catch (const Json::exception& error) {
      const std::string_view what = error.what();  // "[json.exception.type_error.302] type must be ..."
      reject(cat("unexpected value: ", what.substr(what.find("] ") + 2)), name);
    } catch (const std::invalid_argument& error) {
      reject(error.what(), name);
    }
  }

  static const Json& member(const Json& object, const char* key) {
    static const Json kNull;
    const auto found = object.find(key);
    return found == object.end() ? kNull : *found;
  }
  static std::string type_of(const Json& object) { return object.value("type", std::string()); }
  static bool flag(const Json& object, const char* key, bool otherwise) {
    const Json& value = member(object, key);
    return value.is_null() ? otherwise : value.get<bool>();
  }
  static std::string text(const Json& object, const char* key, const char* otherwise) {
    const Json& value = member(object, key);
    return value.is_null() ? otherwise : value.get<std::string>();
  }

  void known_keys(const Json& object, const std::string& at, const std::set<std::string>& keys);
  // The list `value`. Empty for null and, after reporting a problem, for other types.
  const Json& list(const Json& value, const std::string& at);
  // Whether the value is a valid token id; reports a problem if not.
  bool check_id(const Json& value, const std::string& at);

  const std::string& path() const { return path_; }
  const Problems& problems() const { return problems_; }

 private:
  std::string path_;
  Problems problems_;
};

// A pattern: {"Regex": ".."} in Oniguruma's syntax or {"String": ".."}, a literal. read_pattern reports a problem and
// returns false for anything else.
struct NamedPattern {
  bool regex = false;
  std::string text;
};
bool read_pattern(JsonReader& reader, const Json& value, const std::string& at, NamedPattern& out);

// Readers of the parts of a tokenizer.json. Each reports unknown keys and types by name.
void read_model(JsonReader& reader, const Json& model, TokenizerParts& parts);
// Also adds the declared tokens that are not among `items`. Returns these, and those of `items` that a declaration
// makes special.
std::vector<AddedToken> read_added_tokens(JsonReader& reader, const Json& items, const TokensToAdd& declared,
                                          TokenizerParts& parts);
void read_normalizer(JsonReader& reader, const Json& step, const std::string& at, Normalizer& out);
// Returns whether its words are bytes: the model then works on bytes instead of characters.
bool read_pre_tokenizer(JsonReader& reader, const Json& step, TokenizerParts& parts);
void read_post_processor(JsonReader& reader, const Json& step, const std::string& at, TokenizerParts& parts);
void read_decoder(JsonReader& reader, const Json& step, TokenizerParts& parts);

// Reads a tekken.json. Throws UserError with all problems.
std::unique_ptr<Tokenizer> read_tekken(const std::string& path, const Json& file, std::uint64_t fingerprint);
// The tokenizer.json that transformers makes of it.
Json tekken_as_json(const std::string& path, const Json& file);

}  // namespace hawser::text
