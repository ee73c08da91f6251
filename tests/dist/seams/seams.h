// Helpers of the seam tests: the group of the two ranks, and parts of matrices.
#pragma once

#include "comm/group.h"
#include "nn/testing/block_reference.h"
#include "nn/testing/context.h"

namespace hawser::testing {

comm::Group& pair();  // created by main

// The elements of rows `which` of a [rows, width] matrix.
inline std::vector<double> rows_of(const std::vector<double>& matrix, std::size_t width,
                                   const std::vector<std::size_t>& which) {
  std::vector<double> out;
  for (const std::size_t row : which) {
    out.insert(out.end(), matrix.begin() + static_cast<std::ptrdiff_t>(row * width),
               matrix.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
  }
  return out;
}

// Columns [begin, begin + count) of a [rows, width] matrix.
inline std::vector<double> columns_of(const std::vector<double>& matrix, std::size_t width, std::size_t begin,
                                      std::size_t count) {
  std::vector<double> out;
  for (std::size_t row = 0; row < matrix.size() / width; ++row) {
    for (std::size_t c = begin; c < begin + count; ++c) out.push_back(matrix[row * width + c]);
  }
  return out;
}

// [begin, end)
inline std::vector<std::size_t> range(std::size_t begin, std::size_t end) {
  std::vector<std::size_t> out;
  for (std::size_t i = begin; i < end; ++i) out.push_back(i);
  return out;
}

inline std::vector<std::size_t> operator+(std::vector<std::size_t> a, const std::vector<std::size_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace hawser::testing
