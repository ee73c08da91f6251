// hawser fit: train as a recipe says, on ranks of its own.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"
#include "launch/local.h"

namespace hawser::cli {
namespace {

// The body: what each of `world` ranks does. Returns the exit code, on which the ranks agree.
int fit_here(const Recipe&, int /*world*/, const FitOptions&) {
  not_in_this_build("fit");
}

}  // namespace

int fit(const FitOptions& options) {
  const Recipe recipe = read_recipe_for(options.recipe, options.common, Purpose::train);
  const int world = world_size(options.common, default_ranks(recipe, recipe.run.device));
  Problems problems;
  check_layout(recipe, world, problems);
  problems.throw_if_any();
  if (must_launch(world)) return launch_local({.ranks = world, .threads = recipe.run.threads});
  return fit_here(recipe, world, options);
}

void add_fit(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<FitOptions>();
  CLI::App* command = add_command(app,
                                  {.name = "fit",
                                   .what = "train a model as a recipe says; starts its own ranks",
                                   .examples = {"hawser fit recipe.yaml",
                                                "hawser fit recipe.yaml --ranks 4 --set "
                                                "parallel.context_parallel_degree=2 --resume"}},
                                  options->common);
  add_positional(*command, "RECIPE", options->recipe, "a YAML recipe; `hawser recipe init` writes one");
  add_switch(*command, "--resume", options->resume, "go on from the last whole checkpoint of the output folder");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->recipe, "RECIPE", "fit");
    chosen = [options, &commands] { return commands.fit(*options); };
  });
}

}  // namespace hawser::cli
