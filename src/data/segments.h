// Attention of a rank's rows, cut into parts with simple masks: what the attention ops are called with.
//
// A rank's rows are cut where chunks that it holds apart, or documents, meet. A piece of a document attends to itself
// causally (a diagonal block: keys are its own rows) and to all of the document before it (an off-diagonal block: every query sees every
// key). Padding rows are in no segment. Kernels that skip masked tiles in backward do so for these two forms only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/chunk_table.h"

namespace hawser::data {

// Query rows [q_begin, +q_count) of the rank's own rows attend to key rows [k_begin, +k_count) of the gathered keys of
// the whole micro-batch in global order (row = sequence * padded length + row in the sequence), where the key's
// position is not above the query's. Positions count within the document.
struct Segment {
  std::int32_t q_begin, q_count, k_begin, k_count;
  std::int32_t q_position, k_position;  // of the first query and the first key

  bool operator==(const Segment&) const = default;
};

struct Segments {
  std::vector<Segment> diagonal;      // q_count == k_count, q_position == k_position
  std::vector<Segment> off_diagonal;  // k_position == 0, k_position + k_count == q_position
};

// Segments of `rank` for sequences of one padded length; tables and lists of document lengths go together. With one
// rank every document is one diagonal block and there are no off-diagonal blocks. Without `join`, chunks of a rank that follow one
// another in the sequence stay pieces of their own.
Segments make_segments(std::span<const ChunkTable> tables, std::span<const std::vector<std::int32_t>> document_lengths,
                       int rank, bool join = true);

// The most that any rank can get.
struct SegmentBounds {
  std::int64_t diagonal, off_diagonal;
};
SegmentBounds max_segments(std::int64_t sequences, std::int64_t max_documents, int chunks_per_rank, int context);

}  // namespace hawser::data
