// `ChunkTable`: the assignment of a sequence's rows to the ranks of a context group.
//
// A sequence is padded to chunks() * chunk_length rows and split into chunks of equal length. Every rank holds the same
// number of chunks, in ascending order. Lengths need not divide evenly: padding rows belong to no document and have no
// target.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/attention_mask.h"

namespace hawser::batches {

// `share`: the fraction of the model's attention layers that have the mask.
struct MaskShare {
  AttentionMask mask;
  double share = 1.0;

  bool operator==(const MaskShare&) const = default;
};
inline constexpr MaskShare kCausalMask[] = {{}};

struct ChunkTable {
  std::int64_t chunk_length = 0;
  int context = 1;  // ranks
  int chunks_per_rank = 1;
  std::vector<std::int32_t> owner;  // [chunks()]: rank of each global chunk
  std::vector<std::int32_t> local;  // [chunks()]: index of each global chunk among its owner's chunks

  int chunks() const { return context * chunks_per_rank; }
  std::int64_t padded_length() const { return chunks() * chunk_length; }
  std::int64_t local_length() const { return chunks_per_rank * chunk_length; }
  std::vector<std::int32_t> chunks_of(int rank) const;  // ascending
};

// Rows of a sequence of `length` after padding for `chunks` chunks.
std::int64_t padded_length(std::int64_t length, int chunks);

// Zig-zag: 2 * context chunks; rank r holds chunks r and 2 * context - 1 - r, which balances one causal document. With
// one rank there is one chunk and no padding.
ChunkTable make_zigzag(std::int64_t length, int context);

// Greedy balancing: assigns chunks in order of descending work, each to the rank with the smallest load that has a free
// place. The work of a row is the number of keys it attends to, the mean over `masks`. Groups of `together` adjacent
// chunks (a power of two that divides chunks_per_rank) are assigned as one. While the largest load exceeds kBalanced
// times the mean, the group size is halved, down to single chunks; the most balanced table is returned. Larger groups
// give larger diagonal blocks and fewer off-diagonal blocks. `load`, one value per rank, is the work assigned before
// (by other sequences of the micro-batch) and is updated; empty: none. Documents are contiguous from row 0; rows after
// them are padding.
constexpr double kBalanced = 1.05;
ChunkTable deal_by_work(std::int64_t length, std::span<const std::int32_t> document_lengths, int context,
                        int chunks_per_rank, std::span<double> load = {}, int together = 1,
                        std::span<const MaskShare> masks = kCausalMask);

// Attention work of each rank, in (query, key) pairs: the mean over `masks`.
std::vector<double> work_by_rank(const ChunkTable& table, std::span<const std::int32_t> document_lengths,
                                 std::span<const MaskShare> masks = kCausalMask);

// Maximum work of a rank over the mean. 1 is balanced; also 1 if there is no work.
double imbalance(std::span<const double> work);

// Mean imbalance, weighted by work, of parts that run one after another and each take as long as their slowest rank.
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

}  // namespace hawser::batches
