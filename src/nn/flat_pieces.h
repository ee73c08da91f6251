// Pieces of a flat buffer: a range [begin, begin + count) of its elements, such as a rank's shard, and the elements of
// the model's tensors in it. Parameters are in order, each at Flat::offset; the padding of Flat::total counts as a gap.
#pragma once

#include <vector>

#include "nn/flat.h"
#include "tensor/named_state.h"

namespace hawser::nn {

// The elements that a segment and a piece have in common.
struct SegmentPiece {
  int param = 0, segment = 0;  // indices in Flat::params() and Param::segments
  std::int64_t first = 0;      // element of the segment, row-major
  std::int64_t at = 0;         // element of the piece
  std::int64_t count = 0;      // more than 0
};
std::vector<SegmentPiece> segment_pieces(const Flat& flat, std::int64_t begin, std::int64_t count);
const Segment& segment_of(const Flat& flat, const SegmentPiece& piece);

// The parts of a piece that belong to no parameter.
std::vector<Flat::Gap> gap_pieces(const Flat& flat, std::int64_t begin, std::int64_t count);

// The same elements in the segment's global tensor, in order: what random numbers are keyed by, so that they do not
// depend on the mesh. `view` has the elements of the piece.
std::vector<Box> global_boxes(const Segment& segment, const SegmentPiece& piece, const TensorView& view);

// Calls visit(global, at, count) for each run of elements that are adjacent in the global tensor, in order: elements
// [at, at + count) of the piece are elements from `global` on of the tensor, row-major.
template <class Visit>
void for_each_global_run(const Segment& segment, const SegmentPiece& piece, Visit&& visit) {
  const Shape& global = segment.global;
  const Slice& slice = segment.slice;
  std::int64_t inner = 1;  // elements of an index of the sliced dim
  for (int dim = slice.dim + 1; dim < global.rank(); ++dim) inner *= global[dim];
  const std::int64_t whole = global[slice.dim] * inner;
  const std::int64_t part = slice.extent > 0 ? slice.extent * inner : whole;
  for (std::int64_t done = 0; done < piece.count;) {
    const std::int64_t element = piece.first + done, within = element % part;
    const std::int64_t run = std::min(part - within, piece.count - done);
    const std::int64_t begin = slice.extent > 0 ? slice.begin * inner : 0;
    visit(element / part * whole + begin + within, piece.at + done, run);
    done += run;
  }
}

}  // namespace hawser::nn
