#include "text/tokenizers/converted_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "base/utf8.h"
#include "io/bounded_file.h"
#include "io/files.h"
#include "io/json.h"
#include "text/tokenizers/base64.h"

namespace hawser::text {
namespace {

namespace fs = std::filesystem;

using Type = SentencePieceModel::Type;
using Piece = SentencePieceModel::Piece;

constexpr std::int64_t kLargestTokenizer = std::int64_t{256} << 20;

// Model types whose folder the generic class reads, whatever class the files name. With spaces around each.
constexpr std::string_view kGenericModels =
    " arctic aria beam bigbird_pegasus canary chatlm ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe "
    "glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode granite granitemoe granitemoehybrid "
    "granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2 internlm3 iquestcoder jamba kimi_k25 "
    "kimi_linear kosmos-2 llava llava_next mimo_v2_flash minicpm3 minicpm_ocr minicpmv minicpmv4_6 "
    "minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 mistral_large4 mixtral modernbert "
    "modernbert-decoder molmo molmo2 nemo_speechlm nemotron nystromformer olmo2 olmo3 olmo_hybrid omniasr "
    "opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral pocket_tts "
    "smolvlm stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl ";
// Model types with a class of their own, for files that name none.
constexpr std::string_view kGemmaModels =
    " diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma shieldgemma2 t5gemma zaya ";

bool is_among(const std::string& name, std::string_view names) {
  return !name.empty() && names.find(cat(" ", name, " ")) != names.npos;
}

TokenizerClass class_named(std::string name) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (name == "LlamaTokenizer") return TokenizerClass::llama;
  if (name == "CodeLlamaTokenizer") return TokenizerClass::code_llama;
  if (name == "GemmaTokenizer") return TokenizerClass::gemma;
  if (name == "T5Tokenizer") return TokenizerClass::t5;
  return TokenizerClass::generic;
}

// config.json in a folder, or what a checkpoint has of it. Null if there is none.
Json model_in(const fs::path& folder) {
  constexpr std::int64_t kLargest = std::int64_t{16} << 20;
  for (const char* name : {"config.json", kTokenizerModelFile}) {
    const std::string file = (folder / name).string();
    if (io::is_file(file)) return io::json_or_null(io::read_bounded(file, kLargest, "cannot read the model's config"));
  }
  return nullptr;
}

std::string text_at(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const Json& value = JsonReader::member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::string_view character_at(std::string_view text, std::size_t at) {
  return text.substr(at, utf8_step(text.substr(at)).bytes);
}

// Calls `visit` with the halves of a token, for each place between two of its characters.
template <class Visit>
void for_each_split(std::string_view token, Visit visit) {
  for (std::size_t at = 0; (at += character_at(token, at).size()) < token.size();) {
    visit(token.substr(0, at), token.substr(at));
  }
}

Json replace(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

constexpr const char* kMark = "\xE2\x96\x81";

Json metaspace(const char* prepend_scheme) {
  return {{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", prepend_scheme}, {"split", false}};
}

Json sequence(const char* key, Json parts) {
  return {{"type", "Sequence"}, {key, std::move(parts)}};
}

// Marks and bytes become text; the first space is not part of it.
Json decoder(bool byte_fallback, bool fuse, bool strip_first) {
  Json steps = Json::array({replace("String", kMark, " ")});
  if (byte_fallback) steps.push_back({{"type", "ByteFallback"}});
  if (fuse) steps.push_back({{"type", "Fuse"}});
  if (strip_first) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return sequence("decoders", std::move(steps));
}

Json bpe(const TokenIds& vocabulary, Json merges, bool byte_fallback) {
  Json model = {{"type", "BPE"}, {"fuse_unk", true}, {"byte_fallback", byte_fallback}, {"merges", std::move(merges)}};
  Json& vocab = model["vocab"] = Json::object();
  for (const auto& [token, id] : vocabulary) vocab[token] = id;
  return model;
}

// Tokens that a class has where the files name none.
ClassTokens named_by(TokenizerClass as) {
  switch (as) {
    case TokenizerClass::generic:
      return {};
    case TokenizerClass::gemma:
      return {{"bos_token", "<bos>"},
              {"eos_token", "<eos>"},
              {"unk_token", "<unk>"},
              {"pad_token", "<pad>"},
              {"mask_token", "<mask>"}};
    case TokenizerClass::t5:
      return {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}};
    case TokenizerClass::llama:
    case TokenizerClass::code_llama:
      break;
  }
  ClassTokens tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};
  if (as == TokenizerClass::code_llama) {
    for (const auto& [key, content] : {std::pair("prefix_token", "\xE2\x96\x81<PRE>"),
                                       {"middle_token", "\xE2\x96\x81<MID>"},
                                       {"suffix_token", "\xE2\x96\x81<SUF>"},
                                       {"eot_token", "\xE2\x96\x81<EOT>"},
                                       {"fill_token", "<FILL_ME>"}}) {
      tokens.emplace_back(key, content);
    }
  }
  return tokens;
}

// The generic class takes the model's names.
ClassTokens named_by(TokenizerClass as, const SentencePieceModel& model) {
  if (as != TokenizerClass::generic) return named_by(as);
  ClassTokens tokens;
  if (model.bos >= 0) tokens.emplace_back("bos_token", model.bos_piece);
  if (model.eos >= 0) tokens.emplace_back("eos_token", model.eos_piece);
  if (model.unknown_id >= 0) tokens.emplace_back("unk_token", model.unknown_piece);
  return tokens;
}

// What a class puts around a text where the files do not say, or whatever they say.
DeclaredTokens with_flags_of(TokenizerClass as, DeclaredTokens declared) {
  if (as == TokenizerClass::code_llama && !declared.add_bos_token) declared.add_bos_token = true;
  if (as == TokenizerClass::t5) {
    declared.add_bos_token = false;
    declared.add_eos_token = true;
  }
  return declared;
}

class Converter {
 public:
  Converter(const SentencePieceModel& model, const DeclaredTokens& declared, TokenizerClass as)
      : model_(model), declared_(declared), as_(as) {}

  ConvertedTokenizer run() {
    switch (as_) {
      case TokenizerClass::llama:
        as_llama(!declared_.legacy.value_or(false));
        break;
      case TokenizerClass::code_llama:
        as_llama(true);
        break;
      case TokenizerClass::gemma:
        as_gemma();
        break;
      case TokenizerClass::t5:
        as_t5();
        break;
      case TokenizerClass::generic:
        as_generic();
        break;
    }
    out_.declared = tokens();
    return std::move(out_);
  }

 private:
  // T5 has sentinels after the pieces.
  std::int32_t extra_ids() const { return declared_.extra_ids.value_or(100); }
  static std::string sentinel(std::int32_t index) { return cat("<extra_id_", index, ">"); }

  // Control pieces are special, user-defined ones are not.
  std::vector<AddedToken> added_pieces() const {
    std::vector<AddedToken> tokens;
    for (const Piece& piece : model_.pieces) {
      const bool control = piece.type == Type::control;
      const bool user_defined = piece.type == Type::user_defined && as_ != TokenizerClass::generic;
      if (control || user_defined) tokens.push_back({.content = piece.text, .special = control});
    }
    if (as_ == TokenizerClass::t5) {
      for (std::int32_t i = 0; i < extra_ids(); ++i) tokens.push_back({.content = sentinel(i), .special = true});
    }
    return tokens;
  }

  TokensToAdd tokens() const {
    DeclaredTokens declared = with_flags_of(as_, declared_);
    if (as_ == TokenizerClass::generic && model_.add_dummy_prefix) {
      for (AddedToken& token : declared.by_id) token.normalized = false;
    }
    std::vector<AddedToken> extra = declared.extra.value_or(added_pieces());
    TokensToAdd add = tokens_to_add(declared, named_by(as_, model_), std::move(extra));
    // The end of text that the class or the model names, if the vocabulary has it.
    const auto is_end = [](const auto& one) { return one.first == "eos_token"; };
    const auto declares_end = [](const auto& one) { return one.key == "eos_token" && one.declared; };
    const ClassTokens names = named_by(as_, model_);
    const auto end = std::ranges::find_if(names, is_end);
    if (end != names.end() && std::ranges::none_of(declared.named, declares_end) && has_token(end->second)) {
      add.eos = AddedToken{.content = end->second, .special = true};
    }
    return add;
  }

  // Whether the converted vocabulary has a token.
  bool has_token(const std::string& text) const {
    const Json& vocabulary = out_.file.at("model").at("vocab");
    if (vocabulary.is_object()) return vocabulary.contains(text);
    return std::ranges::find(model_.pieces, text, &Piece::text) != model_.pieces.end();
  }

  TokenIds vocabulary() const {
    TokenIds vocabulary;
    for (std::size_t id = 0; id < model_.pieces.size(); ++id) {
      vocabulary[model_.pieces[id].text] = static_cast<std::int32_t>(id);
    }
    return vocabulary;
  }

  // Every split of a token in two tokens is a merge; the token with the lower id merges first.
  Json merges_by_id(const TokenIds& vocabulary) const {
    Json merges = Json::array();
    for (const Piece& piece : model_.pieces) {
      for_each_split(piece.text, [&](std::string_view left, std::string_view right) {
        if (vocabulary.contains(left) && vocabulary.contains(right)) merges.push_back({left, right});
      });
    }
    return merges;
  }

  void as_llama(bool first_only) {
    const bool prefix = declared_.add_prefix_space.value_or(true);
    const TokenIds words = vocabulary();
    Json& model = out_.file["model"] = bpe(words, merges_by_id(words), true);
    if (as_ == TokenizerClass::code_llama) set_unknown(model, words, "<unk>");
    const char* scheme = !prefix ? "never" : first_only ? "first" : "always";
    out_.file["pre_tokenizer"] = metaspace(scheme);
    out_.file["decoder"] = decoder(true, true, prefix || as_ == TokenizerClass::code_llama);
    out_.identity = cat("llama ", scheme);
  }

  void as_gemma() {
    const TokenIds words = vocabulary();
    Json& model = out_.file["model"] = bpe(words, merges_by_id(words), true);
    set_unknown(model, words, "<unk>");
    out_.file["normalizer"] = replace("String", " ", kMark);
    out_.file["decoder"] = decoder(true, true, false);
    out_.identity = "gemma";
  }

  void as_t5() {
    Json& model = out_.file["model"] = {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", scored_pieces()}};
    for (std::int32_t i = extra_ids(); i-- > 0;) model["vocab"].push_back({sentinel(i), 0.0});
    if (!model_.charsmap.empty()) out_.file["normalizer"] = precompiled();
    const Json metaspace = {
        {"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", "always"}, {"split", true}};
    out_.file["pre_tokenizer"] = sequence("pretokenizers", Json::array({{{"type", "WhitespaceSplit"}}, metaspace}));
    out_.file["decoder"] = metaspace;
    out_.identity = cat("t5 ", extra_ids());
  }

  Json scored_pieces() const {
    Json pieces = Json::array();
    for (const Piece& piece : model_.pieces) pieces.push_back({piece.text, static_cast<double>(piece.score)});
    return pieces;
  }

  Json precompiled() const { return {{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(model_.charsmap)}}; }

  // The token for characters outside the vocabulary: the declared one, or `otherwise`.
  void set_unknown(Json& model, const TokenIds& words, std::string otherwise) const {
    for (const auto& one : declared_.named) {
      if (one.key == "unk_token" && one.declared) otherwise = one.token ? one.token->content : "";
    }
    if (words.contains(otherwise)) model["unk_token"] = otherwise;
  }

  void as_generic() {
    const bool legacy = declared_.legacy.value_or(true);
    std::vector<std::string> user_defined;
    Json& model = out_.file["model"];
    if (model_.kind == SentencePieceModel::Kind::unigram) {
      model = {{"type", "Unigram"},
               {"unk_id", model_.unknown_id},
               {"byte_fallback", model_.byte_fallback},
               {"vocab", scored_pieces()}};
      for (const Piece& piece : model_.pieces) {
        if (piece.type == Type::user_defined) user_defined.push_back(piece.text);
      }
    } else {
      const TokenIds words = renamed();
      std::vector<std::string> names(model_.pieces.size());
      for (const auto& [token, id] : words) names[id] = token;
      model = bpe(words, merges_by_score(names), model_.byte_fallback);
      for (std::size_t id = 0; id < names.size(); ++id) {
        if (model_.pieces[id].type == Type::user_defined && !names[id].empty()) user_defined.push_back(names[id]);
      }
      if (words.contains(model_.unknown_piece)) model["unk_token"] = model_.unknown_piece;
      if (!user_defined.empty()) model["ignore_merges"] = true;
    }
    put_normalizer(legacy);
    put_pre_tokenizer(legacy, std::move(user_defined));
    const bool fuse = model_.add_dummy_prefix || model_.byte_fallback;
    out_.file["decoder"] = decoder(model_.byte_fallback, fuse, model_.add_dummy_prefix);
    out_.identity = cat("generic", legacy ? " legacy" : "");
  }

  // Declared tokens give their names to pieces, such as placeholders, but not the name of another piece.
  TokenIds renamed() const {
    std::map<std::int32_t, std::string> names;
    for (const AddedToken& token : declared_.by_id) names[token.id] = token.content;
    std::set<std::string> kept;
    const auto size = static_cast<std::int32_t>(model_.pieces.size());
    for (std::int32_t id = 0; id < size; ++id) {
      if (!names.contains(id)) kept.insert(model_.pieces[id].text);
    }
    TokenIds vocabulary;
    for (std::int32_t id = 0; id < size; ++id) {
      const auto name = names.find(id);
      const bool takes = name != names.end() && !kept.contains(name->second);
      vocabulary[takes ? name->second : model_.pieces[id].text] = id;
    }
    return vocabulary;
  }

  // Only normal pieces merge; the one with the best score first. `names`: by id; "" for pieces without a token.
  Json merges_by_score(const std::vector<std::string>& names) const {
    TokenIds normal;
    std::vector<std::int32_t> by_score;
    for (std::size_t id = 0; id < names.size(); ++id) {
      if (model_.pieces[id].type != Type::normal || names[id].empty()) continue;
      normal.emplace(names[id], id);
      by_score.push_back(static_cast<std::int32_t>(id));
    }
    std::stable_sort(by_score.begin(), by_score.end(),
                     [&](auto a, auto b) { return model_.pieces[a].score > model_.pieces[b].score; });
    Json merges = Json::array();
    for (const std::int32_t id : by_score) {
      for_each_split(names[id], [&](std::string_view left, std::string_view right) {
        if (normal.contains(left) && normal.contains(right)) merges.push_back({left, right});
      });
    }
    return merges;
  }

  void put_normalizer(bool legacy) {
    Json steps = Json::array();
    if (!model_.charsmap.empty()) steps.push_back(precompiled());
    if (model_.remove_extra_whitespaces) {
      steps.push_back(replace("Regex", R"(\A +| +\z)", ""));
      steps.push_back(replace("Regex", " {2,}", " "));
    }
    if (model_.escape_whitespaces) steps.push_back(replace("String", " ", kMark));
    // Metaspace puts no mark before a text that starts with one, SentencePiece does.
    if (model_.add_dummy_prefix && legacy)
      steps.push_back(replace("Regex", "\\A\xE2\x96\x81", "\xE2\x96\x81\xE2\x96\x81"));
    out_.file["normalizer"] = sequence("normalizers", steps);
  }

  // User-defined pieces are words of their own: the longest first.
  void put_pre_tokenizer(bool legacy, std::vector<std::string> user_defined) {
    Json steps = Json::array();
    if (model_.add_dummy_prefix) steps.push_back(metaspace(legacy ? "always" : "first"));
    const auto characters = [](const std::string& text) {
      return std::count_if(text.begin(), text.end(),
                           [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    };
    std::stable_sort(user_defined.begin(), user_defined.end(),
                     [&](const auto& a, const auto& b) { return characters(a) > characters(b); });
    std::string pattern;
    for (const std::string& one : user_defined) pattern += cat(pattern.empty() ? "" : "|", literal_pattern(one));
    if (!pattern.empty()) {
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
    }
    if (!steps.empty()) out_.file["pre_tokenizer"] = sequence("pretokenizers", steps);
  }

  const SentencePieceModel& model_;
  const DeclaredTokens& declared_;
  TokenizerClass as_;
  ConvertedTokenizer out_;
};

}  // namespace

TokenizerClass tokenizer_class_of(const DeclaredTokens& declared, const std::string& folder) {
  const Json model = model_in(folder);
  const std::string type = text_at(model, "model_type");
  const std::string name =
      declared.tokenizer_class.empty() ? text_at(model, "tokenizer_class") : declared.tokenizer_class;
  if (is_among(type, kGenericModels)) return TokenizerClass::generic;
  if (!name.empty()) return class_named(name);
  if (type == "code_llama") return TokenizerClass::code_llama;
  if (type == "idefics" || type == "idefics2") return TokenizerClass::llama;
  return is_among(type, kGemmaModels) ? TokenizerClass::gemma : TokenizerClass::generic;
}

std::string tokenizer_model_of(const std::string& tokenizer) {
  const std::string file = io::is_folder(tokenizer) ? tokenizer_in(tokenizer) : tokenizer;
  const fs::path folder = fs::path(file).parent_path();
  const Json model = file.empty() ? Json() : model_in(folder);
  const std::string type = text_at(model, "model_type"), name = text_at(model, "tokenizer_class");
  if (type.empty() && name.empty()) return "";
  const std::string content = io::read_bounded(file, kLargestTokenizer, "cannot read the tokenizer");
  if (tokenizer_file_name(content) == "tokenizer.json") return "";
  if (!read_declared_tokens((folder / "tokenizer_config.json").string()).any) return "";
  Json out = Json::object();
  if (!type.empty()) out["model_type"] = type;
  if (!name.empty()) out["tokenizer_class"] = name;
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::map<std::string, std::string> named_tokens(const DeclaredTokens& declared, const std::string& tokenizer) {
  std::map<std::string, std::string> tokens = declared.texts();
  if (!io::is_file(tokenizer)) return tokens;
  const std::string content = io::read_bounded(tokenizer, kLargestTokenizer, "cannot read the tokenizer");
  const std::string kind = tokenizer_file_name(content);
  if (kind == "tokenizer.json") return tokens;
  const TokenizerClass as = tokenizer_class_of(declared, fs::path(tokenizer).parent_path().string());
  ClassTokens more = named_by(as);
  try {
    // Without declarations the file is read as it is, and its own pieces are the tokens.
    const TokenizerClass named = declared.any ? as : TokenizerClass::generic;
    if (kind == "tokenizer.model") more = named_by(named, parse_sentence_piece(content));
  } catch (const std::invalid_argument&) {
    return tokens;  // load_tokenizer says why
  }
  for (const auto& [key, content_of] : more) {
    const auto named = std::ranges::find(declared.named, key, &DeclaredTokens::Named::key);
    if (named == declared.named.end() || !named->declared) tokens.emplace(key, content_of);
  }
  return tokens;
}

ConvertedTokenizer convert_sentence_piece(const SentencePieceModel& model, const DeclaredTokens& declared,
                                          TokenizerClass as) {
  return Converter(model, declared, as).run();
}

ConvertedTokenizer convert_tekken(Json file, const DeclaredTokens& declared, TokenizerClass as) {
  std::vector<AddedToken> extra = declared.extra.value_or(declared.additional);
  return {.file = std::move(file),
          .declared = tokens_to_add(with_flags_of(as, declared), named_by(as), std::move(extra)),
          .identity = "tekken"};
}

}  // namespace hawser::text
