#include "batches/chunk_table.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/units.h"

namespace hawser::batches {
namespace {

// The keys that the queries at positions [begin, end) of a document of `length` see. With a causal mask: the sum of
// min(position + 1, window).
double keys_seen(std::int64_t begin, std::int64_t end, std::int64_t length, const AttentionMask& mask) {
  const std::int64_t window = mask.window;
  if (!mask.causal) {  // all keys but the position + 1 - window first ones
    const auto rows = static_cast<double>(end - begin);
    const double seen = rows * static_cast<double>(length);
    if (window == 0) return seen;
    const double causal = keys_seen(begin, end, length, {.causal = true}),
                 within = keys_seen(begin, end, length, {.causal = true, .window = window});
    return seen - (causal - within);
  }
  const std::int64_t rising = window == 0 ? end : std::clamp(window, begin, end);  // first position that sees `window`
  const auto first = static_cast<double>(begin + 1), last = static_cast<double>(rising);
  return (first + last) * 0.5 * static_cast<double>(rising - begin) +
         static_cast<double>(window) * static_cast<double>(end - rising);
}

// Work of each chunk: the sum over its rows, the mean over masks.
std::vector<double> work_by_chunk(std::int64_t chunk_length, int chunks, std::span<const std::int32_t> document_lengths,
                                  std::span<const MaskShare> masks) {
  std::vector<double> work(chunks, 0.0);
  if (chunk_length == 0) return work;
  std::int64_t start = 0;
  for (const std::int32_t length : document_lengths) {
    const std::int64_t end = start + length;
    for (std::int64_t row = start; row < end;) {
      const std::int64_t chunk = row / chunk_length;
      const std::int64_t stop = std::min(end, (chunk + 1) * chunk_length);
      for (const MaskShare& m : masks) work[chunk] += m.share * keys_seen(row - start, stop - start, length, m.mask);
      row = stop;
    }
    start = end;
  }
  return work;
}

// Fills `local` from `owner`.
void number_locals(ChunkTable& table) {
  std::vector<std::int32_t> next(table.context, 0);
  table.local.resize(table.owner.size());
  for (std::size_t chunk = 0; chunk < table.owner.size(); ++chunk) table.local[chunk] = next[table.owner[chunk]]++;
}

}  // namespace

std::int64_t padded_length(std::int64_t length, int chunks) {
  return chunks * ceil_div(length, chunks);
}

std::vector<std::int32_t> ChunkTable::chunks_of(int rank) const {
  std::vector<std::int32_t> mine;
  for (int chunk = 0; chunk < chunks(); ++chunk) {
    if (owner[chunk] == rank) mine.push_back(chunk);
  }
  return mine;
}

ChunkTable make_zigzag(std::int64_t length, int context) {
  HAWSER_CHECK(length >= 0 && context >= 1, "length ", length, ", context ", context);
  ChunkTable table{.context = context, .chunks_per_rank = context == 1 ? 1 : 2};
  table.chunk_length = ceil_div(length, table.chunks());
  for (int chunk = 0; chunk < table.chunks(); ++chunk) table.owner.push_back(std::min(chunk, 2 * context - 1 - chunk));
  number_locals(table);
  return table;
}

namespace {

struct Deal {
  std::vector<std::int32_t> owner;  // by chunk
  std::vector<double> load;         // of each rank, including the initial load
};

Deal deal(std::span<const double> work, int context, int together, std::span<const double> load) {
  const int groups = static_cast<int>(work.size()) / together, places = groups / context;
  std::vector<double> of_group(groups, 0.0);
  for (std::size_t chunk = 0; chunk < work.size(); ++chunk) of_group[chunk / together] += work[chunk];
  std::vector<int> order(groups), held(context, 0);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return of_group[a] > of_group[b]; });
  Deal out{.owner = std::vector<std::int32_t>(work.size()), .load = {load.begin(), load.end()}};
  for (const int group : order) {
    int min = -1;
    for (int rank = 0; rank < context; ++rank) {
      if (held[rank] < places && (min < 0 || out.load[rank] < out.load[min])) min = rank;
    }
    std::fill_n(out.owner.begin() + group * together, together, min);
    ++held[min];
    out.load[min] += of_group[group];
  }
  return out;
}

}  // namespace

ChunkTable deal_by_work(std::int64_t length, std::span<const std::int32_t> document_lengths, int context,
                        int chunks_per_rank, std::span<double> load, int together, std::span<const MaskShare> masks) {
  HAWSER_CHECK(length >= 0 && context >= 1 && chunks_per_rank >= 1, "length ", length, ", context ", context);
  HAWSER_CHECK(load.empty() || load.size() == static_cast<std::size_t>(context), load.size(), " loads");
  HAWSER_CHECK(std::accumulate(document_lengths.begin(), document_lengths.end(), std::int64_t{0}) <= length,
               "documents longer than the sequence of ", length);
  ChunkTable table{.context = context, .chunks_per_rank = context == 1 ? 1 : chunks_per_rank};
  if (context == 1) together = 1;
  HAWSER_CHECK(together >= 1 && (together & (together - 1)) == 0 && table.chunks_per_rank % together == 0, together,
               " adjacent chunks of ", table.chunks_per_rank, " per rank");
  table.chunk_length = ceil_div(length, table.chunks());
  const auto work = work_by_chunk(table.chunk_length, table.chunks(), document_lengths, masks);
  const std::vector<double> none(context, 0.0);
  const std::span<const double> before = load.empty() ? std::span<const double>(none) : load;
  Deal best = deal(work, context, together, before);
  while (together > 1 && imbalance(best.load) > kBalanced) {
    together /= 2;
    Deal next = deal(work, context, together, before);
    if (imbalance(next.load) < imbalance(best.load)) best = std::move(next);
  }
  table.owner = std::move(best.owner);
  if (!load.empty()) std::copy(best.load.begin(), best.load.end(), load.begin());
  number_locals(table);
  return table;
}

std::vector<double> work_by_rank(const ChunkTable& table, std::span<const std::int32_t> document_lengths,
                                 std::span<const MaskShare> masks) {
  const auto work = work_by_chunk(table.chunk_length, table.chunks(), document_lengths, masks);
  std::vector<double> sums(table.context, 0.0);
  for (int chunk = 0; chunk < table.chunks(); ++chunk) sums[table.owner[chunk]] += work[chunk];
  return sums;
}

double imbalance(std::span<const double> work) {
  const double sum = std::accumulate(work.begin(), work.end(), 0.0);
  if (sum == 0.0) return 1.0;
  return *std::max_element(work.begin(), work.end()) * static_cast<double>(work.size()) / sum;
}

}  // namespace hawser::batches
