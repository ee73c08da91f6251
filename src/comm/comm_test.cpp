#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "comm/frozen_time.h"
#include "comm/mesh.h"
#include "comm/meta/meta_group.h"
#include "comm/rank_list.h"
#include "comm/reduce.h"
#include "comm/self/self_group.h"

namespace hawser::comm {
namespace {

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

TEST(Mesh, ContextIsInsideShardIsInsideReplicate) {
  const MeshSizes sizes{.context = 2, .shard = 3, .replicate = 2};
  EXPECT_EQ(sizes.world(), 12);
  for (int rank = 0; rank < 12; ++rank) EXPECT_EQ(rank_of(place_of(rank, sizes), sizes), rank);
  EXPECT_EQ(place_of(1, sizes).context, 1);
  EXPECT_EQ(place_of(2, sizes).shard, 1);
  EXPECT_EQ(place_of(6, sizes).replicate, 1);
}

TEST(MeshSizes, FollowTheHybridDegree) {
  const MeshSizes all = mesh_sizes(8, 0, 2);
  EXPECT_EQ(all.context, 2);
  EXPECT_EQ(all.shard, 4);
  EXPECT_EQ(all.replicate, 1);
  EXPECT_EQ(all.shard_ranks(), 8);
  EXPECT_EQ(all.replicas(), 1);
  const MeshSizes none = mesh_sizes(8, 1, 2);
  EXPECT_EQ(none.world(), 8);
  EXPECT_EQ(none.shard_ranks(), 1);
  EXPECT_EQ(none.replicas(), 8);
  const MeshSizes four = mesh_sizes(8, 4, 2);
  EXPECT_EQ(four.shard, 2);
  EXPECT_EQ(four.replicate, 2);
  EXPECT_EQ(four.shard_ranks(), 4);
  EXPECT_TRUE(mesh_sizes(4, 1, 1).shard_context);
  EXPECT_THROW(mesh_sizes(8, 3, 1), InternalError);
  EXPECT_THROW(mesh_sizes(8, 2, 4), InternalError);
  EXPECT_THROW(mesh_sizes(6, 0, 4), InternalError);
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

TEST(MetaMesh, GroupsOfOneRank) {
  const auto mesh = make_meta_mesh({.context = 2, .shard = 2, .replicate = 2}, Rank(5));
  EXPECT_EQ(mesh->context().name(), "context:4-5");
  EXPECT_EQ(mesh->context().index(), 1);
  EXPECT_EQ(mesh->shard().name(), "shard:4-7");
  EXPECT_EQ(mesh->shard_gather().name(), "shard:4-7/gather");
  EXPECT_EQ(mesh->shard_reduce().name(), "shard:4-7/reduce");
  EXPECT_EQ(mesh->shard_reduce().index(), 1);
  EXPECT_EQ(mesh->replicate().name(), "replicate:1-5:4");
  EXPECT_EQ(mesh->replicate().index(), 1);
  EXPECT_EQ(mesh->data().name(), "data:0-7");
  EXPECT_EQ(mesh->data().index(), 5);
  EXPECT_EQ(mesh->world().size(), 8);
}

TEST(MetaMesh, WithoutShardingReplicasSpanTheContext) {
  const auto mesh = make_meta_mesh(mesh_sizes(8, 1, 2), Rank(5));
  EXPECT_EQ(mesh->context().name(), "context:4-5");
  EXPECT_EQ(mesh->shard().size(), 1);
  EXPECT_EQ(mesh->replicate().name(), "replicate:0-7");
  EXPECT_EQ(mesh->replicate().index(), 5);
}

TEST(MetaMesh, ContextIsRingTimesHeads) {
  const MeshSizes sizes{.tensor = 2, .context = 8, .shard = 2, .context_heads = 2};
  const auto mesh = make_meta_mesh(sizes, Rank(27));  // tensor 1, context 5, shard 1
  EXPECT_EQ(mesh->context().name(), "context:17-31:2");
  EXPECT_EQ(mesh->context_heads().name(), "context_heads:25-27:2");
  EXPECT_EQ(mesh->context_heads().index(), 1);
  EXPECT_EQ(mesh->context_ring().name(), "context_ring:19-31:4");
  EXPECT_EQ(mesh->context_ring().index(), 2);
  const auto ring = make_meta_mesh({.context = 4}, Rank(3));
  EXPECT_EQ(ring->context_heads().size(), 1);
  EXPECT_EQ(&ring->context_ring(), &ring->context());
  const auto heads = make_meta_mesh({.context = 4, .context_heads = 4}, Rank(3));
  EXPECT_EQ(heads->context_heads().name(), "context_heads:0-3");
  EXPECT_EQ(heads->context_ring().size(), 1);
  EXPECT_THROW(make_meta_mesh({.context = 4, .context_heads = 3}, Rank(0)), InternalError);
}

// Experts are folded from shard x context. Tensor ranks have the same experts.
TEST(MetaMesh, ExpertsAreOverConsecutiveShards) {
  const MeshSizes sizes{.tensor = 2, .context = 2, .shard = 4, .replicate = 2, .expert = 4};
  EXPECT_EQ(sizes.world(), 32);
  EXPECT_EQ(sizes.shard_ranks(Domain::sliced), 8);
  EXPECT_EQ(sizes.shard_ranks(Domain::replicated), 16);
  EXPECT_EQ(sizes.shard_ranks(Domain::expert), 4);
  const auto mesh = make_meta_mesh(sizes, Rank(27));  // tensor 1, context 1, shard 2, replicate 1
  EXPECT_EQ(expert_part(mesh->place(), sizes), 1);
  EXPECT_EQ(mesh->expert().name(), "expert:25-31:2");
  EXPECT_EQ(mesh->expert().index(), 1);
  EXPECT_EQ(mesh->shard(Domain::expert).name(), "expert_shard:18-19,26-27");
  EXPECT_EQ(mesh->shard(Domain::expert).index(), 3);
  EXPECT_EQ(mesh->shard_gather(Domain::expert).name(), "expert_shard:18-19,26-27/gather");
  EXPECT_EQ(mesh->shard_reduce(Domain::expert).name(), "expert_shard:18-19,26-27/reduce");
  EXPECT_EQ(mesh->shard(Domain::replicated).name(), "tensor_shard:16-31");
  EXPECT_EQ(mesh->shard(Domain::sliced).name(), "shard:17-31:2");
  const auto all = make_meta_mesh({.context = 2, .shard = 2, .expert = 4}, Rank(2));
  EXPECT_EQ(all->expert().name(), "expert:0-3");
  EXPECT_EQ(all->shard(Domain::expert).size(), 1);
  const auto none = make_meta_mesh({.tensor = 2, .shard = 2}, Rank(2));
  EXPECT_EQ(none->expert().size(), 1);
  EXPECT_EQ(none->shard(Domain::expert).name(), none->shard(Domain::replicated).name());
  EXPECT_THROW(make_meta_mesh({.shard = 3, .expert = 2}, Rank(0)), InternalError);
  EXPECT_THROW(make_meta_mesh({.context = 2, .shard_context = false, .expert = 2}, Rank(0)), InternalError);
}

// Experts over tensor ranks, too, and nodes of consecutive ones.
TEST(MetaMesh, ExpertsAreOverTensorRanksAndNodes) {
  const MeshSizes sizes{
      .tensor = 2, .shard = 8, .replicate = 2, .expert = 8, .expert_over_tensor = true, .expert_node = 4};
  EXPECT_EQ(sizes.shard_ranks(Domain::expert), 2);
  const auto mesh = make_meta_mesh(sizes, Rank(29));  // tensor 1, shard 6, replicate 1
  EXPECT_EQ(expert_part(mesh->place(), sizes), 5);
  EXPECT_EQ(mesh->expert().name(), "expert:24-31");
  EXPECT_EQ(mesh->expert().index(), 5);
  EXPECT_EQ(mesh->expert_node().name(), "expert_node:28-31");
  EXPECT_EQ(mesh->expert_node().index(), 1);
  EXPECT_EQ(mesh->expert_nodes().name(), "expert_nodes:25-29:4");
  EXPECT_EQ(mesh->expert_nodes().index(), 1);
  EXPECT_EQ(mesh->shard(Domain::expert).name(), "expert_shard:21-29:8");
  const auto apart = make_meta_mesh({.tensor = 2, .shard = 4, .expert = 4, .expert_node = 2}, Rank(5));
  EXPECT_EQ(apart->expert_node().name(), "expert_node:5-7:2");
  EXPECT_EQ(apart->expert_nodes().name(), "expert_nodes:1-5:4");
  const auto one = make_meta_mesh({.shard = 4, .expert = 4}, Rank(1));
  EXPECT_EQ(one->expert_node().size(), 1);
  EXPECT_EQ(one->expert_nodes().name(), "expert:0-3");
  EXPECT_THROW(make_meta_mesh({.shard = 4, .expert = 4, .expert_node = 3}, Rank(0)), InternalError);
  EXPECT_THROW(make_meta_mesh({.tensor = 4, .shard = 2, .expert = 2, .expert_over_tensor = true}, Rank(0)),
               InternalError);
}

// The ranks that have each element of a domain's parameters once.
TEST(MetaMesh, AModelsParametersAreOverItsStages) {
  const MeshSizes sizes{.shard = 4, .replicate = 2, .pipeline = 2, .expert = 2};
  const auto mesh = make_meta_mesh(sizes, Rank(13));  // shard 1, replicate 1, stage 1
  EXPECT_EQ(mesh->model().name(), "model:4-7,12-15");
  EXPECT_EQ(mesh->model(Domain::replicated).name(), "model:4-7,12-15");
  EXPECT_EQ(mesh->model(Domain::expert).name(), "expert_model:5-7:2,13-15:2");
  const auto stage = make_meta_mesh({.shard = 4, .expert = 2}, Rank(1));
  EXPECT_EQ(stage->model(Domain::expert).name(), stage->shard(Domain::expert).name());
  const auto dense = make_meta_mesh({.shard = 2, .pipeline = 2}, Rank(1));
  EXPECT_EQ(dense->model(Domain::expert).name(), dense->model().name());
}

// Four tensor ranks with two key-value heads: ranks 0 and 1 have the first, 2 and 3 the second.
TEST(MetaMesh, CopiesOfKeyValueHeadsAreShardedTogether) {
  const MeshSizes sizes{.tensor = 4, .shard = 2, .replicate = 2, .kv_copies = 2};
  EXPECT_EQ(sizes.shard_ranks(Domain::kv_copies), 4);
  const auto mesh = make_meta_mesh(sizes, Rank(11));  // tensor 3, shard 0, replicate 1
  EXPECT_EQ(mesh->shard(Domain::kv_copies).name(), "kv_shard:10-11,14-15");
  EXPECT_EQ(mesh->shard(Domain::kv_copies).index(), 1);
  EXPECT_EQ(mesh->shard_gather(Domain::kv_copies).name(), "kv_shard:10-11,14-15/gather");
  EXPECT_EQ(mesh->shard_reduce(Domain::kv_copies).name(), "kv_shard:10-11,14-15/reduce");
  const auto none = make_meta_mesh({.tensor = 2, .shard = 2}, Rank(2));
  EXPECT_EQ(none->shard(Domain::kv_copies).name(), none->shard(Domain::sliced).name());
  EXPECT_THROW(make_meta_mesh({.tensor = 3, .kv_copies = 2}, Rank(0)), InternalError);
}

TEST(MetaMesh, HoldsAThousandRanks) {
  const auto mesh = make_meta_mesh({.tensor = 2, .context = 8, .shard = 8, .replicate = 4, .pipeline = 2}, Rank(777));
  EXPECT_EQ(mesh->data().size(), 256);
  EXPECT_EQ(mesh->data().name(), "data:513-1023:2");
  EXPECT_EQ(mesh->shard().size() * mesh->replicate().size(), mesh->data().size());
}

TEST(MetaMesh, GroupsOverStages) {
  const MeshSizes sizes{.tensor = 2, .shard = 2, .pipeline = 4, .tied = {{0, 3}}};
  const auto mesh = make_meta_mesh(sizes, Rank(13));  // tensor 1, shard 0, stage 3
  EXPECT_EQ(mesh->model().name(), "model:0-15");
  EXPECT_EQ(mesh->loss().name(), "loss:1-15:2");
  EXPECT_EQ(mesh->data().name(), "data:13-15:2");
  EXPECT_EQ(mesh->lane(2, Direction::forward).name(), "pipeline:9-13:4/forward2");
  EXPECT_EQ(mesh->lane(2, Direction::backward).name(), "pipeline:9-13:4/backward2");
  EXPECT_EQ(mesh->lane(2, Direction::backward).index(), 1);
  EXPECT_THROW(mesh->lane(1, Direction::forward), InternalError);
  EXPECT_THROW(mesh->lane(3, Direction::forward), InternalError) << "only with virtual stages";
  EXPECT_EQ(mesh->tied(0).name(), "tied:1-13:12/0");
  EXPECT_THROW(make_meta_mesh(sizes, Rank(5))->tied(0), InternalError);
  MeshSizes ring = sizes;
  ring.interleaved = true;
  EXPECT_EQ(make_meta_mesh(ring, Rank(13))->lane(3, Direction::forward).name(), "pipeline:1-13:12/forward3");
}

TEST(MetaMesh, RejectsTiedStagesThatItHasNot) {
  EXPECT_THROW(make_meta_mesh({.pipeline = 2, .tied = {{0, 2}}}, Rank(0)), InternalError);
  EXPECT_THROW(make_meta_mesh({.pipeline = 2, .tied = {{1, 0}}}, Rank(0)), InternalError);
  EXPECT_THROW(make_meta_mesh({.pipeline = 2, .tied = {{1}}}, Rank(0)), InternalError);
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

}  // namespace
}  // namespace hawser::comm
