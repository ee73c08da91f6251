// Initial values that depend on what an element is, never on where it is drawn.
//
// random_normal:  y[i] = mean + std * RandomStream(seed, name).normal(first_element + i)       (base/philox.h)
//   y [n] float32 or bf16, dense, any shape. `name` is the hash of the parameter's name (fnv1a); first_element the
//   place of y[0] in the whole parameter, so that any shard draws its own part.
#pragma once

#include <cstdint>

#include "ops/common.h"

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

}  // namespace hawser::ops
