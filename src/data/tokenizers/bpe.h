// Byte-pair merging: a word's bytes become tokens by applying, again and again, the pair of lowest rank, leftmost
// first.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hawser::data {

// (left id, right id) -> rank and the id they merge to. Open addressing; filled once, then read.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  explicit MergeTable(std::size_t expected = 0);
  // A pair added again takes the later rank, as in the `tokenizers` library.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  // rank == kNone when the pair does not merge.
  Merge find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = pack(left, right);
    for (std::size_t i = slot(key);; i = (i + 1) & mask_) {
      if (entries_[i].key == key) return entries_[i].merge;
      if (entries_[i].key == kEmpty) return {kNone, 0};
    }
  }

 private:
  struct Entry {
    std::uint64_t key;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t pack(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15u >> 32) & mask_; }

  std::vector<Entry> entries_;
  std::size_t mask_;
};

// Words seen before and their ids: a fixed table, newest wins, one cache line an entry. One a thread.
class WordCache {
 public:
  static constexpr std::size_t kLongestWord = 24;
  static constexpr std::size_t kMostIds = 7;

  WordCache() : entries_(kEntries) {}
  // Appends the ids of `word` and returns true, if it is here.
  bool find(std::string_view word, std::vector<std::int32_t>& ids) const;
  void add(std::string_view word, const std::int32_t* ids, std::size_t count);

 private:
  static constexpr std::size_t kEntries = std::size_t{1} << 15;
  struct alignas(64) Entry {
    std::array<std::uint64_t, 3> word{};
    std::uint8_t length = 0;
    std::uint8_t count = 0;
    std::array<std::int32_t, kMostIds> ids{};
  };
  static std::array<std::uint64_t, 3> pack(std::string_view word);
  static std::size_t slot(const std::array<std::uint64_t, 3>& packed);

  std::vector<Entry> entries_;
};

struct Bpe {
  MergeTable merges;
  std::array<std::int32_t, 256> byte_ids;               // -1: the vocabulary lacks this byte
  std::unordered_map<std::string, std::int32_t> words;  // raw bytes -> id; filled where ignore_merges asks for it
  bool ignore_merges = false;                           // a word that is a token stays whole, whatever the merges say
  std::optional<std::int32_t> unknown;                  // stands for a missing byte; none: the byte is dropped
  bool fuse_unknown = false;                            // a run of missing bytes is one unknown

  // Appends the ids of one word (raw bytes). O(n log n) in the word's length.
  void encode(std::string_view word, WordCache& cache, std::vector<std::int32_t>& ids) const;

 private:
  void merge_short(std::int32_t* symbols, std::size_t count, std::vector<std::int32_t>& ids) const;
  void merge_long(const std::vector<std::int32_t>& symbols, std::vector<std::int32_t>& ids) const;
};

}  // namespace hawser::data
