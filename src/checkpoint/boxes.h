// Functions that intersect boxes of tensors and copy elements between them.
//
// A box is an axis-aligned part of a tensor whose elements are stored densely in row-major order. A `Region` is only
// the position of a box in its tensor: offset and extent. Each of these structs is a region and the place of its
// elements:
//   Box        in memory, as a TensorView (tensor/named_state.h)
//   BoxMemory  in memory, at an address (below)
//   SavedBox   in a file of a checkpoint (manifest.h)
// In device/ and comm/, "region" means a range of memory instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tensor/named_state.h"

namespace hawser::checkpoint {

// The elements [offset[d], offset[d] + extent[d]) of a tensor in each dim d. Both have one entry per dim of the tensor.
struct Region {
  Shape offset;
  Shape extent;

  std::int64_t elements() const { return extent.elements(); }
  bool operator==(const Region& other) const = default;
  std::string text() const;  // "[0:4, 16:32]"
};

Region full(const Shape& shape);  // all of a tensor
inline Region region_of(const Box& box) {
  return {box.offset, box.extent};
}

// The intersection; nullopt if it has no elements. Both have the same number of dims.
std::optional<Region> intersect(const Region& a, const Region& b);

bool is_inside(const Region& region, const Shape& shape);

// Number of elements before `position`, which is relative to the box, in a dense row-major box of this extent.
std::int64_t flat_index(const Shape& extent, const Shape& position);

// Copies `count` adjacent elements and converts their dtype; neither side needs alignment.
using CastRun = void (*)(const std::byte* from, std::byte* to, std::int64_t count);

// The function for two dtypes that are equal, or float32 and bfloat16 (rounded to nearest even); null for other pairs.
CastRun cast_run(DType from, DType to);

// The source or target of a copy: a box, dense and row-major at `data`.
struct BoxMemory {
  Region region;
  std::byte* data = nullptr;
  std::int64_t element_bytes = 0;
};

// Copies the elements of `common`, which must be inside both boxes; `cast` converts them.
void copy_region(const Region& common, const BoxMemory& from, const BoxMemory& to, CastRun cast);

// Calls visit(begin, count) for each range of `part` that is contiguous in a dense row-major tensor of `shape`, in
// row-major order; `begin` and `count` are in elements. Adjacent ranges are merged.
template <class Visit>
void for_each_run(const Shape& shape, const Region& part, Visit&& visit) {
  const int rank = shape.rank();
  if (part.elements() == 0) return;
  std::int64_t run = 1;
  int outer = rank;  // loops over dims [0, outer); dims from `outer` on are one run
  while (outer > 0) {
    --outer;
    run *= part.extent[outer];
    if (part.extent[outer] != shape[outer]) break;
  }
  Shape position = part.offset;
  while (true) {
    visit(flat_index(shape, position), run);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      if (++position[dim] < part.offset[dim] + part.extent[dim]) break;
      position[dim] = part.offset[dim];
    }
    if (dim < 0) return;
  }
}

}  // namespace hawser::checkpoint
