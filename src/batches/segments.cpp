#include "batches/segments.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace hawser::batches {
namespace {

// Rows of a rank that are contiguous both in the sequence and in the rank's memory.
struct Run {
  std::int64_t global, local, count;
};

std::vector<Run> runs_of(const ChunkTable& table, int rank, bool join) {
  std::vector<Run> runs;
  for (const std::int32_t chunk : table.chunks_of(rank)) {
    const Run next{chunk * table.chunk_length, table.local[chunk] * table.chunk_length, table.chunk_length};
    if (join && !runs.empty() && runs.back().global + runs.back().count == next.global) {
      runs.back().count += next.count;
    } else {
      runs.push_back(next);
    }
  }
  return runs;
}

}  // namespace

Segments make_segments(std::span<const ChunkTable> tables, std::span<const std::vector<std::int32_t>> document_lengths,
                       int rank, bool join) {
  HAWSER_CHECK(tables.size() == document_lengths.size(), tables.size(), " tables, ", document_lengths.size(), " lists");
  Segments out;
  std::int64_t local_base = 0, global_base = 0;
  for (std::size_t s = 0; s < tables.size(); ++s) {
    const auto& lengths = document_lengths[s];
    std::size_t document = 0;
    std::int64_t start = 0;  // of `document`
    for (const Run& run : runs_of(tables[s], rank, join)) {
      const std::int64_t run_end = run.global + run.count;
      // Runs are in ascending order, so documents that ended before this run are skipped for good.
      while (document < lengths.size() && start + lengths[document] <= run.global) start += lengths[document++];
      for (std::size_t d = document; d < lengths.size() && start < run_end; ++d) {
        const std::int64_t begin = std::max(start, run.global), end = std::min(start + lengths[d], run_end);
        if (end > begin) {
          const auto narrow = [](std::int64_t value) { return static_cast<std::int32_t>(value); };
          const std::int32_t q_begin = narrow(local_base + run.local + begin - run.global);
          const std::int32_t count = narrow(end - begin), position = narrow(begin - start);
          out.diagonal.push_back({q_begin, count, narrow(global_base + begin), count, position, position});
          if (position > 0)
            out.off_diagonal.push_back({q_begin, count, narrow(global_base + start), position, position, 0});
          out.complete.push_back({q_begin, count, narrow(global_base + start), lengths[d], position, 0});
        }
        if (start + lengths[d] > run_end) break;  // continues in a later run
        start += lengths[d];
        document = d + 1;
      }
    }
    local_base += tables[s].local_length();
    global_base += tables[s].padded_length();
  }
  HAWSER_CHECK(global_base <= std::numeric_limits<std::int32_t>::max(), "micro-batch of ", global_base, " rows");
  return out;
}

WindowSegments window_segments(std::span<const Segment> off_diagonal, std::int64_t window, bool split) {
  HAWSER_CHECK(window > 0, "no window");
  const auto distance = static_cast<std::int32_t>(std::min<std::int64_t>(window - 1, 1 << 30));
  WindowSegments out;
  for (const Segment& s : off_diagonal) {
    const std::int32_t position = s.q_position, k_end = s.k_position + s.k_count;
    HAWSER_CHECK(k_end <= position, "keys from position ", s.k_position, " on are not before their queries");
    const std::int32_t end = std::max(position, std::min(position + s.q_count, k_end + distance));
    const std::int32_t middle = split ? std::clamp(s.k_position + distance, position, end) : position;
    if (position < middle) {
      out.complete.push_back({s.q_begin, middle - position, s.k_begin, s.k_count, position, s.k_position});
    }
    if (middle == end) continue;
    const std::int32_t first = std::max(s.k_position, middle - distance);  // key
    out.band.push_back(
        {s.q_begin + middle - position, end - middle, s.k_begin + first - s.k_position, k_end - first, middle, first});
  }
  return out;
}

namespace {

// The row in the sequence order of all sequences where a document begins: equal for its pieces on all ranks.
std::int32_t document_of(const Segment& diagonal) {
  return diagonal.k_begin - diagonal.k_position;
}

// A document's keys on one rank, or those before a position, as one run of the rank's rows.
Segment run_of_keys(const Segment& q, std::span<const Segment> pieces, bool causal) {
  Segment out{q.q_begin, q.q_count, 0, 0, q.q_position, 0};
  for (const Segment& k : pieces) {
    if (causal && k.q_position + k.q_count > q.q_position) break;
    if (out.k_count == 0) out.k_begin = k.q_begin, out.k_position = k.q_position;
    HAWSER_CHECK(out.k_begin + out.k_count == k.q_begin, "a document's rows on a rank are not consecutive");
    out.k_count += k.q_count;
  }
  return out;
}

}  // namespace

std::vector<WindowSegments> segments_by_source(std::span<const ChunkTable> tables,
                                               std::span<const std::vector<std::int32_t>> document_lengths, int rank,
                                               const AttentionMask& mask, bool join, bool split) {
  HAWSER_CHECK(!tables.empty(), "no sequence");
  const ChunkTable& table = tables.front();
  const int pieces = by_chunk(mask) ? table.chunks_per_rank : 1;
  std::vector<WindowSegments> out(static_cast<std::size_t>(table.context * pieces));
  const std::vector<Segment> queries = make_segments(tables, document_lengths, rank, join).diagonal;
  for (int source = 0; source < table.context; ++source) {
    std::vector<std::vector<Segment>> found(static_cast<std::size_t>(pieces));
    // Chunks stay apart if each has an element, and where a piece of the queries ends.
    const bool joined = !by_chunk(mask) && (join || source != rank);
    const std::vector<Segment> keys = make_segments(tables, document_lengths, source, joined).diagonal;
    for (const Segment& q : queries) {
      const auto of_document = std::ranges::equal_range(keys, document_of(q), {}, document_of);
      const std::span<const Segment> same(of_document.begin(), of_document.end());
      if (!by_chunk(mask)) {
        if (const Segment run = run_of_keys(q, same, mask.causal); run.k_count > 0) found.front().push_back(run);
        continue;
      }
      for (const Segment& k : same) {
        if (mask.causal && k.q_position + k.q_count > q.q_position) break;
        found[static_cast<std::size_t>(k.q_begin % table.local_length() / table.chunk_length)].push_back(
            {q.q_begin, q.q_count, k.q_begin, k.q_count, q.q_position, k.q_position});
      }
    }
    for (int c = 0; c < pieces; ++c) {
      WindowSegments& element = out[static_cast<std::size_t>(source * pieces + c)];
      std::vector<Segment>& segments = found[static_cast<std::size_t>(c)];
      if (mask.causal && mask.window > 0) {
        element = window_segments(segments, mask.window, split);
      } else {
        element.band = std::move(segments);
      }
    }
  }
  return out;
}

SegmentBounds max_segments(std::int64_t sequences, std::int64_t max_documents, int chunks_per_rank, int context) {
  // R runs over D documents have at most D + R - 1 pieces; only the first piece of a run can have earlier keys.
  const std::int64_t runs = context == 1 ? 1 : chunks_per_rank;
  const std::int64_t pieces = max_documents + runs - 1;
  return {.diagonal = sequences * pieces, .off_diagonal = context == 1 ? 0 : sequences * runs};
}

}  // namespace hawser::batches
