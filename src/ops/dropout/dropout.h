// `dropout`: sets random elements to zero and scales the others (arXiv 1207.0580). `RandomKey`: which numbers it draws.
//
//   y[t, c] (+)= u(t, c) < p ? 0 : x[t, c] / (1 - p)
//   u(t, c)  = 2^-32 * word c % 4 of Philox4x32-10(counter {c / 4, row, sequence, step}, key)       (base/philox.h)
//
// x, y [T, C] act, rows may be padded; y may be x. sequence and row are those of RandomKey::rows [t]. A number depends
// on what it is drawn for, not on the rank, the micro-batch or the pass: recomputing and every mesh draw the same ones.
// The gradient is the same op: dx (+)= dropout(dy) with the same key.
#pragma once

#include "base/philox.h"
#include "ops/run_op.h"

namespace hawser::ops {

struct RandomKey {
  PhiloxKey key = {};  // of (seed, layer, site, adapter): nn::LayerContext::random()
  TensorView step;     // i32 [1]: number of the step
  TensorView rows;     // i32 [T, 2]: number of the row's sequence in the step, index of the row in the sequence
};

struct Dropout {
  TensorView x, y;
  double probability = 0;  // p, in [0, 1)
  RandomKey random;
  std::int64_t first_column = 0;  // the column of x[:, 0] in the whole tensor, if x is a slice of it
  bool accumulate = false;
};

void dropout(Stream& stream, const Dropout& args);

HAWSER_BACKENDS_OF(dropout, Dropout);

}  // namespace hawser::ops
