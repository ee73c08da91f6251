// `HostBatch`: a micro-batch of one rank on the host. `BatchBounds`: the bounds that its buffers are planned for.
#pragma once

#include <cstdint>
#include <vector>

namespace hawser::step {

constexpr std::int64_t kSegmentNumbers = 6;  // of a segment in a table

// Row order and tables as in nn::BatchViews; lists of segments are flat. batch_tables.h has the list of the tables.
struct HostBatch {
  std::vector<std::int32_t> ids, labels, positions;
  std::vector<std::int32_t> diagonal, off_diagonal;
  std::vector<std::int32_t> gather_index;     // empty without context parallelism
  std::vector<std::int32_t> logit_positions;  // at most BatchBounds::logit_positions; padded with row 0
  std::vector<std::int32_t> row_ids;          // [T, 2]
  std::vector<std::int32_t> token_mask;       // one per row
  std::vector<std::int32_t> slot_mapping;     // one per row with a KV cache, else empty
};

// Derived from the recipe, never from the data.
struct BatchBounds {
  std::int64_t rows = 0;       // T of this rank
  std::int64_t sequences = 1;  // of a micro-batch
  int context = 1;
  std::int64_t diagonal = 1;  // max segments
  std::int64_t off_diagonal = 0;
  std::int64_t uniform_diagonal = 0;  // as in nn::BatchViews
  bool off_diagonal_disjoint_keys = false;
  std::int64_t logit_positions = 0;  // Purpose::logits: max rows whose logits are computed
  bool uses_kv_cache = false;        // nn/kv_cache.h
  bool random_numbers = false;       // layers draw random numbers
  bool token_mask = false;           // layers read it
  double diagonal_pairs = 0;         // as in nn::BatchViews
  double off_diagonal_pairs = 0;
};

}  // namespace hawser::step
