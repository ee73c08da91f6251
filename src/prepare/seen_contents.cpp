#include "prepare/seen_contents.h"

#include <xxhash.h>

#include <algorithm>
#include <new>
#include <utility>

namespace hawser::prepare {
namespace {

constexpr std::size_t kTables = 64, kFirstSlots = 16;
constexpr double kFullest = 0.85, kGrowth = 1.5;
constexpr XXH64_hash_t kIdsSeed = 1;

ContentHash from(XXH128_hash_t hash) {
  return {hash.low64, hash.high64};
}

}  // namespace

ContentHash hash_of_text(std::string_view text) {
  return from(::XXH3_128bits(text.data(), text.size()));
}

ContentHash hash_of_ids(std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                        std::span<const std::int32_t> document_lengths) {
  // Labels equal to the ids are the default.
  if (std::ranges::equal(labels, ids)) labels = {};
  if (document_lengths.size() == 1) document_lengths = {};  // and so is one document
  std::vector<ContentHash> parts;
  for (const auto& part : {ids, labels, document_lengths}) {
    parts.push_back(from(::XXH3_128bits_withSeed(part.data(), part.size_bytes(), kIdsSeed)));
  }
  return from(::XXH3_128bits_withSeed(parts.data(), parts.size() * sizeof parts[0], kIdsSeed));
}

TextHasher::TextHasher() : state_(::XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  ::XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}

TextHasher::~TextHasher() {
  ::XXH3_freeState(static_cast<XXH3_state_t*>(state_));
}

void TextHasher::add(std::string_view part) {
  ::XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), part.data(), part.size());
}

ContentHash TextHasher::hash() const {
  return from(::XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_)));
}

SeenContents::SeenContents() : tables_(kTables) {
  for (Table& table : tables_) table.slots.resize(kFirstSlots);
}

bool SeenContents::put(Table& table, const ContentHash& hash) {
  std::size_t slot = static_cast<std::size_t>((static_cast<__uint128_t>(hash.low) * table.slots.size()) >> 64);
  while (table.slots[slot] != ContentHash{}) {
    if (table.slots[slot] == hash) return false;
    if (++slot == table.slots.size()) slot = 0;
  }
  table.slots[slot] = hash;
  ++table.used;
  return true;
}

bool SeenContents::insert(const ContentHash& given) {
  const ContentHash hash = given == ContentHash{} ? ContentHash{1, 0} : given;  // {0, 0} marks a free slot
  Table& table = tables_[hash.high % kTables];
  if (!put(table, hash)) return false;
  ++size_;
  if (static_cast<double>(table.used) > kFullest * static_cast<double>(table.slots.size())) {
    Table larger;
    larger.slots.resize(static_cast<std::size_t>(static_cast<double>(table.slots.size()) * kGrowth));
    for (const ContentHash& old : table.slots) {
      if (old != ContentHash{}) put(larger, old);
    }
    table = std::move(larger);
  }
  return true;
}

}  // namespace hawser::prepare
