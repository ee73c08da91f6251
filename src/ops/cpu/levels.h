// `VectorLevel`: the vector instructions of the CPU, detected at run time.
//
// A CPU backend writes its inner loops once, in x_kernels.inc, and includes them for every level:
//
//   #define HAWSER_KERNELS "ops/norm/rms_norm_kernels.inc"
//   #include "ops/cpu/each_level.inc"
//   ...
//   HAWSER_DISPATCH(scale_rows, x, y, begin, end);   // calls avx512::scale_rows, avx2::scale_rows or baseline::...
//
// Kernels use ops/cpu/vectors.inc (Vec, load, store, exp) and no standard library templates, so that code of a high
// level cannot end up in a function shared with other code. Kernels contain no lambdas: the target level does not apply
// inside them.
#pragma once

namespace hawser::ops {

enum class VectorLevel { baseline, avx2, avx512 };  // x86-64, x86-64-v3, x86-64-v4

VectorLevel best_vector_level();           // of this CPU
VectorLevel vector_level();                // in use: the best one, unless a test set another
void set_vector_level(VectorLevel level);  // tests; at most the best one

}  // namespace hawser::ops

#define HAWSER_DISPATCH(function, ...)                                                                 \
  (::hawser::ops::vector_level() == ::hawser::ops::VectorLevel::avx512 ? avx512::function(__VA_ARGS__) \
   : ::hawser::ops::vector_level() == ::hawser::ops::VectorLevel::avx2 ? avx2::function(__VA_ARGS__)   \
                                                                       : baseline::function(__VA_ARGS__))
