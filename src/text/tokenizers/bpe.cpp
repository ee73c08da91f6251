#include "text/tokenizers/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/cat.h"
#include "base/utf8.h"

namespace hawser::text {
namespace {

constexpr std::size_t kShortWord = 48;  // up to this length a scan for the lowest rank is faster than a heap

}  // namespace

MergeTable::MergeTable(std::size_t expected)
    : entries_(std::bit_ceil(expected * 2 + 2), Entry{kEmpty, {kNone, 0}}), mask_(entries_.size() - 1) {}

void MergeTable::add(std::int32_t left, std::int32_t right, Merge merge) {
  if (2 * (count_ + 1) > entries_.size()) {
    MergeTable larger(entries_.size());
    for (const Entry& entry : entries_) {
      if (entry.key != kEmpty) larger.put(entry.key, entry.merge);
    }
    *this = std::move(larger);
  }
  put(pack(left, right), merge);
}

void MergeTable::put(std::uint64_t key, Merge merge) {
  std::size_t i = slot(key);
  while (entries_[i].key != kEmpty && entries_[i].key != key) i = (i + 1) & mask_;
  count_ += entries_[i].key == kEmpty;
  entries_[i] = {key, merge};
}

void Bpe::encode(std::string_view word, std::vector<std::int32_t>& ids) const {
  if (ignore_merges) {
    if (const auto found = words.find(word); found != words.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  // `ids` holds the symbols until they are merged.
  const std::size_t before = ids.size();
  if (unit == Unit::byte) {
    start_with_bytes(word, ids);
  } else {
    start_with_characters(word, ids);
  }
  const std::size_t count = ids.size() - before;
  if (count <= kShortWord) {
    std::array<std::int32_t, kShortWord> few;
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end(), few.begin());
    ids.resize(before);
    merge_short(few.data(), count, ids);
  } else {
    const std::vector<std::int32_t> many(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
    ids.resize(before);
    merge_long(many, ids);
  }
}

void Bpe::start_with_bytes(std::string_view word, std::vector<std::int32_t>& out) const {
  bool after_unknown = false;
  for (const char c : word) {
    const std::int32_t id = byte_ids[static_cast<unsigned char>(c)];
    if (id >= 0) {
      out.push_back(id);
    } else if (unknown && !(fuse_unknown && after_unknown)) {
      out.push_back(*unknown);
    }
    after_unknown = id < 0;
  }
}

void Bpe::start_with_characters(std::string_view word, std::vector<std::int32_t>& out) const {
  bool pending = false;  // an unknown symbol is not yet written: the next one may join it
  std::string decorated;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t width = utf8_step(word.substr(at)).bytes;
    const std::string_view bare = word.substr(at, width);
    std::string_view symbol = bare;
    const bool first = at == 0;
    at += width;
    const bool last = at == word.size();
    if ((!first && !continuing_prefix.empty()) || (last && !end_suffix.empty())) {
      decorated = cat(first ? "" : continuing_prefix, bare, last ? end_suffix : "");
      symbol = decorated;
    }
    if (const auto found = words.find(symbol); found != words.end()) {
      if (pending) out.push_back(*unknown);
      pending = false;
      out.push_back(found->second);
      continue;
    }
    if (byte_fallback && std::all_of(symbol.begin(), symbol.end(),
                                     [&](char c) { return byte_ids[static_cast<unsigned char>(c)] >= 0; })) {
      // A pending unknown is written after these bytes, as in the `tokenizers` library.
      for (const char c : symbol) out.push_back(byte_ids[static_cast<unsigned char>(c)]);
      continue;
    }
    if (!unknown) continue;
    if (pending && !fuse_unknown) out.push_back(*unknown);
    pending = true;
  }
  if (pending) out.push_back(*unknown);
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
  const auto suggestion = [&](std::int64_t left) {
    if (left < 0 || list[left].next < 0) return;
    const auto merge = merges.find(list[left].id, list[list[left].next].id);
    if (merge.rank != MergeTable::kNone) queue.push({merge.rank, merge.id, left});
  };
  for (std::int64_t i = 0; i < count; ++i) list[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1};
  for (std::int64_t i = 0; i < count; ++i) suggestion(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = list[top.at];
    if (left.id < 0 || left.next < 0) continue;
    // The pair may have changed since it was queued.
    Symbol& right = list[left.next];
    const auto merge = merges.find(left.id, right.id);
    if (merge.rank == MergeTable::kNone || merge.id != top.id) continue;
    left.id = merge.id;
    left.next = right.next;
    if (right.next >= 0) list[right.next].previous = top.at;
    right.id = -1;
    suggestion(left.previous);
    suggestion(top.at);
  }
  for (std::int64_t i = count > 0 ? 0 : -1; i >= 0; i = list[i].next) ids.push_back(list[i].id);
}

}  // namespace hawser::text
