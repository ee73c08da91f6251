// hawser eval: the loss of a model on a file, and the norms of its gradients.
#include "base/error.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"
#include "launch/local.h"

namespace hawser::cli {
namespace {

// The body: what each of `world` ranks does; rank 0 prints one JSON object.
int eval_here(const Recipe&, int /*world*/, const EvalOptions&) {
  not_in_this_build("eval");
}

}  // namespace

int eval(const EvalOptions& options) {
  Recipe base;
  base.model.path = options.model;
  base.data.sequence_length = options.sequence_length;
  const Recipe recipe = recipe_without_file(base, options.common);
  const int world = world_size(options.common, recipe.run.ranks > 0 ? recipe.run.ranks : 1);
  Problems problems;
  check_mesh(recipe, world, problems);
  problems.throw_if_any();
  if (must_launch(world)) return launch_local({.ranks = world, .threads = recipe.run.threads});
  return eval_here(recipe, world, options);
}

void add_eval(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* command =
      add_command(app,
                  {.name = "eval",
                   .what = "the loss of a model on a JSONL file, as one JSON object",
                   .examples = {"hawser eval --model models/SmolLM2-135M --data heldout.jsonl --sequence-length 4096",
                                "hawser eval --model DIR --data a.jsonl --sequence-length 64 --gradient-norms "
                                "--ranks 2"}},
                  options->common);
  add_text(*command, "--model", "DIR", options->model, "a Hugging Face model folder");
  add_text(*command, "--data", "FILE", options->data, "lines with text or input_ids; the whole file is one batch");
  add_number(*command, "--sequence-length", 1, "longer lines are cut into pieces of N tokens",
             [options](std::int64_t value) { options->sequence_length = value; });
  add_switch(*command, "--gradient-norms", options->gradient_norms, "also the norm of each parameter's gradient");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->model, "--model", "eval");
    need(options->data, "--data", "eval");
    need(options->sequence_length > 0 ? "given" : "", "--sequence-length", "eval");
    chosen = [options, &commands] { return commands.eval(*options); };
  });
}

}  // namespace hawser::cli
