#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "comm/frozen_time.h"
#include "comm/mesh.h"
#include "comm/meta/meta_group.h"
#include "comm/rank_list.h"
#include "comm/reduce.h"
#include "comm/self/self_group.h"

namespace hawser::comm {
namespace comm_test {

std::string list(std::vector<int> ranks) {
  return rank_list(ranks);
}

TEST(RankList, IsShortAndDistinguishesLists) {
  EXPECT_EQ(list({3}), "3");
  EXPECT_EQ(list({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(list({0, 4, 8}), "0-8:4");
  EXPECT_EQ(list({1, 5}), "1-5:4");
  EXPECT_EQ(list({0, 1, 4, 5}), "0-1,4-5");
}

TEST(FrozenTime, IsAGapBetweenTwoLooks) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  const FrozenTime::Clock::time_point begin{};
  FrozenTime frozen;
  frozen.look(begin + seconds(100));
  frozen.look(begin + seconds(101));
  EXPECT_EQ(frozen.since(begin + seconds(100)), seconds(0)) << "a busy machine";
  frozen.look(begin + seconds(501));
  frozen.look(begin + seconds(501) + milliseconds(20));
  EXPECT_EQ(frozen.since(begin + seconds(100)), seconds(400)) << "also after later looks";
  EXPECT_EQ(frozen.since(begin + seconds(301)), seconds(200)) << "started in the gap";
  EXPECT_EQ(frozen.since(begin + seconds(502)), seconds(0));
  frozen.look(begin + seconds(601));
  EXPECT_EQ(frozen.since(begin + seconds(100)), seconds(400) + seconds(100) - milliseconds(20));
}

// What a rank records, as text without addresses.
std::vector<std::string> recorded(const MeshSizes& sizes, int rank) {
  MetaDevice device;
  const auto mesh = make_meta_mesh(sizes, Rank(rank));
  const auto stream = device.make_stream("gather");
  const int parts = mesh->shard().size();
  const Storage piece(device, DType::bf16, {96}), full(device, DType::bf16, {96 * parts});
  const Storage gradient(device, DType::f32, {96 * parts}), shard(device, DType::f32, {96});
  const Storage workspace(device, DType::u8, {1 << 20});
  mesh->shard_gather().all_gather(*stream, piece, full);
  mesh->shard_reduce().reduce_scatter(*stream, gradient, shard, true, workspace);
  mesh->replicate().all_reduce(*stream, shard, Reduction::sum, workspace);
  mesh->context().all_to_all(*stream, piece, full.view().rows(0, 96));
  mesh->data().broadcast(*stream, piece, 1);
  mesh->world().barrier(*stream);
  std::vector<std::string> out;
  for (const TraceItem& item : device.trace().items) {
    const CollectiveNote& note = item.record.collective;
    out.push_back(cat(to_string(note.kind), ' ', note.communicator, ' ', note.bytes, ' ', note.peer));
  }
  return out;
}

TEST(MetaGroup, MembersRecordEqualSequences) {
  const MeshSizes sizes{.context = 2, .shard = 2, .replicate = 2};
  const auto reference = recorded(sizes, 0);
  ASSERT_EQ(reference.size(), 6u);
  EXPECT_EQ(reference[0], "all_gather shard:0-3/gather 192 -1");
  EXPECT_EQ(reference[1], "reduce_scatter shard:0-3/reduce 384 -1");
  EXPECT_EQ(reference[5], "barrier world:0-7 0 -1");
  for (int rank = 1; rank < 4; ++rank) {
    const auto other = recorded(sizes, rank);
    EXPECT_EQ(other[0], reference[0]);
    EXPECT_EQ(other[1], reference[1]);
    EXPECT_EQ(other[4], reference[4]);
    EXPECT_EQ(other[5], reference[5]);
  }
  EXPECT_EQ(recorded(sizes, 1)[3], reference[3]);
  EXPECT_EQ(recorded(sizes, 4)[2], reference[2]);
}

TEST(MetaGroup, RecordsAccesses) {
  MetaDevice device;
  MetaGroup group("pair:0-1", 2, 1);
  const auto stream = device.make_stream("reduce");
  const Storage send(device, DType::bf16, {2, 100}), recv(device, DType::f32, {100}),
      workspace(device, DType::u8, {4096});
  group.reduce_scatter(*stream, send, recv, true, workspace);
  group.send(*stream, recv, 0);
  const auto& items = device.trace().items;
  ASSERT_EQ(items.size(), 2u);
  const auto& accesses = items[0].record.accesses;
  ASSERT_EQ(accesses.size(), 4u);
  EXPECT_EQ(accesses[0].row_bytes, 400);
  EXPECT_TRUE(accesses[1].write);
  EXPECT_FALSE(accesses[2].write);
  EXPECT_EQ(accesses[3].row_bytes, reduce_scatter_workspace(100, DType::bf16, 2, DeviceKind::cpu));
  EXPECT_EQ(items[1].record.collective.peer, 0);
}

// The bound of what is sent, and what the cost model expects.
TEST(MetaGroup, RecordsBoundAndExpectedBytesOfCountedRows) {
  MetaDevice device(DeviceKind::cuda);
  MetaGroup group("expert:0-3", 4, 1);
  const auto stream = device.make_stream("exchange");
  const Storage send(device, DType::bf16, {40, 8}), recv(device, DType::bf16, {60, 8}), counts(device, DType::i32, {8}),
      other(device, DType::i32, {8}), offsets(device, DType::i32, {8});
  const CountedRows from{send, counts, offsets};
  const std::int64_t bytes = all_to_all_v_workspace(from, 20, 4, stream->target());
  EXPECT_EQ(bytes, 2 * 8 * 20 * 16);
  EXPECT_EQ(all_to_all_v_workspace(from, 20, 4, DeviceKind::cpu), 0);
  EXPECT_EQ(all_to_all_v_workspace(from, 20, 1, DeviceKind::cuda), 0);
  EXPECT_EQ(all_to_all_v_workspace(from, std::int64_t{1} << 40, 4, DeviceKind::cuda), 2 * kCountedBytes);
  const Storage workspace(device, DType::u8, {bytes});
  group.all_to_all_v(*stream, from, {recv, other, offsets}, 20, workspace, 12);
  const OpRecord& record = device.trace().items.at(0).record;
  EXPECT_EQ(record.collective.kind, CollectiveKind::all_to_all_v);
  EXPECT_EQ(record.collective.bytes, 8 * 20 * 16);  // the bound of each slot, also beyond the rows of `send`
  EXPECT_EQ(record.collective.expected_bytes, 12 * 16);
  ASSERT_EQ(record.accesses.size(), 7u);
  EXPECT_EQ(record.accesses[0].row_bytes * record.accesses[0].rows, 640);
  EXPECT_TRUE(record.accesses[1].write);
  group.all_to_all_v(*stream, from, {recv, other, offsets}, 20, workspace);
  EXPECT_EQ(device.trace().items.at(1).record.collective.expected_bytes, 640);
}

// In grouped sends of equal sizes: the last one of them, too.
TEST(MetaGroup, RecordsCompleteChunksOfCountedRows) {
  MetaDevice device(DeviceKind::cuda);
  MetaGroup group("expert:0-1", 2, 1);
  const auto stream = device.make_stream("exchange");
  const std::int64_t width = kCountedBytes / 2 / 3 / 2;  // three rows of each of two slots at a time
  const Storage send(device, DType::bf16, {4, width}), recv(device, DType::bf16, {4, width}),
      counts(device, DType::i32, {2}), other(device, DType::i32, {2}), offsets(device, DType::i32, {2});
  const CountedRows from{send, counts, offsets};
  ASSERT_EQ(counted_chunk(4, 2, 2 * width), 3);
  const Storage workspace(device, DType::u8, {all_to_all_v_workspace(from, 4, 2, stream->target())});
  group.all_to_all_v(*stream, from, {recv, other, offsets}, 4, workspace, 1);
  EXPECT_EQ(device.trace().items.at(0).record.collective.bytes, 2 * 6 * 2 * width);
}

TEST(MetaGroup, RunsOnMetaStreamsOnly) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("x");
  MetaGroup group("pair:0-1", 2, 1);
  group.barrier(*stream);
  EXPECT_THROW(stream->synchronize(), InternalError);
}

TEST(Workspace, IsBounded) {
  EXPECT_EQ(reduce_scatter_workspace(1000, DType::f32, 1, DeviceKind::cpu), 0);
  EXPECT_EQ(reduce_scatter_workspace(0, DType::f32, 8, DeviceKind::cpu), 0);
  EXPECT_EQ(reduce_scatter_workspace(16, DType::f32, 2, DeviceKind::cpu), 64);
  EXPECT_EQ(reduce_scatter_workspace(std::int64_t{1} << 40, DType::f32, 8, DeviceKind::cpu), 2 * 7 * kReduceChunkBytes);
  EXPECT_EQ(all_reduce_workspace(1, DType::f32, 4, DeviceKind::cpu), 3 * 64);
  EXPECT_LE(all_reduce_workspace(std::int64_t{1} << 40, DType::bf16, 8, DeviceKind::cpu), 2 * 7 * kReduceChunkBytes);
}

TEST(Workspace, OnAGpuTotalBytesAreBounded) {
  for (const int size : {2, 4, 8, 64}) {
    const std::int64_t max = reduce_scatter_workspace(std::int64_t{1} << 40, DType::bf16, size, DeviceKind::cuda);
    EXPECT_LE(max, kCudaReduceBytes);
    EXPECT_GT(max, kCudaReduceBytes * 9 / 10);
    EXPECT_EQ(max, reduce_scatter_workspace(std::int64_t{1} << 40, DType::f32, size, DeviceKind::cuda));
  }
  EXPECT_EQ(reduce_scatter_workspace(16, DType::f32, 2, DeviceKind::cuda), 64);
  EXPECT_EQ(all_reduce_workspace(1, DType::f32, 4, DeviceKind::cuda), 4 * 64);
}

TEST(Group, RejectsInvalidArguments) {
  MetaDevice device;
  MetaGroup group("pair:0-1", 2, 1);
  const auto stream = device.make_stream("x");
  const Storage a(device, DType::f32, {64}), b(device, DType::f32, {128}), h(device, DType::bf16, {128});
  const Storage ids(device, DType::i32, {64}), workspace(device, DType::u8, {1024});
  const TensorView wide = b.view().reshape({4, 32}).columns(0, 16);
  EXPECT_THROW(group.all_gather(*stream, a, h), InternalError);                     // dtype
  EXPECT_THROW(group.all_gather(*stream, b, b), InternalError);                     // size
  EXPECT_THROW(group.all_gather(*stream, wide, b), InternalError);                  // not dense
  EXPECT_THROW(group.all_gather(*stream, b.view().rows(0, 64), b), InternalError);  // another member's part
  EXPECT_NO_THROW(group.all_gather(*stream, b.view().rows(64, 64), b));             // its own part
  EXPECT_NO_THROW(group.reduce_scatter(*stream, b, b.view().rows(64, 64), false, workspace));
  EXPECT_THROW(group.reduce_scatter(*stream, b, b.view().rows(64, 64), true, workspace), InternalError);
  EXPECT_THROW(group.reduce_scatter(*stream, b, a, false, workspace.view().rows(0, 255)), InternalError);
  EXPECT_THROW(group.reduce_scatter(*stream, b, h.view().rows(0, 64), false, workspace), InternalError);
  EXPECT_NO_THROW(group.reduce_scatter(*stream, h, a, true, workspace));
  EXPECT_THROW(group.all_reduce(*stream, ids, Reduction::sum, workspace), InternalError);
  EXPECT_THROW(group.all_to_all(*stream, b, b), InternalError);
  const Storage counts(device, DType::i32, {2}), other(device, DType::i32, {2}), rows(device, DType::f32, {64});
  const TensorView from = a.view().reshape({8, 8}), to = rows.view().reshape({8, 8});
  const auto exchange = [&](const CountedRows& send, const CountedRows& recv) {
    group.all_to_all_v(*stream, send, recv, 8, {});
  };
  EXPECT_NO_THROW(exchange({from, counts, other}, {to, other, counts}));
  EXPECT_NO_THROW(exchange({from, counts, other}, {b.view().reshape({16, 8}), other, counts}));  // more rows arrive
  EXPECT_THROW(exchange({from, counts, other}, {from, other, counts}), InternalError);           // the same rows
  EXPECT_THROW(exchange({from, counts, other}, {to, ids, counts}), InternalError);               // other slots
  EXPECT_THROW(exchange({from, counts, rows}, {to, other, counts}), InternalError);              // offsets in float32
  EXPECT_THROW(exchange({from, counts, other}, {b.view().reshape({32, 4}), other, counts}), InternalError);
  EXPECT_THROW(group.send(*stream, a, 1), InternalError);
  EXPECT_THROW(group.receive(*stream, a, 2), InternalError);
  EXPECT_THROW(group.broadcast(*stream, a, -1), InternalError);
}

TEST(SelfMesh, CopiesWhereNeededAndRecordsNoCollective) {
  const auto mesh = make_self_mesh();
  EXPECT_EQ(mesh->world().size(), 1);
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("x");
  const Storage a(*device, DType::bf16, {5}), b(*device, DType::f32, {5}), c(*device, DType::bf16, {5});
  for (int i = 0; i < 5; ++i) {
    a.view().data<Bf16>()[i] = Bf16(static_cast<float>(i));
    b.view().data<float>()[i] = 100.0f;
  }
  mesh->shard_gather().all_gather(*stream, a, c);
  mesh->shard_reduce().reduce_scatter(*stream, a, b, true, {});
  mesh->data().all_reduce(*stream, b, Reduction::sum, {});
  mesh->world().barrier(*stream);
  stream->synchronize();
  EXPECT_EQ(static_cast<float>(c.view().data<Bf16>()[3]), 3.0f);
  EXPECT_EQ(b.view().data<float>()[3], 103.0f);

  MetaDevice meta;
  const auto meta_stream = meta.make_stream("x");
  const Storage x(meta, DType::f32, {5}), y(meta, DType::f32, {5});
  mesh->shard().all_gather(*meta_stream, x, x);
  mesh->shard().all_gather(*meta_stream, x, y);
  mesh->shard().all_reduce(*meta_stream, x, Reduction::max, {});
  ASSERT_EQ(meta.trace().items.size(), 1u);
  EXPECT_EQ(meta.trace().items[0].record.collective.kind, CollectiveKind::none);
}

TEST(ReduceMembers, AddsInOrderAndRoundsOnce) {
  // 1 + 2^-9 + 2^-9 in bf16 steps of 2^-7: rounding after each addition would lose both.
  const Bf16 one(1.0f), small(0x1p-9f);
  std::vector<Bf16> a(2000, one), b(2000, small), c(2000, Bf16(0x1p-8f)), out(2000);
  const std::byte* members[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data()),
                                reinterpret_cast<std::byte*>(c.data())};
  reduce_members(members, DType::bf16, Reduction::sum, 2000, reinterpret_cast<std::byte*>(out.data()), DType::bf16,
                 false);
  for (const Bf16 x : out) EXPECT_EQ(x.bits, Bf16(1.0f + 0x1p-8f + 0x1p-9f).bits);
}

TEST(ReduceMembers, MaxKeepsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a{1, nan, 3, -1}, b{2, 0, nan, -2}, out(4);
  const std::byte* members[] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  reduce_members(members, DType::f32, Reduction::max, 4, reinterpret_cast<std::byte*>(out.data()), DType::f32, false);
  EXPECT_EQ(out[0], 2.0f);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], -1.0f);
}

}  // namespace comm_test
}  // namespace hawser::comm
