// What the cases of comm_ranks_test (ranks on the CPU, over MPI) and comm_nccl_test (a GPU each, over NCCL) share: the
// process's World, the device of its groups, and values that every rank can compute for every other.
#pragma once

#include <cstdint>
#include <string>

#include "base/philox.h"
#include "comm/mesh.h"
#include "comm/mpi/world.h"

namespace hawser::comm::ranks {

World& world();  // made by main, one for all cases

#ifdef HAWSER_RANKS_ON_GPUS
constexpr bool kGpus = true;
#else
constexpr bool kGpus = false;
#endif
// This rank's device, and a mesh over it.
std::unique_ptr<Device> make_device(World& world);
std::unique_ptr<Mesh> make_mesh(World& world, Device& device, const MeshSizes& sizes, double timeout_s);

Device& device();   // one for all cases
Mesh& flat_mesh();  // one for all cases: every rank a replica

// The k-th element of member m's buffer `site`: all sizes of numbers, so that the order of a sum shows in its last
// bits.
inline float value(std::uint64_t site, int member, std::int64_t k) {
  const auto bits = static_cast<std::uint32_t>((site * 0x9e3779b97f4a7c15ull +
                                                static_cast<std::uint64_t>(member) * 0xbf58476d1ce4e5b9ull +
                                                static_cast<std::uint64_t>(k) * 0x94d049bb133111ebull) >>
                                               20);
  const float unit = static_cast<float>(bits & 0xffffffu) * 0x1p-24f - 0.5f;
  return unit * static_cast<float>(1 << (bits >> 28));
}

// Runs the fault of that name (tests/dist/comm/faults_test.cpp lists them) and does not come back alive.
int run_fault(const std::string& name);

}  // namespace hawser::comm::ranks
