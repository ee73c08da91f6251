#include "engine/memory_choice.h"

#include <algorithm>
#include <sstream>

#include "base/units.h"
#include "config/config.h"
#include "engine/does_not_fit.h"
#include "engine/rank_sync.h"
#include "plan/forecast.h"
#include "plan/offload_text.h"

namespace hawser::engine {

namespace {

constexpr char kKey[] = "memory.activation_checkpointing";

std::int64_t available_memory(const Recipe& recipe, const plan::Target& target, const plan::Machine& machine,
                              const plan::Layout& layout, int stage, const Device& device) {
  std::int64_t capacity = plan::capacity_of(recipe, target, machine, layout.mesh.world());
  const DeviceMemory memory = device.memory();
  if (recipe.memory.capacity || memory.total == 0) return capacity;
  // A forecast adds the context and the communicators; the driver's free memory excludes them already.
  return std::min(capacity, memory.total - memory.used + plan::overhead_of(target, layout.mesh, stage));
}

plan::Machine machine_of(int ranks_here) {
  plan::Machine machine = plan::this_machine();
  machine.ranks = ranks_here;
  return machine;
}

bool chooses_offload(const MemoryRecipe& memory, DeviceKind device) {
  return is_offload_automatic(memory) && device == DeviceKind::cuda;
}

}  // namespace

std::string choose_memory(plan::RunPlan& plan, const models::Model& model, const Device& device, comm::World* world,
                          int ranks_here) {
  Recipe& recipe = plan.recipe;
  const plan::Layout& layout = plan.layout;
  const bool policies = is_automatic(recipe.memory), offload = chooses_offload(recipe.memory, device.kind());
  if (!policies && !offload) return "";
  plan::Target target = plan::load_target(plan::target_of(device.kind()));
  const plan::Machine machine = machine_of(ranks_here);
  const int stage = world == nullptr ? 0 : comm::coordinate_of(world->rank().value(), layout.mesh).pipeline;
  target.capacity = available_memory(recipe, target, machine, layout, stage, device);
  if (world != nullptr) {
    for (const std::string& other : world->all_gather_strings(cat(target.capacity))) {
      target.capacity = std::min<std::int64_t>(target.capacity, std::stoll(other));
    }
  }
  // A layout that does not fit has an answer of one line break and the message.
  const std::string answer = on_rank_zero(world, [&] {
    const plan::Forecaster forecaster(recipe, model, layout.mesh.world(), target, machine, layout.threads);
    const plan::Forecast forecast = forecaster.forecast();
    if (!forecast.fits()) return "\n" + plan::rejection(recipe, forecast, forecaster.alternatives());
    MemoryRecipe chosen;
    chosen.per_layer = forecast.checkpointing();
    std::string blocks;
    for (const plan::BlockPolicy& block : forecast.candidate.blocks) blocks += block.offload ? '1' : '0';
    return cat(checkpointing_text(chosen), " ", blocks, " ", forecast.offloaded_flats(), " ",
               format_bytes(Bytes(forecast.needed())), " of ", format_bytes(Bytes(forecast.capacity)));
  });
  if (answer.starts_with('\n')) throw DoesNotFit(answer.substr(1));
  std::istringstream words(answer);
  std::string runs, blocks, memory;
  int flats = 0;
  words >> runs >> blocks >> flats >> std::ws;
  std::getline(words, memory);
  if (policies) {
    recipe.memory.per_layer = override_recipe(Recipe{}, {cat(kKey, "=", runs)}).memory.per_layer;
    recipe.memory.offloaded_blocks.clear();
    for (const char block : blocks) recipe.memory.offloaded_blocks.push_back(block == '1');
  }
  if (offload) recipe.memory.offloaded_flats = flats;
  plan.layout = plan::make_layout(recipe, model, layout.mesh.world(), layout.compute, layout.threads, layout.device);
  const std::string there = plan::offload_text(plan.layout, model);
  std::string chosen;
  if (policies) {
    chosen = "activation checkpointing: auto chose " + runs.substr(1, runs.size() - 2);
    if (!there.empty()) chosen += ", in host memory " + there;
  } else {
    chosen = "optimizer offload: auto chose " + (there.empty() ? "the device" : there);
  }
  return cat(chosen, ": ", memory, " per rank");
}

void expect_forecast_fits(const plan::RunPlan& plan, const models::Model& model, DeviceKind device, comm::World* world,
                          int ranks_here) {
  if (is_automatic(plan.recipe.memory) || chooses_offload(plan.recipe.memory, device)) return;
  const std::string rejection = on_rank_zero(world, [&]() -> std::string {
    const plan::Forecaster forecaster(plan.recipe, model, plan.layout.mesh.world(),
                                      plan::load_target(plan::target_of(device)), machine_of(ranks_here),
                                      plan.layout.threads);
    const plan::Forecast forecast = forecaster.forecast();
    return forecast.fits() ? "" : plan::rejection(plan.recipe, forecast);
  });
  if (!rejection.empty()) throw DoesNotFit(rejection);
}

}  // namespace hawser::engine
