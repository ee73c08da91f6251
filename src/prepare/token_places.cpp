#include "prepare/token_places.h"

#include <algorithm>
#include <string>

#include "base/ascii.h"

namespace hawser::prepare {
namespace {

using Ids = std::vector<std::int32_t>;

}  // namespace

TokenPlaces::TokenPlaces(std::string_view text, const Ids& ids, const text::Tokenizer& tokenizer, bool conversation)
    : text_(text), ids_(ids), tokenizer_(tokenizer), conversation_(conversation) {
  align();
}

void TokenPlaces::align() {
  ends_.reserve(ids_.size());
  while (ends_.size() < ids_.size()) {
    if (!align_token(ends_.size()) && !align_with_space(ends_.size())) add_gap(ends_.size());
  }
  // A tokenizer may drop what is at the end, such as spaces.
  const bool dropped = !ids_.empty() && ends_.back() < text_.size();
  if (dropped) add_gap(ends_.size());
}

// Places a token at the end of the one before it. Returns false if its surface is not there.
bool TokenPlaces::align_token(std::size_t token) {
  const std::int32_t id = ids_[token];
  const std::string surface = tokenizer_.surface(id);
  if (surface.empty()) return false;
  std::size_t begin = token == 0 ? 0 : ends_.back();
  const std::string_view rest = text_.substr(begin);
  const bool special = tokenizer_.is_special(id), after_special = token > 0 && tokenizer_.is_special(ids_[token - 1]);
  std::size_t bytes = surface.size();
  if (!rest.starts_with(surface)) {
    const bool added_space = surface[0] == ' ' && (token == 0 || after_special);
    if (added_space && rest.starts_with(std::string_view(surface).substr(1))) {
      --bytes;  // the tokenizer puts a space before a text
    } else {
      // Some special tokens take the white space around them in.
      const auto word = std::ranges::find_if_not(rest, is_space);
      const auto spaces = static_cast<std::size_t>(word - rest.begin());
      if (spaces == 0 || !(special || after_special) || !rest.substr(spaces).starts_with(surface)) return false;
      if (after_special) {
        ends_.back() = begin += spaces;
      } else {
        bytes += spaces;
      }
    }
  }
  ends_.push_back(begin + bytes);
  if (tokenizer_.marks_turns(id)) specials_.push_back({id, ends_.back() - surface.size(), ends_.back()});
  return true;
}

// Places the tokens from the last special token to this one again, where the first of them begins with a space of the
// text and with one that the tokenizer puts before it. Returns false if this token cannot be placed in this way either.
bool TokenPlaces::align_with_space(std::size_t token) {
  std::size_t first = token;
  while (first > 0 && !tokenizer_.is_special(ids_[first - 1])) --first;
  if (first == token) return false;
  const std::string surface = tokenizer_.surface(ids_[first]);
  const std::size_t begin = first == 0 ? 0 : ends_[first - 1];
  if (surface[0] != ' ' || ends_[first] - begin != surface.size()) return false;
  ends_.resize(first);
  ends_.push_back(begin + surface.size() - 1);
  while (ends_.size() <= token) {
    if (!align_token(ends_.size())) return false;
  }
  return true;
}

// Adds a gap from the last special token before `token` to the next one that is found in the text.
void TokenPlaces::add_gap(std::size_t token) {
  std::size_t begin = token;
  while (begin > 0 && !tokenizer_.is_special(ids_[begin - 1])) --begin;
  if (begin > 0) --begin;
  if (!gaps_.empty() && begin < gaps_.back().token_end) {
    // The last gap ends where no special token begins: both are one.
    begin = gaps_.back().token_begin;
    gaps_.pop_back();
  }
  Gap gap{.text_begin = begin == 0 ? 0 : ends_[begin - 1],
          .text_end = text_.size(),
          .token_begin = begin,
          .token_end = ids_.size()};
  const std::size_t from = token == 0 ? 0 : ends_[token - 1];
  for (std::size_t next = token; next < ids_.size(); ++next) {
    const std::string surface = tokenizer_.surface(ids_[next]);  // empty for an unknown token, which may be special
    if (next == begin || surface.empty() || !tokenizer_.is_special(ids_[next])) continue;
    const std::size_t found = text_.find(surface, from);
    if (found == text_.npos) continue;
    gap.text_end = found;
    gap.token_end = next;
    break;
  }
  ends_.resize(gap.token_begin);
  ends_.resize(gap.token_end, gap.text_end);
  gaps_.push_back(gap);
}

const TokenPlaces::Gap* TokenPlaces::gap_at(std::size_t byte) const {
  const auto after = std::ranges::upper_bound(gaps_, byte, {}, &Gap::text_begin);
  if (after == gaps_.begin()) return nullptr;
  const Gap& gap = *std::prev(after);
  return byte < gap.text_end ? &gap : nullptr;
}

std::pair<std::size_t, std::size_t> TokenPlaces::of(const text::chat::Range& range) const {
  if (range.begin >= range.end) return {0, 0};
  const auto holding = [&](std::size_t byte) {
    return static_cast<std::size_t>(std::ranges::upper_bound(ends_, byte) - ends_.begin());
  };
  const Gap* const first = gap_at(range.begin);
  std::size_t begin = first ? before(*first, range.begin).first : holding(range.begin);
  // A space that the tokenizer puts before the range is a token without bytes.
  const auto begin_of = [&](std::size_t token) { return token == 0 ? 0 : ends_[token - 1]; };
  while (!first && begin > 0 && ends_[begin - 1] == range.begin && begin_of(begin - 1) == range.begin) --begin;
  const Gap* const last = gap_at(range.end - 1);
  if (!last) return {begin, std::min(holding(range.end - 1) + 1, ids_.size())};
  if (range.end == last->text_end) return {begin, last->token_end};
  const auto [end, whole] = before(*last, range.end);
  return {begin, whole ? end : std::min(end + 1, last->token_end)};
}

std::span<const TokenPlaces::Special> TokenPlaces::specials(std::size_t from, std::size_t until) const {
  const auto begin = std::ranges::lower_bound(specials_, from, {}, &Special::begin);
  const auto end = std::ranges::lower_bound(begin, specials_.end(), until, {}, &Special::begin);
  return {begin, end};
}

Ids TokenPlaces::encoded(std::string_view text) const {
  Ids ids;
  if (conversation_) {
    tokenizer_.encode_conversation(text, ids);
  } else {
    tokenizer_.encode(text, ids, false);
  }
  return ids;
}

// The index of the first token that does not end before a byte of a gap, and whether it begins there: the ids of the
// text up to the byte are those of the full text up to it.
std::pair<std::size_t, bool> TokenPlaces::before(const Gap& gap, std::size_t byte) const {
  const Ids start = encoded(text_.substr(gap.text_begin, byte - gap.text_begin));
  const auto all = std::span(ids_).subspan(gap.token_begin, gap.token_end - gap.token_begin);
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(start, all).in1 - start.begin());
  if (same == start.size() && same > 0 && continues(gap, byte, start)) return {gap.token_begin + same - 1, false};
  if (same == start.size()) return {gap.token_begin + same, true};
  return with_text_of(gap, start, same);
}

// The same where the last tokens of `start`, the ids before a byte, are others than in the full text: `same` are not.
std::pair<std::size_t, bool> TokenPlaces::with_text_of(const Gap& gap, const Ids& start, std::size_t same) const {
  const auto all = std::span(ids_).subspan(gap.token_begin, gap.token_end - gap.token_begin);
  const std::size_t from = same > 0 ? same - 1 : 0;  // a space may be dropped at the beginning
  const std::string wanted = tokenizer_.decode_bytes(std::span(start).subspan(from));
  std::string text = tokenizer_.decode_bytes(std::span(start).subspan(from, same - from));
  for (; same < all.size() && text != wanted; ++same) {
    std::string longer = tokenizer_.decode_bytes(all.subspan(from, same + 1 - from));
    if (longer.size() <= text.size() || !wanted.starts_with(longer)) break;
    text = std::move(longer);
  }
  return {gap.token_begin + same, text == wanted};
}

// True if the last token of `start`, the ids before a byte, covers the next character too: an unknown token represents
// any part of its word, and a space several of them.
bool TokenPlaces::continues(const Gap& gap, std::size_t byte, const Ids& start) const {
  if (byte >= text_.size()) return false;
  constexpr std::string_view kSpaces = " \t\n\r";
  const std::string_view text = text_.substr(gap.text_begin);
  const std::size_t at = byte - gap.text_begin;
  if (kSpaces.find(text[at]) != kSpaces.npos) {
    // A space that the tokenizer drops belongs to no token. One of several that become one token belongs to it.
    const std::size_t word = text.substr(0, at).find_last_not_of(kSpaces) + 1;
    if (word == at || encoded(text.substr(0, word)).size() >= start.size()) return false;
  }
  std::size_t next = at + 1;
  while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xc0) == 0x80) ++next;
  return encoded(text.substr(0, next)) == start;
}

}  // namespace hawser::prepare
