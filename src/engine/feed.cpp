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

// The off-diagonal table of layers with a window (nn::WindowViews).
std::vector<std::int32_t> off_diagonal_table(const batches::MicroBatch& batch, const batches::BatchShape& shape,
                                             std::int64_t window) {
  if (window == 0) return flatten(batch.off_diagonal, false);
  const bool split = !shape.equal_chunks();
  batches::WindowSegments segments = batches::window_segments(batch.off_diagonal, window, split);
  if (split) {  // the second half of the table
    segments.band.resize(static_cast<std::size_t>(shape.max_segments().off_diagonal), {});
    segments.band.insert(segments.band.end(), segments.complete.begin(), segments.complete.end());
  }
  return flatten(segments.band, false);
}

}  // namespace

std::shared_ptr<step::HostBatch> to_host_batch(const batches::MicroBatch& batch, const batches::BatchShape& shape) {
  auto out = std::make_shared<step::HostBatch>();
  out->ids = batch.ids;
  out->labels = batch.labels;
  out->positions = batch.positions;
  out->row_ids = batch.row_ids;
  out->token_mask = batch.token_mask;
  out->diagonal = flatten(batch.diagonal, true);
  out->documents = flatten(batch.documents, false);
  for (const auto& segments : batch.by_source) out->by_source.push_back(flatten(segments, false));
  if (shape.context == 1) return out;
  for (const auto& [window, share] : shape.windows) {
    out->off_diagonal.push_back(off_diagonal_table(batch, shape, window));
  }
  const std::int64_t length = shape.chunk_length(), rows = shape.local_rows();
  out->gather_index.reserve(static_cast<std::size_t>(shape.global_rows()));
  for (std::int64_t sequence = 0; sequence < shape.sequences; ++sequence) {
    for (int chunk = 0; chunk < shape.chunks(); ++chunk) {
      const auto at = static_cast<std::size_t>(sequence * shape.chunks() + chunk);
      const std::int64_t first =
          batch.chunk_owner[at] * 2 * rows + (sequence * shape.chunks_per_rank + batch.chunk_local[at]) * length;
      HAWSER_CHECK(first + length <= 2 * rows * shape.context, "chunk ", chunk, " is outside the gathered buffer");
      for (std::int64_t i = 0; i < length; ++i) out->gather_index.push_back(static_cast<std::int32_t>(first + i));
    }
  }
  return out;
}

double visible_pairs(const batches::MicroBatch& batch, std::int64_t window) {
  double pairs = 0;
  for (const auto& s : batch.diagonal) pairs += ops::visible_pairs(s.q_count, s.k_count, 0, true, window);
  for (const auto& s : batch.off_diagonal) {
    pairs += ops::visible_pairs(s.q_count, s.k_count, s.q_position - s.k_position, false, window);
  }
  return pairs;
}

}  // namespace hawser::engine
