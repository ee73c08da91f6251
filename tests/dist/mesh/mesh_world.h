// The ranks that run a test of tests/dist/mesh, all of them through each case: on this machine's processor over MPI, or
// with HAWSER_RANKS_ON_GPUS each on a GPU over NCCL.
#pragma once

#include <memory>
#include <string>

#include "comm/mesh.h"
#include "comm/mpi/world.h"
#include "device/device.h"

namespace hawser {

extern comm::World* the_world;

// Folder of the tiny golden models: that of the sources, or the argument --golden=FOLDER.
extern std::string golden_folder;
extern bool delays_every_task;  // of those with random delays; else a quarter of them

#ifdef HAWSER_RANKS_ON_GPUS
inline constexpr DeviceKind kRankDevice = DeviceKind::cuda;
#else
inline constexpr DeviceKind kRankDevice = DeviceKind::cpu;
#endif

// A device of this rank. `options` apply to processors; all calls return the same GPU.
std::shared_ptr<Device> rank_device(const CpuOptions& options = {});
// A mesh of the whole world. Collective. On GPUs, where communicators take seconds, one mesh for all calls with equal
// sizes.
std::shared_ptr<comm::Mesh> rank_mesh(const comm::MeshSizes& sizes);

}  // namespace hawser
