// hawser export: writes a checkpoint as a Hugging Face folder.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "engine/find_checkpoint.h"
#include "train/export.h"

namespace hawser::cli {

namespace {

train::ExportDType dtype_of(const std::string& name) {
  if (name == "float32") return train::ExportDType::f32;
  if (name == "bf16") return train::ExportDType::bf16;
  if (name == "float16") return train::ExportDType::f16;
  return train::ExportDType::of_run;
}

}  // namespace

int export_model(const ExportOptions& options) {
  recipe_without_file({}, options.common);  // rejects invalid common options
  unused_keys(options.common, "export", {}, {{"precision.compute", "--dtype"}}).throw_if_any();
  Problems skipped;
  checkpoint::Checkpoint checkpoint = engine::open_checkpoint(options.source, skipped);
  if (!skipped.empty()) print("skipped: ", skipped.lines());
  const train::Exported done = train::export_checkpoint(checkpoint, options.output, dtype_of(options.dtype));
  if (options.common.json) {
    const nlohmann::ordered_json json{{"checkpoint", done.checkpoint},
                                      {"step", done.step},
                                      {"output", options.output},
                                      {"parameters", done.parameters},
                                      {"dtype", done.dtype}};
    std::puts(json.dump().c_str());
  } else {
    std::puts(cat("exported step ", done.step, " (", done.checkpoint, ") to ", options.output, ": ",
                  format_count(static_cast<double>(done.parameters)), " parameters in ", done.dtype)
                  .c_str());
  }
  return 0;
}

void add_export(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command = add_command(app,
                                  {.name = "export",
                                   .what = "write a checkpoint as a Hugging Face model folder",
                                   .examples = {"hawser export runs/novels models/novels",
                                                "hawser export runs/novels/checkpoints/step-00000200 models/novels-200",
                                                "hawser export runs/novels models/novels-bf16 --dtype bf16"}},
                                  options->common);
  add_positional(*command, "SOURCE", options->source, "run folder (its last checkpoint) or checkpoint");
  add_positional(*command, "OUT_DIR", options->output, "folder to write");
  add_parsed(*command, "--dtype", "DTYPE",
             "dtype of the weights: bf16, float32 or float16; default: bf16 if the run computed in it, else float32",
             [options](const std::string& value) {
               if (value != "bf16" && value != "float32" && value != "float16")
                 throw UserError(Problem{
                     .what = "wrong value", .expected = "bf16, float32 or float16", .got = value, .at = "--dtype"});
               options->dtype = value;
             });
  set_completions(*command, "--dtype", {"bf16", "float32", "float16"});
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->source, "SOURCE", "export");
    need(options->output, "OUT_DIR", "export");
    chosen = [options, &commands] { return commands.export_model(*options); };
  });
}

}  // namespace hawser::cli
