// Which contents were there before: for leaving out duplicates. Internal to prepare.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hawser::data {

// 128 bits of XXH3: two contents with one hash are taken to be the same.
struct ContentHash {
  std::uint64_t low = 0, high = 0;

  bool operator==(const ContentHash&) const = default;
};

ContentHash hash_of_text(std::string_view text);
// Ids with their labels and document lengths, as in Line; never that of a text.
ContentHash hash_of_ids(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                        std::span<const std::int32_t> document_lengths);

// The hash of a text that comes in parts: that of all of them together.
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

// A set of hashes in at most 29 bytes each, and at least 16 KiB.
class SeenContents {
 public:
  SeenContents();

  // False when it was there already.
  bool insert(const ContentHash& hash);
  std::int64_t size() const { return size_; }

 private:
  // Tables grow one at a time, so that growing takes little room.
  struct Table {
    std::vector<ContentHash> slots;  // {0, 0}: free
    std::size_t used = 0;
  };
  static bool put(Table& table, const ContentHash& hash);

  std::vector<Table> tables_;
  std::int64_t size_ = 0;
};

}  // namespace hawser::data
