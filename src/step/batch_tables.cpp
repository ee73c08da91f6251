#include "step/batch_tables.h"

namespace hawser::step {
namespace {

template <std::vector<std::int32_t> HostBatch::*Field>
void numbers(const HostBatch& batch, const BatchTable::Give& give) {
  const std::vector<std::int32_t>& all = batch.*Field;
  give(all.data(), static_cast<std::int64_t>(all.size() * sizeof(std::int32_t)));
}

// The number of a list's segments.
template <std::vector<std::int32_t> HostBatch::*Field>
void count(const HostBatch& batch, const BatchTable::Give& give) {
  const auto segments = static_cast<std::int32_t>((batch.*Field).size() / kSegmentNumbers);
  give(&segments, sizeof(segments));
}

Shape per_row(const BatchBounds& b) {
  return {b.rows};
}
Shape one(const BatchBounds&) {
  return {1};
}
Shape with_context(const BatchBounds& b, const Shape& shape) {
  return b.context > 1 ? shape : Shape{0};
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
    {"diagonal_count", DType::i32, one, count<&Host::diagonal>, &Views::diagonal_count},
    {"off_diagonal", DType::i32,
     [](const BatchBounds& b) {
       return with_context(b, {b.off_diagonal, kSegmentNumbers});
     },
     numbers<&Host::off_diagonal>, &Views::off_diagonal},
    {"off_diagonal_count", DType::i32, [](const BatchBounds& b) { return with_context(b, {1}); },
     count<&Host::off_diagonal>, &Views::off_diagonal_count},
    {"gather_index", DType::i32, [](const BatchBounds& b) { return with_context(b, {b.rows * b.context}); },
     numbers<&Host::gather_index>, &Views::gather_index},
    {"logit_positions", DType::i32, [](const BatchBounds& b) { return Shape{b.logit_positions}; },
     numbers<&Host::logit_positions>, &Views::logit_positions},
    {"row_ids", DType::i32,
     [](const BatchBounds& b) {
       return Shape{b.random_numbers ? b.rows : 0, 2};
     },
     numbers<&Host::row_ids>, &Views::row_ids},
    {"token_mask", DType::i32, [](const BatchBounds& b) { return Shape{b.token_mask ? b.rows : 0}; },
     numbers<&Host::token_mask>, &Views::token_mask},
    {"slot_mapping", DType::i32, [](const BatchBounds& b) { return Shape{b.uses_kv_cache ? b.rows : 0}; },
     numbers<&Host::slot_mapping>, &Views::slot_mapping},
};

}  // namespace

std::span<const BatchTable> batch_tables() {
  return kTables;
}

}  // namespace hawser::step
