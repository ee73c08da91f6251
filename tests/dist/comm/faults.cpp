// Simulates the failure of one rank; faults_test.cpp and nccl_faults_test.cpp check what the others do.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <thread>

#include "base/environment.h"
#include "comm/mpi/service.h"
#include "ranks.h"

namespace hawser::comm::ranks {

int run_fault(const std::string& name) {
  // On GPUs the limit must also hold for communicators that connect, which takes seconds.
  constexpr double kTimeout = kGpus ? 15.0 : 2.0;
  if (name == "unstarted") {
    std::cout << "pid " + std::to_string(getpid()) + "\n" << std::flush;
    if (environment_variable("OMPI_COMM_WORLD_RANK") == "1") raise(SIGSTOP);
    const Service service({}, std::chrono::seconds(2), std::int64_t{1} << 30);
    return 0;
  }
  World world(kTimeout);
  const int me = world.rank().value();
  std::cout << "pid " + std::to_string(getpid()) + "\n" << std::flush;
  const auto device = make_device(world);
  const auto stream = device->make_stream("reduce");
  const auto mesh = make_mesh(world, *device, {.shard = world.size()}, kTimeout);
  const Storage data(*device, DType::f32, {16}), scratch(*device, DType::u8, {4096});
  world.set_phase("step 12 backward");
  mesh->shard_reduce().all_reduce(*stream, data, Reduction::sum, scratch);
  if (kGpus && name != "unconnected") mesh->data().all_reduce(*stream, data, Reduction::sum, scratch);
  stream->synchronize();
  world.barrier();

  if (me == 1 && (name == "absent" || name == "unconnected")) std::this_thread::sleep_for(std::chrono::seconds(90));
  if (me == 1 && name == "killed") raise(SIGKILL);
  if (me == 1 && name == "stopped") raise(SIGSTOP);
  if (me == 1 && name == "leaves") _exit(0);
  if (me == 1 && name == "exception") {
    try {
      throw std::runtime_error("disk full");
    } catch (const std::exception& error) {
      std::cerr << "rank 1: " << error.what() << '\n';
      world.abort(4);
    }
  }
  if (me == 1 && name == "unwound") throw std::runtime_error("unwinds the World");
  if (me == 1 && name == "mismatch") {
    mesh->data().all_reduce(*stream, data.view().rows(0, 8), Reduction::sum, scratch);
  } else if (name == "control") {
    if (me == 1) std::this_thread::sleep_for(std::chrono::seconds(60));
    world.any(false);
  } else {
    mesh->data().all_reduce(*stream, data, Reduction::sum, scratch);
  }
  stream->synchronize();
  std::this_thread::sleep_for(std::chrono::seconds(90));  // the other ranks or the launcher must end this process
  return 0;
}

}  // namespace hawser::comm::ranks
