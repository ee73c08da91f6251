// hawser prepare: text to token files.
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"

namespace hawser::cli {
namespace {

// The body: tokenises data.train and data.validation in parallel threads and writes the token files.
int prepare_here(const Recipe&, const PrepareOptions&) {
  not_in_this_build("prepare");
}

}  // namespace

int prepare(const PrepareOptions& options) {
  return prepare_here(read_recipe_for(options.recipe, options.common, Purpose::prepare), options);
}

void add_prepare(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<PrepareOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "prepare",
       .what = "turn the recipe's text into token files; fit does it too when they are missing",
       .examples = {"hawser prepare recipe.yaml", "hawser prepare recipe.yaml --set data.validation_fraction=0.01"}},
      options->common);
  add_positional(*command, "RECIPE", options->recipe, "a YAML recipe; `hawser recipe init` writes one");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->recipe, "RECIPE", "prepare");
    chosen = [options, &commands] { return commands.prepare(*options); };
  });
}

}  // namespace hawser::cli
