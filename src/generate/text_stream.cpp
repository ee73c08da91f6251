#include "generate/text_stream.h"

#include <algorithm>

namespace hawser::generate {

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD: decoded from an invalid or incomplete character
constexpr std::size_t kDecodedAgain = 16;             // tokens decoded again, so that spaces and joins are correct
constexpr std::size_t kLongestCharacter = 16;         // tokens; a longer incomplete character is invalid

}  // namespace

std::size_t whole_characters(const text::Tokenizer& tokenizer, std::span<const std::int32_t> ids) {
  const std::span<const std::int32_t> context = ids.last(std::min(ids.size(), kDecodedAgain));
  for (std::size_t missing = 0; missing < context.size(); ++missing) {
    const std::string text = tokenizer.decode(context.first(context.size() - missing), true);
    if (!text.ends_with(kReplacement)) return ids.size() - missing;
  }
  return ids.size();
}

TextStream::TextStream(const text::Tokenizer& tokenizer, std::span<const std::int32_t> before,
                       std::vector<std::string> stops)
    : tokenizer_(tokenizer), stops_(std::move(stops)) {
  const std::span<const std::int32_t> context = before.last(std::min(before.size(), kDecodedAgain));
  ids_.assign(context.begin(), context.end());
  known_ = whole_characters(tokenizer_, context);
}

std::string TextStream::push(std::int32_t id) {
  ids_.push_back(id);
  return take(false);
}

std::string TextStream::finish() {
  return take(true);
}

std::string TextStream::take(bool end) {
  if (stopped_) return "";
  const std::span<const std::int32_t> ids(ids_);
  const std::string before = tokenizer_.decode(ids.subspan(from_, known_ - from_), true);
  const std::string all = tokenizer_.decode(ids.subspan(from_), true);
  const bool full = !all.ends_with(kReplacement) || end || ids_.size() - known_ > kLongestCharacter;
  if (full && all.size() > before.size()) {
    held_ += all.substr(before.size());
    from_ = known_;
    known_ = ids_.size();
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
