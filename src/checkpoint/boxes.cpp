#include "checkpoint/boxes.h"

#include <algorithm>
#include <cstring>

namespace hawser::checkpoint {

std::string Region::text() const {
  std::string out = "[";
  for (int dim = 0; dim < offset.rank(); ++dim) {
    out += cat(dim > 0 ? ", " : "", offset[dim], ":", offset[dim] + extent[dim]);
  }
  return out + "]";
}

Region full(const Shape& shape) {
  Region region{.extent = shape};
  for (int dim = 0; dim < shape.rank(); ++dim) region.offset.push_back(0);
  return region;
}

std::optional<Region> intersect(const Region& a, const Region& b) {
  HAWSER_CHECK(a.offset.rank() == b.offset.rank(), a.text(), " and ", b.text());
  Region common;
  for (int dim = 0; dim < a.offset.rank(); ++dim) {
    const std::int64_t begin = std::max(a.offset[dim], b.offset[dim]);
    const std::int64_t end = std::min(a.offset[dim] + a.extent[dim], b.offset[dim] + b.extent[dim]);
    if (begin >= end) return std::nullopt;
    common.offset.push_back(begin);
    common.extent.push_back(end - begin);
  }
  return common;
}

bool is_inside(const Region& region, const Shape& shape) {
  if (region.offset.rank() != shape.rank() || region.extent.rank() != shape.rank()) return false;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (region.offset[dim] > shape[dim] || region.extent[dim] > shape[dim] - region.offset[dim]) return false;
  }
  return true;
}

std::int64_t flat_index(const Shape& extent, const Shape& position) {
  std::int64_t index = 0;
  for (int dim = 0; dim < extent.rank(); ++dim) index = index * extent[dim] + position[dim];
  return index;
}

namespace {

template <std::size_t kBytes>
void copy_elements(const std::byte* from, std::byte* to, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * kBytes);
}

template <class From, class To>
void convert_elements(const std::byte* from, std::byte* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(From)), sizeof(From));
    const To converted = static_cast<To>(value);
    std::memcpy(to + i * static_cast<std::int64_t>(sizeof(To)), &converted, sizeof(To));
  }
}

}  // namespace

CastRun cast_run(DType from, DType to) {
  if (from == DType::f32 && to == DType::bf16) return convert_elements<float, Bf16>;
  if (from == DType::bf16 && to == DType::f32) return convert_elements<Bf16, float>;
  if (from != to) return nullptr;
  switch (size_of(from)) {
    case 1:
      return copy_elements<1>;
    case 2:
      return copy_elements<2>;
    case 4:
      return copy_elements<4>;
    case size_of(DType::nf4):
      return copy_elements<size_of(DType::nf4)>;
    case size_of(DType::nf4_double):
      return copy_elements<size_of(DType::nf4_double)>;
    default:
      return copy_elements<8>;
  }
}

void copy_region(const Region& common, const BoxMemory& from, const BoxMemory& to, CastRun cast) {
  const int rank = common.offset.rank();
  // Inner dims that are full on both sides form one run with the dim outside them.
  int outer = rank;
  std::int64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= common.extent[outer];
    if (common.extent[outer] != from.region.extent[outer] || common.extent[outer] != to.region.extent[outer]) break;
  }
  Shape position = common.offset;
  while (true) {
    std::int64_t source = 0, target = 0;
    for (int dim = 0; dim < rank; ++dim) {
      source = source * from.region.extent[dim] + position[dim] - from.region.offset[dim];
      target = target * to.region.extent[dim] + position[dim] - to.region.offset[dim];
    }
    cast(from.data + source * from.element_bytes, to.data + target * to.element_bytes, run);
    int dim = outer - 1;
    for (; dim >= 0; --dim) {
      if (++position[dim] < common.offset[dim] + common.extent[dim]) break;
      position[dim] = common.offset[dim];
    }
    if (dim < 0) return;
  }
}

}  // namespace hawser::checkpoint
