// `F8E4M3`, `F8E5M2`: the FP8 formats of the Open Compute Project (OFP8, revision 1.0), and what tells them apart.
//
// From float32: rounded to nearest, ties to even; values beyond the largest one, infinities too, become the largest one
// (saturating casts, as those of NVIDIA's GPUs that FP8 training uses); NaN becomes 0x7f.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/error.h"
#include "tensor/dtype.h"

namespace hawser {

constexpr float f8_power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(127 + exponent) << 23);
}

// The value of a code.
template <int kMantissaBits, int kExponentBias, bool kInfinity>
constexpr float decode_f8(std::uint32_t code) {
  const std::uint32_t size = code & 0x7f, exponent = size >> kMantissaBits;
  const std::uint32_t mantissa = size & ((1u << kMantissaBits) - 1);
  constexpr std::uint32_t kSpecial = 0x7f >> kMantissaBits;
  const std::uint32_t sign = (code & 0x80) << 24;
  if (kInfinity && exponent == kSpecial) {
    return std::bit_cast<float>(sign | 0x7f800000u | mantissa << (23 - kMantissaBits));
  }
  if (!kInfinity && size == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * f8_power_of_two(1 - kExponentBias - kMantissaBits);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  constexpr auto kRebias = static_cast<std::uint32_t>(127 - kExponentBias) << 23;
  return std::bit_cast<float>(sign | ((size << (23 - kMantissaBits)) + kRebias));
}

template <int kMantissaBits, int kExponentBias, bool kInfinity>
constexpr std::array<float, 256> decode_all_f8() {
  std::array<float, 256> out{};
  for (std::uint32_t code = 0; code < 256; ++code) out[code] = decode_f8<kMantissaBits, kExponentBias, kInfinity>(code);
  return out;
}

template <int kMantissaBits, int kExponentBias, bool kInfinity>
inline constexpr std::array<float, 256> kF8Values = decode_all_f8<kMantissaBits, kExponentBias, kInfinity>();

// A sign, exponent bits with this bias, and mantissa bits. With kInfinity, the largest exponent is that of infinities
// and NaNs; otherwise only the code with all bits set is NaN.
template <int kMantissaBits, int kExponentBias, bool kInfinity>
struct F8 {
  // The code and the value of the largest finite number.
  static constexpr std::uint8_t kLargestCode = kInfinity ? (0x7f & ~((1 << kMantissaBits) - 1)) - 1 : 0x7e;
  static constexpr std::uint8_t kNan = 0x7f;

  std::uint8_t bits = 0;

  F8() = default;
  explicit constexpr F8(float value) : bits(encode(value)) {}
  explicit constexpr operator float() const { return kF8Values<kMantissaBits, kExponentBias, kInfinity>[bits]; }
  static constexpr float largest() { return decode_f8<kMantissaBits, kExponentBias, kInfinity>(kLargestCode); }

 private:
  static constexpr std::uint8_t encode(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint8_t>(word >> 24 & 0x80);
    const std::uint32_t size = word & 0x7fffffffu;
    if (size > 0x7f800000u) return kNan;
    if (size >= std::bit_cast<std::uint32_t>(largest())) return sign | kLargestCode;
    constexpr int kDropped = 23 - kMantissaBits;
    if (size < std::bit_cast<std::uint32_t>(f8_power_of_two(1 - kExponentBias))) {
      // Subnormal: a sum whose last bit has the weight of the smallest number rounds as wanted.
      constexpr float kShift = f8_power_of_two(kDropped + 1 - kExponentBias);
      const float sum = std::bit_cast<float>(size) + kShift;
      const std::uint32_t code = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(kShift);
      return static_cast<std::uint8_t>(sign | code);
    }
    const std::uint32_t rounded = size + (1u << (kDropped - 1)) - 1 + (size >> kDropped & 1u);
    constexpr auto kRebias = static_cast<std::uint32_t>(127 - kExponentBias) << kMantissaBits;
    return static_cast<std::uint8_t>(sign | ((rounded >> kDropped) - kRebias));
  }
};

using F8E4M3 = F8<3, 7, false>;
using F8E5M2 = F8<2, 15, true>;
static_assert(sizeof(F8E4M3) == 1 && F8E4M3::largest() == 448 && F8E5M2::largest() == 57344);

template <>
constexpr DType dtype_of<F8E4M3>() {
  return DType::f8e4m3;
}
template <>
constexpr DType dtype_of<F8E5M2>() {
  return DType::f8e5m2;
}

constexpr bool is_fp8(DType dtype) {
  return dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}

// Calls body with a value of the FP8 type: as dispatch_float (tensor/dtype_dispatch.h). InternalError for other dtypes.
template <class Body>
auto dispatch_fp8(DType dtype, const Body& body) {
  if (dtype == DType::f8e5m2) return body(F8E5M2{});
  HAWSER_CHECK(dtype == DType::f8e4m3, to_string(dtype), " is no FP8 format");
  return body(F8E4M3{});
}

// The largest finite value of the format.
inline float largest_fp8(DType dtype) {
  return dispatch_fp8(dtype, [](auto tag) { return decltype(tag)::largest(); });
}

}  // namespace hawser
