#include "data/tokenizers/bpe.h"

#include <bit>
#include <cstring>
#include <queue>

namespace hawser::data {
namespace {

constexpr std::size_t kShortWord = 48;  // up to here a scan for the lowest rank beats a heap

}  // namespace

MergeTable::MergeTable(std::size_t expected)
    : entries_(std::bit_ceil(expected * 2 + 2), Entry{kEmpty, {kNone, 0}}), mask_(entries_.size() - 1) {}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t key = pack(left, right);
  std::size_t i = slot(key);
  while (entries_[i].key != kEmpty && entries_[i].key != key) i = (i + 1) & mask_;
  entries_[i] = {key, merge};
}

std::array<std::uint64_t, 3> WordCache::pack(std::string_view word) {
  std::array<std::uint64_t, 3> packed{};
  std::memcpy(packed.data(), word.data(), word.size());
  return packed;
}

std::size_t WordCache::slot(const std::array<std::uint64_t, 3>& packed) {
  std::uint64_t hash = packed[0] * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32 ^ packed[1]) * 0xC2B2AE3D27D4EB4Fu;
  hash = (hash ^ hash >> 32 ^ packed[2]) * 0x9E3779B97F4A7C15u;
  return hash >> 40 & (kEntries - 1);
}

bool WordCache::find(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (word.size() > kLongestWord) return false;
  const auto packed = pack(word);
  const Entry& entry = entries_[slot(packed)];
  if (entry.length != word.size() || entry.word != packed) return false;
  ids.insert(ids.end(), entry.ids.data(), entry.ids.data() + entry.count);
  return true;
}

void WordCache::add(std::string_view word, const std::int32_t* ids, std::size_t count) {
  if (word.empty() || word.size() > kLongestWord || count > kMostIds) return;
  const auto packed = pack(word);
  Entry& entry = entries_[slot(packed)];
  entry.word = packed;
  entry.length = static_cast<std::uint8_t>(word.size());
  entry.count = static_cast<std::uint8_t>(count);
  std::copy(ids, ids + count, entry.ids.data());
}

void Bpe::encode(std::string_view word, WordCache& cache, std::vector<std::int32_t>& ids) const {
  if (cache.find(word, ids)) return;
  const std::size_t before = ids.size();
  bool whole = false;
  if (ignore_merges) {
    if (const auto found = words.find(std::string(word)); found != words.end()) {
      ids.push_back(found->second);
      whole = true;
    }
  }
  if (!whole) {
    std::array<std::int32_t, kShortWord> few;
    std::vector<std::int32_t> many;
    if (word.size() > kShortWord) many.resize(word.size());
    std::int32_t* symbols = many.empty() ? few.data() : many.data();
    std::size_t count = 0;
    bool after_unknown = false;
    for (const char c : word) {
      const std::int32_t id = byte_ids[static_cast<unsigned char>(c)];
      if (id >= 0) {
        symbols[count++] = id;
      } else if (unknown && !(fuse_unknown && after_unknown)) {
        symbols[count++] = *unknown;
      }
      after_unknown = id < 0;
    }
    if (many.empty()) {
      merge_short(symbols, count, ids);
    } else {
      many.resize(count);
      merge_long(many, ids);
    }
  }
  cache.add(word, ids.data() + before, ids.size() - before);
}

void Bpe::merge_short(std::int32_t* symbols, std::size_t count, std::vector<std::int32_t>& ids) const {
  std::array<MergeTable::Merge, kShortWord> pairs;  // pairs[i]: what symbols i and i + 1 merge to
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = merges.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNone) break;
    symbols[best] = pairs[best].id;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    std::copy(pairs.data() + best + 1, pairs.data() + count - 1, pairs.data() + best);
    --count;
    if (best > 0) pairs[best - 1] = merges.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = merges.find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols, symbols + count);
}

void Bpe::merge_long(const std::vector<std::int32_t>& symbols, std::vector<std::int32_t>& ids) const {
  struct Symbol {
    std::int32_t id;
    std::int64_t previous, next;  // -1 at the ends; id -1: merged away
  };
  struct Candidate {
    std::uint32_t rank;
    std::int32_t id;
    std::int64_t at;
    bool operator<(const Candidate& other) const {  // std::priority_queue keeps the greatest on top
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto count = static_cast<std::int64_t>(symbols.size());
  std::vector<Symbol> list(symbols.size());
  std::priority_queue<Candidate> queue;
  const auto offer = [&](std::int64_t left) {
    if (left < 0 || list[left].next < 0) return;
    const auto merge = merges.find(list[left].id, list[list[left].next].id);
    if (merge.rank != MergeTable::kNone) queue.push({merge.rank, merge.id, left});
  };
  for (std::int64_t i = 0; i < count; ++i) list[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1};
  for (std::int64_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = list[top.at];
    if (left.id < 0 || left.next < 0) continue;
    // The pair may have changed since it was offered.
    Symbol& right = list[left.next];
    const auto merge = merges.find(left.id, right.id);
    if (merge.rank == MergeTable::kNone || merge.id != top.id) continue;
    left.id = merge.id;
    left.next = right.next;
    if (right.next >= 0) list[right.next].previous = top.at;
    right.id = -1;
    offer(left.previous);
    offer(top.at);
  }
  for (std::int64_t i = count > 0 ? 0 : -1; i >= 0; i = list[i].next) ids.push_back(list[i].id);
}

}  // namespace hawser::data
