#include "data/chunk_table.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/units.h"

namespace hawser::data {
namespace {

// Work of each chunk: the rows' positions plus one, summed.
std::vector<double> work_by_chunk(std::int64_t chunk_length, int chunks,
                                  std::span<const std::int32_t> document_lengths) {
  std::vector<double> work(chunks, 0.0);
  if (chunk_length == 0) return work;
  std::int64_t start = 0;
  for (const std::int32_t length : document_lengths) {
    const std::int64_t end = start + length;
    for (std::int64_t row = start; row < end;) {
      const std::int64_t chunk = row / chunk_length;
      const std::int64_t stop = std::min(end, (chunk + 1) * chunk_length);
      const auto first = static_cast<double>(row - start + 1), last = static_cast<double>(stop - start);
      work[chunk] += (first + last) * 0.5 * static_cast<double>(stop - row);
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

ChunkTable deal_by_work(std::int64_t length, std::span<const std::int32_t> document_lengths, int context,
                        int chunks_per_rank, std::span<double> load) {
  HAWSER_CHECK(length >= 0 && context >= 1 && chunks_per_rank >= 1, "length ", length, ", context ", context);
  HAWSER_CHECK(load.empty() || load.size() == static_cast<std::size_t>(context), load.size(), " loads");
  HAWSER_CHECK(std::accumulate(document_lengths.begin(), document_lengths.end(), std::int64_t{0}) <= length,
               "documents longer than the sequence of ", length);
  ChunkTable table{.context = context, .chunks_per_rank = context == 1 ? 1 : chunks_per_rank};
  table.chunk_length = ceil_div(length, table.chunks());
  const auto work = work_by_chunk(table.chunk_length, table.chunks(), document_lengths);
  std::vector<double> own(context, 0.0);
  if (load.empty()) load = own;
  std::vector<int> order(table.chunks()), held(context, 0);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return work[a] > work[b]; });
  table.owner.resize(table.chunks());
  for (const int chunk : order) {
    int least = -1;
    for (int rank = 0; rank < context; ++rank) {
      if (held[rank] < table.chunks_per_rank && (least < 0 || load[rank] < load[least])) least = rank;
    }
    table.owner[chunk] = least;
    ++held[least];
    load[least] += work[chunk];
  }
  number_locals(table);
  return table;
}

std::vector<double> work_by_rank(const ChunkTable& table, std::span<const std::int32_t> document_lengths) {
  const auto work = work_by_chunk(table.chunk_length, table.chunks(), document_lengths);
  std::vector<double> sums(table.context, 0.0);
  for (int chunk = 0; chunk < table.chunks(); ++chunk) sums[table.owner[chunk]] += work[chunk];
  return sums;
}

double imbalance(std::span<const double> work) {
  const double sum = std::accumulate(work.begin(), work.end(), 0.0);
  if (sum == 0.0) return 1.0;
  return *std::max_element(work.begin(), work.end()) * static_cast<double>(work.size()) / sum;
}

}  // namespace hawser::data
