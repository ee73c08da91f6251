// What elements [begin, begin + count) of a flat buffer are, such as those of a rank's shard: elements of the model's
// tensors, and gaps. Parameters are in order, each at Flat::offset; the padding of Flat::total counts as a gap.
#pragma once

#include <vector>

#include "nn/flat.h"
#include "tensor/named_state.h"

namespace hawser::nn {

// The elements that a segment and a range of the flat have in common.
struct SegmentRange {
  int param = 0, segment = 0;  // indices in Flat::params() and Param::segments
  std::int64_t first = 0;      // element of the segment, row-major
  std::int64_t at = 0;         // element of the range
  std::int64_t count = 0;      // more than 0
};
std::vector<SegmentRange> segment_ranges(const Flat& flat, std::int64_t begin, std::int64_t count);
const Segment& segment_of(const Flat& flat, const SegmentRange& range);

// The elements of a range that belong to no parameter.
std::vector<IndexRange> gap_ranges(const Flat& flat, std::int64_t begin, std::int64_t count);

// The same elements in the segment's global tensor, in order: what random numbers are keyed by, so that they do not
// depend on the mesh. `view` has the elements of the range.
std::vector<Box> global_boxes(const Segment& segment, const SegmentRange& range, const TensorView& view);

// Elements of a segment that are adjacent in the global tensor: element e of the segment, row-major, is element
// e / part * whole + begin + e % part of the tensor.
struct GlobalRuns {
  std::int64_t part = 0, whole = 0, begin = 0;
};
inline GlobalRuns global_runs(const Segment& segment) {
  const Shape& global = segment.global;
  const Slice slice = segment.slice.value_or(Slice{.size = global[0]});
  std::int64_t inner = 1;  // elements of an index of the sliced dim
  for (int dim = slice.dim + 1; dim < global.rank(); ++dim) inner *= global[dim];
  return {.part = slice.size * inner, .whole = global[slice.dim] * inner, .begin = slice.begin * inner};
}

// Calls visit(global, at, count) for each run of elements that are adjacent in the global tensor, in order: elements
// [at, at + count) of the range are elements from `global` on of the tensor, row-major.
template <class Visit>
void for_each_global_run(const Segment& segment, const SegmentRange& range, Visit&& visit) {
  const auto [part, whole, begin] = global_runs(segment);
  for (std::int64_t done = 0; done < range.count;) {
    const std::int64_t element = range.first + done, within = element % part;
    const std::int64_t run = std::min(part - within, range.count - done);
    visit(element / part * whole + begin + within, range.at + done, run);
    done += run;
  }
}

}  // namespace hawser::nn
