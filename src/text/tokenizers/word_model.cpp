#include "text/tokenizers/word_model.h"

#include <algorithm>

namespace hawser::text {

void WordCache::encode_long(std::string_view word, const WordModel& model, IdSink& sink) {
  Long* entry = nullptr;
  std::array<std::uint64_t, 4> key{};
  if (word.size() <= kLongestWord) {
    std::memcpy(key.data(), word.data(), word.size());
    entry = &long_[slot(slot(key[0], key[1]) ^ key[2], key[3] + word.size()) >> kLongShift];
    if (entry->length == word.size() && entry->word == key) {
      for (std::size_t i = 0; i < entry->count; ++i) sink.put(entry->ids[i]);
      return;
    }
  }
  ids_.clear();
  model.encode(word, ids_);
  if (entry && ids_.size() <= entry->ids.size()) {
    entry->word = key;
    entry->length = static_cast<std::uint16_t>(word.size());
    entry->count = static_cast<std::uint16_t>(ids_.size());
    std::copy(ids_.begin(), ids_.end(), entry->ids.begin());
  }
  sink.put_all(ids_);
}

}  // namespace hawser::text
