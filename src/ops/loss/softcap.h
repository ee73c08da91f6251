// `softcap`: soft-caps logits in place (Gemma 2, arXiv 2408.00118).
//
//   y[t,v] = softcap * tanh(y[t,v] / softcap)
//
// y float32 [T, V], rows may be padded; softcap positive and finite. Enqueued on `stream`. InternalError for another
// shape, dtype or cap.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct Softcap {
  TensorView y;
  double softcap = 0;
};

void softcap(Stream& stream, const Softcap& args);

HAWSER_BACKENDS_OF(softcap, Softcap);

}  // namespace hawser::ops
