#include <algorithm>

#include "ops/copy/transpose.h"

namespace hawser::ops::cpu {

namespace {

constexpr std::int64_t kTransposeTile = 16;

template <class T>
void transpose_tiles(const Transpose& args) {
  const std::int64_t rows = args.x.size(0), columns = args.x.size(1);
  const auto* const x = reinterpret_cast<const T*>(args.x.raw());
  auto* const y = reinterpret_cast<T*>(args.y.raw());
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTransposeTile) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += kTransposeTile) {
      for (std::int64_t c = c0; c < std::min(c0 + kTransposeTile, columns); ++c) {
        for (std::int64_t r = r0; r < std::min(r0 + kTransposeTile, rows); ++r) y[c * rows + r] = x[r * columns + c];
      }
    }
  }
}

}  // namespace

void transpose(const Transpose& args) {
  switch (size_of(args.x.dtype())) {
    case 1:
      return transpose_tiles<std::uint8_t>(args);
    case 2:
      return transpose_tiles<std::uint16_t>(args);
    default:
      return transpose_tiles<std::uint32_t>(args);
  }
}

}  // namespace hawser::ops::cpu
