#include "text/tokenizers/declared_tokens.h"

#include <algorithm>
#include <filesystem>

#include "io/bounded_file.h"
#include "io/files.h"
#include "io/json.h"
#include "text/tokenizers/json_reader.h"

namespace hawser::text {
namespace {

namespace fs = std::filesystem;

using Settings = io::OrderedJson;  // new tokens get ids in the order of the file

const Settings& member(const Settings& object, const char* key) {
  static const Settings kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

// Null if there is no such file.
Settings read_object(const fs::path& file) {
  constexpr std::int64_t kLargest = std::int64_t{16} << 20;
  if (!io::is_file(file.string())) return nullptr;
  const std::string text = io::read_bounded(file.string(), kLargest, "cannot read the tokenizer's settings");
  JsonReader(file.string()).parse(text);  // rejects what is no object
  return io::parse_own_json<Settings>(text);
}

// A token as these files write it: its text, or an object with the text and flags. Its content is empty for any other
// value. The default of `normalized` is that of the `tokenizers` library.
AddedToken token_of(const Settings& value, bool special) {
  AddedToken token{.normalized = !special, .special = special};
  if (value.is_string()) token.content = value.get<std::string>();
  if (!value.is_object()) return token;
  const auto flag = [&](const char* key, bool otherwise) {
    const Settings& found = member(value, key);
    return found.is_boolean() ? found.get<bool>() : otherwise;
  };
  const Settings& content = member(value, "content");
  if (content.is_string()) token.content = content.get<std::string>();
  token.special = flag("special", special);
  token.normalized = flag("normalized", !token.special);
  token.single_word = flag("single_word", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  return token;
}

std::vector<AddedToken> tokens_by_id(const Settings& settings, const Settings& added_tokens,
                                     const std::map<std::string, std::string>& named) {
  std::vector<AddedToken> tokens;
  const auto put = [&](AddedToken token, const std::string& id) {
    if (id.empty() || id.size() > 9 || !std::all_of(id.begin(), id.end(), [](char c) { return c >= '0' && c <= '9'; }))
      return;
    token.id = std::stoi(id);
    tokens.push_back(std::move(token));
  };
  const Settings& decoder = member(settings, "added_tokens_decoder");
  if (decoder.is_object()) {
    for (const auto& [id, value] : decoder.items()) put(token_of(value, false), id);
  } else if (added_tokens.is_object()) {
    for (const auto& [content, id] : added_tokens.items()) {
      const bool special =
          std::any_of(named.begin(), named.end(), [&](const auto& one) { return one.second == content; });
      put(token_of(content, special), id.dump());
    }
  }
  std::stable_sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return tokens;
}

}  // namespace

DeclaredTokens read_declared_tokens(const std::string& config_file) {
  const fs::path folder = fs::path(config_file).parent_path();
  Settings settings = read_object(config_file);
  DeclaredTokens declared;
  declared.file = config_file;
  Settings added_tokens;
  if (settings.is_null() || !settings.contains("added_tokens_decoder")) {
    const fs::path map = folder / "special_tokens_map.json";
    const Settings over = read_object(map);
    if (!over.is_null()) {
      if (over.contains("eos_token")) declared.file = map.string();
      if (settings.is_null()) settings = Settings::object();
      for (const auto& [key, value] : over.items()) settings[key] = value;
    }
    added_tokens = read_object(folder / "added_tokens.json");
  }
  if (settings.is_null()) settings = Settings::object();

  // In transformers' order. A token of `extra_special_tokens` with a name is like a key of that name.
  std::vector<std::pair<std::string, Settings>> values;
  const auto put = [&](const std::string& key, const Settings& value) {
    const auto known = std::find_if(values.begin(), values.end(), [&](const auto& one) { return one.first == key; });
    if (known == values.end()) {
      values.emplace_back(key, value);
    } else {
      known->second = value;
    }
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    put(key, member(settings, key));
  }
  for (const auto& [key, value] : settings.items()) {
    if (key.ends_with("_token")) put(key, value);
  }
  if (const Settings& extra = member(settings, "extra_special_tokens"); extra.is_object()) {
    for (const auto& [key, value] : extra.items()) put(key, value);
  }
  std::vector<AddedToken> named;
  for (const auto& [key, value] : values) {
    AddedToken token = token_of(value, true);
    if (token.content.empty()) continue;
    token.special = true;
    declared.named[key] = token.content;
    if (key == "eos_token") {
      declared.eos = std::move(token);
    } else {
      token.reserved = key == "pad_token";  // unused here; files name some that neither tokenizer nor model have
      named.push_back(std::move(token));
    }
  }
  declared.added = tokens_by_id(settings, added_tokens, declared.named);
  declared.added.insert(declared.added.end(), named.begin(), named.end());
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    const Settings& extra = member(settings, key);
    if (!extra.is_array()) continue;
    for (const Settings& value : extra) declared.added.push_back(token_of(value, true));
    if (!extra.empty()) break;
  }
  std::erase_if(declared.added, [](const AddedToken& token) { return token.content.empty(); });
  return declared;
}

}  // namespace hawser::text
