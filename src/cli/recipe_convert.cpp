// hawser recipe convert: a recipe from the YAML of axolotl or LLaMA-Factory.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "config/check_to_write.h"
#include "config/convert/convert.h"
#include "engine/output_place.h"
#include "io/result_file.h"

namespace hawser::cli {
namespace {

std::optional<OtherTrainer> trainer_named(const std::string& name, Problems& problems) {
  if (name.empty()) return std::nullopt;
  if (name == "axolotl") return OtherTrainer::axolotl;
  if (name == "llama-factory") return OtherTrainer::llama_factory;
  problems.add({.what = "wrong value", .expected = "axolotl or llama-factory", .got = name, .at = "--from"});
  return std::nullopt;
}

void print_report(const Converted& converted, const std::string& file) {
  std::size_t dropped = 0, unknown = 0;
  for (const DroppedKeys& group : converted.dropped) {
    (group.why == WhyDropped::unknown ? unknown : dropped) += group.keys.size();
  }
  print("", cat(file, ": a file for ", display_name(converted.from), ": ",
                plural(static_cast<std::int64_t>(converted.mapped.size()), "key"), " converted, ", dropped,
                " dropped, ", unknown, " unknown"));
  for (const DroppedKeys& group : converted.dropped) {
    print("", cat("dropped ", joined(group.keys, ", "), ": ", label_of(group.why), ": ", group.reason));
  }
  for (const std::string& remark : converted.remarks) print("note: ", remark);
  for (const std::string& command : converted.downloads) print("", "download: " + command);
}

}  // namespace

int recipe_convert(const RecipeConvertOptions& options) {
  Problems problems;
  check_not_overwritten(options.output, options.force, problems);
  engine::check_output(options.output, "--output", {{"FILE", options.file}}, problems);
  const auto from = trainer_named(options.from, problems);
  const CommonOptions& common = options.common;
  const bool stays = written_here(options.output);
  std::optional<Converted> converted;
  collect(problems, [&] {
    converted = convert_recipe({.file = options.file,
                                .from = from,
                                .ranks = common.ranks > 0 ? std::optional(common.ranks) : std::nullopt,
                                .keep_relative = stays},
                               problems);
  });
  const Recipe recipe = recipe_without_file(converted ? converted->recipe : Recipe{}, common, /*runs=*/false,
                                            /*keep_relative=*/stays, problems);
  problems.throw_if_any();
  RecipeNotes notes = converted->notes;
  for (const std::string& set : common.overrides) notes.why.erase(set.substr(0, set.find('=')));
  notes.head = cat("Converted from ", display_name(converted->from), "'s ", options.file,
                   ". Comments that begin with why: name the key that a value comes from.");
  for (const std::string& remark : converted->remarks) notes.head += "\nNote: " + remark;
  for (const std::string& command : converted->downloads) notes.head += "\nDownload: " + command;
  const std::string text =
      common.json ? recipe_json(recipe) : commented_recipe(recipe, notes) + dropped_comment(*converted, options.file);
  const std::string path = options.output.empty() ? "the recipe" : options.output;
  check_recipe_to_write(recipe, text, path, Purpose::plan);
  print_report(*converted, options.file);
  if (options.output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
  }
  io::write_result(options.output, text);
  print("", cat("wrote ", options.output));
  print("", cat("next: hawser plan ", shell_quoted(options.output), ", hawser fit ", shell_quoted(options.output)));
  return 0;
}

void add_recipe_convert(CLI::App& recipe, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<RecipeConvertOptions>();
  CLI::App* command = add_command(
      recipe,
      {.name = "convert",
       .what = "convert a file of axolotl or LLaMA-Factory to a recipe\n"
               "Converts every key, or lists it as dropped with the reason, on standard error and at the end of the "
               "recipe. train.global_batch_size is for --ranks, by default those that the file's parallel degrees "
               "need, or 1. Training by preferences or rewards (DPO, ORPO, KTO), or on images, is an error. Keeps the "
               "values of --set, --memory, --host-memory and --device.",
       .examples = {"hawser recipe convert qlora.yml --output recipe.yaml",
                    "hawser recipe convert llama3_lora_sft.yaml --ranks 8 > recipe.yaml",
                    "hawser recipe convert old.yaml --from axolotl --set train.epochs=1"},
       .json = "write the recipe as one JSON object, to --output or standard output"},
      options->common);
  add_positional(*command, "FILE", options->file, "YAML of axolotl, or of LLaMA-Factory's train command");
  add_text(*command, "--output", "FILE", options->output, "file to write; default: standard output");
  add_text(*command, "--from", "NAME", options->from,
           "program that the file is for: axolotl or llama-factory; default: recognized by its keys");
  set_completions(*command, "--from", {"axolotl", "llama-factory"});
  add_switch(*command, "--force", options->force, "overwrite an existing --output");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->file, "FILE"}}, "recipe convert");
    chosen = [options, &commands] { return commands.recipe_convert(*options); };
  });
}

}  // namespace hawser::cli
