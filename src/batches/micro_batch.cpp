#include "batches/micro_batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "batches/labels.h"

namespace hawser::batches {

std::int64_t BatchShape::chunk_length() const {
  // Rows of a sequence on a rank of the ring are a multiple of context_heads, and rows of a rank of row_multiple.
  const std::int64_t of_sequence = std::lcm<std::int64_t>(row_multiple, sequences) / sequences * context_heads;
  const std::int64_t multiple = std::lcm<std::int64_t>(of_sequence, chunks_per_rank) / chunks_per_rank;
  return round_up(ceil_div(sequence_length, chunks()), multiple);
}

BatchSizes batch_sizes(const PackingPlan& packing, std::int64_t sequences, int context,
                       std::optional<int> context_chunks, int context_heads) {
  BatchSizes sizes{.sequences = sequences,
                   .sequence_length = packing.sequence_length,
                   .max_documents = packing.max_documents,
                   .context = context,
                   .context_heads = context_heads};
  if (sizes.ring() == 1) return sizes;
  const bool zigzag = !context_chunks && packing.pack == Packing::chunks;
  sizes.split = zigzag ? SequenceSplit::zigzag : SequenceSplit::by_work;
  sizes.chunks_per_rank = zigzag ? 2 : context_chunks.value_or(4);
  // With more chunks, short sequences would be mostly padding.
  constexpr std::int64_t kMinChunk = 64;
  if (!zigzag && !context_chunks && sizes.sequence_length >= 16 * sizes.ring() * kMinChunk) {
    sizes.chunks_per_rank = 16;
    sizes.together = 4;
  }
  return sizes;
}

namespace {

// Rows [from, from + count) of a sequence, padding included, become the batch's rows from `to` on.
void add_rows(MicroBatch& batch, const BatchShape& shape, const Sequence& sequence, std::int64_t number,
              std::int64_t from, std::int64_t count, std::int64_t to) {
  for (std::int64_t i = 0; i < count; ++i) {
    batch.row_ids[2 * (to + i)] = static_cast<std::int32_t>(number);
    batch.row_ids[2 * (to + i) + 1] = static_cast<std::int32_t>(from + i);
  }
  const std::int64_t tokens = std::min(count, sequence.length() - from);
  if (tokens <= 0) return;
  std::copy_n(sequence.ids.begin() + from, tokens, batch.ids.begin() + to);
  std::copy_n(sequence.labels.begin() + from, tokens, batch.labels.begin() + to);
  std::copy_n(sequence.positions.begin() + from, tokens, batch.positions.begin() + to);
  std::fill_n(batch.token_mask.begin() + to, tokens, 1);
  for (const TableSpec& table : shape.tables) {
    if (table.entry != TableSpec::Entry::token) continue;
    batch.tables.at(table.name).copy(table, sequence.tables.at(table.name), from, tokens, to);
  }
}

// The entries of sequence number `at` of the micro-batch.
void add_sequence_tables(MicroBatch& batch, const BatchShape& shape, const Sequence& sequence, std::int64_t at) {
  check_sequence_tables(sequence, shape.tables);
  for (const TableSpec& table : shape.tables) {
    if (table.entry != TableSpec::Entry::sequence) continue;
    batch.tables.at(table.name).copy(table, sequence.tables.at(table.name), 0, 1, at);
  }
}

ChunkTable make_table(const BatchShape& shape, const Sequence& sequence, std::span<double> load) {
  switch (shape.split) {
    case SequenceSplit::zigzag:
      return make_zigzag(shape.padded_length(), shape.ring());
    case SequenceSplit::by_work:
      break;
  }
  return deal_by_work(shape.padded_length(), sequence.document_lengths, shape.ring(), shape.chunks_per_rank, load,
                      shape.together, shape.masks);
}

}  // namespace

void check_sequence_tables(const Sequence& sequence, const std::vector<TableSpec>& tables) {
  for (const TableSpec& table : tables) {
    const auto found = sequence.tables.find(table.name);
    if (found == sequence.tables.end()) {
      throw UserError(Problem{.what = "the data have no such table, which the model reads", .at = table.name});
    }
    const TableValues& values = found->second;
    if (values.dtype() != table.dtype) {
      throw UserError(Problem{.what = "a table of the data has another dtype than the model reads",
                              .expected = to_string(table.dtype),
                              .got = to_string(values.dtype()),
                              .at = table.name});
    }
    const std::int64_t entries = table.entry == TableSpec::Entry::token ? sequence.length() : 1;
    if (values.elements() != entries * table.width) {
      throw UserError(Problem{.what = cat("a sequence of ", sequence.length(), " tokens has a table of another length"),
                              .expected = cat(entries * table.width),
                              .got = cat(values.elements()),
                              .at = table.name});
    }
  }
  if (sequence.tables.size() == tables.size()) return;
  for (const auto& [name, values] : sequence.tables) {
    if (std::ranges::find(tables, name, &TableSpec::name) != tables.end()) continue;
    throw UserError(Problem{.what = "the data have a table that the model does not read", .at = name});
  }
}

MicroBatch make_micro_batch(std::span<const Sequence> sequences, const BatchShape& shape, int context_rank,
                            std::int64_t first_sequence) {
  HAWSER_CHECK(static_cast<std::int64_t>(sequences.size()) <= shape.sequences, sequences.size(), " sequences, maximum ",
               shape.sequences);
  HAWSER_CHECK(shape.context % shape.context_heads == 0, "context degree ", shape.context, " with heads over ",
               shape.context_heads);
  int chunks = shape.chunks_per_rank;
  if (shape.ring() == 1) chunks = 1;
  if (shape.ring() > 1 && shape.split == SequenceSplit::zigzag) chunks = 2;
  HAWSER_CHECK(shape.chunks_per_rank == chunks, shape.chunks_per_rank, " chunks per rank, not ", chunks);
  MicroBatch batch;
  const auto rows = static_cast<std::size_t>(shape.local_rows());
  batch.ids.assign(rows, 0);
  batch.labels.assign(rows, prepare::kIgnoredLabel);
  batch.positions.assign(rows, 0);
  batch.row_ids.resize(2 * rows);
  batch.token_mask.assign(rows, 0);
  batch.mask_pairs.assign(shape.masks.size(), 0.0);
  for (const TableSpec& table : shape.tables) {
    const std::int64_t entries = table.entry == TableSpec::Entry::token ? shape.local_rows() : shape.sequences;
    batch.tables.emplace(table.name, TableValues(table, entries));
  }

  static const Sequence kEmpty;
  std::vector<ChunkTable> tables;
  std::vector<std::vector<std::int32_t>> documents;
  std::vector<double> load(shape.ring(), 0.0), work(shape.ring(), 0.0);
  const int ring_rank = context_rank / shape.context_heads;
  for (std::int64_t s = 0; s < shape.sequences; ++s) {
    const Sequence& sequence = s < static_cast<std::int64_t>(sequences.size()) ? sequences[s] : kEmpty;
    HAWSER_CHECK(sequence.length() <= shape.sequence_length, "sequence of ", sequence.length(), " tokens, maximum ",
                 shape.sequence_length);
    HAWSER_CHECK(static_cast<std::int64_t>(sequence.document_lengths.size()) <= shape.max_documents,
                 sequence.document_lengths.size(), " documents in a sequence, maximum ", shape.max_documents);
    check_labels(sequence, shape.labels);
    if (&sequence != &kEmpty) add_sequence_tables(batch, shape, sequence, s);
    tables.push_back(make_table(shape, sequence, load));
    documents.push_back(sequence.document_lengths);
    const ChunkTable& table = tables.back();
    const auto of_this = work_by_rank(table, sequence.document_lengths, shape.masks);
    for (int rank = 0; rank < shape.ring(); ++rank) work[rank] += of_this[rank];
    const auto pairs = [&](const AttentionMask& mask) {
      const MaskShare one[] = {{mask}};
      const auto by_rank = work_by_rank(table, sequence.document_lengths, one);
      return std::accumulate(by_rank.begin(), by_rank.end(), 0.0);
    };
    batch.pairs += pairs({});
    for (std::size_t i = 0; i < shape.masks.size(); ++i) batch.mask_pairs[i] += pairs(shape.masks[i].mask);
    batch.chunk_owner.insert(batch.chunk_owner.end(), table.owner.begin(), table.owner.end());
    batch.chunk_local.insert(batch.chunk_local.end(), table.local.begin(), table.local.end());
    batch.tokens += sequence.length();
    batch.valid_targets += sequence.targets();
    // Of the ring rank's rows of the sequence, this rank has [begin, begin + of_sequence).
    const std::int64_t of_sequence = table.local_length() / shape.context_heads,
                       begin = context_rank % shape.context_heads * of_sequence;
    for (const std::int32_t chunk : table.chunks_of(ring_rank)) {
      if (shape.context_heads > 1) {
        for (std::int64_t i = 0; i < table.chunk_length; ++i) {
          batch.attention_row_ids.push_back(static_cast<std::int32_t>(first_sequence + s));
          batch.attention_row_ids.push_back(static_cast<std::int32_t>(chunk * table.chunk_length + i));
        }
      }
      const std::int64_t chunk_begin = table.local[chunk] * table.chunk_length;
      const std::int64_t first = std::max(chunk_begin, begin),
                         end = std::min(chunk_begin + table.chunk_length, begin + of_sequence);
      if (first >= end) continue;
      add_rows(batch, shape, sequence, first_sequence + s, chunk * table.chunk_length + first - chunk_begin,
               end - first, s * of_sequence + first - begin);
    }
  }
  batch.imbalance = imbalance(work);
  Segments segments = make_segments(tables, documents, ring_rank, !shape.equal_chunks());
  batch.diagonal = std::move(segments.diagonal);
  batch.off_diagonal = std::move(segments.off_diagonal);
  batch.complete = std::move(segments.complete);
  if (shape.source_segments) {
    for (const MaskShare& of : shape.masks) {
      batch.by_source.push_back(
          segments_by_source(tables, documents, ring_rank, of.mask, !shape.equal_chunks(), shape.splits_windows()));
    }
  }
  return batch;
}

}  // namespace hawser::batches
