// `random_normal`: initial values that depend on the tensor and the element, not on the shard.
//
//   y[r, c] = mean + std * RandomStream(seed, name).normal(first_element + r * row_stride + c)     (base/philox.h)
//
// y [R, C] float32 or bf16, dense. `name` is the hash of the global tensor's name (fnv1a). first_element is the index
// of y[0, 0] in the global tensor, row_stride the number of its elements from one row of y to the next: each rank
// generates its own part. row_stride 0: C, so that y, of any shape, is one run of elements.
#pragma once

#include <cstdint>

#include "ops/run_op.h"

namespace hawser::ops {

struct RandomNormal {
  TensorView y;
  std::uint64_t seed = 0;
  std::uint64_t name = 0;
  std::int64_t first_element = 0, row_stride = 0;
  double mean = 0.0;
  double std = 1.0;
};
void random_normal(Stream& stream, const RandomNormal& args);

HAWSER_BACKENDS_OF(random_normal, RandomNormal);

}  // namespace hawser::ops
