#include "comm/nccl/nccl_mesh.h"

#include <nccl.h>

#include <cstdlib>
#include <map>

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
  // one. The mesh creates the lender first and destroys it last.
  std::map<std::vector<int>, const NcclGroup*> lenders;
  const auto make = [&](const std::string& name, std::vector<int> ranks, int index) -> std::unique_ptr<Group> {
    const bool small = NcclGroup::sums_numbers(name);
    const auto found = small ? lenders.find(ranks) : lenders.end();
    const NcclGroup* lender = found != lenders.end() ? found->second : nullptr;
    auto group = std::make_unique<NcclGroup>(run, name, ranks, index, lender);
    if (small && lender == nullptr) lenders.emplace(std::move(ranks), group.get());
    return group;
  };
  return MeshBuilder::build(sizes, world.rank(), make);
}

std::unique_ptr<Mesh> make_nccl_mesh(World& world, const MeshSizes& sizes, double timeout_s, Device& device) {
  return make_nccl_mesh(world, sizes, timeout_s, device, NcclOptions{});
}

}  // namespace hawser::comm
