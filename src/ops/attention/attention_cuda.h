// CUDA backend of attention; arguments are checked.
//
// cuDNN reads segments as lengths and first elements, which a kernel makes of the table; what it leaves alone (rows of
// no segment) and what it cannot write (log-sum-exps in our order, float32 gradients, sums) kernels of ours do. A
// segment that leaves the tensors, or a table that says it has more rows than it has, stops the GPU's context: every
// later call of the stream reports it.
#pragma once

#include "ops/attention/attention.h"

namespace hawser::ops::cuda {

void attention_forward(const CudaNative& native, const AttentionForward& args);
void attention_backward(const CudaNative& native, const AttentionBackward& args);
void attention_combine(const CudaNative& native, const AttentionCombine& args);

}  // namespace hawser::ops::cuda
