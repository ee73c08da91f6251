// The inner part of the fused loss: from rows of logits to losses and gradients, between the products.
#pragma once

#include <cstdint>

#include "device/cuda/native.h"
#include "tensor/tensor.h"

namespace hawser::ops::cuda {

// losses[t] = log sum exp(logits[t, :]) - logits[t, labels[t]]; 0 where labels[t] < 0. With `scale` the row becomes its
// gradient, *scale * (softmax - one-hot), 0 where labels[t] < 0: in place for act float32, and for bf16 in the second
// half of the row's bytes. A label at or behind `vocabulary` is reported on the stream.
struct SoftmaxRows {
  DType act = DType::f32;
  float* logits = nullptr;  // [rows, stride], at a multiple of 16 bytes
  std::int64_t rows = 0;
  std::int64_t stride = 0;      // a multiple of 64
  std::int64_t vocabulary = 0;  // at most kMaxVocabulary
  const std::int32_t* labels = nullptr;
  std::int64_t first_token = 0;  // of the first row, for reports
  const float* scale = nullptr;  // on the device; null: no gradients
  double* losses = nullptr;
};
constexpr std::int64_t kMaxVocabulary = 8 * 55296;

void softmax_rows(const CudaNative& native, const SoftmaxRows& args);

}  // namespace hawser::ops::cuda
