// `choose_gemm`: chooses one of the algorithms that a GEMM may use, by measurements. Independent of the library that
// has them.
#pragma once

#include <cstddef>
#include <functional>

namespace hawser::ops {

constexpr float kRejectedGemm = 1e30f;  // time of an algorithm that cannot run

struct GemmTimer {
  // Milliseconds of one run with a cold cache.
  std::function<float(std::size_t algorithm)> once;
  // Runs it `settle` times, then `runs` times, all without a pause; milliseconds of one of the latter.
  std::function<float(std::size_t algorithm, int settle, int runs)> sustained;
};

// The index of one of `count` algorithms (at least 1), in the library's order of preference. Its first is replaced only
// by one that wins twice by a margin, so that noise does not replace it.
//
// Short GEMMs (below 0.2 ms) are compared by single runs with a cold cache. Long ones are compared at the clock of a
// training step: sequences of GEMMs draw enough power to lower the GPU's clock, and then the algorithm that draws less
// is faster. The clock follows power with a time constant of about 100 ms, so the finalists, which short measurements
// choose, run for 150 ms each before 200 ms are measured.
std::size_t choose_gemm(std::size_t count, const GemmTimer& timer);

}  // namespace hawser::ops
