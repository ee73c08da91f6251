// Axis-aligned boxes of tensors without memory, and copies between boxes that lie in memory differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tensor/named_state.h"

namespace hawser::checkpoint {

// Where a box lies in its tensor: offset and extent a dim, both of the tensor's rank.
struct Region {
  Shape offset;
  Shape extent;

  std::int64_t elements() const { return extent.elements(); }
  bool operator==(const Region& other) const = default;
  std::string text() const;  // "[0:4, 16:32]"
};

Region full(const Shape& shape);
inline Region region_of(const Box& box) {
  return {box.offset, box.extent};
}

// The common part; none when it has no elements. Both of one rank.
std::optional<Region> intersect(const Region& a, const Region& b);

bool is_inside(const Region& region, const Shape& shape);

// Elements before `position` in a dense row-major box of this extent.
std::int64_t flat_index(const Shape& extent, const Shape& position);

// Copies `count` elements that lie side by side, changing their type; no alignment is asked of either side.
using CastRun = void (*)(const std::byte* from, std::byte* to, std::int64_t count);

// Equal types, or float32 <-> bfloat16 (rounded to nearest even); null for any other pair.
CastRun cast_run(DType from, DType to);

// One side of a copy: a box, dense and row-major at `data`.
struct BoxMemory {
  Region region;
  std::byte* data = nullptr;
  std::int64_t element_bytes = 0;
};

// Copies the elements of `common`, which must lie in both boxes.
void copy_region(const Region& common, const BoxMemory& from, const BoxMemory& to, CastRun cast);

// Calls visit(begin, count) for each stretch of `part` that is contiguous in a dense row-major tensor of `shape`, in
// row-major order, `begin` and `count` in elements. Neighbouring stretches are joined.
template <class Visit>
void for_each_run(const Shape& shape, const Region& part, Visit&& visit) {
  const int rank = shape.rank();
  if (part.elements() == 0) return;
  std::int64_t run = 1;
  int outer = rank;  // dims [0, outer) are walked; those from `outer` on are one run
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
