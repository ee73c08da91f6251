#include "engine/checkpointing.h"

#include <algorithm>

#include "base/units.h"
#include "config/config.h"
#include "engine/does_not_fit.h"
#include "engine/rank_sync.h"
#include "plan/forecast.h"

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

}  // namespace

std::string choose_checkpointing(plan::RunPlan& plan, const models::Model& model, const Device& device,
                                 comm::World* world, int ranks_here) {
  Recipe& recipe = plan.recipe;
  const plan::Layout& layout = plan.layout;
  if (!is_automatic(recipe.memory)) return "";
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
    return cat(checkpointing_text(chosen), " ", format_bytes(Bytes(forecast.needed())), " of ",
               format_bytes(Bytes(forecast.capacity)));
  });
  if (answer.starts_with('\n')) throw DoesNotFit(answer.substr(1));
  const std::size_t blank = answer.find(' ');
  const std::string runs = answer.substr(0, blank);
  recipe.memory.per_layer = override_recipe(Recipe{}, {cat(kKey, "=", runs)}).memory.per_layer;
  plan::LayoutChoices choices = layout;
  plan::set_policies(choices, model, recipe.memory);
  plan.layout = plan::derive(std::move(choices), model);
  return cat("activation checkpointing: auto chose ", runs.substr(1, runs.size() - 2), ": ", answer.substr(blank + 1),
             " per rank");
}

void expect_forecast_fits(const plan::RunPlan& plan, const models::Model& model, DeviceKind device, comm::World* world,
                          int ranks_here) {
  if (is_automatic(plan.recipe.memory)) return;
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
