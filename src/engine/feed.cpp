#include "engine/feed.h"

#include "base/error.h"

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

}  // namespace

std::shared_ptr<step::HostBatch> to_host_batch(const batches::MicroBatch& batch, const batches::BatchShape& shape) {
  auto out = std::make_shared<step::HostBatch>();
  out->ids = batch.ids;
  out->labels = batch.labels;
  out->positions = batch.positions;
  out->row_ids = batch.row_ids;
  out->token_mask = batch.token_mask;
  out->diagonal = flatten(batch.diagonal, true);
  out->off_diagonal = flatten(batch.off_diagonal, false);
  if (shape.context == 1) return out;
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

double visible_pairs(const batches::MicroBatch& batch) {
  double pairs = 0;
  for (const auto& s : batch.diagonal) pairs += 0.5 * s.q_count * (s.q_count + 1.0);
  for (const auto& s : batch.off_diagonal) pairs += static_cast<double>(s.q_count) * s.k_count;
  return pairs;
}

}  // namespace hawser::engine
