#include "nn/segment_ranges.h"

#include <algorithm>

namespace hawser::nn {

std::vector<SegmentRange> segment_ranges(const Flat& flat, std::int64_t begin, std::int64_t count) {
  HAWSER_CHECK(begin >= 0 && count >= 0, "elements [", begin, ", ", begin + count, ")");
  std::vector<SegmentRange> pieces;
  for (std::size_t p = 0; p < flat.params().size(); ++p) {
    const Param& param = flat.params()[p];
    const std::int64_t row = param.shape[0] > 0 ? param.elements() / param.shape[0] : 0;
    for (std::size_t s = 0; s < param.segments.size(); ++s) {
      const Segment& segment = param.segments[s];
      const std::int64_t start = flat.offset(static_cast<int>(p)) + segment.row * row;
      const std::int64_t from = std::max(start, begin);
      const std::int64_t to = std::min(start + segment.rows * row, begin + count);
      if (from < to)
        pieces.push_back({static_cast<int>(p), static_cast<int>(s), from - start, from - begin, to - from});
    }
  }
  return pieces;
}

const Segment& segment_of(const Flat& flat, const SegmentRange& piece) {
  return flat.params()[static_cast<std::size_t>(piece.param)].segments[static_cast<std::size_t>(piece.segment)];
}

std::vector<IndexRange> gap_ranges(const Flat& flat, std::int64_t begin, std::int64_t count) {
  std::vector<IndexRange> pieces;
  for (const IndexRange& gap : flat.gaps(std::max(flat.used(), begin + count))) {
    const std::int64_t from = std::max(gap.begin, begin), to = std::min(gap.begin + gap.count, begin + count);
    if (from < to) pieces.push_back({from - begin, to - from});
  }
  return pieces;
}

std::vector<Box> global_boxes(const Segment& segment, const SegmentRange& piece, const TensorView& view) {
  std::vector<Box> boxes = boxes_of_range(segment_shape(segment), piece.first, piece.count, view);
  if (segment.slice) {
    for (Box& box : boxes) box.offset[segment.slice->dim] += segment.slice->begin;
  }
  return boxes;
}

}  // namespace hawser::nn
