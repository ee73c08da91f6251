#include "nn/nf4_places.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/units.h"
#include "nn/segment_ranges.h"
#include "tensor/nf4.h"

namespace hawser::nn {

namespace {

// The row of the file for a row of the model, and how many rows after it follow there, too.
struct FileRow {
  std::int64_t row = 0, rest = 0;
};
FileRow file_row(const FileForm& file, std::int64_t row, std::int64_t rows) {
  if (file.row_order.empty()) return {row, rows - row};
  std::int64_t before = 0;
  for (const IndexRange& run : file.row_order) {
    if (row >= run.begin && row < run.end()) return {before + row - run.begin, run.end() - row};
    before += run.count;
  }
  HAWSER_CHECK(false, "row ", row, " is not in the order of the file's rows");
}

}  // namespace

std::int64_t Nf4Places::Tensor::groups() const {
  return ceil_div(blocks, kNf4GroupBlocks);
}

Nf4Places::Nf4Places(const Flat& flat) : flat_(flat) {
  std::unordered_map<std::string, int> known;
  for (const Param& param : flat.params()) {
    std::vector<int>& of = tensor_of_.emplace_back();
    for (const Segment& segment : param.segments) {
      const auto [found, is_new] = known.emplace(segment.name, static_cast<int>(tensors_.size()));
      of.push_back(found->second);
      if (!is_new) continue;
      const std::int64_t blocks = segment.global.elements() / kNf4Block;
      tensors_.push_back({.name = segment.name, .first_group = groups_, .blocks = blocks});
      groups_ += tensors_.back().groups();
    }
  }
  HAWSER_CHECK(groups_ * kNf4GroupBlocks <= std::numeric_limits<std::int32_t>::max(), flat.name(), ": ", groups_,
               " groups of scales");
}

std::vector<std::int32_t> Nf4Places::of_blocks(std::int64_t begin, std::int64_t count) const {
  std::vector<std::int32_t> places(static_cast<std::size_t>(count / kNf4Block), -1);
  for (const SegmentRange& range : segment_ranges(flat_, begin, count)) {
    const Segment& segment = segment_of(flat_, range);
    const int tensor = tensor_of_[static_cast<std::size_t>(range.param)][static_cast<std::size_t>(range.segment)];
    const std::int64_t first = tensors_[static_cast<std::size_t>(tensor)].first_group * kNf4GroupBlocks;
    const std::int64_t columns = segment.global[segment.global.rank() - 1], rows = segment.global.elements() / columns;
    for_each_global_run(segment, range, [&](std::int64_t global, std::int64_t at, std::int64_t elements) {
      for (std::int64_t done = 0; done < elements;) {
        const std::int64_t row = (global + done) / columns, column = (global + done) % columns;
        const FileRow file = file_row(segment.file, row, rows);
        const std::int64_t run = std::min(elements - done, file.rest * columns - column);
        const std::int64_t place = first + (file.row * columns + column) / kNf4Block, to = (at + done) / kNf4Block;
        for (std::int64_t b = 0; b < run / kNf4Block; ++b) {
          places[static_cast<std::size_t>(to + b)] = static_cast<std::int32_t>(place + b);
        }
        done += run;
      }
    });
  }
  return places;
}

std::vector<std::int32_t> Nf4Places::of_rows() const {
  const std::vector<std::int32_t> blocks = of_blocks(0, flat_.used());
  std::vector<std::int32_t> places;
  for (int p = 0; p < static_cast<int>(flat_.params().size()); ++p) {
    const Shape& shape = flat_.params()[static_cast<std::size_t>(p)].shape;
    for (std::int64_t row = 0; row < shape[0]; ++row) {
      places.push_back(blocks[static_cast<std::size_t>((flat_.offset(p) + row * shape[1]) / kNf4Block)]);
    }
  }
  return places;
}

std::int64_t rows_before(const Flat& flat, std::size_t param) {
  std::int64_t rows = 0;
  for (std::size_t p = 0; p < param; ++p) rows += flat.params()[p].shape[0];
  return rows;
}

}  // namespace hawser::nn
