#include "text/tokenizers/declared_tokens.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "io/bounded_file.h"
#include "io/files.h"
#include "io/json.h"
#include "text/tokenizers/json_reader.h"

namespace hawser::text {
namespace {

namespace fs = std::filesystem;

using Settings = io::OrderedJson;  // new tokens get ids in the order of the file

constexpr std::array kUsualKeys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                   "pad_token", "cls_token", "mask_token"};

bool is_usual(const std::string& key) {
  return std::ranges::find(kUsualKeys, key) != kUsualKeys.end();
}

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

std::vector<AddedToken> tokens_of(const Settings& list) {
  std::vector<AddedToken> tokens;
  if (!list.is_array()) return tokens;
  for (const Settings& value : list) {
    AddedToken token = token_of(value, true);
    if (!token.content.empty()) tokens.push_back(std::move(token));
  }
  return tokens;
}

bool has(const std::vector<AddedToken>& tokens, const std::string& content) {
  return std::ranges::find(tokens, content, &AddedToken::content) != tokens.end();
}

// Empty lists and objects, false and null count as nothing, as in Python.
bool is_true(const Settings& value) {
  if (value.is_boolean()) return value.get<bool>();
  return !value.is_null() && !value.empty();
}

class DeclaredReader {
 public:
  explicit DeclaredReader(const fs::path& config_file) : folder_(config_file.parent_path()) {
    declared_.eos_file = config_file.string();
    settings_ = read_object(config_file);
    if (settings_.is_null()) settings_ = Settings::object();
    if (!settings_.contains("added_tokens_decoder")) {
      map_ = read_object(folder_ / "special_tokens_map.json");
      added_tokens_ = read_object(folder_ / "added_tokens.json");
    }
    if (map_.is_null()) map_ = Settings::object();
    if (map_.contains("eos_token")) declared_.eos_file = (folder_ / "special_tokens_map.json").string();
  }

  DeclaredTokens read() {
    read_extra();
    read_named();
    read_by_id();
    read_flags();
    return std::move(declared_);
  }

 private:
  void put(const std::string& key, const Settings& value) {
    AddedToken token = token_of(value, true);
    DeclaredTokens::Named named{.key = key};
    if (!token.content.empty()) {
      token.special = true;
      named.token = std::move(token);
    }
    const auto known = std::ranges::find(declared_.named, key, &DeclaredTokens::Named::key);
    if (known == declared_.named.end()) {
      declared_.named.push_back(std::move(named));
    } else {
      *known = std::move(named);
    }
  }

  // Lists of tokens without names. An object instead has names.
  void read_extra() {
    Settings extra = member(settings_, "extra_special_tokens");
    bool present = settings_.contains("extra_special_tokens");
    if (settings_.contains("additional_special_tokens") && !is_true(extra)) {
      extra = settings_["additional_special_tokens"];
      present = true;
    } else if (settings_.contains("additional_special_tokens")) {
      declared_.additional = tokens_of(settings_["additional_special_tokens"]);
    }
    const auto take_names = [&](const Settings& value) {
      for (const auto& [key, token] : value.items()) names_.emplace_back(key, token);
    };
    if (extra.is_object()) {
      take_names(extra);
      present = false;
    }
    if (present) declared_.extra = tokens_of(extra);
    if (map_.contains("additional_special_tokens")) {
      declared_.additional = tokens_of(map_["additional_special_tokens"]);
    }
    if (!map_.contains("extra_special_tokens")) return;
    const Settings& more = map_["extra_special_tokens"];
    if (more.is_object()) {
      take_names(more);
      declared_.extra.reset();
      return;
    }
    if (!declared_.extra) declared_.extra.emplace();
    for (AddedToken& token : tokens_of(more)) {
      if (!has(*declared_.extra, token.content)) declared_.extra->push_back(std::move(token));
    }
  }

  void read_named() {
    for (const char* key : kUsualKeys) {
      const bool in_map = map_.contains(key);
      put(key, member(in_map ? map_ : settings_, key));
      declared_.named.back().declared = in_map || settings_.contains(key);
    }
    // Of the other keys, those with an object come first, then those of special_tokens_map.json.
    const auto put_others = [&](const Settings& from, bool objects) {
      for (const auto& [key, value] : from.items()) {
        if (key.ends_with("_token") && !is_usual(key) && (value.is_object() || (!objects && value.is_string()))) {
          put(key, value);
        }
      }
    };
    put_others(settings_, true);
    put_others(map_, false);
    for (const auto& [key, value] : settings_.items()) {
      if (key.ends_with("_token") && !is_usual(key) && value.is_string()) put(key, value);
    }
    for (const auto& [key, value] : names_) put(key, value);
  }

  void read_by_id() {
    std::vector<AddedToken>& tokens = declared_.by_id;
    const auto put_at = [&](AddedToken token, const std::string& id) {
      const bool digits = std::all_of(id.begin(), id.end(), [](char c) { return c >= '0' && c <= '9'; });
      if (id.empty() || id.size() > 9 || !digits || token.content.empty()) return;
      token.id = std::stoi(id);
      tokens.push_back(std::move(token));
    };
    declared_.has_decoder = settings_.contains("added_tokens_decoder");
    const Settings& decoder = member(settings_, "added_tokens_decoder");
    if (decoder.is_object()) {
      for (const auto& [id, value] : decoder.items()) put_at(token_of(value, false), id);
    } else if (added_tokens_.is_object()) {
      for (const auto& [content, id] : added_tokens_.items()) {
        const auto is_it = [&](const DeclaredTokens::Named& one) {
          return is_usual(one.key) && one.token && one.token->content == content;
        };
        const bool special =
            std::ranges::any_of(declared_.named, is_it) || (declared_.extra && has(*declared_.extra, content));
        put_at(token_of(content, special), id.dump());
      }
    }
    std::stable_sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    for (AddedToken& token : tokens) {
      const auto is_it = [&](const DeclaredTokens::Named& one) {
        return one.token && one.token->content == token.content;
      };
      if (std::ranges::any_of(declared_.named, is_it)) token.special = true;
    }
  }

  void read_flags() {
    const auto flag = [&](const char* key) {
      return settings_.contains(key) ? std::optional(is_true(settings_[key])) : std::nullopt;
    };
    declared_.add_bos_token = flag("add_bos_token");
    declared_.add_eos_token = flag("add_eos_token");
    declared_.legacy = flag("legacy");
    if (!member(settings_, "add_prefix_space").is_null()) declared_.add_prefix_space = flag("add_prefix_space");
    declared_.split_special_tokens = flag("split_special_tokens").value_or(false);
    const Settings& extra_ids = member(settings_, "extra_ids");
    if (extra_ids.is_number_unsigned() && extra_ids <= 100'000) declared_.extra_ids = extra_ids.get<std::int32_t>();
    const Settings& name = member(settings_, "tokenizer_class");
    if (name.is_string()) declared_.tokenizer_class = name.get<std::string>();
    constexpr std::array kOthers = {
        "added_tokens_decoder", "extra_special_tokens", "additional_special_tokens", "add_prefix_space", "legacy",
        "split_special_tokens", "tokenizer_class"};
    declared_.any = !map_.empty() || (added_tokens_.is_object() && !added_tokens_.empty());
    for (const auto& [key, value] : settings_.items()) {
      if (key.ends_with("_token") || std::ranges::find(kOthers, key) != kOthers.end()) declared_.any = true;
    }
  }

  fs::path folder_;
  Settings settings_, map_, added_tokens_;  // the files; empty, empty and null where they are missing or not read
  std::vector<std::pair<std::string, Settings>> names_;  // of `extra_special_tokens`
  DeclaredTokens declared_;
};

// The usual keys, those of the class, and the others. What a file declares replaces the token of the class.
std::vector<DeclaredTokens::Named> with_names_of(const ClassTokens& of_class,
                                                 const std::vector<DeclaredTokens::Named>& declared) {
  std::vector<DeclaredTokens::Named> named;
  const auto put_in = [&](const DeclaredTokens::Named& one) {
    const auto known = std::ranges::find(named, one.key, &DeclaredTokens::Named::key);
    if (known == named.end()) {
      named.push_back(one);
    } else if (one.declared || !known->token) {
      *known = one;
    }
  };
  for (const auto& one : declared) {
    if (is_usual(one.key)) put_in(one);
  }
  for (const auto& [key, content] : of_class) {
    const auto known = std::ranges::find(named, key, &DeclaredTokens::Named::key);
    if (known != named.end() && known->declared) continue;
    put_in({.key = key, .declared = false, .token = AddedToken{.content = content, .special = true}});
  }
  for (const auto& one : declared) {
    if (!is_usual(one.key)) put_in(one);
  }
  return named;
}

}  // namespace

std::map<std::string, std::string> DeclaredTokens::texts() const {
  std::map<std::string, std::string> texts;
  for (const Named& one : named) {
    if (one.token) texts[one.key] = one.token->content;
  }
  return texts;
}

DeclaredTokens read_declared_tokens(const std::string& config_file) {
  return DeclaredReader(config_file).read();
}

TokensToAdd tokens_to_add(const DeclaredTokens& declared, const ClassTokens& of_class, std::vector<AddedToken> extra) {
  TokensToAdd add{.by_id = declared.by_id,
                  .names_make_special = !declared.has_decoder,
                  .eos_file = declared.eos_file,
                  .split_special_tokens = declared.split_special_tokens};
  std::set<std::string> of_files;
  for (const auto& one : declared.named) {
    if (one.declared) of_files.insert(one.key);
    if (one.key == "eos_token") add.eos = one.token;
  }
  const std::vector<DeclaredTokens::Named> named = with_names_of(of_class, declared.named);
  const auto frame = [&](const char* key, const std::optional<bool>& wanted) {
    const auto found = std::ranges::find(named, key, &DeclaredTokens::Named::key);
    return wanted.value_or(false) && found != named.end() && found->token ? found->token->content : std::string();
  };
  add.before = frame("bos_token", declared.add_bos_token);
  add.after = frame("eos_token", declared.add_eos_token);
  for (const DeclaredTokens::Named& one : named) {
    if (!one.token) continue;
    AddedToken token = *one.token;
    for (AddedToken& same : add.by_id) {
      if (same.content == token.content) same.special = true;
    }
    // Not used here: files name a padding that neither tokenizer nor model have, and so do classes.
    const bool unused = one.key == "pad_token" || !of_files.contains(one.key);
    if (unused && token.content != add.before && token.content != add.after && !has(extra, token.content)) {
      token.if_new = AddedToken::IfNew::reserve;
    }
    add.named.push_back(std::move(token));
  }
  add.extra = std::move(extra);
  return add;
}

TokensToAdd tokens_to_add(const DeclaredTokens& declared) {
  TokensToAdd add = tokens_to_add(declared, {}, declared.extra.value_or(declared.additional));
  add.before = add.after = "";
  if (!add.eos || has(declared.by_id, add.eos->content) || has(add.extra, add.eos->content)) return add;
  for (AddedToken& token : add.named) {
    if (token.content == add.eos->content) token.if_new = AddedToken::IfNew::leave;
  }
  return add;
}

}  // namespace hawser::text
