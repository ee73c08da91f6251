#include "text/tokenizers/normalizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizers/byte_level.h"

namespace hawser::text {
namespace {

// Each step writes `out`, which is empty, and returns true, or returns false if the text does not change.

template <class Visit>
void for_each_character(std::string_view text, Visit visit) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    visit(step.character, text.substr(at, step.bytes));
    at += step.bytes;
  }
}

int count_characters(std::string_view text) {
  int count = 0;
  for_each_character(text, [&](char32_t, std::string_view) { ++count; });
  return count;
}

int count_leading_space(std::string_view text) {
  int count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) {
    const Utf8Step step = utf8_step(text.substr(at));
    if (!is_white_space(step.character)) break;
    at += step.bytes;
  }
  return count;
}

// Removes the characters for which `drop` returns true; `min` is the lowest first byte of such a character.
template <class Drop>
bool leave_out(std::string_view text, unsigned char min, Drop drop, std::string& out, int& first) {
  if (std::none_of(text.begin(), text.end(), [&](char c) { return static_cast<unsigned char>(c) >= min; })) {
    return false;
  }
  int index = 0;
  const int before = first;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if (!drop(c)) {
      out += bytes;
    } else if (index < before) {
      --first;
    }
    ++index;
  });
  return true;
}

bool lowercase(std::string_view text, std::string& out) {
  out.reserve(text.size());
  for_each_character(text, [&](char32_t c, std::string_view) { append_lower(c, out); });
  return true;
}

bool strip_marks(std::string_view text, std::string& out, int& first) {
  return leave_out(
      text, 0xCC, [](char32_t c) { return character_of(c).mark(); }, out, first);
}

bool strip_accents(std::string_view text, std::string& out, int& first) {
  return leave_out(
      text, 0xCC, [](char32_t c) { return character_of(c).accent(); }, out, first);
}

// Drops control characters, U+FFFD and NUL; replaces white space by spaces; puts spaces around Chinese characters.
bool clean(std::string_view text, const Normalizer::Bert& step, std::string& out, int& first) {
  out.reserve(text.size() + 16);
  int left = first;  // of the first character of the document
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const bool of_first = left > 0 && left-- > 0;
    if (step.clean_text) {
      if (c == 0 || c == 0xFFFD || (c != '\t' && c != '\n' && c != '\r' && character_of(c).control())) {
        if (out.empty() && first > 0) --first;
        return;
      }
      if (is_white_space(c)) {
        out += ' ';
        return;
      }
    }
    if (step.handle_chinese_chars && is_chinese(c)) {
      out += ' ';
      out += bytes;
      out += ' ';
      if (of_first) first += 2;
    } else {
      out += bytes;
    }
  });
  return true;
}

bool nmt(std::string_view text, std::string& out, int& first) {
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) {
      if (out.empty() && first > 0) --first;
      return;
    }
    const bool space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                       c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
    if (space) {
      out += ' ';
    } else {
      out += bytes;
    }
  });
  return true;
}

// Bounds the memory of a file that replaces each letter by a long text.
void append_bounded(std::string_view kept, std::string_view put_in, std::string& out) {
  constexpr std::size_t kMax = std::size_t{512} << 20;
  if (out.size() + kept.size() + put_in.size() > kMax) {
    throw UserError(Problem{.what = "the tokenizer's normalizer expands a text beyond 512 MiB",
                            .at = "normalizer",
                            .hint = "another tokenizer, or shorter texts"});
  }
  out += kept;
  out += put_in;
}

bool replace(std::string_view text, const Normalizer::Replace& step, Regex::Scratch& regex, std::string& out,
             int& first) {
  std::size_t done = 0;
  // Text that replaces several characters counts as coming from the last of them.
  const auto replaced = [&](std::size_t begin, std::size_t end) {
    if (begin > 0 || first == 0) return;  // an empty match inserts before the first character
    const int count = count_characters(text.substr(0, end));
    first = count > first ? 0 : first - count + count_characters(step.content);
  };
  if (!step.pattern) {
    for (std::size_t at; (at = text.find(step.string, done)) != std::string_view::npos;) {
      replaced(at, at + step.string.size());
      append_bounded(text.substr(done, at - done), step.content, out);
      done = at + step.string.size();
    }
  } else {
    regex.look_at(text);
    std::size_t from = 0, last_end = std::string_view::npos;
    while (from <= text.size()) {
      const auto match = step.pattern->find(text, from, regex);
      if (!match) break;
      if (match->begin == match->end && match->end == last_end) {
        if (from == text.size()) break;
        from += utf8_step(text.substr(from)).bytes;
        continue;
      }
      replaced(match->begin, match->end);
      append_bounded(text.substr(done, match->begin - done), step.content, out);
      done = from = last_end = match->end;
    }
  }
  if (done == 0 && out.empty()) return false;
  out += text.substr(done);
  return true;
}

bool byte_level(std::string_view text, std::string& out) {
  static constexpr auto kAlphabet = byte_level_alphabet();
  for (const char c : text) append_utf8(kAlphabet[static_cast<unsigned char>(c)], out);
  return true;
}

// Replaces a short grapheme cluster that starts with a string of the map; in others, looks up each character.
bool precompiled(std::string_view text, const Normalizer::Precompiled& step, Regex::Scratch& regex, std::string& out) {
  constexpr std::size_t kShortCluster = 5;
  for (std::size_t at = 0; at < text.size();) {
    // There is a cluster boundary between any two ASCII characters except CR LF.
    const bool alone = static_cast<unsigned char>(text[at]) < 0x80 &&
                       (at + 1 == text.size() || (static_cast<unsigned char>(text[at + 1]) < 0x80 &&
                                                  !(text[at] == '\r' && text[at + 1] == '\n')));
    std::size_t end = at + 1;
    if (!alone) {
      const auto match = step.cluster->find(text, at, regex);
      end = match && match->begin == at && match->end > at ? match->end : at + utf8_step(text.substr(at)).bytes;
    }
    const std::string_view cluster = text.substr(at, end - at);
    at = end;
    if (cluster.size() <= kShortCluster) {
      if (const auto found = step.map->shortest(cluster)) {
        out += found->replacement;
        continue;
      }
    }
    for_each_character(cluster, [&](char32_t, std::string_view bytes) {
      const auto found = step.map->shortest(bytes);
      out += found ? found->replacement : bytes;
    });
  }
  return true;
}

std::string_view stripped(std::string_view text, const Normalizer::Strip& step) {
  while (step.left && !text.empty()) {
    const Utf8Step first = utf8_step(text);
    if (!is_white_space(first.character)) break;
    text.remove_prefix(first.bytes);
  }
  while (step.right && !text.empty()) {
    std::size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_white_space(utf8_step(text.substr(at)).character)) break;
    text = text.substr(0, at);
  }
  return text;
}

struct ApplyNormalizer {
  std::string_view text;
  Regex::Scratch& regex;
  std::string& out;
  int& first;

  bool operator()(const Normalizer::Form& step) const {
    if (normalize(step.form, text, out)) return false;
    std::size_t end = 0;
    for (int i = 0; i < first && end < text.size(); ++i) end += utf8_step(text.substr(end)).bytes;
    std::string start;
    if (!normalize(step.form, text.substr(0, end), start)) first = count_characters(start);
    return true;
  }
  bool operator()(const Normalizer::Lowercase&) const {
    return counted([&](std::string_view from, std::string& to) { return lowercase(from, to); });
  }
  bool operator()(const Normalizer::StripAccents&) const { return strip_marks(text, out, first); }
  bool operator()(const Normalizer::Replace& step) const { return replace(text, step, regex, out, first); }
  bool operator()(const Normalizer::Nmt&) const { return nmt(text, out, first); }
  bool operator()(const Normalizer::ByteLevel&) const {
    return counted([&](std::string_view from, std::string& to) { return byte_level(from, to); });
  }
  bool operator()(const Normalizer::Precompiled& step) const {
    return counted([&](std::string_view from, std::string& to) { return precompiled(from, step, regex, to); });
  }
  bool operator()(const Normalizer::Prepend& step) const {
    if (text.empty()) return false;
    out = step.text;
    out += text;
    if (first > 0) first += count_characters(step.text);
    return true;
  }
  bool operator()(const Normalizer::Strip& step) const {
    out = stripped(text, step);
    if (step.left) first = std::max(0, first - count_leading_space(text));
    return true;
  }
  bool operator()(const Normalizer::Bert& step) const {
    std::string now, next;
    std::string_view at = text;
    const auto then = [&](auto what) {
      next.clear();
      if (!what(at, next)) return;
      now.swap(next);
      at = now;
    };
    if (step.clean_text || step.handle_chinese_chars) {
      then([&](std::string_view t, std::string& o) { return clean(t, step, o, first); });
    }
    if (step.strip_accents) {
      then([](std::string_view t, std::string& o) { return !normalize(NormalForm::nfd, t, o); });
      then([&](std::string_view t, std::string& o) { return strip_accents(t, o, first); });
    }
    if (step.lowercase) then([](std::string_view t, std::string& o) { return lowercase(t, o); });
    if (at.data() == text.data()) return false;
    out.swap(now);
    return true;
  }

 private:
  // A step that replaces characters independently of those before: what it makes of the first one counts as that.
  template <class Change>
  bool counted(Change change) const {
    std::size_t end = 0;
    for (int i = 0; i < first && end < text.size(); ++i) end += utf8_step(text.substr(end)).bytes;
    std::string start;
    if (end > 0 && change(text.substr(0, end), start)) first = count_characters(start);
    return change(text, out);
  }
};

}  // namespace

std::string_view Normalizer::run(std::string_view text, Scratch& scratch, Regex::Scratch& regex, int& first) const {
  for (const Step& step : steps_) {
    scratch.next.clear();
    if (!std::visit(ApplyNormalizer{text, regex, scratch.next, first}, step)) continue;
    scratch.now.swap(scratch.next);
    text = scratch.now;
  }
  return text;
}

}  // namespace hawser::text
