#include "ops/quantize/quantize_nf4.h"
#include "ops/quantize/quantize_rows_cpu.h"

namespace hawser::ops::cpu {

namespace {

constexpr std::int64_t kGrain = 64;  // blocks

using Codes = std::array<std::uint8_t, kNf4Block / 2>;

// Writes the codes of a block, and returns its scale.
template <class X>
float quantized(const X* x, Codes& codes) {
  const std::uint32_t largest = largest_bits(x, kNf4Block);
  const bool finite = largest < 0x7f800000u, zero = largest < 0x00800000u;
  const float scale = !finite ? std::numeric_limits<float>::quiet_NaN() : zero ? 0 : of_size_bits(largest);
  const float inverse = 1 / scale;
  codes = {};
  for (std::size_t i = 0; i < kNf4Block; ++i) {
    int code = finite ? 0 : kNf4Zero;
    if (finite && !zero) {
      const float value = static_cast<float>(x[i]) * inverse;
      for (const float bound : kNf4Bounds) code += value > bound ? 1 : 0;
    }
    codes[i / 2] |= static_cast<std::uint8_t>(i % 2 == 0 ? code << 4 : code);
  }
  return scale;
}

// Columns [first, first + count) of a block.
template <class Y>
void dequantize(const Codes& codes, float scale, std::int64_t first, std::int64_t count, Y* to) {
  std::array<Y, kNf4Levels> values;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Y>(scale * kNf4Values[i]);
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::uint8_t pair = codes[static_cast<std::size_t>(i / 2)];
    to[i - first] = values[i % 2 == 0 ? pair >> 4 : pair & 15];
  }
}

// scale_of(block, row, j): of block j of a row.
template <class Block, class Y, class Scale>
void dequantize_rows(const DequantizeNf4& args, const Scale& scale_of) {
  const std::int64_t columns = args.y.size(1), blocks = args.q.size(1);
  parallel_pieces(args.y.size(0), ceil_div(kGrain, blocks), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      Y* to = args.y.data<Y>() + row * columns;
      for (std::int64_t column = args.first_column, count = 0; column < args.first_column + columns; column += count) {
        const std::int64_t j = column / kNf4Block, first = column % kNf4Block;
        count = std::min(kNf4Block - first, args.first_column + columns - column);
        const Block& block = args.q.data<Block>()[row * blocks + j];
        dequantize(block.codes, scale_of(block, row, j), first, count, to);
        to += count;
      }
    }
  });
}

}  // namespace

void quantize_nf4(const QuantizeNf4& args) {
  dispatch_float(args.x.dtype(), [&](auto tag) {
    const auto* const x = args.x.data<decltype(tag)>();
    parallel_pieces(args.q.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        if (args.q.dtype() == DType::nf4) {
          Nf4Block& block = args.q.data<Nf4Block>()[b];
          block.scale = quantized(x + b * kNf4Block, block.codes);
          continue;
        }
        Nf4DoubleBlock& block = args.q.data<Nf4DoubleBlock>()[b];
        block.scale = 0;
        const float scale = quantized(x + b * kNf4Block, block.codes);
        const std::int32_t place = args.places.data<std::int32_t>()[b];
        // Ranks exchange their maximum: of a NaN and a number that is not defined.
        if (place >= 0) {
          args.maxima.data<float>()[place] = std::isnan(scale) ? std::numeric_limits<float>::infinity() : scale;
        }
      }
    });
  });
}

void encode_nf4_scales(const EncodeNf4Scales& args) {
  const auto* const groups = reinterpret_cast<const Nf4Group*>(args.groups.raw());
  parallel_pieces(args.q.elements(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int32_t place = args.places.data<std::int32_t>()[b];
      if (place < 0) continue;
      args.q.data<Nf4DoubleBlock>()[b].scale = groups[place / kNf4GroupBlocks].code(args.maxima.data<float>()[place]);
    }
  });
}

void dequantize_nf4(const DequantizeNf4& args) {
  dispatch_float(args.y.dtype(), [&](auto tag) {
    using Y = decltype(tag);
    if (args.q.dtype() == DType::nf4) {
      return dequantize_rows<Nf4Block, Y>(
          args, [](const Nf4Block& block, std::int64_t, std::int64_t) { return block.scale; });
    }
    const auto* const groups = reinterpret_cast<const Nf4Group*>(args.scales.groups.raw());
    const auto* const places = args.scales.row_places.data<std::int32_t>();
    dequantize_rows<Nf4DoubleBlock, Y>(args, [&](const Nf4DoubleBlock& block, std::int64_t row, std::int64_t j) {
      return groups[(places[row] + j) / kNf4GroupBlocks].value(block.scale);
    });
  });
}

}  // namespace hawser::ops::cpu
