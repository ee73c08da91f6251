// The casts of FP8 against tables that PyTorch wrote (tests/golden/README.md).
#include "tensor/fp8.h"
#include "base/testing/test_paths.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace hawser {
namespace fp8_test {

struct Line {
  int code = 0;
  double value = 0;
  std::uint32_t first = 0;  // bits of the smallest bfloat16 that becomes it
};

std::vector<Line> table(const std::string& name) {
  std::ifstream in(std::string(testing::kSourceFolder) + "/tests/golden/fp8/" + name + ".txt");
  std::vector<Line> lines;
  for (Line line; in >> line.code >> line.value >> line.first;) lines.push_back(line);
  return lines;
}

template <class T>
void expect_casts(const std::string& name, std::size_t numbers) {
  const std::vector<Line> lines = table(name);
  ASSERT_EQ(lines.size(), numbers);
  for (const Line& line : lines) {
    T number;
    number.bits = static_cast<std::uint8_t>(line.code);
    EXPECT_EQ(static_cast<float>(number), line.value);
    number.bits |= 0x80;
    EXPECT_EQ(static_cast<float>(number), -line.value);
    EXPECT_EQ(std::signbit(static_cast<float>(number)), true);
  }
  EXPECT_EQ(static_cast<double>(T::largest()), lines.back().value);
  std::size_t at = 0;
  for (std::uint32_t size = 0; size < 0x8000; ++size) {
    const float value = std::bit_cast<float>(size << 16);
    int expected = 0x7f;
    if (!std::isnan(value)) {
      while (at + 1 < lines.size() && lines[at + 1].first <= size) ++at;
      expected = lines[at].code;
    }
    ASSERT_EQ(T(value).bits, expected) << value;
    ASSERT_EQ(T(-value).bits, std::isnan(value) ? expected : expected | 0x80) << value;
  }
}

TEST(Fp8, CastsOfAllBfloat16AreThoseOfTheTable) {
  expect_casts<F8E4M3>("e4m3", 127);
  expect_casts<F8E5M2>("e5m2", 124);
}

// float32 values between two bfloat16: just below, at and above the middle of two numbers.
template <class T>
void expect_ties_to_even(const std::string& name) {
  const std::vector<Line> lines = table(name);
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    const auto middle = static_cast<float>((lines[i].value + lines[i + 1].value) / 2);
    const int even = lines[i].code % 2 == 0 ? lines[i].code : lines[i + 1].code;
    EXPECT_EQ(T(middle).bits, even) << middle;
    EXPECT_EQ(T(std::nextafter(middle, 0.0f)).bits, lines[i].code) << middle;
    EXPECT_EQ(T(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, lines[i + 1].code) << middle;
  }
}

TEST(Fp8, TiesGoToEvenCodes) {
  expect_ties_to_even<F8E4M3>("e4m3");
  expect_ties_to_even<F8E5M2>("e5m2");
}

TEST(Fp8, OtherCodesAreNanOrInfinity) {
  F8E4M3 nan;
  nan.bits = 0x7f;
  EXPECT_TRUE(std::isnan(static_cast<float>(nan)));
  for (const int code : {0x7d, 0x7e, 0x7f}) {
    F8E5M2 number;
    number.bits = static_cast<std::uint8_t>(code);
    EXPECT_TRUE(std::isnan(static_cast<float>(number)));
  }
  F8E5M2 infinity;
  infinity.bits = 0x7c;
  EXPECT_EQ(static_cast<float>(infinity), std::numeric_limits<float>::infinity());
}

TEST(Fp8, DispatchesToTheTypeOfEachFormat) {
  EXPECT_EQ(largest_fp8(DType::f8e4m3), 448);
  EXPECT_EQ(largest_fp8(DType::f8e5m2), 57344);
  EXPECT_THROW(largest_fp8(DType::bf16), InternalError);
  EXPECT_EQ(dtype_of<F8E5M2>(), DType::f8e5m2);
}

}  // namespace fp8_test
}  // namespace hawser
