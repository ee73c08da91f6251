// Which rank of a context group holds which rows of a sequence.
//
// A sequence is padded to chunks() * chunk_length rows and cut into chunks of equal length; every rank holds equally
// many, kept in ascending order. Nothing needs to divide anything: padding rows belong to no document and predict
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hawser::data {

struct ChunkTable {
  std::int64_t chunk_length = 0;
  int context = 1;  // ranks
  int chunks_per_rank = 1;
  std::vector<std::int32_t> owner;  // by global chunk: its rank
  std::vector<std::int32_t> local;  // by global chunk: its place among its owner's chunks

  int chunks() const { return context * chunks_per_rank; }
  std::int64_t padded_length() const { return chunks() * chunk_length; }
  std::int64_t local_length() const { return chunks_per_rank * chunk_length; }
  std::vector<std::int32_t> chunks_of(int rank) const;  // ascending
};

// Rows that a sequence of `length` takes once it is cut into `chunks`.
std::int64_t padded_length(std::int64_t length, int chunks);

// Zig-zag: 2 * context chunks, rank r holds r and 2 * context - 1 - r, which balances one causal document. With one
// rank there is one chunk and no padding.
ChunkTable make_zigzag(std::int64_t length, int context);

// Chunks dealt heaviest first, each to the rank with the least work that still has a place. A row's work is the keys it
// attends to. `together` (a power of two that divides chunks_per_rank) neighbours are dealt as one, half as many where
// the work of a rank would be more than kBalanced of the mean, and so on to single chunks; the most even table is
// taken. Larger pieces make larger diagonal blocks, and fewer off-diagonal blocks. `load`, one number a rank, is the work dealt before
// (other sequences of the micro-batch) and is added to; empty: none. Documents start at row 0 one after another; rows
// beyond them are padding.
constexpr double kBalanced = 1.05;
ChunkTable deal_by_work(std::int64_t length, std::span<const std::int32_t> document_lengths, int context,
                        int chunks_per_rank, std::span<double> load = {}, int together = 1);

// Causal attention work of each rank, in (query, key) pairs.
std::vector<double> work_by_rank(const ChunkTable& table, std::span<const std::int32_t> document_lengths);

// Most work of a rank over the mean; 1 is balance, and what an empty sequence has.
double imbalance(std::span<const double> work);

// Of parts worked on one after another, each waiting for its slowest rank: a part counts by its work.
class MeanImbalance {
 public:
  void add(double imbalance, double work) {
    weighted_ += imbalance * work;
    work_ += work;
  }
  double value() const { return work_ > 0 ? weighted_ / work_ : 1.0; }
  double work() const { return work_; }

 private:
  double weighted_ = 0, work_ = 0;
};

}  // namespace hawser::data
