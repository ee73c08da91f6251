// `RankDevice`: the device of a rank. The one place that turns run.device into a device and its communication backend.
#pragma once

#include <memory>

#include "base/error.h"
#include "base/recipe.h"
#include "comm/mesh.h"
#include "comm/mpi/world.h"
#include "device/device.h"

namespace hawser::train {

struct RankDevice {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;  // cuda: index of the GPU on this machine
};

// Number of this machine's GPUs that run.device selects: automatic: all; cpu: 0. UserError for cuda if there is no GPU
// or the build has no CUDA.
int gpus_of(const Recipe& recipe);

// The device of rank `local_rank` of `local_ranks` on this machine. UserError as above, and if there are more ranks
// than GPUs.
RankDevice choose_device(const Recipe& recipe, int local_rank, int local_ranks);

// threads: of each CPU stream.
std::unique_ptr<Device> make_device(const RankDevice& place, int threads);

// Groups use NCCL on GPUs and MPI on CPUs; `world` null: single process. `world` and `device` outlive the mesh.
std::unique_ptr<comm::Mesh> make_mesh(comm::World* world, const MeshSizes& sizes, double timeout_s, Device& device);

}  // namespace hawser::train
