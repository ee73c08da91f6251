// hawser inspect: what is in a checkpoint, a model folder or a token file.
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"

namespace hawser::cli {
namespace {

// The body: finds out what the path is and prints what it holds.
int inspect_here(const InspectOptions&) {
  not_in_this_build("inspect");
}

}  // namespace

int inspect(const InspectOptions& options) {
  recipe_without_file({}, options.common);  // refuses what every command refuses
  return inspect_here(options);
}

void add_inspect(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<InspectOptions>();
  CLI::App* command = add_command(app,
                                  {.name = "inspect",
                                   .what = "show what a checkpoint, a model folder or a token file holds",
                                   .examples = {"hawser inspect runs/novels/checkpoints/step-200",
                                                "hawser inspect runs/novels/data/train.bin --json"}},
                                  options->common);
  add_positional(*command, "PATH", options->path, "a checkpoint, a model folder or a token file");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->path, "PATH", "inspect");
    chosen = [options, &commands] { return commands.inspect(*options); };
  });
}

}  // namespace hawser::cli
