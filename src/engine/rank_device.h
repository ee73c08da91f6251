// `RankDevice`: the device of a rank. The one place that turns run.device into a device and its communication backend.
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "comm/mesh.h"
#include "comm/mpi/world.h"
#include "config/recipe.h"
#include "device/device.h"

namespace hawser::engine {

struct RankDevice {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // cuda: of this machine's supported GPUs (CudaInfo::ordinals)
};

// Number of this machine's GPUs that run.device selects: automatic: all that the build supports; cpu: 0. UserError for
// cuda if there is none or the build has no CUDA.
int gpus_of(const Recipe& recipe);

// A warning for a run that leaves GPUs unused because the build does not support them; "" if there is nothing to warn
// of, and for run.device: cpu.
std::string unused_gpus(const Recipe& recipe, const CudaInfo& info);

// A note if CUDA_DEVICE_MAX_CONNECTIONS, as exported for Megatron-LM, leaves fewer hardware queues than a step has
// streams; "" if not.
std::string few_connections(const std::string& value);

// The device of rank `local_rank` of `local_ranks` on this machine. UserError as above, if there are more ranks than
// GPUs, and for FP8 that one of them does not have.
RankDevice choose_device(const Recipe& recipe, int local_rank, int local_ranks);

// threads: of each CPU stream.
std::unique_ptr<Device> make_device(const RankDevice& place, int threads);

// Groups use NCCL on GPUs and MPI on CPUs; `world` is null if there is one process. Both outlive the mesh.
std::unique_ptr<comm::Mesh> make_mesh(comm::World* world, const comm::MeshSizes& sizes, double timeout_s,
                                      Device& device);

}  // namespace hawser::engine
