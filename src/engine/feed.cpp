#include "engine/feed.h"

#include "base/error.h"
#include "ops/attention/attention.h"

namespace hawser::engine {

namespace {

std::vector<std::int32_t> flatten(const std::vector<batches::Segment>& segments, bool local_keys) {
  std::vector<std::int32_t> out;
  out.reserve(segments.size() * step::kSegmentNumbers);
  for (const batches::Segment& s : segments) {
    out.insert(out.end(),
               {s.q_begin, s.q_count, local_keys ? s.q_begin : s.k_begin, s.k_count, s.q_position, s.k_position});
  }
  return out;
}

// A table of a mask; with a causal mask and a window, of both halves, if windows are split.
std::vector<std::int32_t> both_halves(batches::WindowSegments segments, const batches::BatchShape& shape,
                                      const AttentionMask& mask) {
  if (mask.causal && mask.window > 0 && shape.splits_windows()) {
    segments.band.resize(static_cast<std::size_t>(shape.max_segments().off_diagonal), {});
    segments.band.insert(segments.band.end(), segments.complete.begin(), segments.complete.end());
  }
  return flatten(segments.band, false);
}

// The off-diagonal table of layers with a mask (nn::MaskViews).
std::vector<std::int32_t> off_diagonal_table(const batches::MicroBatch& batch, const batches::BatchShape& shape,
                                             const AttentionMask& mask) {
  if (!mask.causal) return flatten(batch.complete, false);
  if (mask.window == 0) return flatten(batch.off_diagonal, false);
  return both_halves(batches::window_segments(batch.off_diagonal, mask.window, shape.splits_windows()), shape, mask);
}

// The row ids of all ranks.
void add_all_row_ids(const batches::MicroBatch& batch, const batches::BatchShape& shape, step::HostBatch& out) {
  const std::int64_t rows = shape.attention_rows(), padded = shape.padded_length();
  out.source_row_ids.resize(static_cast<std::size_t>(2 * shape.global_rows()));
  for (std::int64_t row = 0; row < shape.global_rows(); ++row) {
    const std::int64_t gathered = out.gather_index[static_cast<std::size_t>(row)], rank = gathered / (2 * rows),
                       at = rank * rows + gathered % (2 * rows);
    const auto sequence = static_cast<std::int32_t>(batch.row_ids.front() + row / padded),
               index = static_cast<std::int32_t>(row % padded);
    out.sequence_row_ids.insert(out.sequence_row_ids.end(), {sequence, index});
    out.source_row_ids[static_cast<std::size_t>(2 * at)] = sequence;
    out.source_row_ids[static_cast<std::size_t>(2 * at + 1)] = index;
  }
}

// HostBatch::heads_index.
std::vector<std::int32_t> heads_index(const batches::BatchShape& shape) {
  const std::int64_t rows = shape.local_rows(), of_sequence = rows / shape.sequences;
  std::vector<std::int32_t> out;
  for (std::int64_t row = 0; row < shape.attention_rows(); ++row) {
    const std::int64_t sequence = row / (of_sequence * shape.context_heads),
                       at = row % (of_sequence * shape.context_heads);
    out.push_back(static_cast<std::int32_t>(at / of_sequence * rows + sequence * of_sequence + at % of_sequence));
  }
  return out;
}

}  // namespace

std::shared_ptr<step::HostBatch> to_host_batch(const batches::MicroBatch& batch, const batches::BatchShape& shape) {
  auto out = std::make_shared<step::HostBatch>();
  out->ids = batch.ids;
  out->labels = batch.labels;
  out->positions = batch.positions;
  out->row_ids = batch.row_ids;
  out->attention_row_ids = batch.attention_row_ids;
  out->token_mask = batch.token_mask;
  out->tables = batch.tables;
  out->diagonal = flatten(batch.diagonal, true);
  for (std::size_t m = 0; m < batch.by_source.size(); ++m) {
    auto& of_mask = out->by_source.emplace_back();
    for (const batches::WindowSegments& segments : batch.by_source[m]) {
      of_mask.push_back(both_halves(segments, shape, shape.masks[m].mask));
    }
  }
  if (shape.context_heads > 1 && shape.sequences > 1) out->heads_index = heads_index(shape);
  if (shape.context == 1) return out;
  for (const auto& [mask, share] : shape.masks) {
    if (shape.ring() > 1) out->off_diagonal.push_back(off_diagonal_table(batch, shape, mask));
  }
  const std::int64_t chunks = shape.chunks();
  const std::int64_t length = shape.padded_length() / chunks, rows = shape.attention_rows();
  out->gather_index.reserve(static_cast<std::size_t>(shape.global_rows()));
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      const auto at = static_cast<std::size_t>(sequence * chunks + chunk);
      const std::int64_t first =
          batch.chunk_owner[at] * 2 * rows + (sequence * (chunks / shape.ring()) + batch.chunk_local[at]) * length;
      HAWSER_CHECK(first + length <= 2 * rows * shape.ring(), "chunk ", chunk, " is outside the gathered buffer");
      for (std::int64_t i = 0; i < length; ++i) out->gather_index.push_back(static_cast<std::int32_t>(first + i));
    }
  }
  if (shape.all_row_ids) add_all_row_ids(batch, shape, *out);
  return out;
}

double visible_pairs(const batches::MicroBatch& batch, const batches::BatchShape& shape, const AttentionMask& mask) {
  double pairs = 0;
  const std::int64_t window = mask.window;
  if (!mask.causal) {
    for (const auto& s : batch.complete) {
      pairs += ops::visible_pairs(s.q_count, s.k_count, s.q_position, false, window);
    }
    return pairs / shape.context_heads;
  }
  for (const auto& s : batch.diagonal) pairs += ops::visible_pairs(s.q_count, s.k_count, 0, true, window);
  for (const auto& s : batch.off_diagonal) {
    pairs += ops::visible_pairs(s.q_count, s.k_count, s.q_position - s.k_position, false, window);
  }
  return pairs / shape.context_heads;
}

}  // namespace hawser::engine
