// `BatchSizes`, `BatchShape`, `MicroBatch`: the rows and attention segments of one rank in one micro-batch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "batches/segments.h"
#include "batches/sequence.h"

namespace hawser::batches {

enum class SequenceSplit { zigzag, by_work };

// What a recipe chooses of the micro-batches of a run: their size, and how context-parallel ranks divide them.
struct BatchSizes {
  std::int64_t sequences = 1;        // per micro-batch and data rank
  std::int64_t sequence_length = 0;  // maximum tokens of a sequence
  std::int64_t max_documents = 1;    // per sequence
  int context = 1;
  // With an all-to-all over heads, these many consecutive ranks together have the rows of a rank of the ring,
  // each an equal part of the consecutive ones of each sequence. Divides `context`.
  int context_heads = 1;
  int chunks_per_rank = 1;  // of the ring
  int together = 1;         // by_work: adjacent chunks assigned as one if that is balanced (deal_by_work)
  SequenceSplit split = SequenceSplit::zigzag;
  bool source_segments = false;  // micro-batches have MicroBatch::by_source

  int ring() const { return context / context_heads; }  // ranks that the chunks of a sequence are split over
  int chunks() const { return ring() * chunks_per_rank; }
  // One document per sequence, in chunks whose assignment does not depend on the data: each chunk is its own segment.
  bool equal_chunks() const { return max_documents == 1 && (ring() == 1 || split != SequenceSplit::by_work); }
  // Off-diagonal tables of windows are split into halves (window_segments): always in a ring, where the segments of one
  // table have different distances.
  bool splits_windows() const { return source_segments || !equal_chunks(); }
  // Elements of MicroBatch::by_source of a mask.
  int sources(const AttentionMask& mask) const { return ring() * (by_chunk(mask) ? chunks_per_rank : 1); }
  SegmentBounds max_segments() const {
    return batches::max_segments(sequences, max_documents, chunks_per_rank, ring());
  }
};

// What is the same for every micro-batch of a run: the sizes, and what follows from the model and the layout
// (plan::derive). The plan is made from it, before any data is read.
struct BatchShape : BatchSizes {
  std::vector<MaskShare> masks = {MaskShare{}};  // of the model's attention layers
  int row_multiple = 1;                          // local_rows() is a multiple of it
  bool all_row_ids = false;                      // tables have the row ids of all ranks
  std::vector<TableSpec> tables = {};            // that the model declares: MicroBatch::tables
  LabelSpec labels = {};                         // that the model's head reads

  std::int64_t chunk_length() const;
  std::int64_t padded_length() const { return chunks() * chunk_length(); }
  // Rows of a rank, and of a rank of the ring: those that a head's attention is computed for.
  std::int64_t local_rows() const { return attention_rows() / context_heads; }
  std::int64_t attention_rows() const { return sequences * chunks_per_rank * chunk_length(); }
  std::int64_t global_rows() const { return sequences * padded_length(); }
};

// The sizes of micro-batches of `sequences` over `context` ranks, of which `context_heads` have the rows of one rank of
// the ring. Packed documents are split by work, in 4 chunks per rank of the ring, or 16 in groups of 4 if each has 64
// rows or more; Packing::chunks uses zig-zag. `context_chunks` overrides the number of chunks, and then splits by work.
// With one rank of the ring there is one chunk.
BatchSizes batch_sizes(const PackingPlan& packing, std::int64_t sequences, int context,
                       std::optional<int> context_chunks = {}, int context_heads = 1);

// Segments, and `complete` and `by_source`, are those of attention: of the rank's ring index, with
// BatchShape::attention_rows() rows. All else is of this rank's rows.
struct MicroBatch {
  // [local_rows()]: by sequence, then the rank's chunks in ascending order. Padding rows have id 0, label kIgnoredLabel
  // and position 0, and are in no segment.
  std::vector<std::int32_t> ids, labels, positions;
  // [local_rows(), 2]: number of the row's sequence in the step, index of the row in the sequence (padding included).
  std::vector<std::int32_t> row_ids;
  std::vector<std::int32_t> attention_row_ids;  // [attention_rows(), 2] of the ring index; only with context_heads
  std::vector<std::int32_t> token_mask;         // [local_rows()]: 1, padding rows 0
  // Each of BatchShape::tables: entries for the rank's rows, in their order, or [sequences] of the micro-batch, on all
  // context ranks. TableSpec::padding for padding rows and missing sequences.
  Tables tables;
  std::vector<Segment> diagonal, off_diagonal, complete;  // of batches::Segments
  std::vector<std::vector<WindowSegments>> by_source;     // batches::segments_by_source of each of BatchShape::masks
  // [sequences * chunks]: index in the ring of each chunk's rank, and the chunk's index among that rank's chunks.
  std::vector<std::int32_t> chunk_owner, chunk_local;
  std::int64_t tokens = 0;         // over all context ranks, without padding
  std::int64_t valid_targets = 0;  // over all context ranks
  std::int64_t step_targets = 0;   // of the step, over all data ranks and micro-batches: the divisor of the loss
  double imbalance = 1.0;          // of attention work, with the masks, over the context group: maximum over mean
  double pairs = 0;                // visible (query, key) pairs of the micro-batch, causal, without a window
  std::vector<double> mask_pairs;  // the same with each of BatchShape::masks
};

// The part of `context_rank`. At most shape.sequences sequences; missing ones are empty. step_targets stays 0.
// UserError if check_sequence_tables or check_labels throws one.
// `first_sequence`: number of sequences[0] in the step.
MicroBatch make_micro_batch(std::span<const Sequence> sequences, const BatchShape& shape, int context_rank,
                            std::int64_t first_sequence = 0);

// UserError unless a sequence has just these tables, each with the dtype and the number of elements that it must have.
void check_sequence_tables(const Sequence& sequence, const std::vector<TableSpec>& tables);

}  // namespace hawser::batches
