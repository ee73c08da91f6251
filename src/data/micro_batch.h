// What one rank gets for one micro-batch: its rows of the sequences, and who attends to whom.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/recipe.h"
#include "data/segments.h"
#include "data/sequence.h"

namespace hawser::data {

enum class SequenceSplit { zigzag, by_work };

// Sizes that are the same for every micro-batch of a run, known before any data is read: what the plan is made from.
struct BatchShape {
  std::int64_t sequences = 1;        // of a micro-batch, on one data rank
  std::int64_t sequence_length = 0;  // tokens of a sequence at most
  std::int64_t max_documents = 1;    // in one sequence
  int context = 1;
  int chunks_per_rank = 1;
  int together = 1;  // by_work: neighbouring chunks that are dealt as one where that balances (deal_by_work)
  SequenceSplit split = SequenceSplit::zigzag;

  int chunks() const { return context * chunks_per_rank; }
  // One document a sequence, in chunks whose places do not depend on data: every chunk is a piece of its own.
  bool equal_chunks() const { return max_documents == 1 && (context == 1 || split == SequenceSplit::zigzag); }
  std::int64_t chunk_length() const;
  std::int64_t padded_length() const { return chunks() * chunk_length(); }
  std::int64_t local_rows() const { return sequences * chunks_per_rank * chunk_length(); }  // of a rank
  std::int64_t global_rows() const { return sequences * padded_length(); }
  SegmentBounds max_segments() const { return data::max_segments(sequences, max_documents, chunks_per_rank, context); }
};

// From a recipe: packed documents are dealt by work, in 4 pieces a rank and up to 16 where that is more even; running
// text zig-zags; `context_chunks` says otherwise. With one context rank there is one chunk.
BatchShape batch_shape(const Recipe& recipe);

// Documents a sequence at most: data.max_documents, by default sequence_length / 64 and at least 8; 1 for chunks.
std::int64_t max_documents_of(const DataRecipe& data);

struct MicroBatch {
  // One value a local row: sequence by sequence, within it the rank's chunks in ascending order. Padding rows have id
  // 0, label kIgnoredLabel and position 0, and are in no segment.
  std::vector<std::int32_t> ids, labels, positions;
  std::vector<Segment> diagonal, off_diagonal;
  // For each sequence and global chunk, [sequences * chunks]: its rank in the context group and its place there.
  std::vector<std::int32_t> chunk_owner, chunk_local;
  std::int64_t tokens = 0;         // of the micro-batch on all context ranks, padding not counted
  std::int64_t valid_targets = 0;  // likewise
  std::int64_t step_targets =
      0;                   // of the whole step, over all data ranks and micro-batches: what the loss is divided by
  double imbalance = 1.0;  // of attention work over the context group: most over mean
  double pairs = 0;        // that work: visible (query, key) pairs of the micro-batch, causal
};

// The part of `context_rank`. At most shape.sequences sequences; missing ones are empty. step_targets is left 0.
MicroBatch make_micro_batch(std::span<const Sequence> sequences, const BatchShape& shape, int context_rank);

}  // namespace hawser::data
