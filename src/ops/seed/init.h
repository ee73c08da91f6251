// `random_normal`: initial values that depend on the parameter and the element, not on the shard.
//
//   y[i] = mean + std * RandomStream(seed, name).normal(first_element + i)          (base/philox.h)
//
// y [n] float32 or bf16, dense, any shape. `name` is the hash of the parameter's name (fnv1a). first_element is the
// index of y[0] in the unsharded parameter: each shard generates its own part.
#pragma once

#include <cstdint>

#include "ops/run_op.h"

namespace hawser::ops {

struct RandomNormal {
  TensorView y;
  std::uint64_t seed = 0;
  std::uint64_t name = 0;
  std::int64_t first_element = 0;
  double mean = 0.0;
  double std = 1.0;
};
void random_normal(Stream& stream, const RandomNormal& args);

HAWSER_BACKENDS_OF(random_normal, RandomNormal);

}  // namespace hawser::ops
