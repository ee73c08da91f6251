// hawser bench step: how fast one training step is on this machine.
#include <algorithm>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"
#include "launch/local.h"

namespace hawser::cli {
namespace {

// The body: what each of `world` ranks does; rank 0 prints tokens/s and the time of each part.
int bench_step_here(const Recipe&, int /*world*/, const BenchStepOptions&) {
  not_in_this_build("bench step");
}

}  // namespace

int bench_step(const BenchStepOptions& options) {
  Recipe base;
  (options.model.ends_with(".json") ? base.model.config : base.model.path) = options.model;
  base.data.sequence_length = options.sequence_length;
  base.train.steps = options.steps;
  base.run.threads = options.threads;
  Recipe recipe = recipe_without_file(base, options.common);
  const int world = world_size(options.common, recipe.run.ranks > 0 ? recipe.run.ranks : 1);
  if (!recipe.places.contains("train.global_batch_size"))  // one sequence for each group of data ranks
    recipe.train.global_batch_size =
        std::max(1, world / recipe.parallel.context_parallel_degree) * recipe.train.micro_batch_size;
  Problems problems;
  check_layout(recipe, world, problems);
  problems.throw_if_any();
  if (must_launch(world)) return launch_local({.ranks = world, .threads = recipe.run.threads});
  return bench_step_here(recipe, world, options);
}

void add_bench(CLI::App& app, const Commands& commands, Chosen& chosen) {
  CLI::App* bench = add_family(app, "bench", "measure this machine: bench step");
  const auto options = std::make_shared<BenchStepOptions>();
  CLI::App* command =
      add_command(*bench,
                  {.name = "step",
                   .what = "time training steps of a model on made-up tokens",
                   .examples = {"hawser bench step --model models/SmolLM2-135M --sequence-length 1024 --threads 2",
                                "hawser bench step --model config.json --sequence-length 4096 --steps 3 --json"}},
                  options->common);
  add_text(*command, "--model", "PATH", options->model, "a model folder, or a config.json for random weights");
  add_number(*command, "--sequence-length", 2, "tokens a sequence; default 1024",
             [options](std::int64_t value) { options->sequence_length = value; });
  add_number(*command, "--steps", 1, "steps to time, after one to warm up; default 5",
             [options](std::int64_t value) { options->steps = value; });
  add_number(*command, "--threads", 1, "CPU threads a rank; default: cores / ranks", [options](std::int64_t value) {
    options->threads = static_cast<int>(std::min<std::int64_t>(value, 4096));
  });
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->model, "--model", "bench step");
    chosen = [options, &commands] { return commands.bench_step(*options); };
  });
}

}  // namespace hawser::cli
