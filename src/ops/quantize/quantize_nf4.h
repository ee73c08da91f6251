// `quantize_nf4`, `dequantize_nf4`: weights in NF4 (tensor/nf4.h), 64 to a block of 36 bytes with its own scale.
//
// quantize_nf4, for each block B of 64 values that follow each other in x:
//   s(B)  = max of |x| in B                   NaN if a value is not finite
//   q     = s(B), and for each value the code of the nearest level to x / s(B)
// dequantize_nf4:
//   y     = s(B) * level of the value's code
// in float32, then rounded to y's dtype. x [..., 64 n] and y [..., 64 n] float32 or bf16, q [..., n] nf4; all dense.
//
// Source: QLoRA (arXiv 2305.14314), without quantized scales; levels and the order of codes are those of bitsandbytes,
// which multiplies by the rounded 1 / s(B). All devices have the same bits.
#pragma once

#include "ops/run_op.h"
#include "tensor/nf4.h"

namespace hawser::ops {

struct QuantizeNf4 {
  TensorView x, q;
};
void quantize_nf4(Stream& stream, const QuantizeNf4& args);

struct DequantizeNf4 {
  TensorView q, y;
};
void dequantize_nf4(Stream& stream, const DequantizeNf4& args);

HAWSER_BACKENDS_OF(quantize_nf4, QuantizeNf4);
HAWSER_BACKENDS_OF(dequantize_nf4, DequantizeNf4);

}  // namespace hawser::ops
