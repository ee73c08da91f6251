// `SeenContents`: a set of content hashes, for deduplication. Internal to prepare.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hawser::prepare {

// 128-bit XXH3 hash. Contents with equal hashes are treated as duplicates.
struct ContentHash {
  std::uint64_t low = 0, high = 0;

  bool operator==(const ContentHash&) const = default;
};

ContentHash hash_of_text(std::string_view text);
// Hash of ids with their labels and document lengths, as in Line; the defaults may be written out. Seeded differently
// from hash_of_text().
ContentHash hash_of_ids(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                        std::span<const std::int32_t> document_lengths);

// Incremental hash: equals hash_of_text() of the concatenated parts.
class TextHasher {
 public:
  TextHasher();
  ~TextHasher();
  TextHasher(const TextHasher&) = delete;
  TextHasher& operator=(const TextHasher&) = delete;

  void add(std::string_view part);
  ContentHash hash() const;

 private:
  void* state_;
};

// A set of hashes. Uses at most 29 bytes per hash, and at least 16 KiB.
class SeenContents {
 public:
  SeenContents();

  // False if the hash was present.
  bool insert(const ContentHash& hash);
  std::int64_t size() const { return size_; }

 private:
  // Tables grow one at a time, so that growing needs little extra memory.
  struct Table {
    std::vector<ContentHash> slots;  // {0, 0}: free
    std::size_t used = 0;
  };
  static bool put(Table& table, const ContentHash& hash);

  std::vector<Table> tables_;
  std::int64_t size_ = 0;
};

}  // namespace hawser::prepare
