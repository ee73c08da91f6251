// Readers of `model` and `added_tokens` of a tokenizer.json.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/utf8.h"
#include "text/tokenizers/bpe.h"
#include "text/tokenizers/byte_level.h"
#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/unicode.h"
#include "text/tokenizers/unigram.h"
#include "text/tokenizers/word_piece.h"

namespace hawser::text {
namespace {

class ModelReader {
 public:
  ModelReader(JsonReader& reader, const Json& model, TokenizerParts& parts)
      : reader_(reader), model_(model), parts_(parts) {}

  void run() {
    std::string type = model_.is_object() ? JsonReader::type_of(model_) : "";
    // Older files have no type.
    if (type.empty() && model_.is_object() && model_.contains("vocab")) type = model_.contains("merges") ? "BPE" : "";
    if (type == "BPE") return read_bpe();
    if (type == "WordPiece") return read_word_piece();
    if (type == "Unigram") return read_unigram();
    reader_.unsupported("model", model_.is_object() ? model_ : Json(), "model");
  }

 private:
  const Json& member(const char* key) const { return JsonReader::member(model_, key); }

  std::string affix(const char* key) const {
    const Json& value = member(key);
    return value.is_null() ? "" : value.get<std::string>();
  }

  // Reads tokens and ids. Reports a problem and returns false if there are none.
  bool read_vocabulary() {
    const Json& vocabulary = model_.at("vocab");
    if (!vocabulary.is_object()) {
      reader_.wrong_type("an object", vocabulary, "model.vocab");
      return false;
    }
    parts_.ids.reserve(vocabulary.size() + 512);
    for (const auto& [token, value] : vocabulary.items()) {
      if (!reader_.check_id(value, "model.vocab." + token)) continue;
      const auto id = value.get<std::int32_t>();
      if (static_cast<std::size_t>(id) < parts_.present.size() && parts_.present[id]) {
        reader_.reject("token id used twice", "model.vocab." + token);
      }
      parts_.ids.emplace(token, id);
      parts_.put_token(id, token);
    }
    if (parts_.ids.empty()) reader_.reject("empty vocabulary", "model.vocab");
    return !parts_.ids.empty();
  }

  std::optional<std::int32_t> unknown_token() {
    const Json& value = member("unk_token");
    if (value.is_null()) return std::nullopt;
    const auto found = parts_.ids.find(value.get_ref<const std::string&>());
    if (found == parts_.ids.end()) {
      reader_.reject("not in the vocabulary", "model.unk_token");
      return std::nullopt;
    }
    return found->second;
  }

  static std::string byte_token(unsigned byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    return name;
  }

  void read_bpe() {
    reader_.known_keys(model_, "model",
                       {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                        "byte_fallback", "ignore_merges", "vocab", "merges"});
    const Json& dropout = member("dropout");
    if (!dropout.is_null() && dropout != 0.0) reader_.reject("dropout not supported", "model.dropout");
    auto bpe = std::make_unique<Bpe>();
    bpe->ignore_merges = JsonReader::flag(model_, "ignore_merges", false);
    bpe->fuse_unknown = JsonReader::flag(model_, "fuse_unk", false);
    bpe->byte_fallback = JsonReader::flag(model_, "byte_fallback", false);
    bpe->continuing_prefix = affix("continuing_subword_prefix");
    bpe->end_suffix = affix("end_of_word_suffix");
    bpe->unit = Bpe::Unit::character;
    if (!read_vocabulary()) return;  // already reported; every merge would be one more problem
    read_merges(reader_.list(model_.at("merges"), "model.merges"), *bpe);
    parts_.unknown = bpe->unknown = unknown_token();
    if (bpe->byte_fallback) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        const auto found = parts_.ids.find(byte_token(byte));
        if (found != parts_.ids.end()) bpe->byte_ids[byte] = found->second;
      }
    }
    bpe->words = parts_.ids;
    parts_.model = std::move(bpe);
  }

  void read_merges(const Json& merges, Bpe& bpe) {
    bpe.merges = MergeTable(merges.size());
    std::uint32_t rank = 0;
    for (const Json& merge : merges) {
      const std::string at = cat("model.merges[", rank, "]");
      std::string_view left, right;
      if (merge.is_string()) {
        const std::string_view both = merge.get_ref<const std::string&>();
        const std::size_t space = both.find(' ');
        left = both.substr(0, space);
        if (space != std::string_view::npos) right = both.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      }
      std::string_view tail = right;
      if (tail.size() >= bpe.continuing_prefix.size()) tail.remove_prefix(bpe.continuing_prefix.size());
      const std::string joined = cat(left, tail);
      const auto a = parts_.ids.find(left), b = parts_.ids.find(right), c = parts_.ids.find(joined);
      if (left.empty() || right.empty()) {
        reader_.reject("not a pair of tokens", at);
      } else if (a == parts_.ids.end() || b == parts_.ids.end() || c == parts_.ids.end()) {
        reader_.add({.file = reader_.path(),
                     .what = "merge of tokens that are not in the vocabulary",
                     .got = merge.dump(),
                     .at = at});
      } else {
        bpe.merges.add(a->second, b->second, {rank, c->second});
      }
      ++rank;
    }
  }

  void read_word_piece() {
    reader_.known_keys(model_, "model",
                       {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word", "vocab"});
    if (!read_vocabulary()) return;
    auto pieces = std::make_unique<WordPiece>();
    if (member("unk_token").is_null()) return reader_.reject("missing key, required by WordPiece", "model.unk_token");
    parts_.unknown = unknown_token();
    pieces->unknown = parts_.unknown.value_or(0);
    if (!member("continuing_subword_prefix").is_null()) pieces->continuing_prefix = affix("continuing_subword_prefix");
    if (const Json& max = member("max_input_chars_per_word"); !max.is_null()) {
      if (!max.is_number_unsigned())
        return reader_.reject("not a number of characters", "model.max_input_chars_per_word");
      pieces->max_characters = max.get<std::size_t>();
    }
    pieces->tokens = Trie({parts_.ids.begin(), parts_.ids.end()});
    parts_.model = std::move(pieces);
  }

  void read_unigram() {
    reader_.known_keys(model_, "model", {"type", "unk_id", "vocab", "byte_fallback"});
    const Json& vocabulary = model_.at("vocab");
    if (!vocabulary.is_array()) return reader_.wrong_type("a list", vocabulary, "model.vocab");
    if (vocabulary.empty()) return reader_.reject("empty vocabulary", "model.vocab");
    if (vocabulary.size() >= static_cast<std::size_t>(kMaxIds)) return reader_.reject("too large", "model.vocab");
    auto unigram = std::make_unique<Unigram>();
    double min = std::numeric_limits<double>::infinity();
    for (const Json& entry : vocabulary) {
      const std::string at = cat("model.vocab[", unigram->scores.size(), "]");
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
        return reader_.add({.file = reader_.path(),
                            .what = "not a token with its score",
                            .expected = "[\"token\", -1.5]",
                            .got = entry.dump(),
                            .at = at});
      }
      const auto id = static_cast<std::int32_t>(unigram->scores.size());
      const auto token = entry[0].get<std::string>();
      parts_.ids[token] = id;
      parts_.put_token(id, token);
      unigram->scores.push_back(entry[1].get<double>());
      min = std::min(min, unigram->scores.back());
    }
    unigram->unknown_score = min - 10;
    if (const Json& unknown = member("unk_id"); !unknown.is_null()) {
      if (!reader_.check_id(unknown, "model.unk_id")) return;
      if (unknown >= vocabulary.size()) return reader_.reject("not in the vocabulary", "model.unk_id");
      parts_.unknown = unigram->unknown = unknown.get<std::int32_t>();
    }
    if (JsonReader::flag(model_, "byte_fallback", false)) {
      for (unsigned byte = 0; byte < 256; ++byte) {
        const auto found = parts_.ids.find(byte_token(byte));
        if (found != parts_.ids.end()) unigram->byte_ids[byte] = found->second;
      }
    }
    unigram->tokens = Trie({parts_.ids.begin(), parts_.ids.end()});
    parts_.model = std::move(unigram);
  }

  JsonReader& reader_;
  const Json& model_;
  TokenizerParts& parts_;
};

}  // namespace

void read_model(JsonReader& reader, const Json& model, TokenizerParts& parts) {
  ModelReader(reader, model, parts).run();
}

namespace {

bool same_flags(const AddedToken& a, const AddedToken& b) {
  return a.single_word == b.single_word && a.lstrip == b.lstrip && a.rstrip == b.rstrip &&
         a.normalized == b.normalized && a.special == b.special;
}

bool only_white_space(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (!is_white_space(step.character)) return false;
    at += step.bytes;
  }
  return true;
}

}  // namespace

std::vector<AddedToken> read_added_tokens(JsonReader& reader, const Json& items, const TokensToAdd& declared,
                                          TokenizerParts& parts) {
  Normalizer::Scratch scratch;
  Regex::Scratch regex;
  const auto normalize = [&](const std::string& content) {
    int first = 1;
    return std::string(parts.normalizer.run(content, scratch, regex, first));
  };
  std::vector<AddedToken> tokens;
  // The `tokenizers` library ignores the file's id: a content of the vocabulary has that id, others get the next id
  // from the size of the vocabulary, which is the id of another token if the vocabulary has holes.
  auto next = static_cast<std::int32_t>(std::count(parts.present.begin(), parts.present.end(), true));
  bool rstrip[2] = {}, white_space[2] = {};  // by `normalized`
  std::set<std::string> normalized;
  const auto id_for = [&](const AddedToken& token) {
    const auto known = parts.ids.find(token.content);
    return known != parts.ids.end() ? known->second : next;
  };
  const auto add = [&](AddedToken token, const std::string& at) {
    const auto used = static_cast<std::size_t>(token.id);
    if (used < parts.present.size() && parts.present[used] && parts.tokens[used] != token.content) {
      reader.reject("token id used twice", at + ".id");
      return;
    }
    next = std::max(next, token.id + 1);
    const auto same = std::find_if(tokens.begin(), tokens.end(), [&](const auto& t) { return t.id == token.id; });
    if (same != tokens.end()) {
      if (!same_flags(*same, token)) reader.reject("added token twice with different flags not supported", at);
      return;
    }
    const std::string matched = token.normalized ? normalize(token.content) : token.content;
    if (matched.empty()) reader.reject("added token that normalizes to the empty text not supported", at);
    if (token.normalized && !normalized.insert(matched).second) {  // the library takes either
      reader.reject("added tokens with the same normalized text not supported", at);
    }
    rstrip[token.normalized] |= token.rstrip;
    white_space[token.normalized] |= only_white_space(matched);
    parts.ids.emplace(token.content, token.id);
    parts.put_token(token.id, token.content);
    tokens.push_back(std::move(token));
  };
  std::size_t index = 0;
  for (const Json& item : items) {
    const std::string at = cat("added_tokens[", index++, "]");
    reader.known_keys(item, at, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token{.content = item.at("content").get<std::string>(),
                     .single_word = JsonReader::flag(item, "single_word", false),
                     .lstrip = JsonReader::flag(item, "lstrip", false),
                     .rstrip = JsonReader::flag(item, "rstrip", false),
                     .normalized = JsonReader::flag(item, "normalized", false),
                     .special = JsonReader::flag(item, "special", false)};
    if (!reader.check_id(item.at("id"), at + ".id")) continue;
    if (token.content.empty()) continue;
    token.id = item.at("id").get<std::int32_t>();
    const std::int32_t expected = parts.model || parts.ids.contains(token.content) ? id_for(token) : token.id;
    if (token.id != expected) {
      reader.add({.file = reader.path(),
                  .what = parts.ids.contains(token.content) ? "added token with another id in the vocabulary"
                                                            : "added token without the next free id not supported",
                  .expected = cat(expected),
                  .got = cat(token.id),
                  .at = at + ".id"});
      continue;
    }
    add(std::move(token), at);
  }
  std::vector<AddedToken> more;
  // Where a token comes from decides what a later declaration of it changes.
  enum class Origin { file, id, name, extra };
  std::vector<Origin> origins(tokens.size(), Origin::file);
  std::map<std::string, std::int32_t> reserved;
  const auto declare_again = [&](std::size_t place, const AddedToken& token, Origin origin) {
    AddedToken& known = tokens[place];
    AddedToken changed = known;
    const bool named_before = origins[place] == Origin::name;
    if (origin == Origin::id || named_before) {
      changed.single_word = token.single_word;
      changed.lstrip = token.lstrip;
      changed.rstrip = token.rstrip;
      changed.normalized = token.normalized;
      changed.special = known.special || token.special;
    } else if (origin == Origin::name && declared.names_make_special) {
      changed.special = true;
    }
    if (same_flags(changed, known)) return;
    rstrip[changed.normalized] |= changed.rstrip;
    known = changed;
    more.push_back(changed);
  };
  const auto declare = [&](const std::vector<AddedToken>& all, Origin origin) {
    for (AddedToken token : all) {
      const auto known = std::ranges::find(tokens, token.content, &AddedToken::content);
      if (known != tokens.end()) {
        declare_again(static_cast<std::size_t>(known - tokens.begin()), token, origin);
        continue;
      }
      const auto free = reserved.find(token.content);
      if (!parts.ids.contains(token.content) && token.if_new != AddedToken::IfNew::add) {
        if (token.if_new == AddedToken::IfNew::reserve && free == reserved.end()) reserved[token.content] = next++;
        continue;
      }
      token.id = free == reserved.end() ? id_for(token) : free->second;
      more.push_back(token);
      const std::string at = cat("\"", token.content, "\" of the tokenizer's settings");
      add(std::move(token), at);
      origins.resize(tokens.size(), origin);
    }
  };
  declare(declared.by_id, Origin::id);
  declare(declared.named, Origin::name);
  declare(declared.extra, Origin::extra);
  // The library matches white space that a token has stripped again if it is a token.
  for (const int kind : {0, 1}) {
    if (!rstrip[kind] || !white_space[kind]) continue;
    reader.reject("added token with rstrip together with one of white space not supported", "added_tokens");
  }
  parts.added = AddedTokens(std::move(tokens), normalize, declared.split_special_tokens);
  return more;
}

}  // namespace hawser::text
