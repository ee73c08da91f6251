// `WordModel`: encodes one word (Bpe, WordPiece, Unigram). `WordCache`: cache of encoded words in front of it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hawser::text {

// A map from strings that supports lookup by string_view.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenIds = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the ids of one word, which depend on nothing else.
  virtual void encode(std::string_view word, std::vector<std::int32_t>& ids) const = 0;
};

// Appends ids to a vector through a small buffer, so that writing a few does not check the capacity of the vector.
class IdSink {
 public:
  explicit IdSink(std::vector<std::int32_t>& out) : out_(out) {}
  ~IdSink() { flush(); }
  IdSink(const IdSink&) = delete;
  IdSink& operator=(const IdSink&) = delete;

  void put(std::int32_t id) {
    if (count_ == kCapacity) flush();
    buffer_[count_++] = id;
  }
  // Appends the first `count` of four ids; reads all four.
  void put_up_to_four(const std::int32_t* ids, std::size_t count) {
    if (count_ + 4 > kCapacity) flush();
    std::memcpy(buffer_.data() + count_, ids, 4 * sizeof *ids);
    count_ += count;
  }
  void put_all(const std::vector<std::int32_t>& ids) {
    flush();
    out_.insert(out_.end(), ids.begin(), ids.end());
  }
  void flush() {
    out_.insert(out_.end(), buffer_.begin(), buffer_.begin() + count_);
    count_ = 0;
  }

 private:
  static constexpr std::size_t kCapacity = 1024;
  std::vector<std::int32_t>& out_;
  std::size_t count_ = 0;
  std::array<std::int32_t, kCapacity> buffer_;
};

// Cache of words and their ids: tables of fixed size in which a new entry evicts an old one. Words of up to 15 bytes
// and 3 ids take half a cache line, with two ways per line; words of up to 32 bytes and 7 ids take a full line. Longer
// ones are not cached. One per thread.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 32;

  WordCache() : short_(kShortLines), long_(kLongEntries) {}

  // Writes the ids of `word`, which is not empty, to `sink`; calls `model` if they are not cached. May read all bytes
  // from `word` to `readable_end`.
  void encode(std::string_view word, const char* readable_end, const WordModel& model, IdSink& sink) {
    if (word.size() > kShortWord) return encode_long(word, model, sink);
    std::array<std::uint64_t, 2> key{};
    if (word.data() + 16 <= readable_end) {
      std::memcpy(key.data(), word.data(), 16);
      key[0] &= kMasks[word.size()][0];
      key[1] &= kMasks[word.size()][1];
    } else {
      std::memcpy(key.data(), word.data(), word.size());
    }
    key[1] |= std::uint64_t{word.size()} << 56;
    auto& [newer, older] = short_[slot(key[0], key[1]) >> kShortShift].entries;
    if (newer.key == key) return sink.put_up_to_four(newer.ids.data(), newer.ids[3]);
    if (older.key == key) return sink.put_up_to_four(older.ids.data(), older.ids[3]);
    ids_.clear();
    model.encode(word, ids_);
    if (ids_.size() <= 3) {
      older = newer;
      newer.key = key;
      std::copy(ids_.begin(), ids_.end(), newer.ids.begin());
      newer.ids[3] = static_cast<std::int32_t>(ids_.size());
    }
    sink.put_all(ids_);
  }

 private:
  static constexpr std::size_t kShortWord = 15, kShortLines = std::size_t{1} << 15, kLongEntries = std::size_t{1} << 13;
  static constexpr int kShortShift = 64 - 15, kLongShift = 64 - 13;
  struct Short {
    std::array<std::uint64_t, 2> key{};  // the bytes, and the length in the last one
    std::array<std::int32_t, 4> ids{};   // up to three, then their number
  };
  struct alignas(64) Line {
    std::array<Short, 2> entries;
  };
  struct alignas(64) Long {
    std::array<std::uint64_t, 4> word{};
    std::uint16_t length = 0, count = 0;
    std::array<std::int32_t, 7> ids{};
  };
  static constexpr auto kMasks = [] {
    std::array<std::array<std::uint64_t, 2>, kShortWord + 1> masks{};
    for (std::size_t n = 0; n <= kShortWord; ++n) {
      masks[n][0] = n >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * n) - 1;
      masks[n][1] = n <= 8 ? 0 : (std::uint64_t{1} << 8 * (n - 8)) - 1;
    }
    return masks;
  }();

  static std::uint64_t slot(std::uint64_t a, std::uint64_t b) {
    const std::uint64_t mixed = (a ^ (b * 0x9E3779B97F4A7C15u)) * 0xC2B2AE3D27D4EB4Fu;
    return (mixed ^ mixed >> 32) * 0x9E3779B97F4A7C15u;
  }

  void encode_long(std::string_view word, const WordModel& model, IdSink& sink);

  std::vector<Line> short_;
  std::vector<Long> long_;
  std::vector<std::int32_t> ids_;  // of the current word
};

}  // namespace hawser::text
