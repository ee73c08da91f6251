#include "ops/reduce/sum_squares.h"

#include <cmath>

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/reduce/sum_squares_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

// The blocks depend on the count alone; their sums are added in order.
template <class T>
double total(const T* x, std::int64_t count) {
  constexpr std::int64_t kMaxBlocks = 256;
  const std::int64_t block = std::max<std::int64_t>(4096, round_up(ceil_div(count, kMaxBlocks), 64));
  const std::int64_t blocks = ceil_div(count, block);
  double partial[kMaxBlocks];
  parallel_pieces(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      partial[b] = HAWSER_DISPATCH(squares, x + b * block, std::min(block, count - b * block));
    }
  });
  double sum = 0;
  for (std::int64_t b = 0; b < blocks; ++b) sum += partial[b];
  return sum;
}

void put(float& out, double sum, bool accumulate) {
  out = static_cast<float>(accumulate ? static_cast<double>(out) + sum : sum);
}

}  // namespace

void sum_squares(const SumSquares& args) {
  dispatch_float(args.x.dtype(), [&](auto tag) {
    const auto* x = reinterpret_cast<const decltype(tag)*>(args.x.raw());
    put(*args.out.data<float>(), total(x, args.x.elements()), args.accumulate);
  });
}

void segment_sum_squares(const SegmentSumSquares& args) {
  dispatch_float(args.x.dtype(), [&](auto tag) {
    const auto* x = reinterpret_cast<const decltype(tag)*>(args.x.raw());
    std::int64_t begin = 0;
    for (std::size_t s = 0; s < args.ends.size(); ++s) {
      put(args.out.data<float>()[s], total(x + begin, args.ends[s] - begin), args.accumulate);
      begin = args.ends[s];
    }
  });
}

void clip_coefficient(const ClipCoefficient& args) {
  const double scale = args.loss_scale.empty() ? 1.0 : *args.loss_scale.data<float>();
  const double norm = std::sqrt(static_cast<double>(*args.sum_squares.data<float>())) / scale;
  double coefficient = (args.max_norm == 0 ? 1.0 : std::min(1.0, args.max_norm / (norm + 1.0e-6))) / scale;
  if (!std::isfinite(norm)) {
    coefficient = 0;
    if (!args.skip.empty()) *args.skip.data<std::int32_t>() = 1;
  }
  *args.coefficient.data<float>() = static_cast<float>(coefficient);
  if (!args.norm_out.empty()) *args.norm_out.data<float>() = static_cast<float>(norm);
}

}  // namespace hawser::ops::cpu
