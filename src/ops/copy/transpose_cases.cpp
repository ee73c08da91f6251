#include "ops/copy/transpose.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace transpose_cases {

using namespace testing;

TEST(Transpose, ExchangesRowsAndColumns) {
  constexpr std::int64_t kRows = 37, kColumns = 53;  // no multiple of a tile
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::u8, DType::f8e4m3, DType::f8e5m2}) {
    Values x(kRows * kColumns), expected(x.size());
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kColumns; ++c) {
        const auto value = static_cast<double>((r * 7 + c * 3) % 101);
        x[static_cast<std::size_t>(r * kColumns + c)] = expected[static_cast<std::size_t>(c * kRows + r)] = value;
      }
    }
    check_case(
        {cat("transpose ", to_string(dtype)),
         [&](World& world) -> std::vector<Values> {
           const Transpose args{.x = world.in(dtype, {kRows, kColumns}, x), .y = world.out(dtype, {kColumns, kRows})};
           transpose(world.stream(), args);
           return {world.values(args.y)};
         },
         {expected},
         0});
  }
  for (const auto& [rows, columns, dtype] : {std::tuple<std::int64_t, std::int64_t, DType>{16, 48, DType::f8e4m3},
                                             {7, 130, DType::f8e4m3},
                                             {4, 130, DType::f32},
                                             {67, 33, DType::bf16}}) {
    Values x, expected;
    for (std::int64_t g = 0; g < 3; ++g) {
      for (std::int64_t i = 0; i < rows * columns; ++i) {
        x.push_back(static_cast<double>((g * 31 + i) % 251));
        expected.push_back(static_cast<double>((g * 31 + i % rows * columns + i / rows) % 251));
      }
    }
    check_case(
        {cat("transpose of several ", rows, " x ", columns, " ", to_string(dtype)),
         [=, rows = rows, columns = columns, dtype = dtype](World& world) -> std::vector<Values> {
           const Transpose args{.x = world.in(dtype, {3, rows, columns}, x), .y = world.out(dtype, {3, columns, rows})};
           transpose(world.stream(), args);
           return {world.values(args.y)};
         },
         {expected},
         0});
  }
  World world(DeviceKind::cpu, 1);
  const auto x = world.in(DType::f32, {2, 3}, Values(6)), y = world.out(DType::f32, {2, 3});
  expect_rejected([&] { transpose(world.stream(), {.x = x, .y = y}); }, "y has shape");
}

}  // namespace transpose_cases
}  // namespace hawser::ops
