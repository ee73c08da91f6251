#include "engine/parallel_choice.h"

#include "base/text.h"
#include "config/config.h"
#include "engine/rank_sync.h"
#include "plan/forecast.h"
#include "plan/pipeline_form.h"

namespace hawser::engine {

namespace {

constexpr char kPartition[] = "parallel.pipeline_partition";

// The choice and the line about it, for each open key; lines that are empty for the others.
std::string answer_of(const plan::Forecast& forecast, bool chooses_form, bool chooses_cuts) {
  std::string out;
  if (chooses_form) out += plan::context_text(forecast.context_forms.front().form);
  out += "\n";
  if (chooses_form) out += plan::context_choice_text(forecast.context_forms);
  out += "\n";
  if (!chooses_cuts) return out + "\n";
  ParallelRecipe cuts;
  cuts.pipeline_partition = plan::blocks_of(forecast.layout.partition);
  out += cat(partition_text(cuts), "\n", partition_text(cuts));
  return out + (forecast.equal_cuts
                    ? cat("; predicted time of a step with equal cuts: ", signed_percent(*forecast.equal_cuts))
                    : "");
}

// Takes the first line off.
std::string next_line(std::string& text) {
  const std::size_t end = text.find('\n');
  std::string line = text.substr(0, end);
  text.erase(0, end == std::string::npos ? end : end + 1);
  return line;
}

}  // namespace

std::vector<std::string> choose_parallelism(plan::RunPlan& plan, const models::Model& model, DeviceKind device,
                                            comm::World* world, int ranks_here, int threads) {
  Recipe& recipe = plan.recipe;
  const ParallelRecipe& parallel = recipe.parallel;
  const bool chooses_form = parallel.context_comm == ContextComm::automatic && parallel.context_parallel_degree > 1;
  const bool chooses_cuts = parallel.pipeline_parallel_degree > 1 && parallel.pipeline_partition.empty();
  std::vector<std::string> log;
  if (!chooses_form && !chooses_cuts) return log;
  const int ranks = world != nullptr ? world->size() : 1;
  std::string answer = on_rank_zero(world, [&] {
    plan::Machine machine = plan::this_machine();
    machine.ranks = ranks_here;
    const plan::Forecaster forecaster(recipe, model, ranks, plan::load_target(plan::target_of(device)), machine,
                                      threads);
    return answer_of(forecaster.forecast(), chooses_form, chooses_cuts);
  });
  const std::string form_name = next_line(answer), about_form = next_line(answer), cuts = next_line(answer);
  if (chooses_form) {
    for (const plan::ContextForm& form : plan::context_forms(parallel, model.whole())) {
      if (plan::context_text(form) == form_name) plan::set_context_form(recipe.parallel, form);
    }
    HAWSER_CHECK(parallel.context_comm != ContextComm::automatic, "no form ", form_name);
    log.push_back(cat("context parallelism: auto chose ", about_form));
  }
  if (chooses_cuts) {
    recipe.parallel.pipeline_partition =
        override_recipe(Recipe{}, {cat(kPartition, "=", cuts)}).parallel.pipeline_partition;
    log.push_back(cat("pipeline partition: auto chose ", answer));
  }
  return log;
}

}  // namespace hawser::engine
