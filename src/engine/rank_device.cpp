#include "engine/rank_device.h"

#include <charconv>

#include "base/cat.h"
#include "config/config.h"
#include "plan/target.h"

namespace hawser::engine {

int gpus_of(const Recipe& recipe) {
  if (recipe.run.device == DeviceChoice::cpu) return 0;
  const CudaInfo info = cuda_info();
  if (info.devices > 0 || recipe.run.device == DeviceChoice::automatic) return info.devices;
  const auto place = recipe.places.find("run.device");
  const bool in_recipe = place != recipe.places.end() && place->second != "--device";
  throw UserError(Problem{.file = in_recipe ? recipe.file : "",
                          .what = info.problem,
                          .at = in_recipe ? key_place(recipe, "run.device") : "--device",
                          .hint = in_recipe ? "run.device: cpu" : "--device cpu"});
}

std::string unused_gpus(const Recipe& recipe, const CudaInfo& info) {
  if (recipe.run.device == DeviceChoice::cpu || info.unused.empty()) return "";
  if (info.devices > 0) return cat("some GPUs stay idle: ", info.unused);
  return cat("the run uses the CPU: ", info.unused, "; --device cpu runs without this warning");
}

std::string few_connections(const std::string& value) {
  constexpr int kEnough = 8;
  int connections = kEnough;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), connections);
  if (error != std::errc() || connections >= kEnough) return "";
  return cat("CUDA_DEVICE_MAX_CONNECTIONS=", connections,
             " makes communication and computation wait for each other: unset it");
}

RankDevice choose_device(const Recipe& recipe, int local_rank, int local_ranks) {
  const int gpus = gpus_of(recipe);
  if (gpus == 0) return {};
  if (local_ranks > gpus) {
    throw UserError(Problem{.what = "more ranks than GPUs on this machine",
                            .expected = cat("at most ", gpus),
                            .got = cat(local_ranks),
                            .at = "--ranks",
                            .hint = cat("--ranks ", gpus, ", or --device cpu")});
  }
  const CudaInfo info = cuda_info();
  Problems problems;
  plan::check_fp8(recipe, {info.capability / 10, info.capability % 10}, info.name, problems);
  problems.throw_if_any();
  return {.kind = DeviceKind::cuda, .index = local_rank};
}

std::unique_ptr<Device> make_device(const RankDevice& place, int threads) {
  if (place.kind == DeviceKind::cuda) return make_cuda_device(place.index);
  return make_cpu_device({.threads = threads});
}

std::unique_ptr<comm::Mesh> make_mesh(comm::World* world, const comm::MeshSizes& sizes, double timeout_s,
                                      Device& device) {
  if (world == nullptr || world->size() == 1) return comm::make_self_mesh();
  if (device.kind() == DeviceKind::cuda) return comm::make_nccl_mesh(*world, sizes, timeout_s, device);
  return comm::make_mpi_mesh(*world, sizes, timeout_s);
}

}  // namespace hawser::engine
