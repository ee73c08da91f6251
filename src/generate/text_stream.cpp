#include "generate/text_stream.h"

#include <algorithm>

#include "base/utf8.h"

namespace hawser::generate {

namespace {

constexpr std::size_t kDecodedAgain = 16;     // tokens decoded again, so that spaces and joins are correct
constexpr std::size_t kLongestCharacter = 4;  // tokens and bytes

// Where characters end in tokens: ends[i] after the first i tokens. Characters that more tokens can complete do not
// end. If the tokens begin inside a character, the first kLongestCharacter - 1 may be wrong.
std::vector<bool> character_ends(const text::Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  std::string bytes;
  std::vector<std::size_t> sizes = {0};
  for (const std::int32_t id : ids) {
    if (const auto byte = tokenizer.byte_of(id)) {
      bytes += static_cast<char>(*byte);
    } else {
      bytes += tokenizer.decode_bytes({&id, 1}, true);
    }
    sizes.push_back(bytes.size());
  }
  std::vector<bool> is_end(bytes.size() + 1);
  is_end[0] = true;
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(std::string_view(bytes).substr(at));
    const auto lead = static_cast<unsigned char>(bytes[at]);
    at += static_cast<std::size_t>(step.bytes);
    is_end[at] = step.valid || at < bytes.size() || lead < 0xC2 || lead > 0xF4;
  }
  std::vector<bool> ends;
  for (const std::size_t size : sizes) ends.push_back(is_end[size]);
  return ends;
}

std::size_t last_end(const std::vector<bool>& ends) {
  std::size_t last = ends.size() - 1;
  while (last > 0 && !ends[last]) --last;
  return last;
}

}  // namespace

std::size_t whole_characters(const text::Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  const std::span<const std::int32_t> context = ids.last(std::min(ids.size(), kDecodedAgain + kLongestCharacter));
  return ids.size() - context.size() + last_end(character_ends(tokenizer, context));
}

TextStream::TextStream(const text::Tokenizer& tokenizer, std::span<const std::int32_t> before,
                       std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  const std::span<const std::int32_t> context = before.last(std::min(before.size(), kDecodedAgain + kLongestCharacter));
  ids_.assign(context.begin(), context.end());
  const std::vector<bool> ends = character_ends(tokenizer_, context);
  known_ = last_end(ends);
  if (before.size() > context.size()) from_ = kLongestCharacter;
  while (from_ < known_ && !ends[from_]) ++from_;
}

std::string TextStream::push(std::int32_t id) {
  ids_.push_back(id);
  return take(false);
}

std::string TextStream::finish() {
  return take(true);
}

std::string TextStream::added(std::size_t count) const {
  if (count == 0) return "";
  const std::span<const std::int32_t> ids(ids_);
  // A byte needs no context. With it, a run of bytes that ends in an invalid one would change the text before. A space
  // may be dropped at the start.
  if (const auto byte = tokenizer_.byte_of(ids[known_]); byte && *byte != ' ') {
    return tokenizer_.decode(ids.subspan(known_, count), true);
  }
  const std::string before = tokenizer_.decode(ids.subspan(from_, known_ - from_), true);
  const std::string all = tokenizer_.decode(ids.subspan(from_, known_ - from_ + count), true);
  std::size_t same = 0;
  while (same < std::min(before.size(), all.size()) && before[same] == all[same]) ++same;
  while (same > 0 && same < all.size() && (static_cast<unsigned char>(all[same]) & 0xC0) == 0x80) --same;
  return all.substr(same);
}

std::string TextStream::take(bool end) {
  if (stopped_) return "";
  const std::span<const std::int32_t> fresh = std::span<const std::int32_t>(ids_).subspan(known_);
  const std::size_t count = end ? fresh.size() : last_end(character_ends(tokenizer_, fresh));
  if (const std::string text = added(count); !text.empty()) {
    held_ += text;
    from_ = known_;
    known_ += count;
  }
  std::size_t certain = held_.size();
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at == std::string::npos || at > certain) continue;
    certain = at;
    stopped_ = true;
  }
  if (!stopped_ && !end) {
    for (const std::string& stop : stops_) {
      for (std::size_t size = std::min(stop.size() - 1, held_.size()); size > 0; --size) {
        if (held_.compare(held_.size() - size, size, stop, 0, size) != 0) continue;
        certain = std::min(certain, held_.size() - size);
        break;
      }
    }
  }
  const std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  text_ += out;
  return out;
}

}  // namespace hawser::generate
