#include "step/batch_tables.h"

namespace hawser::step {
namespace {

template <std::vector<std::int32_t> HostBatch::*Field>
void numbers(const HostBatch& batch, const BatchBounds&, const BatchTable::Give& give) {
  const std::vector<std::int32_t>& all = batch.*Field;
  give(all.data(), static_cast<std::int64_t>(all.size() * sizeof(std::int32_t)));
}

std::int32_t segments_of(const std::vector<std::int32_t>& list) {
  return static_cast<std::int32_t>(list.size() / kSegmentNumbers);
}

void diagonal_count(const HostBatch& batch, const BatchBounds&, const BatchTable::Give& give) {
  const std::int32_t segments = segments_of(batch.diagonal);
  give(&segments, sizeof(segments));
}

// The tables of all masks, one after another, each with all of its rows except the last one's.
void off_diagonal(const HostBatch& batch, const BatchBounds& b, const BatchTable::Give& give) {
  std::vector<std::int32_t> all;
  std::int64_t rows = 0;
  for (std::size_t w = 0; w < batch.off_diagonal.size(); ++w) {
    all.resize(static_cast<std::size_t>(rows * kSegmentNumbers));
    all.insert(all.end(), batch.off_diagonal[w].begin(), batch.off_diagonal[w].end());
    rows += b.off_diagonal_rows(b.masks.at(w));
  }
  give(all.data(), static_cast<std::int64_t>(all.size() * sizeof(std::int32_t)));
}

void off_diagonal_count(const HostBatch& batch, const BatchBounds& b, const BatchTable::Give& give) {
  std::vector<std::int32_t> counts;
  for (const auto& list : batch.off_diagonal) counts.push_back(segments_of(list));
  counts.resize(b.masks.size());
  give(counts.data(), static_cast<std::int64_t>(counts.size() * sizeof(std::int32_t)));
}

void by_source(const HostBatch& batch, const BatchBounds& b, const BatchTable::Give& give) {
  std::vector<std::int32_t> all;
  for (std::size_t m = 0; m < batch.by_source.size(); ++m) {
    const std::int64_t rows = b.off_diagonal_rows(b.masks.at(m));
    for (const auto& list : batch.by_source[m]) {
      HAWSER_CHECK(segments_of(list) <= rows, segments_of(list), " segments with the keys of one source");
      all.insert(all.end(), list.begin(), list.end());
      all.resize(all.size() + static_cast<std::size_t>(rows * kSegmentNumbers) - list.size());
    }
  }
  give(all.data(), static_cast<std::int64_t>(all.size() * sizeof(std::int32_t)));
}

void by_source_count(const HostBatch& batch, const BatchBounds&, const BatchTable::Give& give) {
  std::vector<std::int32_t> counts;
  for (const auto& of_mask : batch.by_source) {
    for (const auto& list : of_mask) counts.push_back(segments_of(list));
  }
  give(counts.data(), static_cast<std::int64_t>(counts.size() * sizeof(std::int32_t)));
}

std::int64_t off_diagonal_rows(const BatchBounds& b) {
  std::int64_t rows = 0;
  for (const MaskBounds& m : b.masks) rows += b.off_diagonal_rows(m);
  return rows;
}

std::int64_t source_rows(const BatchBounds& b) {
  std::int64_t rows = 0;
  for (const MaskBounds& m : b.masks) rows += m.sources * b.off_diagonal_rows(m);
  return b.source_tables ? rows : 0;
}

std::int64_t source_lists(const BatchBounds& b) {
  std::int64_t lists = 0;
  for (const MaskBounds& m : b.masks) lists += m.sources;
  return b.source_tables ? lists : 0;
}

Shape per_row(const BatchBounds& b) {
  return {b.rows};
}
Shape one(const BatchBounds&) {
  return {1};
}
Shape with_context(const BatchBounds& b, const Shape& shape) {
  return b.ring() > 1 ? shape : Shape{0};
}

Shape row_ids_of_all(const BatchBounds& b) {
  return {b.random_numbers && b.all_row_ids ? b.context * b.rows : 0, 2};
}

using Host = HostBatch;
using Views = nn::BatchViews;

constexpr BatchTable kTables[] = {
    {"ids", DType::i32, per_row, numbers<&Host::ids>, &Views::ids},
    {"labels", DType::i32, per_row, numbers<&Host::labels>, &Views::labels},
    {"positions", DType::i32, per_row, numbers<&Host::positions>, &Views::positions},
    {"diagonal", DType::i32,
     [](const BatchBounds& b) {
       return Shape{b.diagonal, kSegmentNumbers};
     },
     numbers<&Host::diagonal>, &Views::diagonal},
    {"diagonal_count", DType::i32, one, diagonal_count, &Views::diagonal_count},
    {"off_diagonal", DType::i32,
     [](const BatchBounds& b) {
       return with_context(b, {off_diagonal_rows(b), kSegmentNumbers});
     },
     off_diagonal, &Views::off_diagonal},
    {"off_diagonal_count", DType::i32,
     [](const BatchBounds& b) { return with_context(b, {static_cast<std::int64_t>(b.masks.size())}); },
     off_diagonal_count, &Views::off_diagonal_count},
    {"by_source", DType::i32,
     [](const BatchBounds& b) {
       return Shape{source_rows(b), kSegmentNumbers};
     },
     by_source, &Views::by_source},
    {"by_source_count", DType::i32, [](const BatchBounds& b) { return Shape{source_lists(b)}; }, by_source_count,
     &Views::by_source_count},
    {"gather_index", DType::i32, [](const BatchBounds& b) { return with_context(b, {b.rows * b.context}); },
     numbers<&Host::gather_index>, &Views::gather_index},
    {"heads_index", DType::i32,
     [](const BatchBounds& b) { return Shape{b.context_heads > 1 && b.sequences > 1 ? b.attention_rows() : 0}; },
     numbers<&Host::heads_index>, &Views::heads_index},
    {"logit_positions", DType::i32, [](const BatchBounds& b) { return Shape{b.logit_positions}; },
     numbers<&Host::logit_positions>, &Views::logit_positions},
    {"row_ids", DType::i32,
     [](const BatchBounds& b) {
       return Shape{b.random_numbers ? b.rows : 0, 2};
     },
     numbers<&Host::row_ids>, &Views::row_ids},
    {"attention_row_ids", DType::i32,
     [](const BatchBounds& b) {
       return Shape{b.random_numbers && b.context_heads > 1 ? b.attention_rows() : 0, 2};
     },
     numbers<&Host::attention_row_ids>, &Views::attention_row_ids},
    {"sequence_row_ids", DType::i32, row_ids_of_all, numbers<&Host::sequence_row_ids>, &Views::sequence_row_ids},
    {"source_row_ids", DType::i32, row_ids_of_all, numbers<&Host::source_row_ids>, &Views::source_row_ids},
    {"token_mask", DType::i32, [](const BatchBounds& b) { return Shape{b.token_mask ? b.rows : 0}; },
     numbers<&Host::token_mask>, &Views::token_mask},
    {"slot_mapping", DType::i32, [](const BatchBounds& b) { return Shape{b.uses_kv_cache ? b.rows : 0}; },
     numbers<&Host::slot_mapping>, &Views::slot_mapping},
};

}  // namespace

const MaskBounds& BatchBounds::with_mask(const AttentionMask& mask) const {
  for (const MaskBounds& m : masks) {
    if (m.mask == mask) return m;
  }
  HAWSER_CHECK(false, "the batch has no tables for ", mask.causal ? "" : "no causal mask, ", "window ", mask.window,
               mask.distances ? ", distances" : "");
}

std::span<const BatchTable> batch_tables() {
  return kTables;
}

std::size_t table_count(const BatchBounds& bounds) {
  return batch_tables().size() + bounds.tables.size();
}

namespace {

// A table of the model; null: a fixed one.
const TableSpec* declared(const BatchBounds& bounds, std::size_t index) {
  const std::size_t fixed = batch_tables().size();
  return index < fixed ? nullptr : &bounds.tables.at(index - fixed);
}

Shape shape_of(const TableSpec& table, const BatchBounds& bounds) {
  return table.shape(table.entry == TableSpec::Entry::token ? bounds.rows : bounds.sequences);
}

}  // namespace

TableBuffer table_buffer(const BatchBounds& bounds, std::size_t index) {
  if (const TableSpec* const table = declared(bounds, index)) return {table->dtype, shape_of(*table, bounds)};
  const BatchTable& table = batch_tables()[index];
  return {table.dtype, table.shape(bounds)};
}

void table_contents(const HostBatch& batch, const BatchBounds& bounds, std::size_t index,
                    const BatchTable::Give& give) {
  const TableSpec* const table = declared(bounds, index);
  if (table == nullptr) return batch_tables()[index].contents(batch, bounds, give);
  const auto found = batch.tables.find(table->name);
  HAWSER_CHECK(found != batch.tables.end(), "a micro-batch without table ", table->name, ", which the model declares");
  const TableValues& values = found->second;
  const Shape shape = shape_of(*table, bounds);
  HAWSER_CHECK(values.dtype() == table->dtype && values.elements() == shape.elements(), "table ", table->name,
               " of a micro-batch has ", values.elements(), " elements of ", to_string(values.dtype()), ", not ",
               shape.elements(), " of ", to_string(table->dtype));
  give(values.data(), values.bytes());
}

nn::BatchViews batch_views(const BatchBounds& b, const std::function<TensorView(std::size_t index)>& view_of) {
  nn::BatchViews views{.uniform_diagonal = b.uniform_diagonal,
                       .off_diagonal_disjoint_keys = b.off_diagonal_disjoint_keys};
  const std::size_t fixed = batch_tables().size();
  for (std::size_t i = 0; i < fixed; ++i) views.*batch_tables()[i].view = view_of(i);
  for (std::size_t i = 0; i < b.tables.size(); ++i) views.tables.emplace(b.tables[i].name, view_of(fixed + i));
  if (views.attention_row_ids.empty()) views.attention_row_ids = views.row_ids;
  std::int64_t begin = 0, source_row = 0, source_list = 0;
  for (std::size_t w = 0; w < b.masks.size(); ++w) {
    const MaskBounds& bounds = b.masks[w];
    nn::MaskViews& view = views.masks.emplace_back();
    view.mask = bounds.mask;
    view.diagonal_pairs = bounds.diagonal_pairs;
    view.off_diagonal_pairs = bounds.off_diagonal_pairs;
    if (b.source_tables) {
      const std::int64_t rows = b.off_diagonal_rows(bounds);
      if (rows > 0 && !views.by_source.empty())
        view.by_source = views.by_source.rows(source_row, bounds.sources * rows);
      view.by_source_count = views.by_source_count.rows(source_list, bounds.sources);
      source_row += bounds.sources * rows;
      source_list += bounds.sources;
    }
    if (views.off_diagonal.empty()) continue;
    view.off_diagonal = views.off_diagonal.rows(begin, b.off_diagonal_rows(bounds));
    view.off_diagonal_count = views.off_diagonal_count.rows(static_cast<std::int64_t>(w), 1);
    begin += b.off_diagonal_rows(bounds);
  }
  return views;
}

void set_host_tables(const HostBatch& host, nn::BatchViews& views) {
  views.host_diagonal = &host.diagonal;
  for (std::size_t m = 0; m < views.masks.size(); ++m) {
    views.masks[m].host_off_diagonal = m < host.off_diagonal.size() ? &host.off_diagonal[m] : nullptr;
    views.masks[m].host_by_source = m < host.by_source.size() ? &host.by_source[m] : nullptr;
  }
}

}  // namespace hawser::step
