// The processor's vector units, chosen when the program runs.
//
// A CPU backend writes its inner loops once, in x_kernels.inc, and includes them for every level:
//
//   #define HAWSER_KERNELS "ops/norm/rms_norm_kernels.inc"
//   #include "ops/cpu/each_level.inc"
//   ...
//   HAWSER_DISPATCH(scale_rows, x, y, begin, end);   // calls avx512::scale_rows, avx2::scale_rows or baseline::...
//
// Kernels use ops/cpu/vectors.inc (Vec, load, store, exp) and no templates of the standard library, so that no code of
// a high level can end up in a function that other code shares. No lambdas in kernels: the level does not reach into
// them.
#pragma once

namespace hawser::ops {

enum class VectorLevel { baseline, avx2, avx512 };  // x86-64, x86-64-v3, x86-64-v4

VectorLevel best_vector_level();           // of this processor
VectorLevel vector_level();                // in use: the best one unless a test chose another
void set_vector_level(VectorLevel level);  // tests; at most the best one

}  // namespace hawser::ops

#define HAWSER_DISPATCH(function, ...)                                                                 \
  (::hawser::ops::vector_level() == ::hawser::ops::VectorLevel::avx512 ? avx512::function(__VA_ARGS__) \
   : ::hawser::ops::vector_level() == ::hawser::ops::VectorLevel::avx2 ? avx2::function(__VA_ARGS__)   \
                                                                       : baseline::function(__VA_ARGS__))
