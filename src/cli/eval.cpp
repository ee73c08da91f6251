// hawser eval: the loss of a model on a file, and its gradient norms.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"
#include "base/units.h"
#include "cli/best.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/model_name.h"
#include "cli/progress_line.h"
#include "cli/ranks.h"
#include "cli/terminal.h"
#include "evaluate/evaluate.h"
#include "launch/launcher_environment.h"
#include "models/families.h"

namespace hawser::cli {
namespace {

void print_table(const evaluate::Evaluation& result, const EvalOptions& options) {
  const auto row = [](const char* name, const std::string& value) {
    std::printf("%-14s%s\n", name, printable(value).c_str());
  };
  row("model", options.model);
  if (!options.adapter.empty()) row("adapter", options.adapter);
  row("data", options.data);
  row("tokens", cat(result.tokens));
  row("loss", fmt::format("{:.4f}", result.loss));
  if (result.router_loss) row("router loss", fmt::format("{:.4f}", *result.router_loss));
  row("perplexity", fmt::format("{:.4g}", std::exp(result.loss - result.router_loss.value_or(0))));
  if (result.bits_per_byte) row("bits per byte", fmt::format("{:.4f}", *result.bits_per_byte));
  if (result.bigram_loss) row("bigram loss", fmt::format("{:.4f}", *result.bigram_loss));
  if (!options.gradient_norms) return;
  std::puts("gradient norms");
  for (const auto& [name, norm] : result.gradient_norms) std::printf("  %-12.4g%s\n", norm, printable(name).c_str());
}

void print_json(const evaluate::Evaluation& result, bool gradient_norms) {
  nlohmann::ordered_json json{{"loss", result.loss}, {"tokens", result.tokens}};
  if (result.router_loss) json["router_loss"] = *result.router_loss;
  if (result.bits_per_byte) json["bits_per_byte"] = *result.bits_per_byte;
  if (result.bigram_loss) json["bigram_loss"] = *result.bigram_loss;
  if (gradient_norms) {
    auto& norms = json["gradient_norms"] = nlohmann::ordered_json::object();
    for (const auto& [name, norm] : result.gradient_norms) norms[name] = norm;
  }
  std::puts(json.dump().c_str());
}

std::vector<std::string> adapters_of(const EvalOptions& options) {
  if (options.adapter.empty()) return {};
  return {options.adapter};
}

// Prints warnings before the result.
void warn(const evaluate::OpenEvaluation& input) {
  if (!input.open.skipped.empty()) print("skipped: ", input.open.skipped.lines());
  const std::string beyond =
      models::beyond_positions(input.open.model->description(), input.layout.batch.sequence_length);
  if (!beyond.empty()) print("warning: ", beyond);
  if (!input.note.empty()) print("", input.note);
}

// The share that is done, and the time that the rest takes if it is as fast.
void show_progress(evaluate::OpenEvaluation& input, ProgressLine& line) {
  using Clock = std::chrono::steady_clock;
  input.progress = [&line, start = Clock::now()](double share) {
    if (share >= 1) return line.erase();
    if (!line.due()) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    line.show(cat("evaluating ", static_cast<int>(100 * share), "%  ", format_seconds(seconds * (1 - share) / share),
                  " left"));
  };
}

}  // namespace

int eval(const EvalOptions& options) {
  Problems of_layout;  // reported with those of model and data
  Recipe base;
  base.model.path =
      chosen_checkpoint(find_model(options.model, options.common, hub::Parts::all), options.best, of_layout);
  CommonOptions common = options.common;
  const Problems unused = take_unused_keys(
      common, "eval",
      {"parallel.", "precision.compute", "memory.", "run.", "adapter.base", "adapter.double_quantization",
       "data.chat_template", "data.template_date", "data.columns", "data.roles", "data.max_documents"},
      {{"model.path", "--model"},
       {"data.train", "--data"},
       {"data.sequence_length", "--sequence-length N"},
       {"data.pack", "--across-documents"}});
  Recipe recipe = recipe_without_file(base, common, /*runs=*/true, /*keep_relative=*/false, of_layout);
  if (common.rejected.contains("--sequence-length")) recipe.rejected.insert("data.sequence_length");
  of_layout.add(unused);
  of_layout.add(trains_only(recipe));
  const int world = world_size(common, default_ranks(recipe, DeviceChoice::cpu, 0));
  check_mesh(recipe, world, of_layout);
  engine::RankDevice device;
  if (accepted(recipe, {"run.device"})) collect(of_layout, [&] { device = device_of(recipe, world); });

  evaluate::EvaluateRequest request{.model = base.model.path,
                                    .adapters = adapters_of(options),
                                    .averages = options.ema,
                                    .data = options.data,
                                    .bigram = options.bigram,
                                    .sequence_length = options.sequence_length,
                                    .gradient_norms = options.gradient_norms,
                                    .across_documents = options.across_documents,
                                    .recipe = recipe,
                                    .threads = threads_of(recipe),
                                    .ranks_here = must_launch(world) ? world : launched_as().local_ranks,
                                    .device = device};
  if (!of_layout.empty()) request.recipe.parallel = {};
  // Scripts read JSON; standard output of a rank is a pipe to the launcher.
  const bool on_terminal = !under_launcher() && terminal_columns(STDOUT_FILENO).has_value();
  const bool table = !options.common.json && (options.table || on_terminal);
  std::optional<evaluate::OpenEvaluation> input;
  const auto check = [&](const RankPlace& place, Problems& problems) {
    problems.add(of_layout);
    const bool laid_out = of_layout.empty();
    input = evaluate::open_evaluation(request, laid_out ? place.rank : 0, laid_out ? place.ranks : 1, problems);
  };
  if (must_launch(world)) {
    Problems problems;
    check({.rank = 0, .ranks = world}, problems);
    problems.throw_if_any();
    input.reset();  // every rank opens its own
    return launch_ranks({.ranks = world,
                         .threads = recipe.run.threads,
                         .options = table ? std::vector<std::string>{"--table"} : std::vector<std::string>()});
  }
  return run_on_ranks(world, recipe, {.check = check, .run = [&](comm::World* ranks) {
                                        // The launcher may pass on what a rank draws after the rank's result.
                                        ProgressLine line(std::chrono::seconds(5), /*draws=*/!launched_locally());
                                        if (ranks == nullptr || ranks->rank().value() == 0) {
                                          warn(*input);
                                          const std::string better = better_than_last(base.model.path, options.best);
                                          if (!better.empty()) print("", better);
                                          show_progress(*input, line);
                                        }
                                        const evaluate::Evaluation result = evaluate::evaluate(*input, ranks);
                                        if (ranks == nullptr || ranks->rank().value() == 0) {
                                          for (const std::string& note : result.notes) print("", note);
                                          if (table) {
                                            print_table(result, options);
                                          } else {
                                            print_json(result, options.gradient_norms);
                                          }
                                        }
                                        return 0;
                                      }});
}

void add_eval(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* command =
      add_command(app,
                  {.name = "eval",
                   .what = "compute the loss and perplexity of a model on text, conversations or a token file\n"
                           "Prints a table on a terminal, and elsewhere one JSON object.",
                   .examples = {"hawser eval --model models/SmolLM2-135M --data heldout.jsonl --sequence-length 4096",
                                "hawser eval --model DIR --data a.jsonl --sequence-length 64 --gradient-norms "
                                "--ranks 2",
                                "hawser eval --model runs/novels --data runs/novels/data/valid",
                                "hawser eval --model out --data data/valid --bigram data/train "
                                "--sequence-length 512"},
                   .json = "print the result as one JSON object, on a terminal too"},
                  options->common);
  add_text(
      *command, "--model", "DIR", options->model,
      "Hugging Face model folder, ORG/NAME in the Hugging Face cache, checkpoint, or run folder (its last checkpoint)");
  set_completions(*command, "--model", {"models"});
  add_switch(*command, "--best", options->best,
             "of a run folder: the checkpoint with the lowest validation loss in place of the last one");
  add_switch(*command, "--ema", options->ema, "the average of the run's weights (optimizer.ema) in their place");
  add_text(*command, "--adapter", "DIR", options->adapter,
           "folder of a PEFT adapter on the model; --gradient-norms then reports what the adapter trains");
  add_text(*command, "--data", "FILE", options->data,
           ".jsonl, .json, .csv, .tsv, .parquet or .txt with text or messages (chat), as in docs/data.md, a folder of "
           "them (of one with splits, the validation split), or PREFIX of a token file "
           "(PREFIX.bin, PREFIX.idx); documents are separate, unless the checkpoint's run has data.pack: chunks");
  add_switch(*command, "--across-documents", options->across_documents,
             "read a token file as one continuous text, like data.pack: chunks");
  add_text(*command, "--bigram", "PREFIX", options->bigram,
           "also report the loss of a bigram model fitted on this token file");
  add_number(*command, options->common, "--sequence-length", 1, kMaxTokens,
             "split longer texts into pieces of N tokens; default: that of the checkpoint's run",
             [options](std::int64_t value) { options->sequence_length = value; });
  add_switch(*command, "--gradient-norms", options->gradient_norms, "also report the gradient norm of each parameter");
  add_hidden_switch(*command, "--table", options->table);
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->model, "--model"}, {options->data, "--data"}}, "eval");
    chosen = [options, &commands] { return commands.eval(*options); };
  });
}

}  // namespace hawser::cli
