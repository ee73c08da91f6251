// `amax_of_parts`, `quantize_parts`: many matrices in one range of elements, such as the experts of a weight, each with
// an amax and a scale of its own, in one pass.
//
// EqualParts are `count` parts of `size` elements each, one after another from element `begin` of the range on; part i
// of them has index first + i among P. A list of them is in the order of the elements, and no element is in two parts.
// Elements may be in no part; what a part has before or after the range does not count.
//
// amax_of_parts:
//   amax[p] = max |x[e]| over the elements e of part p that the range has; 0 if it has none, NaN if one is NaN
// quantize_parts, with s = scales[part of e]:
//   q[e] = FP8 of x[e] * (1 / s), with the bits of ops::quantize; 0 if e is in no part
// x [n] float32 or bf16; q [n] FP8; amax, scales [P] float32, scales positive. All dense.
// Errors: InternalError for a list whose parts overlap, are empty, or have indices outside of [0, P).
#pragma once

#include <algorithm>
#include <vector>

#include "ops/run_op.h"

namespace hawser::ops {

struct EqualParts {
  std::int64_t begin = 0;  // negative if the first one begins before the range
  std::int64_t size = 0, count = 0;
  std::int64_t first = 0;

  std::int64_t end() const { return begin + size * count; }
};

struct AmaxOfParts {
  TensorView x, amax;
  std::vector<EqualParts> parts;
};
void amax_of_parts(Stream& stream, const AmaxOfParts& args);

struct QuantizeParts {
  TensorView x, scales, q;
  std::vector<EqualParts> parts;
};
void quantize_parts(Stream& stream, const QuantizeParts& args);

// Throws InternalError for a list that is none of `values` values.
void expect_parts(const char* op, const std::vector<EqualParts>& parts, std::int64_t values);

// The parts of a range that begins at element `at` of this one.
std::vector<EqualParts> parts_from(std::vector<EqualParts> parts, std::int64_t at);

// Calls body(index, from, to) for each part with elements in [begin, end), in order: it has [from, to) of them.
template <class Body>
void each_part(const std::vector<EqualParts>& parts, std::int64_t begin, std::int64_t end, const Body& body) {
  for (const EqualParts& run : parts) {
    std::int64_t from = std::max(begin, run.begin);
    const std::int64_t last = std::min(end, run.end());
    while (from < last) {
      const std::int64_t i = (from - run.begin) / run.size, to = std::min(last, run.begin + (i + 1) * run.size);
      body(run.first + i, from, to);
      from = to;
    }
  }
}

HAWSER_BACKENDS_OF(amax_of_parts, AmaxOfParts);
HAWSER_BACKENDS_OF(quantize_parts, QuantizeParts);

}  // namespace hawser::ops
