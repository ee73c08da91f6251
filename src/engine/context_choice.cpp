#include "engine/context_choice.h"

#include "base/text.h"
#include "engine/rank_sync.h"
#include "plan/forecast.h"

namespace hawser::engine {

std::string choose_context_form(plan::RunPlan& plan, const models::Model& model, DeviceKind device, comm::World* world,
                                int ranks_here, int threads) {
  Recipe& recipe = plan.recipe;
  if (recipe.parallel.context_comm != ContextComm::automatic || recipe.parallel.context_parallel_degree == 1) return "";
  const int ranks = world != nullptr ? world->size() : 1;
  const std::string answer = on_rank_zero(world, [&] {
    plan::Machine machine = plan::this_machine();
    machine.ranks = ranks_here;
    const plan::Forecaster forecaster(recipe, model, ranks, plan::load_target(plan::target_of(device)), machine,
                                      threads);
    const std::vector<plan::ContextForecast> forms = forecaster.forecast().context_forms;
    return cat(plan::context_text(forms.front().form), "\n", plan::context_choice_text(forms));
  });
  const std::size_t line = answer.find('\n');
  for (const plan::ContextForm& form : plan::context_forms(recipe.parallel, model.whole())) {
    if (plan::context_text(form) == answer.substr(0, line)) plan::set_context_form(recipe.parallel, form);
  }
  HAWSER_CHECK(recipe.parallel.context_comm != ContextComm::automatic, "no form ", answer);
  return cat("context parallelism: auto chose ", answer.substr(line + 1));
}

}  // namespace hawser::engine
