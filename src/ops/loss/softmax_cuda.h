// `softmax_rows`: losses and gradients from rows of logits; the part of the fused loss between its GEMMs.
#pragma once

#include <cstdint>

#include "device/cuda/native.h"
#include "tensor/tensor.h"

namespace hawser::ops::cuda {

// Arguments of softmax_rows, which computes
//   losses[t] = log sum exp(z[t,:]) - z[t,labels[t]]          (0 if labels[t] < 0)
//   z[t,v] = logits[t,v] + bias[v], or softcap * tanh((logits[t,v] + bias[v]) / softcap) if softcap is not 0
// With `scale`, it also overwrites the logits with their gradients, scale * (softmax - one-hot), times
// 1 - (z / softcap)^2 if softcap is not 0, and 0 if labels[t] < 0: in place if act is float32, in the second half of
// the row's bytes if it is bf16. A label >= `vocabulary` is reported on the stream.
struct SoftmaxRows {
  DType act = DType::f32;
  float* logits = nullptr;  // [rows, stride], at a multiple of 16 bytes
  std::int64_t rows = 0;
  std::int64_t stride = 0;      // a multiple of 64
  std::int64_t vocabulary = 0;  // at most kCudaMaxVocabulary
  const std::int32_t* labels = nullptr;
  std::int64_t first_token = 0;  // of the first row, for reports
  const void* bias = nullptr;    // [vocabulary] act; null: none
  double softcap = 0;            // 0: none
  const float* scale = nullptr;  // on the device; null: no gradients
  double* losses = nullptr;
};

void softmax_rows(const CudaNative& native, const SoftmaxRows& args);

}  // namespace hawser::ops::cuda
