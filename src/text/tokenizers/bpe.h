// `Bpe`: byte-pair encoding. Splits a word into bytes or characters, then merges the adjacent pair of lowest rank,
// leftmost first, until no pair merges.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizers/word_model.h"

namespace hawser::text {

// Hash table (left id, right id) -> rank and merged id, with open addressing.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  static constexpr std::uint32_t kNone = 0xFFFFFFFFu;

  explicit MergeTable(std::size_t expected = 0);
  // A pair that is added again gets the later rank, as in the `tokenizers` library.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  // rank == kNone if the pair does not merge.
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

  void put(std::uint64_t key, Merge merge);

  std::vector<Entry> entries_;  // at most half full
  std::size_t mask_, count_ = 0;
};

// The initial symbols are bytes (byte-level vocabularies) or characters.
struct Bpe final : WordModel {
  enum class Unit { byte, character };

  Unit unit = Unit::byte;
  MergeTable merges;
  // unit byte: id of each byte. unit character: id of each of the tokens <0x00> to <0xFF>, set with byte_fallback.
  // -1: not in the vocabulary.
  std::array<std::int32_t, 256> byte_ids;
  bool byte_fallback = false;  // a character that is not in the vocabulary becomes its bytes
  TokenIds words;              // unit character: the vocabulary; byte: raw bytes -> id, for ignore_merges
  std::string continuing_prefix, end_suffix;  // unit character: of all symbols but the first; of the last
  bool ignore_merges = false;                 // a word that is a token is not split, whatever the merges
  std::optional<std::int32_t> unknown;        // id of symbols not in the vocabulary; none: they are dropped
  bool fuse_unknown = false;                  // a run of them becomes one id

  Bpe() { byte_ids.fill(-1); }

  // Takes O(n log n) time for a word of n bytes.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override;

 private:
  void start_with_bytes(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void start_with_characters(std::string_view word, std::vector<std::int32_t>& symbols) const;
  void merge_short(std::int32_t* symbols, std::size_t count, std::vector<std::int32_t>& ids) const;
  void merge_long(const std::vector<std::int32_t>& symbols, std::vector<std::int32_t>& ids) const;
};

}  // namespace hawser::text
