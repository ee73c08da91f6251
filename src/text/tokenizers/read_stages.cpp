// Readers of the normalizer, pre-tokenizer, post-processor and decoder of a tokenizer.json.
#include <map>

#include "base/utf8.h"
#include "text/tokenizers/base64.h"
#include "text/tokenizers/json_reader.h"

namespace hawser::text {
namespace {

// Calls `read` for each part of a "Sequence", with its place in the file.
template <class Read>
void for_each_part(JsonReader& reader, const Json& step, const char* key, const std::string& at, Read read) {
  reader.known_keys(step, at, {"type", key});
  std::size_t index = 0;
  for (const Json& part : reader.list(step.at(key), cat(at, ".", key)))
    read(part, cat(at, ".", key, "[", index++, "]"));
}

std::shared_ptr<const Pattern> compiled(JsonReader& reader, const NamedPattern& pattern, const std::string& at) {
  if (!pattern.regex) return nullptr;
  try {
    return std::make_shared<const Pattern>(pattern.text);
  } catch (const std::invalid_argument& error) {
    reader.reject(error.what(), at);
    return nullptr;
  }
}

// Reads the pattern of a Replace. Reports a problem and returns false for an empty literal.
bool read_replaced(JsonReader& reader, const Json& step, const std::string& at, NamedPattern& out) {
  if (!read_pattern(reader, step.at("pattern"), at + ".pattern", out)) return false;
  if (out.regex || !out.text.empty()) return true;
  reader.reject("empty pattern not supported", at + ".pattern");
  return false;
}

}  // namespace

void read_normalizer(JsonReader& reader, const Json& step, const std::string& at, Normalizer& out) {
  if (step.is_null()) return;
  const std::string type = JsonReader::type_of(step);
  if (type == "Sequence") {
    for_each_part(reader, step, "normalizers", at,
                  [&](const Json& part, const std::string& place) { read_normalizer(reader, part, place, out); });
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    reader.known_keys(step, at, {"type"});
    out.add(Normalizer::Form{type == "NFC"    ? NormalForm::nfc
                             : type == "NFD"  ? NormalForm::nfd
                             : type == "NFKC" ? NormalForm::nfkc
                                              : NormalForm::nfkd});
  } else if (type == "Lowercase") {
    reader.known_keys(step, at, {"type"});
    out.add(Normalizer::Lowercase{});
  } else if (type == "StripAccents") {
    reader.known_keys(step, at, {"type"});
    out.add(Normalizer::StripAccents{});
  } else if (type == "Nmt") {
    reader.known_keys(step, at, {"type"});
    out.add(Normalizer::Nmt{});
  } else if (type == "ByteLevel") {
    reader.known_keys(step, at, {"type"});
    out.add(Normalizer::ByteLevel{});
  } else if (type == "BertNormalizer") {
    reader.known_keys(step, at, {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
    const bool lowercase = JsonReader::flag(step, "lowercase", true);
    out.add(Normalizer::Bert{.clean_text = JsonReader::flag(step, "clean_text", true),
                             .handle_chinese_chars = JsonReader::flag(step, "handle_chinese_chars", true),
                             .strip_accents = JsonReader::flag(step, "strip_accents", lowercase),
                             .lowercase = lowercase});
  } else if (type == "Strip") {
    reader.known_keys(step, at, {"type", "strip_left", "strip_right"});
    out.add(Normalizer::Strip{JsonReader::flag(step, "strip_left", true), JsonReader::flag(step, "strip_right", true)});
  } else if (type == "Prepend") {
    reader.known_keys(step, at, {"type", "prepend"});
    out.add(Normalizer::Prepend{step.at("prepend").get<std::string>()});
  } else if (type == "Replace") {
    reader.known_keys(step, at, {"type", "pattern", "content"});
    NamedPattern pattern;
    if (!read_replaced(reader, step, at, pattern)) return;
    out.add(Normalizer::Replace{compiled(reader, pattern, at + ".pattern"), pattern.text,
                                step.at("content").get<std::string>()});
  } else if (type == "Precompiled") {
    reader.known_keys(step, at, {"type", "precompiled_charsmap"});
    const Json& map = step.at("precompiled_charsmap");
    const auto bytes = map.is_null() ? std::optional<std::string>("") : from_base64(map.get<std::string>());
    if (!bytes) return reader.reject("not base64", at + ".precompiled_charsmap");
    try {
      out.add(Normalizer::Precompiled{std::make_shared<const Charsmap>(*bytes), std::make_shared<const Regex>("\\X")});
    } catch (const std::invalid_argument& error) {
      reader.reject(error.what(), at + ".precompiled_charsmap");
    }
  } else {
    reader.unsupported("normalizer", step, at);
  }
}

namespace {

class PreTokenizerReader {
 public:
  PreTokenizerReader(JsonReader& reader, TokenizerParts& parts) : reader_(reader), parts_(parts) {}

  void read(const Json& step, const std::string& at) {
    if (step.is_null()) return;
    const std::string type = JsonReader::type_of(step);
    PreTokenizer& out = parts_.pre_tokenizer;
    if (type == "Sequence") {
      return for_each_part(reader_, step, "pretokenizers", at,
                           [&](const Json& part, const std::string& place) { read(part, place); });
    }
    // A step after ByteLevel sees the text in the byte-level alphabet.
    if (byte_level_ && !parts_.words_in_byte_level) {
      out.add(PreTokenizer::ByteLevel{});
      parts_.words_in_byte_level = true;
    }
    if (type == "ByteLevel") {
      reader_.known_keys(step, at, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      if (byte_level_) return reader_.reject("second ByteLevel not supported", at);
      byte_level_ = true;
      if (JsonReader::flag(step, "add_prefix_space", true)) out.add(PreTokenizer::PrefixSpace{});
      if (JsonReader::flag(step, "use_regex", true)) split_by(kGpt2Pattern, SplitBehavior::isolated, false);
    } else if (type == "Split") {
      reader_.known_keys(step, at, {"type", "pattern", "behavior", "invert"});
      read_split(step, at);
    } else if (type == "Digits") {
      reader_.known_keys(step, at, {"type", "individual_digits"});
      const bool single = JsonReader::flag(step, "individual_digits", false);
      split_characters([](char32_t c, char32_t) { return character_of(c).numeric(); },
                       single ? SplitBehavior::isolated : SplitBehavior::contiguous);
    } else if (type == "Punctuation") {
      reader_.known_keys(step, at, {"type", "behavior"});
      SplitBehavior behavior = SplitBehavior::isolated;
      if (step.contains("behavior") && !read_behavior(step, at, behavior)) return;
      split_characters([](char32_t c, char32_t) { return character_of(c).punctuation(); }, behavior);
    } else if (type == "WhitespaceSplit") {
      reader_.known_keys(step, at, {"type"});
      split_characters([](char32_t c, char32_t) { return is_white_space(c); }, SplitBehavior::removed);
    } else if (type == "CharDelimiterSplit") {
      reader_.known_keys(step, at, {"type", "delimiter"});
      const auto delimiter = step.at("delimiter").get<std::string>();
      const Utf8Step character = delimiter.empty() ? Utf8Step{} : utf8_step(delimiter);
      if (delimiter.empty() || static_cast<std::size_t>(character.bytes) != delimiter.size()) {
        return reader_.reject("not one character", at + ".delimiter");
      }
      split_characters([](char32_t c, char32_t d) { return c == d; }, SplitBehavior::removed, character.character);
    } else if (type == "Whitespace") {
      reader_.known_keys(step, at, {"type"});
      // \w+|[^\w\s]+: removes white space, then separates words from other characters.
      split_characters([](char32_t c, char32_t) { return is_white_space(c); }, SplitBehavior::removed);
      split_characters([](char32_t c, char32_t) { return character_of(c).word(); }, SplitBehavior::contiguous);
    } else if (type == "BertPreTokenizer") {
      reader_.known_keys(step, at, {"type"});
      out.add(PreTokenizer::Bert{});
    } else if (type == "Metaspace") {
      reader_.known_keys(step, at, {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
      // Its mark is outside the byte-level alphabet.
      if (byte_level_) return reader_.reject("Metaspace after ByteLevel not supported", at);
      read_metaspace(step, at);
    } else {
      reader_.unsupported("pre_tokenizer", step, at);
    }
  }

  bool byte_level() const { return byte_level_; }

 private:
  void split_by(std::string_view pattern, SplitBehavior behavior, bool invert) {
    parts_.pre_tokenizer.add(PreTokenizer::Split{Pattern(pattern), behavior, invert});
  }
  void split_characters(bool (*matches)(char32_t, char32_t), SplitBehavior behavior, char32_t delimiter = 0) {
    parts_.pre_tokenizer.add(PreTokenizer::SplitCharacters{matches, delimiter, behavior});
  }

  bool read_behavior(const Json& step, const std::string& at, SplitBehavior& out) {
    static const std::map<std::string, SplitBehavior> kBehaviors = {
        {"Isolated", SplitBehavior::isolated},
        {"Removed", SplitBehavior::removed},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const auto behavior = kBehaviors.find(step.at("behavior").get<std::string>());
    if (behavior == kBehaviors.end()) {
      reader_.reject("behavior not supported", at + ".behavior");
      return false;
    }
    out = behavior->second;
    return true;
  }

  void read_split(const Json& step, const std::string& at) {
    SplitBehavior behavior;
    NamedPattern pattern;
    if (!read_behavior(step, at, behavior) || !read_pattern(reader_, step.at("pattern"), at + ".pattern", pattern)) {
      return;
    }
    try {
      split_by(pattern.regex ? pattern.text : literal_pattern(pattern.text), behavior,
               JsonReader::flag(step, "invert", false));
    } catch (const std::invalid_argument& error) {
      reader_.reject(error.what(), at + ".pattern");
    }
  }

  void read_metaspace(const Json& step, const std::string& at) {
    using enum PreTokenizer::Metaspace::Prepend;
    PreTokenizer::Metaspace out{.mark = JsonReader::text(step, "replacement", "\xE2\x96\x81"),
                                .prepend = always,
                                .split = JsonReader::flag(step, "split", true)};
    if (out.mark.empty()) return reader_.reject("not one character", at + ".replacement");
    const std::string scheme =
        JsonReader::text(step, "prepend_scheme", JsonReader::flag(step, "add_prefix_space", true) ? "always" : "never");
    if (scheme == "never") {
      out.prepend = never;
    } else if (scheme == "first") {
      out.prepend = first_only;
    } else if (scheme != "always") {
      return reader_.add({.file = reader_.path(),
                          .what = "unknown value",
                          .expected = "always, first or never",
                          .got = scheme,
                          .at = at + ".prepend_scheme"});
    }
    parts_.pre_tokenizer.add(std::move(out));
  }

  JsonReader& reader_;
  TokenizerParts& parts_;
  bool byte_level_ = false;
};

}  // namespace

bool read_pre_tokenizer(JsonReader& reader, const Json& step, TokenizerParts& parts) {
  PreTokenizerReader part(reader, parts);
  part.read(step, "pre_tokenizer");
  return part.byte_level();
}

namespace {

void read_template(JsonReader& reader, const Json& step, const std::string& at, TokenizerParts& parts) {
  std::vector<std::int32_t> before, after;
  bool seen = false;
  for (const Json& piece : reader.list(step.at("single"), at + ".single")) {
    if (piece.contains("Sequence")) {
      if (seen || piece.at("Sequence").at("id") != "A") return reader.reject("template not supported", at + ".single");
      seen = true;
      continue;
    }
    const auto name = piece.at("SpecialToken").at("id").get<std::string>();
    for (const Json& id : reader.list(step.at("special_tokens").at(name).at("ids"), at)) {
      if (!reader.check_id(id, at + ".special_tokens." + name)) continue;
      if (id >= parts.tokens.size()) reader.reject("id outside the vocabulary", at + ".special_tokens." + name);
      (seen ? after : before).push_back(id.get<std::int32_t>());
    }
  }
  if (!seen) return reader.reject("template has no Sequence", at + ".single");
  parts.prefix.insert(parts.prefix.begin(), before.begin(), before.end());
  parts.suffix.insert(parts.suffix.end(), after.begin(), after.end());
}

// Reads a token with its id: ["</s>", 2].
std::optional<std::int32_t> read_token(JsonReader& reader, const Json& value, const std::string& at,
                                       std::size_t vocabulary) {
  if (!value.is_array() || value.size() != 2) {
    reader.add({.file = reader.path(), .what = "not a token with its id", .got = value.dump(), .at = at});
    return std::nullopt;
  }
  if (!reader.check_id(value[1], at)) return std::nullopt;
  if (value[1] >= vocabulary) {
    reader.reject("id outside the vocabulary", at);
    return std::nullopt;
  }
  return value[1].get<std::int32_t>();
}

}  // namespace

void read_post_processor(JsonReader& reader, const Json& step, const std::string& at, TokenizerParts& parts) {
  if (step.is_null()) return;
  const std::string type = JsonReader::type_of(step);
  if (type == "Sequence") {
    for_each_part(reader, step, "processors", at,
                  [&](const Json& part, const std::string& place) { read_post_processor(reader, part, place, parts); });
  } else if (type == "TemplateProcessing") {
    reader.known_keys(step, at, {"type", "single", "pair", "special_tokens"});
    read_template(reader, step, at, parts);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    reader.known_keys(step, at, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    const auto first = read_token(reader, step.at("cls"), at + ".cls", parts.tokens.size());
    const auto last = read_token(reader, step.at("sep"), at + ".sep", parts.tokens.size());
    if (!first || !last) return;
    parts.prefix.insert(parts.prefix.begin(), *first);
    parts.suffix.push_back(*last);
  } else if (type != "ByteLevel") {  // ByteLevel only changes offsets, which are not used
    reader.unsupported("post_processor", step, at);
  }
}

namespace {

void read_decoder_step(JsonReader& reader, const Json& step, const std::string& at, Decoder& out) {
  const std::string type = step.is_null() ? "null" : JsonReader::type_of(step);
  if (type == "Sequence") {
    for_each_part(reader, step, "decoders", at,
                  [&](const Json& part, const std::string& place) { read_decoder_step(reader, part, place, out); });
  } else if (type == "ByteLevel") {
    reader.known_keys(step, at, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    out.add(Decoder::ByteLevel{});
  } else if (type == "ByteFallback") {
    reader.known_keys(step, at, {"type"});
    out.add(Decoder::ByteFallback{});
  } else if (type == "Fuse") {
    reader.known_keys(step, at, {"type"});
    out.add(Decoder::Fuse{});
  } else if (type == "Replace") {
    reader.known_keys(step, at, {"type", "pattern", "content"});
    NamedPattern pattern;
    if (!read_replaced(reader, step, at, pattern)) return;
    out.add(Decoder::Replace{compiled(reader, pattern, at + ".pattern"), pattern.text,
                             step.at("content").get<std::string>()});
  } else if (type == "Strip") {
    reader.known_keys(step, at, {"type", "content", "start", "stop"});
    const auto content = step.at("content").get<std::string>();
    if (content.empty()) return reader.reject("not one character", at + ".content");
    out.add(Decoder::Strip{content, step.at("start").get<int>(), step.at("stop").get<int>()});
  } else if (type == "WordPiece") {
    reader.known_keys(step, at, {"type", "prefix", "cleanup"});
    out.add(Decoder::WordPiece{JsonReader::text(step, "prefix", "##"), JsonReader::flag(step, "cleanup", true)});
  } else if (type == "Metaspace") {
    reader.known_keys(step, at, {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    const std::string scheme =
        JsonReader::text(step, "prepend_scheme", JsonReader::flag(step, "add_prefix_space", true) ? "always" : "never");
    out.add(Decoder::Metaspace{JsonReader::text(step, "replacement", "\xE2\x96\x81"), scheme != "never"});
  } else if (type == "BPEDecoder") {
    reader.known_keys(step, at, {"type", "suffix"});
    out.add(Decoder::Bpe{JsonReader::text(step, "suffix", "</w>")});
  } else {
    reader.reject(cat("decoder not supported: ", type), at);
  }
}

}  // namespace

void read_decoder(JsonReader& reader, const Json& step, TokenizerParts& parts) {
  if (step.is_null()) return parts.decoder.set_space_between();
  read_decoder_step(reader, step, "decoder", parts.decoder);
}

}  // namespace hawser::text
