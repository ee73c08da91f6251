// `quantize_nf4`, `dequantize_nf4`: weights in NF4 (tensor/nf4.h), 64 to a block with its scale.
//
// quantize_nf4, for each block B of 64 values that follow each other in x:
//   s(B)  = max of |x| in B                   NaN if a value is not finite
//   q     = s(B), and for each value the code of the nearest level to x * (1 / s(B))
// dequantize_nf4:
//   y     = s(B) * level of the value's code
// in float32, then rounded to y's dtype. x [..., 64 n] float32 or bf16, q [..., n] nf4; all dense.
//
// With q in nf4_double, s(B) is stored in 8 bits. It follows from the scales of the whole tensor, of which a rank may
// have a part. So quantize_nf4 writes codes alone, and s(B) to `maxima`; when all ranks have exchanged these,
// encode_nf4_scales writes the scales.
//
// Place of a block: a number that finds its group and its s(B). A flat has a list of groups, those of one tensor after
// those of another, and block i of group g has place 256 g + i. `places` int32 [n]: of each block of q; -1 for one that
// belongs to no tensor. dequantize_nf4 reads places by row, as the blocks of a row have places that follow each other.
//
// Source: QLoRA (arXiv 2305.14314); levels, order of codes and double quantization as in bitsandbytes. All devices have
// the same bits.
#pragma once

#include "ops/run_op.h"
#include "tensor/nf4.h"

namespace hawser::ops {

struct QuantizeNf4 {
  TensorView x, q;
  TensorView maxima = {};  // nf4_double: float32, by place; s(B) of each block with a place is written
  TensorView places = {};  // nf4_double
};
void quantize_nf4(Stream& stream, const QuantizeNf4& args);

// q's scale codes: those of s(B) in `maxima`.
struct EncodeNf4Scales {
  TensorView maxima;  // float32 [256 G]
  TensorView groups;  // float32 [G, 2]: Nf4Group
  TensorView places, q;
};
void encode_nf4_scales(Stream& stream, const EncodeNf4Scales& args);

// The scales of a matrix in nf4_double.
struct Nf4Scales {
  TensorView groups = {};      // float32 [G, 2]: Nf4Group, of the matrix's flat
  TensorView row_places = {};  // int32 [rows]: of the first block of each row
};

// q [rows, n], y [rows, columns]: those columns of the matrix from `first_column` on, where the row of q may have more.
struct DequantizeNf4 {
  TensorView q, y;
  Nf4Scales scales = {};
  std::int64_t first_column = 0;
};
void dequantize_nf4(Stream& stream, const DequantizeNf4& args);

HAWSER_BACKENDS_OF(quantize_nf4, QuantizeNf4);
HAWSER_BACKENDS_OF(encode_nf4_scales, EncodeNf4Scales);
HAWSER_BACKENDS_OF(dequantize_nf4, DequantizeNf4);

}  // namespace hawser::ops
