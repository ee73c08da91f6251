#include "comm/nccl/nccl_mesh.h"

#include <nccl.h>

#include <cstdlib>
#include <map>
#include <numeric>

#include "base/cat.h"
#include "base/error.h"
#include "comm/mesh_builder.h"
#include "comm/mpi/world.h"
#include "comm/nccl/nccl_group.h"
#include "device/cuda/native.h"

namespace hawser::comm {

namespace {

// Windows need memory with a handle that other processes can map; cudaMalloc's has none.
DeviceAllocator mappable_memory() {
  return {.allocate =
              [](std::int64_t bytes) {
                void* data = nullptr;
                if (ncclMemAlloc(&data, static_cast<std::size_t>(bytes)) != ncclSuccess) {
                  cudaGetLastError();
                  data = nullptr;
                }
                return static_cast<std::byte*>(data);
              },
          .free = [](std::byte* data) { ncclMemFree(data); }};
}

}  // namespace

std::unique_ptr<Mesh> make_nccl_mesh(World& world, const MeshSizes& sizes, double timeout_s, Device& device,
                                     const NcclOptions& options) {
  // Disables NVLink multicast: it takes objects of the NVLink domain, which runs share.
  setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  expect_one_mesh(world, sizes);
  HAWSER_CHECK(device.kind() == DeviceKind::cuda, "a mesh over NCCL on ", to_string(device.kind()), " devices");
  const int ordinal = device.make_stream("nccl")->native()->ordinal;
  const auto run = std::make_shared<NcclRun>(world, device, ordinal, timeout_s, options);
  device.set_allocator(mappable_memory());
  // Communicators take memory. Groups of the same ranks that only sum a few numbers, all on the compute stream, share
  // one: that of all ranks, or the first such group's. The mesh creates that group first and destroys it last.
  std::vector<int> all_ranks(static_cast<std::size_t>(world.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  std::map<std::vector<std::vector<int>>, ncclComm*> shared{{{all_ranks}, run->all()}};  // by GroupPartition::groups
  const auto make = [&](const GroupPartition& all,
                        const std::optional<GroupPartition::Place>& place) -> std::unique_ptr<Group> {
    const bool small = NcclGroup::sums_numbers(cat(all.kind, ":", all.suffix));
    const auto found = small ? shared.find(all.groups) : shared.end();
    const bool own = found == shared.end();
    ncclComm* const comm = own ? run->split(all, place) : found->second;
    if (small && own) shared.emplace(all.groups, comm);
    if (!place) return nullptr;
    return std::make_unique<NcclGroup>(run, all.name(*place), all.ranks(*place), place->index, comm, own);
  };
  return MeshBuilder::build(sizes, world.rank(), make, &world);
}

std::unique_ptr<Mesh> make_nccl_mesh(World& world, const MeshSizes& sizes, double timeout_s, Device& device) {
  return make_nccl_mesh(world, sizes, timeout_s, device, NcclOptions{});
}

}  // namespace hawser::comm
