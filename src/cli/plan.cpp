// hawser plan: memory, FLOPs and communication of a recipe, without running it.
#include <algorithm>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/doing.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "device/device.h"
#include "engine/model_changes.h"
#include "models/families.h"
#include "plan/disk.h"
#include "plan/report.h"
#include "plan/target.h"
#include "prepare/sources.h"

namespace hawser::cli {
namespace {

std::string target_of(const Recipe& recipe, const PlanOptions& options) {
  if (!options.target.empty()) return options.target;
  return plan::target_of(recipe.run.device == DeviceChoice::cuda ? DeviceKind::cuda : DeviceKind::cpu);
}

// threads x ranks of this machine = its cores, whoever starts the ranks.
int threads_of_a_rank(const Recipe& recipe, const plan::Machine& machine, int world) {
  return recipe.run.threads > 0 ? recipe.run.threads : std::max(1, machine.cores / world);
}

std::optional<plan::Target> read_target(const std::string& name, Problems& problems) {
  try {
    return plan::load_target(name);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
    return std::nullopt;
  }
}

// The keys that `fit` needs and a plan does not, of those that the recipe lacks; "": none.
std::string lacks_for_fit(const Recipe& recipe) {
  std::string out;
  const auto add = [&](bool lacks, const char* key) {
    if (lacks) out += cat(out.empty() ? "" : ", ", key);
  };
  add(recipe.data.train.empty() && recipe.data.prepared.empty(), "data.train");
  add(recipe.train.steps == 0 && recipe.train.epochs == 0, "train.steps or train.epochs");
  add(recipe.output.empty(), "output");
  return out;
}

// Plans the recipe for `world` ranks and prints the plan; returns 4 if it does not fit. `problems`: those found before.
int plan_here(const Recipe& recipe, int world, const PlanOptions& options, Problems problems) {
  const std::optional<plan::Target> read = read_target(target_of(recipe, options), problems);
  if (read) check_target_device(recipe, *read, problems);
  const std::string& named = recipe.model.path.empty() ? recipe.model.config : recipe.model.path;
  models::ModelDescription description;
  if (accepted(recipe, {"model.path", "model.config"})) {
    const std::string path = resolve_path(recipe, named);
    Problems of_model;
    description = models::read_description(path, of_model);
    problems.add(with_origins(recipe, of_model, recipe.model.path.empty() ? "model.config" : "model.path", path));
  }
  const engine::ModelChanges changes = engine::changes_of(recipe);
  if (!description.blocks.empty()) changes.describe(description, problems);  // else there are problems already
  problems.throw_if_any();
  const plan::Target& target = *read;
  const std::string beyond = models::beyond_positions(description, recipe.data.sequence_length);
  if (!beyond.empty()) print("warning: ", beyond);
  const models::Model model(description, changes.spec_of);
  const std::string high = high_learning_rate(recipe);
  if (!high.empty()) print("warning: ", high);
  const std::string experts = engine::experts_without_adapter(recipe, model);
  if (!experts.empty()) print("", experts);
  const std::string useless = engine::useless_fp8(recipe, model);
  if (!useless.empty()) print("warning: ", useless);
  const plan::Machine machine = plan::planning_machine(target, world);
  const plan::Forecaster forecaster(recipe, model, world, target, machine, threads_of_a_rank(recipe, machine, world));
  plan::PlanFacts facts;
  if (recipe.train.steps > 0) facts.steps = recipe.train.steps;
  const plan::Forecast forecast = [&] {
    const Doing doing("planning");
    plan::Forecast out = forecaster.forecast();
    if (!out.fits()) facts.alternatives = forecaster.alternatives();
    return out;
  }();
  facts.disk = plan::disk_use(recipe, model, forecast.layout, facts.steps, forecast.seconds);
  const bool here = target.is_this_cpu() || (target.cuda && cuda_info().devices > 0);
  if (here && !recipe.output.empty()) facts.free_disk = plan::free_disk(resolve_path(recipe, recipe.output));
  if (options.common.json) {
    std::puts(plan::plan_json(recipe, model, target, forecast, facts).c_str());
  } else {
    std::fputs(printable(plan::plan_text(recipe, model, target, forecast, facts), Newlines::keep).c_str(), stdout);
  }
  // The data may be on another machine: a plan needs its size at most.
  Problems missing;
  prepare::find_sources(recipe.data.train, recipe.folder, "data.train", missing);
  prepare::find_sources(recipe.data.validation, recipe.folder, "data.validation", missing, prepare::Split::validation);
  if (!missing.empty()) print("warning: ", with_origins(recipe, missing).lines());
  const std::string lacks = lacks_for_fit(recipe);
  if (!lacks.empty()) print("", cat("`hawser fit` needs keys that this recipe lacks: ", lacks));
  if (facts.free_disk && facts.disk.total() > *facts.free_disk) {
    print("warning: ", cat("the run takes up to ", format_bytes(Bytes(facts.disk.total())), " of disk, and ",
                           format_bytes(Bytes(*facts.free_disk)), " are free for ", recipe.output, "; try ",
                           facts.disk.kept > 1 ? "--set checkpoint.keep_last=1, or " : "", "another output"));
  }
  if (!forecast.fits()) throw Error(ExitCode::does_not_fit, plan::rejection(recipe, forecast, facts.alternatives));
  return 0;
}

}  // namespace

int plan(const PlanOptions& options) {
  Problems problems;
  const Recipe recipe = read_recipe_for(options.recipe, options.common, Purpose::plan, problems);
  const int world = default_ranks(recipe, recipe.run.device);  // any number: nothing is started
  check_layout(recipe, world, problems);
  return plan_here(recipe, world, options, std::move(problems));
}

void add_plan(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "plan",
       .what = "predict memory, FLOPs and communication of a recipe, and whether it fits",
       .examples = {"hawser plan recipe.yaml --ranks 8 --memory 80GB",
                    "hawser plan recipe.yaml --ranks 1024 --target h200 --set data.sequence_length=131072"}},
      options->common);
  add_positional(*command, "RECIPE", options->recipe, "YAML recipe; `hawser recipe init` writes one");
  add_text(
      *command, "--target", "NAME", options->target,
      "h100, h200, cpu, or a file like targets/h200.yaml; default: this machine's GPU if the device is cuda, else cpu");
  set_completions(*command, "--target", plan::shipped_targets());
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->recipe, "RECIPE"}}, "plan");
    chosen = [options, &commands] { return commands.plan(*options); };
  });
}

}  // namespace hawser::cli
