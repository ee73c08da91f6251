#include "ops/copy/transpose.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace {

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
  World world(DeviceKind::cpu, 1);
  const auto x = world.in(DType::f32, {2, 3}, Values(6)), y = world.out(DType::f32, {2, 3});
  expect_rejected([&] { transpose(world.stream(), {.x = x, .y = y}); }, "y has shape");
}

}  // namespace
}  // namespace hawser::ops
