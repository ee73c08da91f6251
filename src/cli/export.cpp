// hawser export: a checkpoint to a Hugging Face folder.
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/line.h"

namespace hawser::cli {
namespace {

// The body: safetensors, config.json and the tokenizer's files into options.output.
int export_here(const Recipe&, const ExportOptions&) {
  not_in_this_build("export");
}

}  // namespace

int export_model(const ExportOptions& options) {
  return export_here(recipe_without_file({}, options.common), options);
}

void add_export(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command = add_command(app,
                                  {.name = "export",
                                   .what = "write a checkpoint as a Hugging Face model folder",
                                   .examples = {"hawser export runs/novels models/novels",
                                                "hawser export runs/novels/checkpoints/step-200 models/novels-200"}},
                                  options->common);
  add_positional(*command, "SOURCE", options->source, "a run's folder (its last checkpoint) or one checkpoint");
  add_positional(*command, "OUT_DIR", options->output, "the folder to write");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->source, "SOURCE", "export");
    need(options->output, "OUT_DIR", "export");
    chosen = [options, &commands] { return commands.export_model(*options); };
  });
}

}  // namespace hawser::cli
