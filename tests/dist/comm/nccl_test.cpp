// Tests specific to comm/nccl: sums bitwise equal to the CPU's, in many chunks and with concurrent traffic; every group
// of a mesh; registered memory; barriers.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "ranks.h"

namespace hawser::comm {
namespace nccl_test {

using ranks::device;
using ranks::flat_mesh;
using ranks::value;
using ranks::world;
using Bytes = std::vector<std::byte>;

int size() {
  return world().size();
}
int me() {
  return world().rank().value();
}

void put(const TensorView& to, std::int64_t k, float x) {
  if (to.dtype() == DType::f32) {
    to.data<float>()[k] = x;
  } else {
    to.data<Bf16>()[k] = Bf16(x);
  }
}

// A buffer on `on`, filled from the host.
Storage filled(Device& on, DType dtype, std::int64_t n, std::uint64_t site) {
  const auto host = make_cpu_device();
  const Storage values(*host, dtype, {n});
  for (std::int64_t k = 0; k < n; ++k) put(values, k, value(site, me(), k));
  Storage out(on, dtype, {n});
  const auto stream = on.make_stream("fill");
  transfer(*stream, out.view().raw(), values.view().raw(), values.view().bytes());
  stream->synchronize();
  return out;
}

Bytes bytes_of(Device& on, const TensorView& view) {
  Bytes out(static_cast<std::size_t>(view.bytes()));
  const auto stream = on.make_stream("fetch");
  transfer(*stream, out.data(), view.raw(), view.bytes());
  stream->synchronize();
  return out;
}

Storage scratch(Device& on, std::int64_t bytes) {
  return Storage(on, DType::u8, {std::max<std::int64_t>(bytes, 1)});
}

// reduce_scatter, twice into one buffer, and all_reduce of equal numbers, on any device.
std::vector<Bytes> sums(Device& on, Group& group, DType reduce_dtype, DType out, std::int64_t n) {
  const auto stream = on.make_stream("sums");
  const Storage send = filled(on, reduce_dtype, n * size(), 1), data = filled(on, reduce_dtype, n * size() - 1, 2);
  const Storage part = filled(on, out, n, 3);
  const Storage a = scratch(on, reduce_scatter_workspace(n, reduce_dtype, size(), on.kind()));
  const Storage b = scratch(on, all_reduce_workspace(n * size() - 1, reduce_dtype, size(), on.kind()));
  group.reduce_scatter(*stream, send, part, /*accumulate=*/false, a);
  group.reduce_scatter(*stream, send, part, /*accumulate=*/true, a);
  group.all_reduce(*stream, data, Reduction::sum, b);
  stream->synchronize();
  return {bytes_of(on, part), bytes_of(on, data)};
}

TEST(Nccl, SumsEqualTheCpusBitwise) {
  const auto cpu = make_cpu_device();
  const auto over_mpi = make_mpi_mesh(world(), {.replicate = size()}, 60.0);
  // Odd sizes, so that the members' parts are not aligned; the last is one float32 more than fits the slots at once.
  const std::int64_t many = kCudaReduceBytes / std::max(size() - 1, 1) / 4 + 1;
  for (const std::int64_t n : {std::int64_t{4099}, (std::int64_t{1} << 20) + 5, many}) {
    for (const auto& [reduce_dtype, out] :
         {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}}) {
      if (n == many && reduce_dtype == DType::bf16) continue;  // slow on the CPU
      const auto expected = sums(*cpu, over_mpi->data(), reduce_dtype, out, n);
      const auto first = sums(device(), flat_mesh().data(), reduce_dtype, out, n);
      EXPECT_TRUE(first == expected) << n << ' ' << to_string(reduce_dtype) << " into " << to_string(out);
      if (n < many) {
        EXPECT_TRUE(sums(device(), flat_mesh().data(), reduce_dtype, out, n) == first) << "again, " << n;
      }
    }
  }
}

// Sums each rank's number over each group of several meshes; names equal those of the meta mesh.
TEST(Nccl, EveryGroupOfAMesh) {
  const auto stream = device().make_stream("test");
  const Storage number(device(), DType::f32, {1}), space(device(), DType::u8, {4096});
  std::vector<comm::MeshSizes> all{mesh_sizes(size(), 0, 1), mesh_sizes(size(), 1, 1)};
  if (size() % 2 == 0) all.insert(all.end(), {mesh_sizes(size(), 0, 2), mesh_sizes(size(), 2, 1)});
  for (const comm::MeshSizes& sizes : all) {
    const auto mesh = make_nccl_mesh(world(), sizes, 60.0, device());
    const auto meta = make_meta_mesh(sizes, world().rank());
    const auto expect_group = [&](Group& group, Group& twin) {
      EXPECT_EQ(group.name(), twin.name());
      EXPECT_EQ(group.index(), twin.index());
      const std::vector<std::string> members = world().all_gather_strings(group.name());
      float expected = 0, mine = static_cast<float>(1 << me()), got = 0;
      for (int r = 0; r < size(); ++r) {
        if (members[static_cast<std::size_t>(r)] == group.name()) expected += static_cast<float>(1 << r);
      }
      transfer(*stream, number.view().raw(), &mine, 4);
      group.all_reduce(*stream, number, Reduction::sum, space);
      group.barrier(*stream);
      transfer(*stream, &got, number.view().raw(), 4);
      stream->synchronize();
      EXPECT_EQ(got, expected) << group.name();
    };
    expect_group(mesh->context(), meta->context());
    expect_group(mesh->shard(), meta->shard());
    expect_group(mesh->shard_gather(), meta->shard_gather());
    expect_group(mesh->shard_reduce(), meta->shard_reduce());
    expect_group(mesh->replicate(), meta->replicate());
    expect_group(mesh->data(), meta->data());
    expect_group(mesh->world(), meta->world());
  }
}

// The communication of a sharded step on `on`: gathers, reductions and exchanges on separate streams, in rounds that
// use each other's results. Only collectives and copies, so that the CPU computes the same bits.
Bytes storm(Device& on, Mesh& mesh) {
  const auto gather = on.make_stream("gather"), reduce = on.make_stream("reduce"),
             exchange = on.make_stream("exchange");
  constexpr std::int64_t kPart = 100003;
  const Storage piece = filled(on, DType::f32, kPart, 1), full(on, DType::f32, {kPart * size()});
  const Storage shard = filled(on, DType::f32, kPart, 2), swapped(on, DType::f32, {kPart * size()});
  const Storage space = scratch(on, reduce_scatter_workspace(kPart, DType::f32, size(), on.kind()));
  const Storage small = scratch(on, all_reduce_workspace(3, DType::f32, size(), on.kind()));
  for (int round = 0; round < 20; ++round) {
    mesh.shard_gather().all_gather(*gather, piece, full);
    const Event gathered = gather->record_event();
    exchange->wait(gathered);
    mesh.shard().all_to_all(*exchange, full, swapped);
    reduce->wait(gathered);
    mesh.shard_reduce().reduce_scatter(*reduce, full, shard, round % 3 != 0, space);
    mesh.data().all_reduce(*reduce, shard.view().rows(round, 3), Reduction::sum, small);
    reduce->wait(exchange->record_event());
    transfer(*reduce, piece.view().raw(), round % 2 == 0 ? shard.view().raw() : swapped.view().raw(), kPart * 4);
    const Event updated = reduce->record_event();
    gather->wait(updated);
    exchange->wait(updated);
  }
  for (Stream* stream : {gather.get(), reduce.get(), exchange.get()}) stream->synchronize();
  return bytes_of(on, piece);
}

TEST(Nccl, TrafficOnManyStreamsEqualsTheCpusBitwise) {
  const auto cpu = make_cpu_device();
  const auto over_mpi = make_mpi_mesh(world(), {.shard = size()}, 60.0);
  const auto over_nccl = make_nccl_mesh(world(), {.shard = size()}, 60.0, device());
  const Bytes expected = storm(*cpu, *over_mpi);
  for (int again = 0; again < 3; ++again) EXPECT_TRUE(storm(device(), *over_nccl) == expected);
}

TEST(Nccl, GathersWithinRegisteredMemory) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks or more";
  constexpr std::int64_t kBytes = std::int64_t{64} << 20, kPart = 1 << 20;
  const auto mesh = make_nccl_mesh(world(), {.shard = size()}, 60.0, device());
  const auto stream = device().make_stream("gather");
  const Arena arena(device(), kBytes), small(device(), 1 << 20);
  const std::string note = mesh->register_memory(arena.data(), kBytes);
  if (me() == 0) std::cout << "registered memory: " << (note.empty() ? "by copy engines" : note) << '\n';
  EXPECT_EQ(world().all_gather_strings(note), std::vector<std::string>(static_cast<std::size_t>(size()), note));
  const std::string rejected = mesh->register_memory(small.data(), small.bytes());
  EXPECT_NE(rejected.find("cannot be shared between processes"), std::string::npos) << rejected;

  const Storage source = filled(device(), DType::f32, kPart, 4);
  const TensorView send(arena.data(), DType::f32, {kPart}, DeviceKind::cuda);
  const TensorView full(arena.data() + kPart * 4, DType::f32, {kPart * size()}, DeviceKind::cuda);
  const TensorView in_place = full.rows(me() * kPart, kPart);
  for (const TensorView& from : {send, in_place}) {
    transfer(*stream, from.raw(), source.view().raw(), from.bytes());
    mesh->shard_gather().all_gather(*stream, from, full);
    stream->synchronize();
    const Bytes got = bytes_of(device(), full);
    std::int64_t wrong = 0;
    for (std::int64_t k = 0; k < kPart * size(); ++k) {
      float x = 0;
      std::memcpy(&x, got.data() + k * 4, 4);
      wrong += x != value(4, static_cast<int>(k / kPart), k % kPart);
    }
    EXPECT_EQ(wrong, 0);
  }
  mesh->unregister_memory(arena.data());
  mesh->shard_gather().all_gather(*stream, send, full);  // works as before
  stream->synchronize();
}

// Consecutive reductions within registered memory: a member must fetch what the others wrote last, and no member may
// write while another fetches.
TEST(Nccl, ReducesWithinRegisteredMemory) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks or more";
  constexpr int kRounds = 12;
  const auto mesh = make_nccl_mesh(world(), {.shard = size()}, 60.0, device());
  const Arena arena(device(), std::int64_t{512} << 20);
  const std::string note = mesh->register_memory(arena.data(), arena.bytes());
  if (me() == 0) std::cout << "registered memory: " << (note.empty() ? "by copy engines" : note) << '\n';
  const auto stream = device().make_stream("reduce");
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{4099}, std::int64_t{3} << 20}) {
    std::int64_t at = 0;
    const auto take = [&](DType dtype, std::int64_t count) {
      const TensorView view(arena.data() + at, dtype, {count}, DeviceKind::cuda);
      at += round_up(view.bytes(), 256);
      return view;
    };
    const TensorView send = take(DType::f32, n * size()), full = take(DType::f32, n * size() - (n > 1 ? 1 : 0));
    const TensorView part = take(DType::f32, n);
    const TensorView a = take(DType::u8, reduce_scatter_workspace(n, DType::f32, size(), DeviceKind::cuda));
    const TensorView b = take(DType::u8, all_reduce_workspace(full.elements(), DType::f32, size(), DeviceKind::cuda));
    std::vector<Storage> sources;
    for (int round = 0; round < kRounds; ++round) {
      sources.push_back(filled(device(), DType::f32, n * size(), static_cast<std::uint64_t>(round)));
    }
    std::vector<Storage> parts, fulls;
    for (int round = 0; round < kRounds; ++round) {
      const Storage& source = sources[static_cast<std::size_t>(round)];
      transfer(*stream, send.raw(), source.view().raw(), send.bytes());
      transfer(*stream, full.raw(), source.view().raw(), full.bytes());
      mesh->shard_reduce().reduce_scatter(*stream, send, part, /*accumulate=*/false, a);
      mesh->shard_reduce().all_reduce(*stream, full, Reduction::sum, b);
      parts.emplace_back(device(), DType::f32, Shape{n});
      fulls.emplace_back(device(), DType::f32, full.shape());
      transfer(*stream, parts.back().view().raw(), part.raw(), part.bytes());
      transfer(*stream, fulls.back().view().raw(), full.raw(), full.bytes());
    }
    stream->synchronize();
    for (int round = 0; round < kRounds; ++round) {
      const auto sum = [&](std::int64_t k) {
        float out = value(static_cast<std::uint64_t>(round), 0, k);
        for (int m = 1; m < size(); ++m) out += value(static_cast<std::uint64_t>(round), m, k);
        return out;
      };
      const auto wrong = [&](const Storage& got, std::int64_t first) {
        const Bytes bytes = bytes_of(device(), got.view());
        std::int64_t count = 0;
        for (std::int64_t k = 0; k < got.view().elements(); ++k) {
          float x = 0;
          std::memcpy(&x, bytes.data() + k * 4, 4);
          count += x != sum(first + k);
        }
        return count;
      };
      EXPECT_EQ(wrong(parts[static_cast<std::size_t>(round)], me() * n), 0) << n << ", round " << round;
      EXPECT_EQ(wrong(fulls[static_cast<std::size_t>(round)], 0), 0) << n << ", round " << round;
    }
  }
  mesh->unregister_memory(arena.data());
}

// A member fetches at its own offset. With views at other offsets on one member it reads other bytes, unless the
// members compare their offsets first: they then send and receive.
TEST(Nccl, ComparesOffsetsBeforeItFetches) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks or more";
  constexpr std::int64_t kPart = 4099;
  const Storage source = filled(device(), DType::f32, kPart * size(), 7);
  const auto stream = device().make_stream("reduce");
  std::int64_t wrong_fetches = 0;
  for (const bool compares : {false, true}) {
    const auto mesh = make_nccl_mesh(world(), {.shard = size()}, 60.0, device());
    const Arena arena(device(), std::int64_t{64} << 20);
    const bool fetches = mesh->register_memory(arena.data(), arena.bytes()).empty();
    std::byte* const at = arena.data() + (me() == 0 ? 0 : std::int64_t{16} << 20);
    const TensorView send(at, DType::f32, {kPart * size()}, DeviceKind::cuda);
    const TensorView part(arena.data() + (std::int64_t{32} << 20), DType::f32, {kPart}, DeviceKind::cuda);
    const std::int64_t bytes = reduce_scatter_workspace(kPart, DType::f32, size(), DeviceKind::cuda);
    const TensorView workspace(arena.data() + (std::int64_t{40} << 20), DType::u8, {bytes}, DeviceKind::cuda);
    const std::string reduce = mesh->shard_reduce().name();
    if (compares) {
      const auto offset = static_cast<std::uint64_t>(at - arena.data());
      EXPECT_EQ(mesh->compare_offsets({{"shard/reduce", offset}, {"shard/gather", 1}}, device()),
                std::vector<std::string>{reduce});
    }
    transfer(*stream, send.raw(), source.view().raw(), send.bytes());
    mesh->shard_reduce().reduce_scatter(*stream, send, part, /*accumulate=*/false, workspace);
    stream->synchronize();
    const Bytes got = bytes_of(device(), part);
    std::int64_t wrong = 0;
    for (std::int64_t k = 0; k < kPart; ++k) {
      float x = 0, expected = value(7, 0, me() * kPart + k);
      for (int m = 1; m < size(); ++m) expected += value(7, m, me() * kPart + k);
      std::memcpy(&x, got.data() + k * 4, 4);
      wrong += x != expected;
    }
    if (compares) {
      EXPECT_EQ(wrong, 0);
    } else if (fetches) {
      wrong_fetches = wrong;
    }
    mesh->unregister_memory(arena.data());
    if (!fetches) return;  // nothing to compare: they send anyway
  }
  EXPECT_GT(wrong_fetches, 0) << "views at different offsets were not needed";
  if (me() == 0) std::cout << "wrong elements without the comparison: " << wrong_fetches << '\n';
}

// Groups that only some ranks have are split between groups of all.
TEST(Nccl, GroupsOfStages) {
  const auto stream = device().make_stream("test");
  const Storage number(device(), DType::f32, {1}), space(device(), DType::u8, {4096});
  for (int stages = 2; stages <= size(); ++stages) {
    if (size() % stages != 0) continue;
    comm::MeshSizes sizes{.shard = size() / stages, .pipeline = stages, .interleaved = stages > 2};
    sizes.tied = {{0, stages - 1}};
    const auto mesh = make_nccl_mesh(world(), sizes, 60.0, device());
    const auto sum_of = [&](Group& group) {
      float mine = static_cast<float>(1 << me()), got = 0;
      transfer(*stream, number.view().raw(), &mine, 4);
      group.all_reduce(*stream, number, Reduction::sum, space);
      transfer(*stream, &got, number.view().raw(), 4);
      stream->synchronize();
      return got;
    };
    const auto bit = [&](int stage) {
      return static_cast<float>(1 << (stage * sizes.shard + mesh->coordinate().shard));
    };
    const int stage = mesh->coordinate().pipeline;
    for (int edge = 0; edge < sizes.edges(); ++edge) {
      const int next = (edge + 1) % stages;
      if (stage != edge && stage != next) continue;
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        EXPECT_EQ(sum_of(mesh->lane(edge, direction)), bit(edge) + bit(next)) << "edge " << edge;
      }
    }
    if (stage == 0 || stage == stages - 1) {
      EXPECT_EQ(sum_of(mesh->tied(0)), bit(0) + bit(stages - 1));
    }
    EXPECT_EQ(sum_of(mesh->loss()), static_cast<float>((1 << size()) - 1));
    EXPECT_EQ(sum_of(mesh->model()), static_cast<float>((1 << size()) - 1));
  }
}

TEST(Nccl, AGroupOfOneCopiesAndAdds) {
  const auto mesh = make_self_mesh();
  const auto stream = device().make_stream("test");
  const Storage a = filled(device(), DType::bf16, 1003, 5), b(device(), DType::bf16, {1003});
  const Storage sum = filled(device(), DType::f32, 1003, 6);
  mesh->shard().all_gather(*stream, a, b);
  mesh->shard().reduce_scatter(*stream, a, sum, /*accumulate=*/true, {});
  stream->synchronize();
  EXPECT_TRUE(bytes_of(device(), a) == bytes_of(device(), b));
  const Bytes got = bytes_of(device(), sum);
  for (const std::int64_t k : {0, 1, 500, 1002}) {
    float x = 0;
    std::memcpy(&x, got.data() + k * 4, 4);
    EXPECT_EQ(x, value(6, me(), k) + static_cast<float>(Bf16(value(5, me(), k))));
  }
}

}  // namespace nccl_test
}  // namespace hawser::comm
