#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

#include "base/testing/address_limit.h"
#include "device/device.h"

namespace hawser {
namespace device_test {

TEST(CpuStream, RunsInOrderAndEventsOrderStreams) {
  const auto device = make_cpu_device({.random_delay_s = 0.002});
  const auto a = device->make_stream("a");
  const auto b = device->make_stream("b");
  std::vector<int> order;
  for (int round = 0; round < 20; ++round) {
    a->launch({.name = "first", .kind = OpKind::host}, [&order, round] { order.push_back(2 * round); });
    b->wait(a->record_event());
    b->launch({.name = "second", .kind = OpKind::host}, [&order, round] { order.push_back(2 * round + 1); });
    a->wait(b->record_event());
  }
  a->synchronize();
  ASSERT_EQ(order.size(), 40u);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(order[i], i);
}

TEST(CpuStream, HostWaitTimesOut) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("s");
  std::atomic<bool> go = false;
  stream->launch({.name = "test", .kind = OpKind::host}, [&] { go.wait(false); });
  const Event end = stream->record_event();
  EXPECT_FALSE(host_wait_for(end, 0.01));
  go = true;
  go.notify_all();
  EXPECT_TRUE(host_wait_for(end, 60));
  EXPECT_TRUE(host_wait_for(Event(), 0));
}

TEST(CpuStream, FailingToCreateATeamsThreadIsAnError) {
  if (!AddressLimit::kPossible) GTEST_SKIP() << "needs a build without AddressSanitizer";
  const auto device = make_cpu_device({.threads = 256});
  const auto stream = device->make_stream("s");
  bool ran = false;
  const AddressLimit limit(std::int64_t{16} << 20);
  stream->launch({.name = "test", .kind = OpKind::host}, [&] { ran = true; });
  EXPECT_THROW(stream->synchronize(), std::system_error);
  EXPECT_FALSE(ran);
}

TEST(CpuStream, AFailurePoisonsTheStreamWithoutHanging) {
  const auto device = make_cpu_device();
  const auto a = device->make_stream("a");
  const auto b = device->make_stream("b");
  bool ran = false;
  a->launch({.name = "test", .kind = OpKind::host}, [] { throw std::runtime_error("broken kernel"); });
  a->launch({.name = "test", .kind = OpKind::host}, [&] { ran = true; });
  b->wait(a->record_event());
  b->synchronize();
  EXPECT_FALSE(ran);
  EXPECT_THROW(a->synchronize(), std::runtime_error);
}

// A caller that waits for an event, as a step's, learns of the failure from check().
TEST(CpuStream, AFailureIsReportedByEveryLaterCheck) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("a");
  stream->check();
  stream->launch({.name = "test", .kind = OpKind::host}, [] { throw std::runtime_error("broken kernel"); });
  const Event end = stream->record_event();
  host_wait(end);
  EXPECT_THROW(stream->check(), std::runtime_error);
  EXPECT_THROW(stream->check(), std::runtime_error) << "once is not enough: a step has several streams";
  EXPECT_THROW(stream->synchronize(), std::runtime_error);
  std::byte from[4] = {}, to[4] = {};
  transfer(*stream, to, from, 4);
  stream->call_host({.name = "test", .kind = OpKind::host}, [] { FAIL() << "work after a failure"; });
  EXPECT_THROW(stream->synchronize(), std::runtime_error);
  const auto called = device->make_stream("b");
  called->call_host({.name = "test", .kind = OpKind::host}, [] { throw std::runtime_error("broken callback"); });
  host_wait(called->record_event());
  EXPECT_THROW(called->check(), std::runtime_error);
}

TEST(CpuStream, HostWaitsForAnEvent) {
  const auto device = make_cpu_device();
  const auto a = device->make_stream("a");
  std::atomic<bool> done = false;
  a->launch({.name = "test", .kind = OpKind::host}, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    done = true;
  });
  host_wait(a->record_event());
  EXPECT_TRUE(done);
  host_wait(Event());
}

TEST(MetaStream, KeepsWorkRecordsAndWaits) {
  MetaDevice device;
  const auto a = device.make_stream("compute");
  const auto b = device.make_stream("gather");
  device.set_instruction(5);
  a->launch({.name = "gemm", .kind = OpKind::gemm, .flops = 10}, [] { FAIL() << "meta runs no work"; });
  const Event event = a->record_event();
  b->wait(event);
  b->wait(Event());
  const Trace& trace = device.trace();
  ASSERT_EQ(trace.items.size(), 3u);
  EXPECT_EQ(trace.items[0].instruction, 5);
  EXPECT_STREQ(trace.items[0].record.name, "gemm");
  EXPECT_EQ(trace.items[2].kind, TraceItem::Kind::wait);
  EXPECT_EQ(trace.items[2].target, 1);
  EXPECT_EQ(trace.items[2].stream, 1);
  std::byte* p = device.allocate(100);
  std::byte* q = device.allocate(100);
  EXPECT_GE(q - p, 100);
}

TEST(Access, OverlapIsExactForColumnsOfOneMatrix) {
  const Access q{.address = 1000, .row_bytes = 40, .rows = 10, .stride = 100};
  const Access k{.address = 1040, .row_bytes = 60, .rows = 10, .stride = 100};
  EXPECT_FALSE(overlap(q, k));
  EXPECT_TRUE(overlap(q, {.address = 1039, .row_bytes = 60, .rows = 10, .stride = 100}));
  EXPECT_TRUE(overlap(q, {.address = 1020, .row_bytes = 200}));
  EXPECT_FALSE(overlap(q, {.address = 2000, .row_bytes = 200}));
  EXPECT_FALSE(overlap(q, {.address = 1140, .row_bytes = 60, .rows = 4, .stride = 100}));
  // Rows that end in the next row of q, or just before it.
  for (const std::uint64_t begin : {980, 1080}) {
    EXPECT_TRUE(overlap(q, {.address = begin, .row_bytes = 21, .rows = 10, .stride = 100})) << begin;
    EXPECT_FALSE(overlap(q, {.address = begin, .row_bytes = 20, .rows = 10, .stride = 100})) << begin;
  }
}

TEST(Arena, MovesAndFrees) {
  const auto device = make_cpu_device();
  Arena arena(*device, 1 << 20);
  arena.data()[100] = std::byte{7};
  Arena other = std::move(arena);
  EXPECT_EQ(other.data()[100], std::byte{7});
  EXPECT_EQ(arena.data(), nullptr);  // NOLINT: moved-from is empty by contract
}

}  // namespace device_test
}  // namespace hawser
