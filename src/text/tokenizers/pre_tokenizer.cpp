#include "text/tokenizers/pre_tokenizer.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "text/tokenizers/byte_level.h"

namespace hawser::text {
namespace {

// A part of the text, and whether the pattern matched it.
struct Span {
  std::size_t begin, end;
  bool matched;
};

// Calls `visit` with the matches and the text between them, in order. A match may be empty, but not where the previous
// one ended.
void for_each_span(const Pattern& pattern, std::string_view text, Regex::Scratch& scratch,
                   FunctionRef<void(Span)> visit) {
  std::size_t done = 0, from = 0;
  bool any = false;
  while (from <= text.size()) {
    const auto match = pattern.find(text, from, scratch);
    if (!match) break;
    if (match->begin == match->end && any && match->end == done) {
      if (from == text.size()) break;
      from += utf8_step(text.substr(from)).bytes;
      continue;
    }
    if (match->begin > done) visit({done, match->begin, false});
    visit({match->begin, match->end, true});
    done = from = match->end;
    any = true;
  }
  if (done < text.size()) visit({done, text.size(), false});
}

// Joins spans by the split behavior. Spans are added in order.
class Joiner {
 public:
  Joiner(SplitBehavior behavior, FunctionRef<void(std::size_t, std::size_t)> out) : behavior_(behavior), out_(out) {}

  void add(Span span) {
    const bool after_match = pending_ && last_matched_;
    bool join = false;
    switch (behavior_) {
      case SplitBehavior::isolated:
        break;
      case SplitBehavior::removed:
        if (span.matched) return;
        break;
      case SplitBehavior::merged_with_previous:
        join = span.matched && !after_match;
        break;
      case SplitBehavior::merged_with_next:
        join = !span.matched && after_match;
        break;
      case SplitBehavior::contiguous:
        join = pending_ && span.matched == last_matched_;
        break;
    }
    if (join && pending_) {
      end_ = span.end;
    } else {
      flush();
      begin_ = span.begin;
      end_ = span.end;
      pending_ = true;
    }
    last_matched_ = span.matched;
  }

  void flush() {
    if (pending_ && end_ > begin_) out_(begin_, end_);
    pending_ = false;
  }

 private:
  SplitBehavior behavior_;
  FunctionRef<void(std::size_t, std::size_t)> out_;
  bool pending_ = false, last_matched_ = false;
  std::size_t begin_ = 0, end_ = 0;
};

// Like for_each_span, with each matching character as a match.
void for_each_character_span(const PreTokenizer::SplitCharacters& step, std::string_view text,
                             FunctionRef<void(Span)> visit) {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step character = utf8_step(text.substr(at));
    const std::size_t end = at + character.bytes;
    if (step.matches(character.character, step.delimiter)) {
      if (at > done) visit({done, at, false});
      visit({at, end, true});
      done = end;
    }
    at = end;
  }
  if (done < text.size()) visit({done, text.size(), false});
}

// Class of a character in BERT's pre-tokenizer.
enum CharacterKind : unsigned char { kWordKind, kSpaceKind, kPunctuation };

CharacterKind bert_kind(char32_t c) {
  return is_white_space(c) ? kSpaceKind : character_of(c).punctuation() ? kPunctuation : kWordKind;
}

template <class PassOn>
void split_as_bert(std::string_view text, PassOn pass_on) {
  static const auto kAscii = [] {
    std::array<CharacterKind, 128> kinds;
    for (char32_t c = 0; c < 128; ++c) kinds[c] = bert_kind(c);
    return kinds;
  }();
  std::size_t begin = 0;  // of the current word
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    std::size_t width = 1;
    CharacterKind kind;
    if (lead < 0x80) {
      kind = kAscii[lead];
    } else {
      const Utf8Step step = utf8_step(text.substr(at));
      width = step.bytes;
      kind = bert_kind(step.character);
    }
    if (kind != kWordKind) {
      if (at > begin) pass_on(begin, at);
      if (kind == kPunctuation) pass_on(at, at + width);
      begin = at + width;
    }
    at += width;
  }
  if (text.size() > begin) pass_on(begin, text.size());
}

// Returns whether it added a mark at the beginning.
bool write_metaspace(const PreTokenizer::Metaspace& step, std::string_view text, bool first, std::string& out) {
  using enum PreTokenizer::Metaspace::Prepend;
  out.clear();
  const bool marked = text.starts_with(step.mark) || text.starts_with(' ');
  const bool adds = !marked && (step.prepend == always || (step.prepend == first_only && first));
  if (adds) out += step.mark;
  for (std::size_t done = 0; done < text.size();) {
    const std::size_t space = std::min(text.find(' ', done), text.size());
    out += text.substr(done, space - done);
    if (space < text.size()) out += step.mark;
    done = space + 1;
  }
  return adds;
}

}  // namespace

int leading_characters(std::string_view text, std::size_t end, int max) {
  int count = 0;
  for (std::size_t at = 0; at < end && count < max; ++count) at += utf8_step(text.substr(at)).bytes;
  return count;
}

void PreTokenizer::add(Step step) {
  if (const auto* split = std::get_if<Split>(&step)) uses_regex_ |= split->pattern.scanner() == nullptr;
  steps_.push_back(std::move(step));
}

const Scanner* PreTokenizer::only_scanner() const {
  if (steps_.size() != 1) return nullptr;
  const auto* split = std::get_if<Split>(&steps_[0]);
  if (!split || !split->pattern.scanner() || !split->pattern.scanner()->total()) return nullptr;
  // There is no text between matches, so removing that text (inverted) also leaves all matches.
  const bool all =
      split->invert ? split->behavior == SplitBehavior::removed : split->behavior == SplitBehavior::isolated;
  return all ? split->pattern.scanner() : nullptr;
}

void PreTokenizer::split(std::string_view text, int first, Scratch& scratch, Emit emit) const {
  scratch.rewritten.resize(steps_.size());
  if (!text.empty()) run(0, text, first, scratch, emit);
}

void PreTokenizer::run(std::size_t index, std::string_view text, int first, Scratch& scratch, Emit emit) const {
  if (index == steps_.size()) return emit(text);
  const auto pass_on = [&](std::size_t begin, std::size_t end) {
    run(index + 1, text.substr(begin, end - begin), first - leading_characters(text, begin, first), scratch, emit);
  };
  std::string& rewritten = scratch.rewritten[index];
  const Step& step = steps_[index];
  if (const auto* split = std::get_if<Split>(&step)) {
    Joiner joiner(split->behavior, pass_on);
    for_each_span(split->pattern, text, scratch.regex, [&](Span span) {
      span.matched = span.matched != split->invert;
      joiner.add(span);
    });
    joiner.flush();
  } else if (const auto* characters = std::get_if<SplitCharacters>(&step)) {
    Joiner joiner(characters->behavior, pass_on);
    for_each_character_span(*characters, text, [&](Span span) { joiner.add(span); });
    joiner.flush();
  } else if (std::holds_alternative<Bert>(step)) {
    split_as_bert(text, pass_on);
  } else if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
    if (write_metaspace(*metaspace, text, first > 0, rewritten) && first > 0) ++first;
    text = rewritten;
    if (!metaspace->split) return pass_on(0, text.size());
    // A piece is a mark and the text after it.
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t from = text.substr(begin).starts_with(metaspace->mark) ? metaspace->mark.size() : 0;
      const std::size_t end = std::min(text.find(metaspace->mark, begin + from), text.size());
      pass_on(begin, end);
      begin = end;
    }
  } else if (std::holds_alternative<CutAtSpaceMarks>(step)) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = end_of_space_mark_piece(text, begin);
      pass_on(begin, end);
      begin = end;
    }
  } else if (std::holds_alternative<ByteLevel>(step)) {
    static constexpr auto kAlphabet = byte_level_alphabet();
    rewritten.clear();
    for (const char c : text) append_utf8(kAlphabet[static_cast<unsigned char>(c)], rewritten);
    // Each byte becomes a character.
    std::size_t end = 0;
    for (int i = 0; i < first && end < text.size(); ++i) end += utf8_step(text.substr(end)).bytes;
    first = static_cast<int>(end);
    text = rewritten;
    pass_on(0, text.size());
  } else {  // PrefixSpace
    if (text.front() != ' ') {
      rewritten = ' ';
      rewritten += text;
      text = rewritten;
      if (first > 0) ++first;
    }
    pass_on(0, text.size());
  }
}

}  // namespace hawser::text
