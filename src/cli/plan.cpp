// hawser plan: memory, work and traffic of a recipe, without running it.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"

namespace hawser::cli {
namespace {

// The body: plans the recipe for `world` ranks of options.target and prints the plan; 4 where it does not fit.
int plan_here(const Recipe&, int /*world*/, const PlanOptions&) {
  not_in_this_build("plan");
}

}  // namespace

int plan(const PlanOptions& options) {
  const Recipe recipe = read_recipe_for(options.recipe, options.common, Purpose::plan);
  const int world = default_ranks(recipe, recipe.run.device);  // any number: nothing is started
  Problems problems;
  check_layout(recipe, world, problems);
  problems.throw_if_any();
  return plan_here(recipe, world, options);
}

void add_plan(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "plan",
       .what = "memory, FLOPs and traffic of a recipe on any number of ranks; does it fit",
       .examples = {"hawser plan recipe.yaml --ranks 8 --memory 80GB",
                    "hawser plan recipe.yaml --ranks 1024 --target h200 --set data.sequence_length=131072"}},
      options->common);
  add_positional(*command, "RECIPE", options->recipe, "a YAML recipe; `hawser recipe init` writes one");
  add_text(*command, "--target", "NAME", options->target, "a device described in targets/; default: this machine");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->recipe, "RECIPE", "plan");
    chosen = [options, &commands] { return commands.plan(*options); };
  });
}

}  // namespace hawser::cli
