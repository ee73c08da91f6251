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

// Off-diagonal blocks of layers with a causal mask and a window: without the keys that no query sees, and without the
// queries that see no key. All keys of a block are before its queries. For n queries from position p on and the keys of
// positions [a, b), with d = window - 1:
//   the min(n, b + d - p) first queries, with the keys from max(a, p - d) on
// `split`: at position a + d, into up to two segments with one kind of mask each.
//   queries before position a + d: with all keys; every query sees every key
//   queries from there on:         the first, at position q, with the keys from position q - d on. It sees all of them,
//                                  each later one a key less
struct WindowSegments {
  std::vector<Segment> band;      // with `split`, queries from position a + d on; otherwise all
  std::vector<Segment> complete;  // with `split`, queries before it; otherwise none
};
WindowSegments window_segments(std::span<const Segment> off_diagonal, std::int64_t window, bool split);

// The attention of `rank` by the rank that has the keys, for keys that move from rank to rank (ring attention, arXiv
// 2310.01889). With a causal mask: all but the diagonal blocks, whose keys are this rank's. Queries are those of
// `diagonal`; k_begin counts the local rows of the source.
//   no window: element s has the keys of rank s. A document's earlier keys are consecutive rows of s, with gaps between
//              their positions: k_position is the first one's, and every query sees every key
//   a window:  element s * chunks_per_rank + c has the keys of chunk c of rank s in each sequence, as window_segments
//   distances: with the elements of a window if there is none, too: then every query sees every key
// Without a causal mask: the same elements with all keys of the document, in `band`.
// In one element each query is in one segment at most. Over all elements, and with a causal mask the diagonal blocks,
// each pair of a query and a key that it sees is in one segment. `join` as in make_segments, `split` as in
// window_segments.
std::vector<WindowSegments> segments_by_source(std::span<const ChunkTable> tables,
                                               std::span<const std::vector<std::int32_t>> document_lengths, int rank,
                                               const AttentionMask& mask, bool join, bool split);

// True: segments_by_source has elements by chunk.
inline bool by_chunk(const AttentionMask& mask) {
  return mask.window > 0 || mask.distances;
}

// Upper bounds for any rank.
struct SegmentBounds {
  // diagonal: also of the complete segments. off_diagonal: also of each half of window_segments. An element of
  // segments_by_source has as many as off_diagonal or, without a causal mask, diagonal.
  std::int64_t diagonal, off_diagonal;
};
SegmentBounds max_segments(std::int64_t sequences, std::int64_t max_documents, int chunks_per_rank, int context);

}  // namespace hawser::batches
