#include "ops/quantize/matrices.h"

#include <algorithm>

#include "ops/quantize/quantize_rows_cpu.h"

namespace hawser::ops::cpu {

void amax_of_matrices(const AmaxOfMatrices& args) {
  float* const amax = args.amax.data<float>();
  std::fill_n(amax, args.amax.elements(), 0.0f);
  dispatch_float(args.x.dtype(), [&](auto tag) {
    const auto* const x = args.x.data<decltype(tag)>();
    parallel_pieces(args.x.elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
      each_matrix(args.matrices, begin, end, [&](std::int64_t matrix, std::int64_t from, std::int64_t to) {
        take_maximum(amax[matrix], largest_bits(x + from, to - from));
      });
    });
  });
}

void quantize_matrices(const QuantizeMatrices& args) {
  const float* const scales = args.scales.data<float>();
  dispatch_float(args.x.dtype(), [&](auto x_tag) {
    dispatch_fp8(args.q.dtype(), [&](auto q_tag) {
      using Q = decltype(q_tag);
      const auto* const x = args.x.data<decltype(x_tag)>();
      Q* const q = args.q.data<Q>();
      parallel_pieces(args.x.elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
        std::int64_t done = begin;
        each_matrix(args.matrices, begin, end, [&](std::int64_t matrix, std::int64_t from, std::int64_t to) {
          std::fill(q + done, q + from, Q());
          const float inverse = 1.0f / scales[matrix];
          for (std::int64_t e = from; e < to; ++e) q[e] = Q(static_cast<float>(x[e]) * inverse);
          done = to;
        });
        std::fill(q + done, q + end, Q());
      });
    });
  });
}

}  // namespace hawser::ops::cpu
