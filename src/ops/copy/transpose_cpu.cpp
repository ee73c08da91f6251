#include <algorithm>

#include "ops/copy/transpose.h"

namespace hawser::ops::cpu {

namespace {

constexpr std::int64_t kTransposeTile = 16;

template <class T>
void transpose_one(const T* x, T* y, std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTransposeTile) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += kTransposeTile) {
      for (std::int64_t c = c0; c < std::min(c0 + kTransposeTile, columns); ++c) {
        for (std::int64_t r = r0; r < std::min(r0 + kTransposeTile, rows); ++r) y[c * rows + r] = x[r * columns + c];
      }
    }
  }
}

template <class T>
void transpose_tiles(const Transpose& args) {
  const int last = args.x.rank() - 1;
  const std::int64_t rows = args.x.size(last - 1), columns = args.x.size(last), count = rows * columns;
  for (std::int64_t at = 0; count > 0 && at < args.x.elements(); at += count) {
    const T* const x = reinterpret_cast<const T*>(args.x.raw()) + at;
    T* const y = reinterpret_cast<T*>(args.y.raw()) + at;
    transpose_one(x, y, rows, columns);
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
