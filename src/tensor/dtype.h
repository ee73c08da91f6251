// `DType`: element types of tensors, and the bfloat16 conversions. Those of FP8: tensor/fp8.h; of NF4: tensor/nf4.h.
#pragma once

#include <bit>
#include <cstdint>

namespace hawser {

// Values are stored in GEMM choices (ops/gemm/gemm_key.h): new ones go to the end.
// An element of nf4 is a block of weights with its scale, in 36 bytes: half a byte each, and a float32. One of
// nf4_double (double quantization) has 33 bytes: its scale is a code of 8 bits.
enum class DType : std::uint8_t { f32, bf16, i32, i64, u8, f8e4m3, f8e5m2, nf4, nf4_double };

constexpr std::int64_t kNf4Block = 64;  // weights of a block

constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::i64:
      return 8;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 1;
    case DType::nf4:
      return 4 + kNf4Block / 2;
    case DType::nf4_double:
      return 1 + kNf4Block / 2;
  }
  return 0;
}

constexpr bool is_nf4(DType dtype) {
  return dtype == DType::nf4 || dtype == DType::nf4_double;
}

// The values in one element of a view.
constexpr std::int64_t values_per_element(DType dtype) {
  return is_nf4(dtype) ? kNf4Block : 1;
}

constexpr const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u8:
      return "uint8";
    case DType::f8e4m3:
      return "float8_e4m3fn";
    case DType::f8e5m2:
      return "float8_e5m2";
    case DType::nf4:
      return "nf4";
    case DType::nf4_double:
      return "nf4_double";
  }
  return "?";
}

// bfloat16: the upper half of a float32, rounded to nearest even; NaN stays NaN.
struct Bf16 {
  std::uint16_t bits = 0;

  Bf16() = default;
  explicit constexpr Bf16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const bool nan = (word & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(nan ? (word >> 16) | 0x40u : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
  explicit constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};
static_assert(sizeof(Bf16) == 2);

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<Bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::u8;
}

}  // namespace hawser
