// hawser export: writes a checkpoint as a Hugging Face folder.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/common.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "train/export.h"

namespace hawser::cli {

int export_model(const ExportOptions& options) {
  recipe_without_file({}, options.common);  // rejects invalid common options
  Problems skipped;
  checkpoint::Checkpoint checkpoint = train::open_checkpoint(options.source, skipped);
  if (!skipped.empty()) print("skipped: ", skipped.lines());
  const train::Exported done = train::export_checkpoint(checkpoint, options.output);
  const std::string dtype = to_string(done.stored);
  if (options.common.json) {
    const nlohmann::ordered_json json{{"checkpoint", done.checkpoint},
                                      {"step", done.step},
                                      {"output", options.output},
                                      {"parameters", done.parameters},
                                      {"dtype", dtype}};
    std::puts(json.dump().c_str());
  } else {
    std::puts(cat("exported step ", done.step, " (", done.checkpoint, ") to ", options.output, ": ",
                  format_count(static_cast<double>(done.parameters)), " parameters in ", dtype)
                  .c_str());
  }
  return 0;
}

void add_export(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      add_command(app,
                  {.name = "export",
                   .what = "write a checkpoint as a Hugging Face model folder",
                   .examples = {"hawser export runs/novels models/novels",
                                "hawser export runs/novels/checkpoints/step-00000200 models/novels-200"}},
                  options->common);
  add_positional(*command, "SOURCE", options->source, "run folder (its last checkpoint) or checkpoint");
  add_positional(*command, "OUT_DIR", options->output, "folder to write");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->source, "SOURCE", "export");
    need(options->output, "OUT_DIR", "export");
    chosen = [options, &commands] { return commands.export_model(*options); };
  });
}

}  // namespace hawser::cli
