// Reads Hugging Face's tokenizer.json into ByteBpeParts.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/philox.h"
#include "data/tokenizers/byte_bpe_tokenizer.h"
#include "data/tokenizers/byte_level.h"

namespace hawser::data {
namespace {

using Json = nlohmann::json;

// No vocabulary is near this; a larger id would only make us allocate.
constexpr std::int64_t kMostIds = std::int64_t{1} << 24;

// Reads one file, collecting what is wrong with it.
class Loader {
 public:
  explicit Loader(std::string path) : path_(std::move(path)) {}

  ByteBpeParts load() {
    const Json file = parse();
    known_keys(file, "",
               {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                "decoder", "model"});
    // nlohmann's accessors throw on a value of the wrong kind; each section reports its own.
    section("model", [&] { read_model(member(file, "model")); });
    section("added_tokens", [&] { read_added_tokens(list(member(file, "added_tokens"), "added_tokens")); });
    section("normalizer", [&] { read_normalizer(member(file, "normalizer"), "normalizer"); });
    section("pre_tokenizer", [&] {
      read_pre_tokenizer(member(file, "pre_tokenizer"), "pre_tokenizer");
      if (!byte_level_) refuse("pre_tokenizer without ByteLevel: only byte-level BPE is supported", "pre_tokenizer");
    });
    section("post_processor", [&] { read_post_processor(member(file, "post_processor"), "post_processor"); });
    section("decoder", [&] {
      const Json& decoder = member(file, "decoder");
      if (decoder.is_null() || type_of(decoder) != "ByteLevel") unsupported("decoder", decoder, "decoder");
    });
    problems_.throw_if_any();
    return std::move(parts_);
  }

 private:
  Json parse() {
    std::ifstream stream(path_, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
    if (!stream) throw UserError({.file = path_, .what = "cannot read the tokenizer"});
    parts_.fingerprint = fnv1a(text);
    try {
      Json json = Json::parse(text);
      if (!json.is_object()) throw UserError({.file = path_, .what = "not a tokenizer.json", .expected = "an object"});
      return json;
    } catch (const Json::parse_error& error) {
      throw UserError({.file = path_, .what = "broken JSON", .at = cat("byte ", error.byte)});
    } catch (const Json::out_of_range&) {
      throw UserError({.file = path_, .what = "broken JSON", .got = "a number that is too large"});
    }
  }

  void refuse(std::string what, std::string at) {
    problems_.add({.file = path_, .what = std::move(what), .at = std::move(at)});
  }

  void unsupported(std::string_view kind, const Json& object, const std::string& at) {
    refuse(cat(kind, " not supported: ", object.is_null() ? "null" : type_of(object)), at);
  }

  template <class Body>
  void section(const std::string& name, Body body) {
    try {
      body();
    } catch (const Json::exception& error) {
      const std::string_view what = error.what();  // "[json.exception.type_error.302] type must be ..."
      refuse(cat("unexpected value: ", what.substr(what.find("] ") + 2)), name);
    } catch (const std::invalid_argument& error) {
      refuse(error.what(), name);
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

  void known_keys(const Json& object, const std::string& at, std::set<std::string> keys) {
    for (const auto& [key, value] : object.items()) {
      if (!keys.contains(key) && !value.is_null()) refuse("unknown key", at.empty() ? key : at + "." + key);
    }
  }

  // A list's items; reports another type and yields nothing for it, nor for null.
  const Json& list(const Json& value, const std::string& at) {
    static const Json kEmpty = Json::array();
    if (value.is_array()) return value;
    if (!value.is_null()) wrong_type("a list", value, at);
    return kEmpty;
  }

  void wrong_type(const char* expected, const Json& value, const std::string& at) {
    problems_.add({.file = path_, .what = "wrong type", .expected = expected, .got = value.type_name(), .at = at});
  }

  // True when the id is usable.
  bool check_id(const Json& value, const std::string& at) {
    if (value.is_number_integer() && value >= 0 && value < kMostIds) return true;
    problems_.add(
        {.file = path_, .what = "bad token id", .expected = cat("0 to ", kMostIds - 1), .got = value.dump(), .at = at});
    return false;
  }

  void put_bytes(std::int32_t id, std::string bytes) {
    if (static_cast<std::size_t>(id) >= parts_.bytes.size()) parts_.bytes.resize(id + 1);
    parts_.bytes[id] = std::move(bytes);
  }

  void read_model(const Json& model) {
    if (!model.is_object() || (model.contains("type") && type_of(model) != "BPE")) {
      return unsupported("model", model, "model");
    }
    known_keys(model, "model",
               {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (flag(model, "byte_fallback", false)) refuse("byte_fallback not supported", "model.byte_fallback");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = member(model, key);
      if (!value.is_null() && value != "") refuse("not supported", cat("model.", key));
    }
    const Json& dropout = member(model, "dropout");
    if (!dropout.is_null() && dropout != 0.0) refuse("dropout not supported", "model.dropout");

    Bpe& bpe = parts_.bpe;
    bpe.byte_ids.fill(-1);
    bpe.ignore_merges = flag(model, "ignore_merges", false);
    bpe.fuse_unknown = flag(model, "fuse_unk", false);
    read_vocabulary(model.at("vocab"));
    if (parts_.ids.empty()) return;  // said already; every merge would only say it again
    read_merges(list(model.at("merges"), "model.merges"));
    if (const Json& unknown = member(model, "unk_token"); !unknown.is_null()) {
      const auto found = parts_.ids.find(unknown.get_ref<const std::string&>());
      if (found == parts_.ids.end()) return refuse("not in the vocabulary", "model.unk_token");
      bpe.unknown = found->second;
    }
  }

  void read_vocabulary(const Json& vocabulary) {
    if (!vocabulary.is_object()) return wrong_type("an object", vocabulary, "model.vocab");
    parts_.ids.reserve(vocabulary.size() + 512);
    std::vector<bool> used;
    for (const auto& [token, value] : vocabulary.items()) {
      if (!check_id(value, "model.vocab." + token)) continue;
      const auto id = value.get<std::int32_t>();
      if (static_cast<std::size_t>(id) >= used.size()) used.resize(id + 1);
      if (used[id]) refuse("token id used twice", "model.vocab." + token);
      used[id] = true;
      parts_.ids.emplace(token, id);
      const auto bytes = bytes_of_byte_level(token);
      put_bytes(id, bytes.value_or(token));
      if (!bytes) continue;
      if (bytes->size() == 1) parts_.bpe.byte_ids[static_cast<unsigned char>((*bytes)[0])] = id;
      if (parts_.bpe.ignore_merges) parts_.bpe.words.emplace(*bytes, id);
    }
    if (parts_.ids.empty()) refuse("empty vocabulary", "model.vocab");
  }

  void read_merges(const Json& merges) {
    parts_.bpe.merges = MergeTable(merges.size());
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
      const std::string joined = cat(left, right);
      const auto a = parts_.ids.find(left), b = parts_.ids.find(right), c = parts_.ids.find(joined);
      if (left.empty() || right.empty()) {
        refuse("not a pair of tokens", at);
      } else if (a == parts_.ids.end() || b == parts_.ids.end() || c == parts_.ids.end()) {
        problems_.add(
            {.file = path_, .what = "merge of tokens that the vocabulary lacks", .got = merge.dump(), .at = at});
      } else {
        parts_.bpe.merges.add(a->second, b->second, {rank, c->second});
      }
      ++rank;
    }
  }

  void read_added_tokens(const Json& items) {
    std::vector<AddedToken> tokens;
    std::size_t index = 0;
    for (const Json& item : items) {
      const std::string at = cat("added_tokens[", index++, "]");
      known_keys(item, at, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token{.content = item.at("content").get<std::string>(),
                       .single_word = flag(item, "single_word", false),
                       .lstrip = flag(item, "lstrip", false),
                       .rstrip = flag(item, "rstrip", false),
                       .normalized = flag(item, "normalized", false),
                       .special = flag(item, "special", false)};
      if (!check_id(item.at("id"), at + ".id")) continue;
      token.id = item.at("id").get<std::int32_t>();
      const auto [known, fresh] = parts_.ids.emplace(token.content, token.id);
      if (!fresh && known->second != token.id) {
        problems_.add({.file = path_,
                       .what = "added token with another id in the vocabulary",
                       .expected = cat(known->second),
                       .got = cat(token.id),
                       .at = at + ".id"});
        continue;
      }
      put_bytes(token.id, token.content);
      tokens.push_back(std::move(token));
    }
    parts_.added = AddedTokens(std::move(tokens));
  }

  void read_normalizer(const Json& normalizer, const std::string& at) {
    if (normalizer.is_null()) return;
    if (type_of(normalizer) != "Sequence") return unsupported("normalizer", normalizer, at);
    std::size_t index = 0;
    for (const Json& part : list(normalizer.at("normalizers"), at))
      read_normalizer(part, cat(at, ".normalizers[", index++, "]"));
  }

  void read_pre_tokenizer(const Json& step, const std::string& at) {
    if (step.is_null()) return;
    const std::string type = type_of(step);
    PreTokenizer& out = parts_.pre_tokenizer;
    if (type == "Sequence") {
      known_keys(step, at, {"type", "pretokenizers"});
      std::size_t index = 0;
      for (const Json& part : list(step.at("pretokenizers"), at)) {
        read_pre_tokenizer(part, cat(at, ".pretokenizers[", index++, "]"));
      }
    } else if (byte_level_) {
      // Later steps would see the byte-level alphabet in place of the text.
      refuse("step after ByteLevel not supported", at);
    } else if (type == "Digits") {
      known_keys(step, at, {"type", "individual_digits"});
      const bool single = flag(step, "individual_digits", false);
      out.add_split(Regex(single ? "\\p{N}" : "\\p{N}+"), SplitBehavior::isolated, false);
    } else if (type == "Split") {
      known_keys(step, at, {"type", "pattern", "behavior", "invert"});
      read_split(step, at);
    } else if (type == "ByteLevel") {
      known_keys(step, at, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      byte_level_ = true;
      if (flag(step, "add_prefix_space", true)) out.add_prefix_space();
      if (flag(step, "use_regex", true)) out.add_split(Regex(kGpt2Pattern), SplitBehavior::isolated, false);
    } else {
      unsupported("pre_tokenizer", step, at);
    }
  }

  void read_split(const Json& step, const std::string& at) {
    static const std::map<std::string, SplitBehavior> kBehaviors = {
        {"Isolated", SplitBehavior::isolated},
        {"Removed", SplitBehavior::removed},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const auto behavior = kBehaviors.find(step.at("behavior").get<std::string>());
    if (behavior == kBehaviors.end()) return refuse("behavior not supported", at + ".behavior");
    const Json& pattern = step.at("pattern");
    std::string regex;
    if (pattern.contains("Regex")) {
      regex = pattern.at("Regex").get<std::string>();
    } else if (pattern.contains("String")) {
      for (const char c : pattern.at("String").get<std::string>()) {
        if (static_cast<unsigned char>(c) < 0x80 && std::ispunct(static_cast<unsigned char>(c))) regex += '\\';
        regex += c;
      }
    } else {
      return refuse("pattern not supported", at + ".pattern");
    }
    try {
      parts_.pre_tokenizer.add_split(Regex(regex), behavior->second, flag(step, "invert", false));
    } catch (const std::invalid_argument& error) {
      refuse(error.what(), at + ".pattern");
    }
  }

  void read_post_processor(const Json& step, const std::string& at) {
    if (step.is_null()) return;
    const std::string type = type_of(step);
    if (type == "Sequence") {
      std::size_t index = 0;
      for (const Json& part : list(step.at("processors"), at))
        read_post_processor(part, cat(at, ".processors[", index++, "]"));
    } else if (type == "TemplateProcessing") {
      known_keys(step, at, {"type", "single", "pair", "special_tokens"});
      read_template(step, at);
    } else if (type != "ByteLevel") {  // ByteLevel moves offsets only, and we keep none
      unsupported("post_processor", step, at);
    }
  }

  void read_template(const Json& step, const std::string& at) {
    std::vector<std::int32_t> before, after;
    bool seen = false;
    for (const Json& piece : list(step.at("single"), at + ".single")) {
      if (piece.contains("Sequence")) {
        if (seen || piece.at("Sequence").at("id") != "A") return refuse("template not supported", at + ".single");
        seen = true;
        continue;
      }
      const auto name = piece.at("SpecialToken").at("id").get<std::string>();
      for (const Json& id : list(step.at("special_tokens").at(name).at("ids"), at)) {
        if (!check_id(id, at + ".special_tokens." + name)) continue;
        if (id >= parts_.bytes.size()) {
          refuse("id outside the vocabulary", at + ".special_tokens." + name);
        }
        (seen ? after : before).push_back(id.get<std::int32_t>());
      }
    }
    if (!seen) return refuse("template without the text", at + ".single");
    parts_.prefix.insert(parts_.prefix.begin(), before.begin(), before.end());
    parts_.suffix.insert(parts_.suffix.end(), after.begin(), after.end());
  }

  std::string path_;
  Problems problems_;
  ByteBpeParts parts_;
  bool byte_level_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string file = fs::is_directory(path, ignored) ? (fs::path(path) / "tokenizer.json").string() : path;
  return std::make_unique<ByteBpeTokenizer>(Loader(file).load());
}

}  // namespace hawser::data
