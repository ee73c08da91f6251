#include "ops/quantize/quantize_nf4.h"
#include "ops/quantize/quantize_rows_cpu.h"

namespace hawser::ops::cpu {

namespace {

constexpr std::int64_t kGrain = 64;  // blocks

template <class X>
Nf4Block quantized(const X* x) {
  const std::uint32_t largest = largest_bits(x, kNf4Block);
  const bool finite = largest < 0x7f800000u;
  Nf4Block block{.scale = finite ? of_size_bits(largest) : std::numeric_limits<float>::quiet_NaN()};
  const bool counts = finite && largest > 0;
  for (std::size_t i = 0; i < kNf4Block; ++i) {
    int code = kNf4Zero;
    if (counts) {
      const float value = static_cast<float>(x[i]) / block.scale;
      code = 0;
      for (const float bound : kNf4Bounds) code += value > bound ? 1 : 0;
    }
    block.codes[i / 2] |= static_cast<std::uint8_t>(i % 2 == 0 ? code << 4 : code);
  }
  return block;
}

}  // namespace

void quantize_nf4(const QuantizeNf4& args) {
  dispatch_float(args.x.dtype(), [&](auto tag) {
    const auto* const x = args.x.data<decltype(tag)>();
    auto* const q = args.q.data<Nf4Block>();
    parallel_pieces(args.q.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) q[b] = quantized(x + b * kNf4Block);
    });
  });
}

void dequantize_nf4(const DequantizeNf4& args) {
  dispatch_float(args.y.dtype(), [&](auto tag) {
    using Y = decltype(tag);
    const auto* const q = args.q.data<Nf4Block>();
    auto* const y = args.y.data<Y>();
    parallel_pieces(args.q.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        std::array<Y, kNf4Levels> values;
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Y>(q[b].scale * kNf4Values[i]);
        Y* const to = y + b * kNf4Block;
        for (std::size_t i = 0; i < q[b].codes.size(); ++i) {
          to[2 * i] = values[q[b].codes[i] >> 4];
          to[2 * i + 1] = values[q[b].codes[i] & 15];
        }
      }
    });
  });
}

}  // namespace hawser::ops::cpu
