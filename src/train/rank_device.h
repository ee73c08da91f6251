// Where a rank computes and by what it talks to the others: the one place that turns run.device into a device.
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
  int ordinal = 0;  // cuda: which of this machine's GPUs
};

// GPUs of this machine that a run with this run.device takes: automatic all there are, cpu none (0). UserError for cuda
// where there is no GPU, or none in this build.
int gpus_of(const Recipe& recipe);

// The device of rank `local_rank` of the `local_ranks` on this machine. UserError as above, and where there are more
// ranks than GPUs.
RankDevice choose_device(const Recipe& recipe, int local_rank, int local_ranks);

// threads: of a CPU stream.
std::unique_ptr<Device> make_device(const RankDevice& place, int threads);

// Groups over NCCL on GPUs, over MPI on CPUs; `world` null: this process alone. Both outlive the mesh.
std::unique_ptr<comm::Mesh> make_mesh(comm::World* world, const MeshSizes& sizes, double timeout_s, Device& device);

}  // namespace hawser::train
