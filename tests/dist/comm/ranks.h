// Shared by the tests of comm_ranks_test (ranks on the CPU, over MPI) and comm_nccl_test (one GPU each, over NCCL): the
// process's World, the device of its groups, and values that every rank can compute for all ranks.
#pragma once

#include <cstdint>
#include <string>

#include "base/philox.h"
#include "comm/mesh.h"
#include "comm/mpi/world.h"

namespace hawser::comm::ranks {

World& world();  // created by main, shared by all tests

#ifdef HAWSER_RANKS_ON_GPUS
constexpr bool kGpus = true;
#else
constexpr bool kGpus = false;
#endif
// This rank's device, and a mesh over it.
std::unique_ptr<Device> make_device(World& world);
std::unique_ptr<Mesh> make_mesh(World& world, Device& device, const comm::MeshSizes& sizes, double timeout_s);

Device& device();   // shared by all tests
Mesh& flat_mesh();  // shared by all tests: every rank a replica

// The k-th element of member m's buffer `site`. Values have many magnitudes, so that the last bits show the order of a
// sum.
inline float value(std::uint64_t site, int member, std::int64_t k) {
  const auto bits = static_cast<std::uint32_t>((site * 0x9e3779b97f4a7c15ull +
                                                static_cast<std::uint64_t>(member) * 0xbf58476d1ce4e5b9ull +
                                                static_cast<std::uint64_t>(k) * 0x94d049bb133111ebull) >>
                                               20);
  const float unit = static_cast<float>(bits & 0xffffffu) * 0x1p-24f - 0.5f;
  return unit * static_cast<float>(1 << (bits >> 28));
}

// Runs the named fault (tests/dist/comm/faults_test.cpp lists them) and does not return.
int run_fault(const std::string& name);

}  // namespace hawser::comm::ranks
