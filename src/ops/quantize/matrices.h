// `amax_of_matrices`, `quantize_matrices`: many matrices in one range of elements, such as the experts of a weight,
// each with an amax and a scale of its own, in one pass.
//
// EqualMatrices are `count` matrices of `size` elements each, one after another from element `begin` of the range on;
// matrix i of them has index first + i among P. A list of them is in the order of the elements, and no element is in
// two matrices. Elements may be in no matrix; what a matrix has before or after the range does not count.
//
// amax_of_matrices:
//   amax[p] = max |x[e]| over the elements e of matrix p that the range has; 0 if it has none, NaN if one is NaN
// quantize_matrices, with s = scales[matrix of e]:
//   q[e] = FP8 of x[e] * (1 / s), with the bits of ops::quantize; 0 if e is in no matrix
// x [n] float32 or bf16; q [n] FP8; amax, scales [P] float32, scales positive. All dense.
// Errors: InternalError for a list whose matrices overlap, are empty, or have indices outside of [0, P).
#pragma once

#include <algorithm>
#include <vector>

#include "ops/run_op.h"

namespace hawser::ops {

struct EqualMatrices {
  std::int64_t begin = 0;  // negative if the first one begins before the range
  std::int64_t size = 0, count = 0;
  std::int64_t first = 0;

  std::int64_t end() const { return begin + size * count; }
};

struct AmaxOfMatrices {
  TensorView x, amax;
  std::vector<EqualMatrices> matrices;
};
void amax_of_matrices(Stream& stream, const AmaxOfMatrices& args);

struct QuantizeMatrices {
  TensorView x, scales, q;
  std::vector<EqualMatrices> matrices;
};
void quantize_matrices(Stream& stream, const QuantizeMatrices& args);

// Throws InternalError for a list that is none of `values` values.
void expect_matrices(const char* op, const std::vector<EqualMatrices>& matrices, std::int64_t values);

// The matrices of a range that begins at element `at` of this one.
std::vector<EqualMatrices> matrices_from(std::vector<EqualMatrices> matrices, std::int64_t at);

// Calls body(index, from, to) for each matrix with elements in [begin, end), in order: it has [from, to) of them.
template <class Body>
void each_matrix(const std::vector<EqualMatrices>& matrices, std::int64_t begin, std::int64_t end, const Body& body) {
  for (const EqualMatrices& run : matrices) {
    std::int64_t from = std::max(begin, run.begin);
    const std::int64_t last = std::min(end, run.end());
    while (from < last) {
      const std::int64_t i = (from - run.begin) / run.size, to = std::min(last, run.begin + (i + 1) * run.size);
      body(run.first + i, from, to);
      from = to;
    }
  }
}

HAWSER_BACKENDS_OF(amax_of_matrices, AmaxOfMatrices);
HAWSER_BACKENDS_OF(quantize_matrices, QuantizeMatrices);

}  // namespace hawser::ops
