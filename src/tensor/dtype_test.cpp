#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>

#include "tensor/dtype_dispatch.h"

namespace hawser {
namespace dtype_test {

TEST(DType, DispatchesToTheTypeOfEachFloatingPointDType) {
  const auto size = [](DType dtype) { return dispatch_float(dtype, [](auto tag) { return sizeof(tag); }); };
  EXPECT_EQ(size(DType::f32), sizeof(float));
  EXPECT_EQ(size(DType::bf16), sizeof(Bf16));
  EXPECT_EQ(by_float(DType::f32, 1, 2), 1);
  EXPECT_EQ(by_float(DType::bf16, 1, 2), 2);
  const bool own =
      dispatch_float_as<double, short>(DType::bf16, [](auto tag) { return std::is_same_v<decltype(tag), short>; });
  EXPECT_TRUE(own);
}

// A kernel for float32 that gets another dtype would read its bytes as float32.
TEST(DType, RejectsTheDTypesThatItHasNoTypeFor) {
  for (const DType dtype : {DType::i32, DType::i64, DType::u8, DType::f8e4m3, DType::f8e5m2, DType::nf4,
                            std::bit_cast<DType>(std::uint8_t{77})}) {
    const auto ignore = [](auto) { return 0; };
    EXPECT_THROW(dispatch_float(dtype, ignore), InternalError) << to_string(dtype);
    EXPECT_THROW(by_float(dtype, 1, 2), InternalError) << to_string(dtype);
  }
}

}  // namespace dtype_test
}  // namespace hawser
