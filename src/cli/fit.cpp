// hawser fit: trains from a recipe, on ranks that it starts.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/printable.h"
#include "base/text.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/model_name.h"
#include "cli/ranks.h"
#include "launch/launcher_environment.h"
#include "launch/stop.h"
#include "plan/run_plan.h"
#include "train/fit.h"

namespace hawser::cli {
namespace {

// The same command with --resume.
std::string resume_command(const FitOptions& options) {
  std::string out = "hawser fit " + shell_quoted(options.recipe);
  const CommonOptions& common = options.common;
  if (common.ranks > 0) out += cat(" --ranks ", common.ranks);
  if (common.memory) out += cat(" --memory ", common.memory->value());
  if (common.host_memory) out += cat(" --host-memory ", common.host_memory->value());
  if (common.device)
    out += cat(" --device ", *common.device == DeviceChoice::cuda  ? "cuda"
                             : *common.device == DeviceChoice::cpu ? "cpu"
                                                                   : "auto");
  for (const std::string& set : common.overrides) out += " --set " + shell_quoted(set);
  return out + " --resume";
}

// What to do with a trained model.
std::vector<std::string> next_commands(const train::FitResult& result) {
  using Prompt = train::FitResult::Prompt;
  const char* best = result.best_is_earlier() ? " --best" : "";
  const std::string run = shell_quoted(result.output) + best;
  const char* prompt = result.prompt == Prompt::chat   ? " --chat"
                       : result.prompt == Prompt::text ? " --prompt 'TEXT'"
                                                       : " --prompt-ids IDS";
  return {"next:", cat("  hawser generate --model ", run, prompt), cat("  hawser eval --model ", run, " --data FILE"),
          cat("  hawser export ", shell_quoted(result.output), " FOLDER", best, "  # ",
              result.adapter ? "PEFT's format; a model with --merge" : "in the format of Hugging Face")};
}

void print_result(const train::FitResult& result, const FitOptions& options) {
  if (options.common.json) {
    nlohmann::ordered_json out{{"steps", result.steps},
                               {"interrupted", result.interrupted},
                               {"stopped_early", result.stopped_early},
                               {"diverged", result.diverged},
                               {"tokens_per_second", result.tokens_per_second},
                               {"activation_checkpointing", result.checkpointing},
                               {"offload", result.offload},
                               {"checkpoint", result.checkpoint}};
    if (result.saving.saves > 0) {
      out["saving"] = {{"saves", result.saving.saves},
                       {"waited_seconds", result.saving.waited_s},
                       {"writing_seconds", result.saving.writing_s}};
    }
    if (result.train_loss) out["train_loss"] = *result.train_loss;
    const auto add_losses = [&](const std::optional<ValidationLosses>& losses, const std::string& when) {
      if (losses) out[when + "validation_loss"] = losses->all;
      if (losses && !losses->sets.empty()) out[when + "validation_losses"] = losses->sets;
    };
    add_losses(result.initial_validation_loss, "initial_");
    add_losses(result.validation_loss, "");
    if (result.best_validation_loss) out["best_validation_loss"] = *result.best_validation_loss;
    if (!result.notes.empty()) out["notes"] = result.notes;
    if (result.imbalance) out["attention_imbalance"] = *result.imbalance;
    if (!result.context_comm.empty()) out["context_comm"] = result.context_comm;
    if (!result.pipeline_schedule.empty()) out["pipeline_schedule"] = result.pipeline_schedule;
    std::puts(out.dump().c_str());
    return;
  }
  std::string line = fmt::format("{} after step {}{}", result.interrupted ? "stopped" : "done", result.steps,
                                 result.stopped_early ? ", by early stopping" : "");
  if (result.train_loss) line += fmt::format(": loss {:.4f}", *result.train_loss);
  if (result.validation_loss) {
    line += fmt::format("{} {}validation loss ", result.train_loss ? "," : ":", result.interrupted ? "last " : "");
    if (result.initial_validation_loss && result.steps > 0) {
      line += fmt::format("{:.4f} -> ", result.initial_validation_loss->all);
    }
    line += fmt::format("{:.4f}", result.validation_loss->all);
    if (const std::string sets = set_losses_text(*result.validation_loss); !sets.empty()) line += cat(" (", sets, ")");
  }
  if (result.imbalance) line += fmt::format("; attention imbalance {:.3f}", *result.imbalance);
  if (!result.checkpoint.empty()) line += "; checkpoint " + result.checkpoint;
  if (result.interrupted) {
    line +=
        result.checkpoint.empty() ? "; nothing to save" : cat("; `", resume_command(options), "` continues from it");
  }
  std::vector<std::string> lines{line};
  if (result.best_is_earlier()) {
    const auto before =
        result.initial_validation_loss ? loss_of(*result.initial_validation_loss, result.metric) : std::nullopt;
    const bool worse = before && *before < *result.best_validation_loss;
    lines.push_back(fmt::format("the lowest {} {}was {:.4f}; its checkpoint is {}/best{}", metric_words(result.metric),
                                worse ? "of the steps " : "", *result.best_validation_loss, result.output,
                                worse ? fmt::format("; before training it was lower, {:.4f}", *before) : ""));
  }
  if (result.diverged) {
    lines.emplace_back(
        "hawser: the run diverged: its loss rose above that at the start and has not come back; try a lower "
        "optimizer.learning_rate or a "
        "longer optimizer.warmup_steps");
  } else if (!result.interrupted && !result.checkpoint.empty()) {
    for (std::string& next : next_commands(result)) lines.push_back(std::move(next));
  }
  for (const std::string& each : lines) print_plain(each);
}

// The device of this rank, and the number of ranks.
struct Place {
  engine::RankDevice device;
  int world = 1;
};

// A device that this machine has not is rejected like a wrong key: what depends on it is not checked.
Place choose_place(Recipe& recipe, const FitOptions& options, Problems& problems) {
  const auto is_done = [&](const auto& work) {
    try {
      work();
      return true;
    } catch (const UserError& error) {
      problems.add_lines(error.what());
      recipe.rejected.insert("run.device");
      return false;
    }
  };
  Place place;
  int gpus = 0;
  const bool has_device = accepted(recipe, {"run.device"}) && is_done([&] { gpus = engine::gpus_of(recipe); });
  place.world =
      world_size(options.common, default_ranks(recipe, gpus > 0 ? DeviceChoice::cuda : DeviceChoice::cpu, gpus));
  if (has_device) is_done([&] { place.device = device_of(recipe, place.world); });
  return place;
}

// The body of each of `world` ranks. Returns the exit code, equal on all ranks. `found`: problems of the recipe.
int fit_here(const Recipe& recipe, int world, const engine::RankDevice& device, const FitOptions& options,
             const Problems& found) {
  catch_stop_signals();
  const plan::RunPlan plan = plan::resolve(recipe);
  const auto check = [&](const RankPlace& place, Problems& problems) {
    problems.add(found);
    train::check_fit(plan,
                     {.world = world,
                      .ranks_here = launched_as().local_ranks,
                      .threads = threads_of(recipe),
                      .device = device.kind,
                      .first = place.rank == 0,
                      .resume = options.resume,
                      .force = options.force},
                     problems);
  };
  const auto run = [&](comm::World* ranks) {
    const Terminal terminal = user_terminal();
    train::FitRequest request{.plan = plan,
                              .resume = options.resume,
                              .threads = threads_of(recipe),
                              .ranks_here = launched_as().local_ranks,
                              .device = device,
                              .stop_requested = stop_requested,
                              .progress = {.terminal = terminal.is_terminal, .columns = terminal.columns}};
    const train::FitResult result = train::fit(request, ranks);
    if (ranks == nullptr || ranks->rank().value() == 0) {
      print_last_message([&] { print_result(result, options); });
    }
    return static_cast<int>(result.interrupted ? ExitCode::interrupted
                            : result.diverged  ? ExitCode::diverged
                                               : ExitCode::done);
  };
  return run_on_ranks(world, recipe, {.check = check, .run = run});
}

}  // namespace

int fit(const FitOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);  // the reader of the progress may close its end; the run continues
  Problems problems;
  Recipe recipe = read_recipe_for(options.recipe, options.common, Purpose::train, problems);
  const auto [device, world] = choose_place(recipe, options, problems);
  check_layout(recipe, world, problems);
  if (must_launch(world)) {
    const int threads = recipe.run.threads > 0 ? recipe.run.threads : threads_per_rank(world);
    train::check_fit(plan::resolve(recipe),
                     {.world = world,
                      .ranks_here = world,
                      .threads = threads,
                      .device = device.kind,
                      .resume = options.resume,
                      .force = options.force},
                     problems);
    problems.throw_if_any();
  }
  if (problems.empty() && options.resume && launched_as().rank == 0 && !launched_locally())
    warn_of_other_commit(recipe);
  if (must_launch(world)) return launch_ranks({.ranks = world, .threads = recipe.run.threads, .saves = true});
  return fit_here(recipe, world, device, options, problems);
}

void add_fit(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<FitOptions>();
  CLI::App* command = add_command(app,
                                  {.name = "fit",
                                   .what = "train a model from a recipe; starts its own ranks",
                                   .examples = {"hawser fit recipe.yaml",
                                                "hawser fit recipe.yaml --ranks 4 --set "
                                                "parallel.context_parallel_degree=2 --resume"}},
                                  options->common);
  add_positional(*command, "RECIPE", options->recipe, "YAML recipe; `hawser recipe init` writes one");
  add_switch(*command, "--resume", options->resume, "resume from the last complete checkpoint of the output folder");
  add_switch(*command, "--force", options->force,
             "start in the output folder of a run with another model, adapter or data, whose files are moved aside");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->recipe, "RECIPE"}}, "fit");
    chosen = [options, &commands] { return commands.fit(*options); };
  });
}

}  // namespace hawser::cli
