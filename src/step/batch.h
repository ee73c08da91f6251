// `HostBatch`: a micro-batch of one rank on the host. `BatchBounds`: the bounds that its buffers are planned for.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/layer.h"

namespace hawser::step {

constexpr std::int64_t kSegmentNumbers = 6;  // of a segment in a table

// Row order and tables as in nn::BatchViews; lists of segments are flat. batch_tables.h has the list of the tables.
struct HostBatch {
  std::vector<std::int32_t> ids, labels, positions;
  std::vector<std::int32_t> diagonal;
  std::vector<std::vector<std::int32_t>> off_diagonal;  // for each of BatchBounds::masks; may be empty
  // For each of BatchBounds::masks and each source; empty unless BatchBounds::source_tables.
  std::vector<std::vector<std::vector<std::int32_t>>> by_source;
  std::vector<std::int32_t> heads_index;        // empty with one rank of heads, or one sequence
  std::vector<std::int32_t> gather_index;       // empty without context parallelism
  std::vector<std::int32_t> logit_positions;    // at most BatchBounds::logit_positions; padded with row 0
  std::vector<std::int32_t> attention_row_ids;  // empty with one rank of heads
  std::vector<std::int32_t> row_ids;            // [T, 2]
  std::vector<std::int32_t> sequence_row_ids,
      source_row_ids;                      // [context * T, 2]; empty unless BatchBounds::all_row_ids
  std::vector<std::int32_t> token_mask;    // one per row
  std::vector<std::int32_t> slot_mapping;  // one per row with a KV cache, else empty
  Tables tables = {};                      // BatchBounds::tables, complete
};

// One of the distinct masks of the model's attention layers (nn::MaskViews).
struct MaskBounds {
  AttentionMask mask;
  bool halves = false;  // the off-diagonal table has two halves of BatchBounds::off_diagonal rows each
  int sources = 0;      // tables by source: batches::BatchShape::sources
  double diagonal_pairs = 0, off_diagonal_pairs = 0;
};

// Derived from the recipe and the model, never from the data.
struct BatchBounds {
  std::int64_t rows = 0;       // T of this rank
  int row_parts = 1;           // tensor ranks that divide the residual's rows: sequence parallelism
  int row_part = 0;            // this rank's of them
  std::int64_t sequences = 1;  // of a micro-batch
  int context = 1;
  int context_heads = 1;
  std::int64_t diagonal = 1;      // max segments
  std::int64_t off_diagonal = 0;  // max segments of a causal mask's list
  bool source_tables = false;     // there are tables by source
  std::vector<MaskBounds> masks = {{}};
  std::int64_t uniform_diagonal = 0;  // as in nn::BatchViews
  bool off_diagonal_disjoint_keys = false;
  std::int64_t logit_positions = 0;    // Purpose::logits: max rows whose logits are computed
  bool uses_kv_cache = false;          // nn/kv_cache.h
  bool random_numbers = false;         // layers draw random numbers
  bool all_row_ids = false;            // batches::BatchShape::all_row_ids
  bool token_mask = false;             // layers read it
  std::vector<TableSpec> tables = {};  // that the model declares

  // Of an off-diagonal table, and of each table by source.
  std::int64_t off_diagonal_rows(const MaskBounds& m) const {
    if (!m.mask.causal) return diagonal;
    return m.halves ? 2 * off_diagonal : off_diagonal;
  }
  int ring() const { return context / context_heads; }
  std::int64_t attention_rows() const { return context_heads * rows; }
  nn::RowCounts row_counts() const { return {rows / row_parts, rows, row_part * (rows / row_parts)}; }
  const MaskBounds& with_mask(const AttentionMask& mask) const;  // InternalError if there is none
};

}  // namespace hawser::step
