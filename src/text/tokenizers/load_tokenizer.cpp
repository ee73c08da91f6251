// load_tokenizer, and the reader of Hugging Face tokenizer.json files.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/philox.h"
#include "io/bounded_file.h"
#include "io/files.h"
#include "io/json.h"
#include "text/tokenizers/bpe.h"
#include "text/tokenizers/byte_level.h"
#include "text/tokenizers/converted_tokenizer.h"
#include "text/tokenizers/json_reader.h"

namespace hawser::text {
namespace {

namespace fs = std::filesystem;

// Makes the model of a byte-level vocabulary work on bytes instead of the characters of the alphabet.
void work_on_bytes(JsonReader& reader, Bpe& bpe) {
  if (bpe.byte_fallback) reader.reject("byte_fallback not supported", "model.byte_fallback");
  if (!bpe.continuing_prefix.empty()) reader.reject("not supported", "model.continuing_subword_prefix");
  if (!bpe.end_suffix.empty()) reader.reject("not supported", "model.end_of_word_suffix");
  bpe.unit = Bpe::Unit::byte;
  bpe.byte_ids.fill(-1);
  TokenIds words;
  for (const auto& [token, id] : bpe.words) {
    const auto bytes = bytes_of_byte_level(token);
    if (!bytes) continue;
    if (bytes->size() == 1) bpe.byte_ids[static_cast<unsigned char>((*bytes)[0])] = id;
    if (bpe.ignore_merges) words.emplace(*bytes, id);
  }
  bpe.words = std::move(words);
}

// Whether no merge crosses the boundary before a run of marks, so that both sides can be encoded separately.
bool may_cut_at_space_marks(const Bpe& bpe, const TokenIds& ids) {
  const bool all_bytes = std::all_of(bpe.byte_ids.begin(), bpe.byte_ids.end(), [](std::int32_t id) { return id >= 0; });
  if (bpe.unit != Bpe::Unit::character || bpe.ignore_merges || !ids.contains(kSpaceMark) ||
      !bpe.continuing_prefix.empty() || !bpe.end_suffix.empty() || (bpe.byte_fallback && bpe.unknown && !all_bytes)) {
    return false;
  }
  return std::all_of(ids.begin(), ids.end(), [](const auto& entry) {
    const std::string_view token = entry.first;
    return token.empty() || end_of_space_mark_piece(token, 0) == token.size();
  });
}

// Reads the added tokens of the file and the declared ones. parts.fingerprint is the file's on entry.
void read_tokens(JsonReader& reader, const Json& value, const TokensToAdd& declared, TokenizerParts& parts) {
  const auto& eos = declared.eos;
  const auto more = read_added_tokens(reader, reader.list(value, "added_tokens"), declared, parts);
  // Data that were prepared with another end token or with other added tokens are stale.
  if (eos) parts.fingerprint = fnv1a(cat(parts.fingerprint, " ", eos->content));
  for (const AddedToken& one : more) {
    parts.fingerprint = fnv1a(cat(parts.fingerprint, " ", one.id, one.single_word, one.lstrip, one.rstrip,
                                  one.normalized, one.special, " ", one.content));
  }
  if (declared.split_special_tokens) parts.fingerprint = fnv1a(cat(parts.fingerprint, " split_special_tokens"));
  const auto put_around = [&](const std::string& token, std::vector<std::int32_t>& ids) {
    if (const auto found = parts.ids.find(token); !token.empty() && found != parts.ids.end()) {
      ids.push_back(found->second);
    }
  };
  put_around(declared.before, parts.prefix);
  put_around(declared.after, parts.suffix);
  if (!eos) return;
  parts.eos = eos->content;
  if (parts.model && !parts.ids.contains(parts.eos)) {
    reader.add({.file = declared.eos_file,
                .what = "the tokenizer does not have this token",
                .expected = "a token of tokenizer.json",
                .got = parts.eos,
                .at = "eos_token"});
  }
}

// `declared` are those that it gets besides the added tokens of `file`.
std::unique_ptr<Tokenizer> read_json(JsonReader& reader, const Json& file, std::uint64_t fingerprint,
                                     const TokensToAdd& declared) {
  TokenizerParts parts;
  parts.fingerprint = fingerprint;
  const auto member = [&](const char* key) -> const Json& { return JsonReader::member(file, key); };
  reader.known_keys(file, "",
                    {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
  reader.section("model", [&] { read_model(reader, member("model"), parts); });
  reader.section("normalizer", [&] { read_normalizer(reader, member("normalizer"), "normalizer", parts.normalizer); });
  reader.section("added_tokens", [&] { read_tokens(reader, member("added_tokens"), declared, parts); });
  bool byte_level = false;
  reader.section("pre_tokenizer", [&] { byte_level = read_pre_tokenizer(reader, member("pre_tokenizer"), parts); });
  reader.section("post_processor",
                 [&] { read_post_processor(reader, member("post_processor"), "post_processor", parts); });
  reader.section("decoder", [&] { read_decoder(reader, member("decoder"), parts); });
  auto* bpe = dynamic_cast<Bpe*>(parts.model.get());
  if (bpe && byte_level) {
    work_on_bytes(reader, *bpe);
  } else if (byte_level) {
    // Models other than BPE read the words in the byte-level alphabet.
    if (!parts.words_in_byte_level) parts.pre_tokenizer.add(PreTokenizer::ByteLevel{});
    parts.words_in_byte_level = false;
  } else if (bpe && may_cut_at_space_marks(*bpe, parts.ids)) {
    parts.pre_tokenizer.add(PreTokenizer::CutAtSpaceMarks{});
  }
  reader.problems().throw_if_any();
  if (parts.decoder.only_byte_level()) {
    for (const std::string& token : parts.tokens) parts.bytes.push_back(bytes_of_byte_level(token).value_or(token));
  }
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

std::string folder_of(const std::string& file) {
  return fs::path(file).parent_path().string();
}

std::unique_ptr<Tokenizer> read_converted(const std::string& path, const ConvertedTokenizer& converted,
                                          std::uint64_t fingerprint) {
  const TokensToAdd& declared = converted.declared;
  JsonReader reader(path);
  return read_json(reader, converted.file,
                   fnv1a(cat(fingerprint, " ", converted.identity, " ", declared.before, " ", declared.after)),
                   declared);
}

std::unique_ptr<Tokenizer> read_sentence_piece(const std::string& path, std::string_view bytes,
                                               const DeclaredTokens& declared) {
  try {
    SentencePieceModel model = parse_sentence_piece(bytes);
    if (!declared.any) return std::make_unique<SentencePieceTokenizer>(std::move(model), fnv1a(bytes));
    check_sentence_piece(model);
    const TokenizerClass as = tokenizer_class_of(declared, folder_of(path));
    return read_converted(path, convert_sentence_piece(model, declared, as), fnv1a(bytes));
  } catch (const std::invalid_argument& error) {
    throw UserError({.file = path, .what = error.what()});
  }
}

std::string file_in(const std::string& folder) {
  if (std::string file = tokenizer_in(folder); !file.empty()) return file;
  throw UserError({.file = folder,
                   .what = "no tokenizer in this folder",
                   .expected = "tokenizer.json, tekken.json or tokenizer.model"});
}

// An empty file counts as JSON: its error says most.
bool looks_like_json(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return text.size() < 2 || (first != std::string::npos && (text[first] == '{' || text[first] == '['));
}

bool is_tekken(const Json& file) {
  return file.is_object() && !file.contains("model") && file.contains("config") && file.contains("vocab");
}

// Whether a file has lines of base64 and a number: tiktoken ranks, without pattern and special tokens.
bool is_rank_file(std::string_view text) {
  const std::string_view line = text.substr(0, std::min<std::size_t>(text.find('\n'), 512));
  const std::size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 && line.size() > space + 1 &&
         std::all_of(line.begin() + static_cast<std::ptrdiff_t>(space) + 1, line.end(),
                     [](char c) { return (c >= '0' && c <= '9') || c == '\r'; });
}

}  // namespace

std::string tokenizer_in(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tekken.json", "tokenizer.model"}) {
    const fs::path file = fs::path(folder) / name;
    if (io::exists(file.string())) return file.string();
  }
  return "";
}

std::string tokenizer_file_name(const std::string& content) {
  if (!looks_like_json(content)) return "tokenizer.model";
  return is_tekken(io::json_or_null(content)) ? "tekken.json" : "tokenizer.json";
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  const std::string file = io::is_folder(path) ? file_in(path) : path;
  if (io::exists(file) && !io::is_file(file)) {  // reading a pipe could block
    throw UserError({.file = file, .what = "cannot read the tokenizer: not a regular file"});
  }
  constexpr std::int64_t kLargest = std::int64_t{256} << 20;
  const std::string text = io::read_bounded(file, kLargest, "cannot read the tokenizer");
  const DeclaredTokens declared = read_declared_tokens((fs::path(folder_of(file)) / "tokenizer_config.json").string());
  if (!looks_like_json(text)) {
    if (is_rank_file(text)) {
      throw UserError({.file = file,
                       .what = "tiktoken rank files are not supported: they lack the pattern and special tokens",
                       .expected = "tokenizer.json, tekken.json or a SentencePiece model",
                       .hint = "the tokenizer.json that comes with the model"});
    }
    return read_sentence_piece(file, text, declared);
  }
  JsonReader reader(file);
  const Json parsed = reader.parse(text);
  if (!is_tekken(parsed)) return read_json(reader, parsed, fnv1a(text), tokens_to_add(declared));
  if (!declared.any) return read_tekken(file, parsed, fnv1a(text));
  const TokenizerClass as = tokenizer_class_of(declared, folder_of(file));
  return read_converted(file, convert_tekken(tekken_as_json(file, parsed), declared, as), fnv1a(text));
}

}  // namespace hawser::text
