// Control operations, meshes, large buffers, many concurrent collectives, repeatability, and latency.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>
#include <vector>

#include "base/philox.h"
#include "ranks.h"

namespace hawser::comm {
namespace traffic_test {

using ranks::value;
using ranks::world;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TEST(WorldControl, StringsAnyAndBroadcast) {
  const int me = world().rank().value();
  const auto all = world().all_gather_strings(std::string(static_cast<std::size_t>(me) * 1000, 'a') + cat(me));
  ASSERT_EQ(static_cast<int>(all.size()), world().size());
  for (int r = 0; r < world().size(); ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)], std::string(static_cast<std::size_t>(r) * 1000, 'a') + cat(r));
  }
  const auto empty = world().all_gather_strings("");
  EXPECT_EQ(empty, std::vector<std::string>(static_cast<std::size_t>(world().size())));
  EXPECT_FALSE(world().any(false));
  EXPECT_TRUE(world().any(me == world().size() - 1));
  for (int root = 0; root < world().size(); ++root) {
    EXPECT_EQ(world().broadcast_bytes(me == root ? cat("from ", root) : "mine", Rank(root)), cat("from ", root));
  }
  EXPECT_EQ(world().any_of(std::uint64_t{1} << me), (std::uint64_t{1} << world().size()) - 1);
  world().barrier();
}

// A thread uses its own channel while the host uses the run's; neither affects the other.
TEST(WorldControl, ChannelsAreIndependent) {
  const int me = world().rank().value();
  const auto channel = world().open_channel("test");
  EXPECT_EQ(channel->size(), world().size());
  std::thread other([&] {
    for (int round = 0; round < 50; ++round) {
      const auto all = channel->all_gather_strings(cat("thread ", round, " of ", me));
      for (int r = 0; r < world().size(); ++r) {
        EXPECT_EQ(all[static_cast<std::size_t>(r)], cat("thread ", round, " of ", r));
      }
    }
  });
  // Delays make the hosts and the threads of the ranks reach their operations in different orders.
  for (int round = 0; round < 20; ++round) {
    if (me == round % world().size()) std::this_thread::sleep_for(std::chrono::microseconds(300));
    EXPECT_EQ(world().broadcast_bytes(cat("host ", round)), cat("host ", round));
    EXPECT_FALSE(world().any(false));
  }
  other.join();
  world().barrier();
}

// Sums each rank's number over the groups of a mesh, whose names equal those of the meta mesh.
class GroupsOf {
 public:
  explicit GroupsOf(const comm::MeshSizes& sizes)
      : mesh_(make_mpi_mesh(world(), sizes, 60.0)), meta_(make_meta_mesh(sizes, world().rank())) {}

  Mesh& mesh() { return *mesh_; }
  template <class Of>
  void expect(const Of& of) {
    Group &group = of(*mesh_), &twin = of(*meta_);
    expect(group.name(), &group);
    EXPECT_EQ(group.name(), twin.name());
    EXPECT_EQ(group.size(), twin.size());
    EXPECT_EQ(group.index(), twin.index());
  }
  // Of a group that only some ranks have. All ranks call it; a rank outside gives no group.
  void expect(const std::string& name, Group* group) {
    const std::vector<std::string> names = world().all_gather_strings(name);
    if (group == nullptr) return;
    float expected = 0;
    for (int r = 0; r < world().size(); ++r) {
      if (names[static_cast<std::size_t>(r)] == name) expected += static_cast<float>(1 << r);
    }
    number_.view().data<float>()[0] = static_cast<float>(1 << world().rank().value());
    group->all_reduce(*stream_, number_, Reduction::sum, scratch_);
    stream_->synchronize();
    EXPECT_EQ(number_.view().data<float>()[0], expected) << name;
  }

 private:
  std::unique_ptr<Mesh> mesh_, meta_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream("test");
  Storage number_{*device_, DType::f32, {1}}, scratch_{*device_, DType::u8, {4096}};
};

TEST(MpiMesh, EveryGroupOfEveryMesh) {
  for (int context = 1; context <= world().size(); ++context) {
    for (int degree = 0; degree <= world().size(); ++degree) {
      if (world().size() % context != 0) continue;
      if (degree > 1 && (degree % context != 0 || world().size() % degree != 0)) continue;
      const comm::MeshSizes sizes = mesh_sizes(world().size(), degree, context);
      GroupsOf groups(sizes);
      groups.expect([](Mesh& mesh) -> Group& { return mesh.context(); });
      groups.expect([](Mesh& mesh) -> Group& { return mesh.shard(); });
      groups.expect([](Mesh& mesh) -> Group& { return mesh.shard_gather(); });
      groups.expect([](Mesh& mesh) -> Group& { return mesh.shard_reduce(); });
      groups.expect([](Mesh& mesh) -> Group& { return mesh.replicate(); });
      groups.expect([](Mesh& mesh) -> Group& { return mesh.data(); });
      groups.expect([](Mesh& mesh) -> Group& { return mesh.world(); });
      Mesh& mesh = groups.mesh();
      EXPECT_EQ(mesh.shard().size() * mesh.replicate().size(), mesh.data().size());
      EXPECT_EQ(mesh.shard().size(), sizes.shard_ranks());
      EXPECT_EQ(&mesh.loss(), &mesh.data());
      EXPECT_EQ(&mesh.model(), &mesh.shard());
    }
  }
}

// Groups that only some ranks have are created between groups that all have: ranks that disagreed on what identifies a
// group would wait for one another, or sum numbers of another group.
TEST(MpiMesh, GroupsOfStages) {
  const int ranks = world().size();
  for (int stages = 1; stages <= ranks; ++stages) {
    if (ranks % stages != 0) continue;
    for (const bool interleaved : {false, true}) {
      const int others = ranks / stages;
      comm::MeshSizes sizes{.tensor = others % 2 == 0 ? 2 : 1, .pipeline = stages, .interleaved = interleaved};
      sizes.shard = others / sizes.tensor;
      if (stages > 1) sizes.tied = {{0, stages - 1}};
      if (stages > 2) sizes.tied.push_back({1, 2});
      GroupsOf groups(sizes);
      Mesh& mesh = groups.mesh();
      const int stage = mesh.coordinate().pipeline;
      for (int edge = 0; edge < sizes.edges(); ++edge) {
        const int next = (edge + 1) % stages;
        for (const Direction direction : {Direction::forward, Direction::backward}) {
          const bool at = stage == edge || stage == next;
          Group* const lane = at ? &mesh.lane(edge, direction) : nullptr;
          groups.expect(at ? lane->name() : "", lane);
          if (!at) {
            EXPECT_THROW(mesh.lane(edge, direction), InternalError);
            continue;
          }
          EXPECT_EQ(lane->size(), 2);
          EXPECT_EQ(lane->index(), stage == std::max(edge, next) ? 1 : 0);
        }
      }
      for (std::size_t i = 0; i < sizes.tied.size(); ++i) {
        const bool holds = std::ranges::find(sizes.tied[i], stage) != sizes.tied[i].end();
        Group* const tied = holds ? &mesh.tied(static_cast<int>(i)) : nullptr;
        groups.expect(holds ? tied->name() : "", tied);
      }
      groups.expect([](Mesh& m) -> Group& { return m.shard(); });
      groups.expect([](Mesh& m) -> Group& { return m.loss(); });
      groups.expect([](Mesh& m) -> Group& { return m.model(); });
      groups.expect([](Mesh& m) -> Group& { return m.world(); });
      EXPECT_EQ(mesh.loss().size(), sizes.shard * stages);
      EXPECT_EQ(mesh.model().size(), ranks);
    }
  }
}

TEST(MpiMesh, RanksMustAgree) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks or more";
  comm::MeshSizes sizes{.replicate = world().size()};
  if (world().rank().value() == 1) sizes = {.shard = world().size()};
  EXPECT_THROW(make_mpi_mesh(world(), sizes, 60.0), InternalError);
  EXPECT_THROW(make_mpi_mesh(world(), {}, 60.0), InternalError);
}

TEST(Traffic, LargeBuffers) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("test");
  const auto mesh = make_mpi_mesh(world(), {.shard = world().size()}, 60.0);
  const int size = world().size();
  const std::int64_t full = (std::int64_t{64} << 20) / 4 / size * size, n = full / size;
  const Storage a(*device, DType::f32, {full}), shard(*device, DType::f32, {n});
  const Storage scratch(*device, DType::u8,
                        {std::max<std::int64_t>(1, reduce_scatter_workspace(n, DType::f32, size, DeviceKind::cpu))});
  for (std::int64_t k = 0; k < full; ++k)
    a.view().data<float>()[k] = static_cast<float>((k % 1000) + mesh->rank().value());
  mesh->shard_reduce().reduce_scatter(*stream, a, shard, false, scratch);
  mesh->shard_gather().all_gather(*stream, shard, a);
  stream->synchronize();
  std::int64_t wrong = 0;
  for (std::int64_t k = 0; k < full; ++k) {
    wrong += a.view().data<float>()[k] != static_cast<float>(size * (k % 1000) + size * (size - 1) / 2);
  }
  EXPECT_EQ(wrong, 0);
}

// The communication of a sharded step: several streams, each with its own group, events between them, every stream with
// random delays that differ between ranks. Returns all results.
std::vector<float> storm(double delay, std::uint64_t seed) {
  const auto device = make_cpu_device({.random_delay_s = delay, .delay_seed = seed});
  const auto compute = device->make_stream("compute");
  const auto gather = device->make_stream("gather");
  const auto reduce = device->make_stream("reduce");
  const auto exchange = device->make_stream("exchange");
  const int context = world().size() % 2 == 0 ? 2 : 1;
  const auto mesh = make_mpi_mesh(world(), mesh_sizes(world().size(), 0, context), 60.0);
  const int size = world().size(), me = world().rank().value();
  constexpr int kRounds = 30;
  constexpr std::int64_t kPart = 1237;
  const Storage piece(*device, DType::f32, {kPart}), full(*device, DType::f32, {kPart * size});
  const Storage gradient(*device, DType::bf16, {kPart * size}), shard(*device, DType::f32, {kPart});
  const Storage keys(*device, DType::f32, {kPart}), all_keys(*device, DType::f32, {kPart * context});
  const Storage norm(*device, DType::f32, {3});
  const Storage reduce_scratch(*device, DType::u8, {1 << 20}), norm_scratch(*device, DType::u8, {4096});
  for (std::int64_t k = 0; k < kPart; ++k) piece.view().data<float>()[k] = value(1, me, k);

  for (int round = 0; round < kRounds; ++round) {
    mesh->shard_gather().all_gather(*gather, piece, full);
    const Event gathered = gather->record_event();
    compute->wait(gathered);
    compute->launch({.name = "use", .kind = OpKind::host}, [&, round] {
      for (std::int64_t k = 0; k < kPart * size; ++k) {
        gradient.view().data<Bf16>()[k] = Bf16(full.view().data<float>()[k] * 0.5f + value(2, me, k + round));
      }
      for (std::int64_t k = 0; k < kPart; ++k)
        keys.view().data<float>()[k] = full.view().data<float>()[k] + static_cast<float>(me);
    });
    const Event used = compute->record_event();
    reduce->wait(used);
    mesh->shard_reduce().reduce_scatter(*reduce, gradient, shard, round > 0, reduce_scratch);
    exchange->wait(used);
    mesh->context().all_gather(*exchange, keys, all_keys);
    reduce->launch({.name = "norm", .kind = OpKind::host},
                   [&] { std::memcpy(norm.view().raw(), shard.view().raw(), 12); });
    mesh->data().all_reduce(*reduce, norm, Reduction::sum, norm_scratch);
    reduce->wait(exchange->record_event());
    reduce->launch({.name = "update", .kind = OpKind::host}, [&] {
      for (std::int64_t k = 0; k < kPart; ++k) {
        piece.view().data<float>()[k] += 1e-3f * (shard.view().data<float>()[k] + norm.view().data<float>()[k % 3] +
                                                  all_keys.view().data<float>()[k % (kPart * context)]);
      }
    });
    const Event updated = reduce->record_event();
    gather->wait(updated);
    compute->wait(updated);
  }
  compute->synchronize();
  gather->synchronize();
  exchange->synchronize();
  reduce->synchronize();
  const float* out = piece.view().data<float>();
  return {out, out + kPart};
}

TEST(Traffic, ResultsAreBitwiseEqualUnderRandomDelays) {
  const auto reference = storm(0, 1);
  const auto me = static_cast<std::uint64_t>(world().rank().value());
  for (const std::uint64_t seed : {100 + me, 200 + me, 300 + me}) {
    const auto again = storm(0.0005, seed);
    EXPECT_EQ(std::memcmp(again.data(), reference.data(), reference.size() * sizeof(float)), 0);
  }
}

// Two streams use one group concurrently: operations are matched by the host's order, not by the streams' timing.
TEST(Traffic, OneGroupOnTwoStreams) {
  const auto device =
      make_cpu_device({.random_delay_s = 0.001, .delay_seed = static_cast<std::uint64_t>(world().rank().value()) + 7});
  const auto a = device->make_stream("a");
  const auto b = device->make_stream("b");
  const auto mesh = make_mpi_mesh(world(), {.replicate = world().size()}, 60.0);
  const Storage scratch(*device, DType::u8, {2, 4096});
  constexpr int kCount = 40;
  const Storage numbers(*device, DType::f32, {kCount, 16});
  for (int i = 0; i < kCount; ++i) {
    const TensorView row = numbers.view().rows(i, 1);
    for (int k = 0; k < 16; ++k) row.data<float>()[k] = static_cast<float>(i);
    mesh->data().all_reduce(i % 2 == 0 ? *a : *b, row, Reduction::sum, scratch.view().rows(i % 2, 1));
  }
  a->synchronize();
  b->synchronize();
  for (int i = 0; i < kCount; ++i) {
    EXPECT_EQ(numbers.view().rows(i, 1).data<float>()[5], static_cast<float>(i * world().size()));
  }
}

TEST(Traffic, Latency) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("test");
  const auto mesh = make_mpi_mesh(world(), {.shard = world().size()}, 60.0);
  const int size = world().size();
  for (const std::int64_t bytes : {std::int64_t{1} << 10, std::int64_t{1} << 20, std::int64_t{64} << 20}) {
    const std::int64_t n = bytes / 4 / size, repeats = bytes > (1 << 20) ? 3 : bytes > 1024 ? 30 : 300;
    const Storage full(*device, DType::f32, {n * size}), part(*device, DType::f32, {n});
    const Storage scratch(
        *device, DType::u8,
        {std::max<std::int64_t>(1, all_reduce_workspace(n * size, DType::f32, size, DeviceKind::cpu) +
                                       reduce_scatter_workspace(n, DType::f32, size, DeviceKind::cpu))});
    const auto time = [&](const auto& enqueue) {
      enqueue();
      stream->synchronize();
      world().barrier();
      const auto start = Clock::now();
      for (std::int64_t i = 0; i < repeats; ++i) enqueue();
      stream->synchronize();
      return since(start) / static_cast<double>(repeats) * 1e3;
    };
    const double gather = time([&] { mesh->shard().all_gather(*stream, part, full); });
    const double reduce = time([&] { mesh->shard().reduce_scatter(*stream, full, part, true, scratch); });
    const double all = time([&] { mesh->shard().all_reduce(*stream, full, Reduction::sum, scratch); });
    if (world().rank().value() == 0) {
      std::cout << cat(size, " ranks, ", bytes, " bytes in all: all_gather ", gather, " ms, reduce_scatter ", reduce,
                       " ms, all_reduce ", all, " ms\n");
    }
  }
  const auto start = Clock::now();
  for (int i = 0; i < 100; ++i) world().barrier();
  if (world().rank().value() == 0) std::cout << cat(size, " ranks: control barrier ", since(start) * 10, " ms\n");
}

}  // namespace traffic_test
}  // namespace hawser::comm
