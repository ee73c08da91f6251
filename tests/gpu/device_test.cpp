#include "base/clock.h"
#include "device/power_meter.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"
#include "ops/reduce/sum_squares.h"
#include "support.h"

namespace hawser {
namespace device_test {

using CudaDevice = testing::GpuTest;

// Each stream uses the other's result; a wrong order changes the values.
TEST_F(CudaDevice, EventsOrderStreams) {
  const auto a = device_->make_stream("a"), b = device_->make_stream("b");
  const std::int64_t n = 1 << 24;
  const Storage x(*device_, DType::f32, {n}), y(*device_, DType::f32, {n});
  ops::fill(*a, {.y = x, .value = 0});
  for (int round = 0; round < 20; ++round) {
    ops::fill(*a, {.y = x, .value = static_cast<double>(round)});
    b->wait(a->record_event());
    ops::copy(*b, {.x = x, .y = y});
    a->wait(b->record_event());
    ops::fill(*a, {.y = x, .value = -1});
    const Event done = b->record_event();
    host_wait(done);
    const auto got = get<float>(*b, y.view().rows(n - 1, 1));
    EXPECT_EQ(got[0], static_cast<float>(round));
  }
  host_wait(Event());
}

TEST_F(CudaDevice, WorkThatThrowsPoisonsOnlyItsStream) {
  const auto a = device_->make_stream("a"), b = device_->make_stream("b");
  bool ran = false;
  a->launch({.name = "broken", .kind = OpKind::host}, [] { throw std::runtime_error("broken kernel"); });
  a->launch({.name = "after", .kind = OpKind::host}, [&] { ran = true; });
  b->wait(a->record_event());
  b->synchronize();
  EXPECT_FALSE(ran);
  EXPECT_THROW(a->check(), std::runtime_error);
  EXPECT_THROW(a->synchronize(), std::runtime_error);
}

TEST_F(CudaDevice, InvalidDataIsReportedWithItsIndex) {
  const auto stream = device_->make_stream("a");
  const Storage x(*device_, DType::f32, {6, 8}), y(*device_, DType::f32, {3, 8}), index(*device_, DType::i32, {3});
  put<std::int32_t>(*stream, index, {1, 77, 2});
  ops::gather_rows(*stream, {.x = x, .index = index, .y = y});
  try {
    stream->synchronize();
    FAIL() << "not reported";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("gather_rows: index 77 at 1 is outside [0, 6)"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(stream->check(), InternalError);
}

TEST_F(CudaDevice, RejectsOversizedArenasAndCountsAllocations) {
  const std::int64_t before = device_->allocations();
  try {
    Arena arena(*device_, std::int64_t{1} << 50);
    FAIL() << "a petabyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::does_not_fit);
  }
  Arena small(*device_, 1 << 20), pinned(*device_, 1 << 20, Memory::host);
  EXPECT_EQ(reinterpret_cast<std::uint64_t>(small.data()) % Device::kAlignment, 0u);
  EXPECT_EQ(device_->allocations(), before + 3);
  const auto stream = device_->make_stream("a");
  std::fill_n(pinned.data(), 1 << 20, std::byte{7});
  transfer(*stream, small.data(), pinned.data(), 1 << 20);
  std::fill_n(pinned.data(), 0, std::byte{0});
  transfer(*stream, pinned.data(), small.data(), 1 << 20);
  stream->synchronize();
  EXPECT_EQ(pinned.data()[(1 << 20) - 1], std::byte{7});
}

// A stream's first op with scratch reserves it; after that, no op allocates memory.
TEST_F(CudaDevice, NothingIsAllocatedAfterTheFirstUse) {
  const auto stream = device_->make_stream("a");
  const Storage x(*device_, DType::f32, {1 << 20}), out(*device_, DType::f32, {1});
  const auto step = [&] {
    ops::fill(*stream, {.y = x, .value = 2});
    ops::sum_squares(*stream, {.x = x, .out = out});
  };
  step();
  const std::int64_t before = device_->allocations();
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(get<float>(*stream, out)[0], 4.0f * (1 << 20));
  EXPECT_EQ(device_->allocations(), before);
}

TEST(CudaInfo, ReportsDevicesOrTheProblem) {
  const CudaInfo info = cuda_info();
  EXPECT_EQ(info.devices == 0, !info.problem.empty());
  EXPECT_THROW(make_cuda_device(info.devices), UserError);
  EXPECT_THROW(make_cuda_device(-1), UserError);
}

// The driver's own NVML, where it is installed.
TEST_F(CudaDevice, HasPowerAndAClock) {
  ASSERT_EQ(device_->bus_id().size(), 12u) << device_->bus_id();
  auto gpu = NvmlGpu::open(device_->bus_id());
  if (gpu == nullptr) GTEST_SKIP() << "NOT RUN: no NVML";
  EXPECT_GT(gpu->watts().value(), 20);
  EXPECT_LT(gpu->watts().value(), 2000);
  EXPECT_GT(gpu->sm_clock_mhz().value(), 100);
  EXPECT_LT(gpu->sm_clock_mhz().value(), 5000);
  EXPECT_TRUE(gpu->clock_reasons());
  const PowerMeter meter(std::move(gpu));
  const auto stream = device_->make_stream("a");
  const Storage x(*device_, DType::f32, {std::int64_t{1} << 26}), y(*device_, DType::f32, {std::int64_t{1} << 26});
  const auto begin = std::chrono::steady_clock::now();
  while (seconds_since(begin) < 1) {
    for (int i = 0; i < 100; ++i) ops::copy(*stream, {.x = x, .y = y});
    stream->synchronize();
  }
  const PowerUse use = meter.between(begin, std::chrono::steady_clock::now());
  EXPECT_GT(use.watts.value(), 100);  // the copies draw more than an idle GPU
  EXPECT_LT(use.watts.value(), 2000);
  EXPECT_GT(use.sm_clock_mhz.value(), 500);
}

}  // namespace device_test
}  // namespace hawser
