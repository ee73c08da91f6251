// CUDA backend of attention. Arguments are already checked.
//
// cuDNN takes segments as lengths and offsets; a kernel computes these from the segment table. Separate kernels handle
// rows that no segment covers, log-sum-exps in our order, float32 gradients and sums. A segment outside the tensors, or
// a segment count above N, is reported through CudaFault: the stream throws it at its next check() or synchronize().
#pragma once

#include "ops/attention/attention.h"

namespace hawser::ops::cuda {

void attention_forward(const CudaNative& native, const AttentionForward& args);
void attention_backward(const CudaNative& native, const AttentionBackward& args);
void attention_combine(const CudaNative& native, const AttentionCombine& args);

}  // namespace hawser::ops::cuda
