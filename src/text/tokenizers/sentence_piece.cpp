#include "text/tokenizers/sentence_piece.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <unordered_set>

#include "base/ascii.h"
#include "base/cat.h"
#include "base/error.h"
#include "base/philox.h"
#include "base/utf8.h"
#include "text/tokenizers/bpe.h"
#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/token_decoder.h"
#include "text/tokenizers/unigram.h"

namespace hawser::text {
namespace {

using Type = SentencePieceModel::Type;
using ModelKind = SentencePieceModel::Kind;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Value of a byte piece "<0x1F>"; -1 for other names.
int byte_named(std::string_view name) {
  return name.find_first_of("abcdef") == name.npos ? value_of_byte_token(name) : -1;  // digits are upper case
}

bool is_text(Type type) {
  return type == Type::normal || type == Type::user_defined || type == Type::unused;
}

}  // namespace

void check_sentence_piece(SentencePieceModel& model) {
  if (model.whitespace_as_suffix) throw std::invalid_argument("treat_whitespace_as_suffix is not supported");
  if (!model.denormalizer.empty()) throw std::invalid_argument("a denormalizer is not supported");
  if (model.kind != ModelKind::bpe && model.kind != ModelKind::unigram) {
    throw std::invalid_argument("only BPE and Unigram models are supported, not WORD or CHAR");
  }
  std::unordered_set<std::string_view> texts;
  model.unknown = -1;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    if (!std::isfinite(piece.score)) throw std::invalid_argument(cat("score of piece ", id, " is not finite"));
    if (piece.text.empty()) throw std::invalid_argument(cat("piece ", id, " is empty"));
    if (!texts.insert(piece.text).second) throw std::invalid_argument(cat("piece \"", piece.text, "\" appears twice"));
    if (piece.type == Type::unknown) {
      if (model.unknown >= 0) throw std::invalid_argument("two pieces of type UNKNOWN");
      model.unknown = static_cast<std::int32_t>(id);
    }
    if (piece.type == Type::byte && byte_named(piece.text) < 0) {
      throw std::invalid_argument(cat("piece \"", piece.text, "\" is not the name of a byte"));
    }
  }
  if (model.unknown < 0) throw std::invalid_argument("no piece of type UNKNOWN");
}

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceModel model, std::uint64_t fingerprint)
    : model_(std::move(model)), fingerprint_(fingerprint), charsmap_(model_.charsmap) {
  check_sentence_piece(model_);
  std::vector<std::pair<std::string, std::int32_t>> user_defined;
  std::vector<AddedToken> control;
  for (std::int32_t id = 0; id < vocab_size(); ++id) {
    const auto& piece = model_.pieces[id];
    ids_.emplace(piece.text, id);
    if (piece.type == Type::control) control.push_back({.id = id, .content = piece.text, .special = true});
    if (piece.type == Type::user_defined) {
      user_defined.emplace_back(piece.text, id);
      user_defined_starts_[static_cast<unsigned char>(piece.text[0])] = true;
    }
  }
  control_ = AddedTokens(std::move(control), [](const std::string& content) { return content; });
  any_user_defined_ = !user_defined.empty();
  user_defined_ = Trie(std::move(user_defined));
  look_at_ascii();
  if (model_.kind == ModelKind::bpe) {
    make_bpe();
  } else {
    make_unigram();
  }
}

void SentencePieceTokenizer::make_bpe() {
  auto bpe = std::make_unique<Bpe>();
  bpe->unit = Bpe::Unit::character;
  bpe->unknown = model_.unknown;
  bpe->fuse_unknown = true;
  bpe->byte_fallback = model_.byte_fallback;
  std::vector<std::int32_t> by_score;
  for (std::int32_t id = 0; id < vocab_size(); ++id) {
    const auto& piece = model_.pieces[id];
    if (piece.type == Type::byte) bpe->byte_ids[byte_named(piece.text)] = id;
    if (piece.type == Type::unused) throw std::invalid_argument("pieces of type UNUSED are not supported");
    if (piece.type != Type::normal) continue;
    bpe->words.emplace(piece.text, id);
    by_score.push_back(id);
  }
  std::stable_sort(by_score.begin(), by_score.end(),
                   [&](std::int32_t a, std::int32_t b) { return model_.pieces[a].score > model_.pieces[b].score; });
  // The pair with the best score merges first: every split of a piece in two is a merge. Equal scores get equal ranks.
  std::uint32_t rank = 0;
  cut_ = bpe->words.contains(kSpaceMark) && model_.escape_whitespaces;
  for (std::size_t i = 0; i < by_score.size(); ++i) {
    const auto& piece = model_.pieces[by_score[i]];
    if (i > 0 && piece.score < model_.pieces[by_score[i - 1]].score) ++rank;
    cut_ = cut_ && end_of_space_mark_piece(piece.text, 0) == piece.text.size();
    const std::string_view text = piece.text;
    for (std::size_t at = utf8_step(text).bytes; at < text.size(); at += utf8_step(text.substr(at)).bytes) {
      const auto left = bpe->words.find(text.substr(0, at)), right = bpe->words.find(text.substr(at));
      if (left == bpe->words.end() || right == bpe->words.end()) continue;
      bpe->merges.add(left->second, right->second, {rank, by_score[i]});
    }
    // The library can also merge characters that are not pieces; no trained model has them.
    for (std::size_t at = 0; at < text.size();) {
      const std::string_view character = text.substr(at, utf8_step(text.substr(at)).bytes);
      if (!ids_.contains(character)) {
        throw std::invalid_argument(
            cat("piece \"", text, "\" contains the character \"", character, "\", which is not a piece"));
      }
      at += character.size();
    }
  }
  words_ = std::move(bpe);
}

void SentencePieceTokenizer::make_unigram() {
  auto unigram = std::make_unique<Unigram>();
  unigram->unknown = model_.unknown;
  unigram->float32_sums = true;
  float min = std::numeric_limits<float>::max();
  std::vector<std::pair<std::string, std::int32_t>> tokens;
  for (std::int32_t id = 0; id < vocab_size(); ++id) {
    const auto& piece = model_.pieces[id];
    // A user-defined symbol scores higher than any other piece, and a long one higher than two short ones.
    const bool preferred = piece.type == Type::user_defined;
    unigram->scores.push_back(preferred ? static_cast<float>(0.1 * (piece.text.size() - 1.0)) : piece.score);
    if (piece.type == Type::byte && model_.byte_fallback) unigram->byte_ids[byte_named(piece.text)] = id;
    if (is_text(piece.type) && piece.type != Type::unused) tokens.emplace_back(piece.text, id);
    if (piece.type != Type::normal) continue;
    min = std::min(min, piece.score);
  }
  unigram->unknown_score = min - 10.0F;  // in float32, as in the library
  unigram->tokens = Trie(std::move(tokens));
  words_ = std::move(unigram);
}

void SentencePieceTokenizer::look_at_ascii() {
  for (int c = 0; c < 128; ++c) {
    plain_[c] = c != ' ' && !user_defined_starts_[c];
    const char text[2] = {static_cast<char>(c), 0};
    if (charsmap_.longest({text, 1})) plain_[c] = false;
    for (int next = 0; next < 128 && plain_[c]; ++next) {
      const char two[2] = {static_cast<char>(c), static_cast<char>(next)};
      if (charsmap_.longest({two, 2})) plain_[c] = false;
    }
  }
}

std::size_t SentencePieceTokenizer::user_defined(std::string_view text, std::int32_t* id) const {
  if (!any_user_defined_ || !user_defined_starts_[static_cast<unsigned char>(text[0])]) return 0;
  std::size_t length = 0;
  std::uint32_t node = Trie::kRoot;
  for (std::size_t i = 0; i < text.size() && user_defined_.go(node, static_cast<unsigned char>(text[i])); ++i) {
    if (user_defined_.value(node) == Trie::kNone) continue;
    length = i + 1;
    if (id) *id = user_defined_.value(node);
  }
  return length;
}

Charsmap::Match SentencePieceTokenizer::replacement(std::string_view text) const {
  if (const std::size_t length = user_defined(text, nullptr)) return {length, text.substr(0, length)};
  if (const auto match = charsmap_.longest(text)) return *match;
  const Utf8Step step = utf8_step(text);
  if (!step.valid) return {1, kReplacement};
  return {static_cast<std::size_t>(step.bytes), text.substr(0, step.bytes)};
}

void SentencePieceTokenizer::normalize(std::string_view text, std::string& out) const {
  out.clear();
  out.reserve(text.size() * 3 / 2 + 8);
  if (model_.remove_extra_whitespaces) {
    while (!text.empty()) {
      const auto match = replacement(text);
      if (match.replacement != " ") break;
      text.remove_prefix(match.length);
    }
  }
  if (text.empty()) return;
  const std::string_view space = model_.escape_whitespaces ? kSpaceMark : std::string_view(" ");
  if (model_.add_dummy_prefix) out += space;
  bool after_space = model_.remove_extra_whitespaces;
  for (std::size_t at = 0; at < text.size();) {
    // Copies a run of characters that are not replaced.
    std::size_t end = at;
    while (end < text.size() && static_cast<unsigned char>(text[end]) < 0x80 &&
           plain_[static_cast<unsigned char>(text[end])] &&
           (end + 1 == text.size() || static_cast<unsigned char>(text[end + 1]) < 0x80)) {
      ++end;
    }
    if (end > at) {
      out += text.substr(at, end - at);
      at = end;
      after_space = false;
      continue;
    }
    const auto match = replacement(text.substr(at));
    at += match.length;
    std::string_view now = match.replacement;
    while (after_space && now.starts_with(' ')) now.remove_prefix(1);
    if (!now.empty()) {
      for (const char c : now) {
        if (c == ' ') {
          out += space;
        } else {
          out += c;
        }
      }
      after_space = now.ends_with(' ');
    }
    if (!model_.remove_extra_whitespaces) after_space = false;
  }
  if (model_.remove_extra_whitespaces) {
    while (out.ends_with(space)) out.resize(out.size() - space.size());
  }
}

void SentencePieceTokenizer::encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const {
  std::unique_ptr<WordCache> words;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      words = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!words) words = std::make_unique<WordCache>();
  std::string normal;
  normalize(text, normal);
  {
    IdSink sink(ids);
    if (add_special && bos()) sink.put(*bos());
    if (model_.kind == ModelKind::bpe && any_user_defined_) {
      // User-defined symbols do not merge with neighbours, so the text between them is encoded separately.
      std::size_t done = 0;
      for (std::size_t at = 0; at < normal.size();) {
        std::int32_t id = 0;
        const std::size_t length = user_defined(std::string_view(normal).substr(at), &id);
        if (length == 0) {
          ++at;
          continue;
        }
        encode_words(std::string_view(normal).substr(done, at - done), *words, sink);
        sink.put(id);
        done = at += length;
      }
      encode_words(std::string_view(normal).substr(done), *words, sink);
    } else {
      encode_words(normal, *words, sink);
    }
  }
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(words));
}

void SentencePieceTokenizer::encode_conversation(std::string_view text, std::vector<std::int32_t>& ids) const {
  bool after_control = false;
  control_.find(text, [&](std::string_view run, std::int32_t id) {
    if (id >= 0) {
      ids.push_back(id);
      after_control = true;
      return;
    }
    if (after_control && model_.add_dummy_prefix && run.starts_with(' ')) run.remove_prefix(1);
    encode(run, ids, false);
  });
}

TextFrame SentencePieceTokenizer::frame() const {
  TextFrame frame;
  if (bos()) frame.before.push_back(*bos());
  return frame;
}

void SentencePieceTokenizer::encode_words(std::string_view run, WordCache& words, IdSink& sink) const {
  for (std::size_t at = 0; at < run.size();) {
    const std::size_t end = cut_ ? end_of_space_mark_piece(run, at) : run.size();
    words.encode(run.substr(at, end - at), run.data() + run.size(), *words_, sink);
    at = end;
  }
}

std::string SentencePieceTokenizer::decode_bytes(std::span<const std::int32_t> ids, bool) const {
  const bool drop_first = model_.add_dummy_prefix || model_.remove_extra_whitespaces;
  std::string out, bytes;
  bool start = true, dropped = false;  // start: no text so far; dropped: the last piece lost its leading mark
  const auto flush = [&] {
    for (std::size_t at = 0; at < bytes.size();) {
      const Utf8Step step = utf8_step(std::string_view(bytes).substr(at));
      out += step.valid ? std::string_view(bytes).substr(at, step.bytes) : kReplacement;
      at += step.valid ? step.bytes : 1;
    }
    bytes.clear();
  };
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    const auto& piece = model_.pieces[id];
    if (piece.type == Type::byte) {
      bytes += static_cast<char>(byte_named(piece.text));
      continue;
    }
    flush();
    if (dropped || !out.empty()) start = false;
    dropped = false;
    if (piece.type == Type::control) continue;
    if (piece.type == Type::unknown) {
      out += model_.unknown_surface;
      continue;
    }
    std::string_view text = piece.text;
    if (start && drop_first && text.starts_with(kSpaceMark)) {
      text.remove_prefix(kSpaceMark.size());
      dropped = !model_.remove_extra_whitespaces;
    }
    while (!text.empty()) {
      const std::size_t mark = std::min(text.find(kSpaceMark), text.size());
      out += text.substr(0, mark);
      if (mark == text.size()) break;
      out += ' ';
      text.remove_prefix(mark + kSpaceMark.size());
    }
  }
  flush();
  return out;
}

std::optional<unsigned char> SentencePieceTokenizer::byte_of(std::int32_t id) const {
  if (id < 0 || id >= vocab_size() || model_.pieces[id].type != Type::byte) return std::nullopt;
  return static_cast<unsigned char>(byte_named(model_.pieces[id].text));
}

bool SentencePieceTokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && model_.pieces[id].type == Type::control;
}

bool SentencePieceTokenizer::marks_turns(std::int32_t id) const {
  if (is_special(id)) return true;
  const bool user_defined = id >= 0 && id < vocab_size() && model_.pieces[id].type == Type::user_defined;
  return user_defined && !std::ranges::all_of(surface(id), is_space);
}

std::string SentencePieceTokenizer::surface(std::int32_t id) const {
  if (id < 0 || id >= vocab_size()) return "";
  const auto& piece = model_.pieces[id];
  if (piece.type == Type::unknown) return "";
  if (piece.type == Type::control) return piece.text;
  if (const auto byte = byte_of(id)) return std::string(1, static_cast<char>(*byte));
  std::string text;
  std::string_view rest = piece.text;
  for (std::size_t mark; (mark = rest.find(kSpaceMark)) != rest.npos; rest.remove_prefix(mark + kSpaceMark.size())) {
    text += rest.substr(0, mark);
    text += ' ';
  }
  text += rest;
  return text;
}

std::optional<std::int32_t> SentencePieceTokenizer::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace hawser::text
