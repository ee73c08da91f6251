// hawser export: writes a checkpoint as a Hugging Face folder.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/best.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/model_name.h"
#include "train/export.h"

namespace hawser::cli {

namespace {

train::ExportDType dtype_of(const std::string& name) {
  if (name == "float32" || name == "fp32") return train::ExportDType::f32;
  if (name == "bf16" || name == "bfloat16") return train::ExportDType::bf16;
  if (name == "float16" || name == "fp16" || name == "half") return train::ExportDType::f16;
  return train::ExportDType::of_source;
}

// `export --model DIR`: there is no SOURCE.
void check_model(const ExportOptions& options) {
  Problems problems;
  if (!options.source.empty()) {
    problems.add({.what = "export: both SOURCE and --model", .expected = "one of them", .got = options.source});
  }
  if (options.adapters.empty()) problems.add({.what = "export: --model without --adapter"});
  if (options.best) problems.add({.what = "export: both --model and --best", .expected = "one of them"});
  if (options.ema) problems.add({.what = "export: both --model and --ema", .expected = "one of them"});
  if (!options.merge) problems.add({.what = "export: --model without --merge"});
  problems.throw_if_any();
}

}  // namespace

int export_model(const ExportOptions& options) {
  CommonOptions common = options.common;
  Problems problems = take_unused_keys(common, "export", {}, {{"precision.compute", "--dtype"}});
  recipe_without_file({}, common, /*runs=*/true, /*keep_relative=*/false, problems);  // for its problems
  const bool of_model = !options.model.empty();
  const std::string source = of_model ? find_model(options.model, options.common, hub::Parts::all)
                                      : chosen_checkpoint(options.source, options.best, problems);
  problems.throw_if_any();
  const std::string better = better_than_last(source, options.best);
  if (!better.empty()) print("", better);
  Problems skipped;
  const train::Exported done = train::export_model({.source = source,
                                                    .adapters = options.adapters,
                                                    .output = options.output,
                                                    .dtype = dtype_of(options.dtype),
                                                    .merge = options.merge,
                                                    .averages = options.ema},
                                                   skipped);
  if (!skipped.empty()) print("skipped: ", skipped.lines());
  if (!done.notes.empty()) print("note: ", done.notes.lines());
  if (options.common.json) {
    nlohmann::ordered_json json;
    json[of_model ? "model" : "checkpoint"] = done.source;
    if (!of_model) json["step"] = done.step;
    json["output"] = options.output;
    json["parameters"] = done.parameters;
    json["dtype"] = done.dtype;
    if (done.adapter) json["adapter"] = true;
    std::puts(json.dump().c_str());
  } else {
    const std::string what =
        of_model ? cat(done.source, " with ", plural(options.adapters.size(), "adapter"))
                 : cat(done.adapter ? "the adapter of step " : "step ", done.step, " (", done.source, ")");
    std::puts(cat("exported ", what, " to ", options.output, ": ", format_count(static_cast<double>(done.parameters)),
                  " parameters in ", done.dtype)
                  .c_str());
  }
  return 0;
}

void add_export(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* command =
      add_command(app,
                  {.name = "export",
                   .what = "write a checkpoint as a Hugging Face model folder\n"
                           "The adapter of a run with adapter.kind: lora becomes a folder of PEFT, or, with "
                           "--merge, a model.",
                   .examples = {"hawser export runs/novels models/novels",
                                "hawser export runs/novels/checkpoints/step-00000200 models/novels-200",
                                "hawser export runs/novels models/novels-bf16 --dtype bf16",
                                "hawser export runs/lora models/merged --merge",
                                "hawser export --model models/base --adapter adapters/a --merge "
                                "models/merged"}},
                  options->common);
  add_positional(*command, "SOURCE", options->source, "run folder (its last checkpoint) or checkpoint");
  add_positional(*command, "OUT_DIR", options->output, "folder to write");
  add_text(*command, "--model", "DIR", options->model, "model folder in place of SOURCE, with --adapter and --merge");
  add_texts(*command, "--adapter", "DIR", options->adapters,
            "folder of a PEFT adapter on the model; repeatable, adapters add up");
  add_switch(*command, "--best", options->best,
             "of a run folder: the checkpoint with the lowest validation loss in place of the last one");
  add_switch(*command, "--ema", options->ema, "the average of the run's weights (optimizer.ema) in their place");
  add_switch(*command, "--merge", options->merge, "add the adapters to the weights, and write a model");
  add_parsed(
      *command, options->common, "--dtype", "DTYPE",
      "dtype of the weights: bf16, float32 or float16; default: bf16 if the run computed in it, else float32",
      [options](const std::string& value) {
        static const std::set<std::string> kNames = {"bf16", "bfloat16", "float32", "fp32", "float16", "fp16", "half"};
        if (!kNames.contains(value))
          throw UserError(
              Problem{.what = "wrong value", .expected = "bf16, float32 or float16", .got = value, .at = "--dtype"});
        options->dtype = value;
      });
  set_completions(*command, "--dtype", {"bf16", "float32", "float16"});
  on_chosen(*command, [options, &commands, &chosen] {
    if (!options->model.empty()) {
      if (options->output.empty()) std::swap(options->source, options->output);
      need(options->common, {{options->output, "OUT_DIR"}}, "export");
      options->common.problems.throw_if_any();
      check_model(*options);
    } else {
      need(options->common, {{options->source, "SOURCE"}, {options->output, "OUT_DIR"}}, "export");
      options->common.problems.throw_if_any();
    }
    if (options->model.empty() && !options->adapters.empty()) {
      throw UserError(Problem{.what = "export: --adapter without --model"});
    }
    chosen = [options, &commands] { return commands.export_model(*options); };
  });
}

}  // namespace hawser::cli
