// `Segments`: the attention of a rank's rows, split into blocks with simple masks; the arguments of the attention ops.
//
// A rank's rows are split at document boundaries and between chunks that are not adjacent in the sequence. With a
// causal mask, each piece of a document attends to itself causally (a diagonal block: its keys are its own rows) and to
// all of the document before it (an off-diagonal block: every query attends to every key). Without one, it attends to
// all of the document. Padding rows are in no segment. Kernels that skip masked tiles in backward support these forms
// only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batches/chunk_table.h"

namespace hawser::batches {

// Query rows [q_begin, +q_count) of the rank's local rows attend to key rows [k_begin, +k_count) of the gathered keys
// of the micro-batch, as far as the mask shows them. Positions count from the start of the document.
// Key rows are in global order:
//
//   row = sequence * padded_length + row in the sequence
struct Segment {
  std::int32_t q_begin, q_count, k_begin, k_count;
  std::int32_t q_position, k_position;  // of the first query and the first key

  bool operator==(const Segment&) const = default;
};

struct Segments {
  std::vector<Segment> diagonal;      // q_count == k_count, q_position == k_position
  std::vector<Segment> off_diagonal;  // k_position == 0, k_position + k_count == q_position
  std::vector<Segment> complete;      // the queries of `diagonal`, with all keys of their document; k_position == 0
};

// Segments of `rank`. All sequences have the same padded length; `tables` and `document_lengths` have one entry per
// sequence. With one rank, every document is one diagonal block and there are no off-diagonal blocks. If `join` is
// false, adjacent chunks of a rank stay separate pieces.
Segments make_segments(std::span<const ChunkTable> tables, std::span<const std::vector<std::int32_t>> document_lengths,
                       int rank, bool join = true);

// The documents of all sequences, with the rows in global order as queries and as keys.
std::vector<Segment> document_segments(std::span<const ChunkTable> tables,
                                       std::span<const std::vector<std::int32_t>> document_lengths);

// The attention of `rank` by the rank and the chunk that have the keys, for keys that travel from rank to rank (ring
// attention, arXiv 2310.01889): element s * chunks_per_rank + c has the segments of this rank's queries with the keys
// of chunk c of rank s in each sequence, k_begin counting the local rows of s. In one element each query is in one
// segment at most; over all of them, each pair of a query and a key that it sees is in one.
std::vector<std::vector<Segment>> segments_by_source(std::span<const ChunkTable> tables,
                                                     std::span<const std::vector<std::int32_t>> document_lengths,
                                                     int rank);

// The off-diagonal blocks of layers with a window, from those of `make_segments`: without the keys that no query sees,
// and without the queries that see no key. For a block of n queries from position p on, with d = window - 1:
//   the min(n, d) first queries, with the min(p, d) last keys
// `split`: at position d, into up to two segments with one kind of mask each.
//   queries before position d:  with all p keys; every query sees every key
//   queries from position d on: the first, at position q, with the keys from position q - d on. It sees all of them,
//                               each later one a key less
struct WindowSegments {
  std::vector<Segment> band;      // with `split`, queries from position d on; otherwise all
  std::vector<Segment> complete;  // with `split`, queries before position d; otherwise none
};
WindowSegments window_segments(std::span<const Segment> off_diagonal, std::int64_t window, bool split);

// Upper bounds for any rank.
struct SegmentBounds {
  std::int64_t diagonal, off_diagonal;
  std::int64_t documents, of_source;  // of document_segments; of an element of segments_by_source
};
SegmentBounds max_segments(std::int64_t sequences, std::int64_t max_documents, int chunks_per_rank, int context);

}  // namespace hawser::batches
