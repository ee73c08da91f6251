// hawser plan: memory, FLOPs and communication of a recipe, without running it.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "autoconfig/sample_data.h"
#include "base/error.h"
#include "base/printable.h"
#include "base/text.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/doing.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/model_name.h"
#include "cli/timeline_file.h"
#include "device/device.h"
#include "engine/model_changes.h"
#include "models/families.h"
#include "plan/comparison.h"
#include "plan/disk.h"
#include "plan/offload_text.h"
#include "plan/report.h"
#include "plan/run_plan.h"
#include "plan/target.h"
#include "prepare/sources.h"
#include "prepare/validation_sets.h"
#include "profile/predicted_timeline.h"

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

// A recipe with its model, on a target.
struct Subject {
  Recipe recipe;
  plan::Target target;
  models::ModelDescription description;
  std::shared_ptr<const models::Model> model;
};

// Reads the model and the target; throws with the problems found before.
Subject read_subject(const Recipe& recipe, const PlanOptions& options, Problems problems) {
  const std::optional<plan::Target> read = read_target(target_of(recipe, options), problems);
  if (read) {
    check_target_device(recipe, *read, problems);
    plan::check_fp8(recipe, *read, problems);
  }
  const std::string& named = recipe.model.path.empty() ? recipe.model.config : recipe.model.path;
  models::ModelDescription description;
  if (accepted(recipe, {"model.path", "model.config"})) {
    const std::string path = resolve_path(recipe, named);
    Problems of_model;
    description = models::read_description(path, of_model);
    problems.add(with_origins(recipe, of_model, recipe.model.path.empty() ? "model.config" : "model.path", path));
  }
  const engine::ModelChanges changes = engine::changes_of(recipe);
  if (!description.blocks.empty()) {  // else there are problems already
    changes.describe(description, problems);
    models::check_share(description, changes.share, changes.share_place, problems);
  }
  problems.throw_if_any();
  const auto model = std::make_shared<const models::Model>(description, changes.spec_of, changes.share);
  return {.recipe = recipe, .target = *read, .description = std::move(description), .model = model};
}

void print_notes(const Subject& subject) {
  const auto warn = [](const std::string& text) {
    if (!text.empty()) print("warning: ", text);
  };
  warn(models::beyond_positions(subject.description, subject.recipe.data.sequence_length));
  warn(high_learning_rate(subject.recipe));
  const std::string experts = engine::experts_without_adapter(subject.recipe, *subject.model);
  if (!experts.empty()) print("", experts);
  warn(engine::useless_fp8(subject.recipe, *subject.model));
  warn(plan::useless_tiles(subject.recipe, *subject.model));
  warn(plan::useless_offload(subject.recipe, subject.target.cuda ? DeviceKind::cuda : DeviceKind::cpu));
}

plan::Forecaster forecaster_of(const Subject& subject, int world) {
  const plan::Machine machine = plan::planning_machine(subject.target, world);
  return {subject.recipe, *subject.model, world,
          subject.target, machine,        threads_of_a_rank(subject.recipe, machine, world)};
}

// Those of train.epochs are estimated from a sample of the data; unknown if it is not here or cannot be read.
plan::RunSteps steps_of(const Subject& subject) {
  const Recipe& recipe = subject.recipe;
  if (recipe.train.steps > 0) return {.count = recipe.train.steps};
  if (recipe.train.epochs == 0 || recipe.data.train.empty()) return {};
  try {
    const Doing doing("reading a sample of the data");
    const autoconfig::DataSample sample = autoconfig::sample_data(recipe, subject.model->vocabulary());
    if (sample.empty()) return {};
    return {.count = autoconfig::steps_of_epochs(recipe, sample), .estimated = true};
  } catch (const Error&) {
    return {};  // `prepare` and `fit` say what is wrong with the data
  }
}

plan::Compared compared(std::string what, const Subject& subject, const plan::RunSteps& steps, plan::Forecast forecast,
                        std::optional<double> price) {
  plan::Compared row{.what = std::move(what), .forecast = std::move(forecast), .cost = {}};
  const std::int64_t tokens = subject.recipe.train.global_batch_size * subject.recipe.data.sequence_length;
  row.cost = plan::cost_of_run(*row.forecast, subject.target, tokens, steps.count, price);
  return row;
}

// Between the changes of one alternative.
const std::string kAndSet = " --set ";

std::vector<std::string> changes_in(const std::string& alternative) {
  std::vector<std::string> out;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + kAndSet.size()) {
    end = alternative.find(kAndSet, begin);
    out.push_back(alternative.substr(begin, end - begin));
  }
  return out;
}

// What the recipe could say instead, one key at a time, and what that needs.
std::vector<std::string> changes_to_try(const Recipe& recipe, const plan::Target& target, int world) {
  std::vector<std::string> out;
  if (target.gemm_fp8 > 0 && recipe.precision.compute != ComputePrecision::fp8) out.push_back("precision.compute=fp8");
  for (const char* policy : {"none", "selective", "gate_up", "qkv", "projections", "full", "block", "auto"}) {
    if (checkpointing_text(recipe.memory) != policy) out.push_back(cat("memory.activation_checkpointing=", policy));
  }
  if (recipe.memory.mlp_tile_rows > 0) {
    out.push_back("memory.mlp_tile_rows=0");
  } else if (recipe.data.sequence_length > kMlpTileRows) {
    out.push_back(cat("memory.mlp_tile_rows=", kMlpTileRows));
  }
  if (target.cuda) {  // which has memory of its own
    const MemoryRecipe& memory = recipe.memory;
    const auto switched = [&](const char* key, bool on) { out.push_back(cat(key, "=", on ? "false" : "true")); };
    switched("memory.activation_offload", memory.activation_offload.value_or(true));
    switched("memory.optimizer_offload", memory.optimizer_offload.value_or(true));
    switched("memory.weight_offload", memory.weight_offload);
  }
  out.push_back(cat("train.micro_batch_size=", 2 * recipe.train.micro_batch_size));
  if (recipe.train.micro_batch_size > 1)
    out.push_back(cat("train.micro_batch_size=", recipe.train.micro_batch_size / 2));
  if (world > 1) {
    const int tensor = recipe.parallel.tensor_parallel_degree;
    for (const int other : {1, 2, 4, 8}) {
      if (other != tensor && world % other == 0) out.push_back(cat("parallel.tensor_parallel_degree=", other));
    }
    const ParallelRecipe& parallel = recipe.parallel;
    // A list of cuts is for its own number of model chunks.
    const std::string cuts = parallel.pipeline_partition.empty() ? "" : kAndSet + "parallel.pipeline_partition=auto";
    for (const int other : {1, 2, 4, 8}) {
      if (other != parallel.pipeline_parallel_degree && world % other == 0)
        out.push_back(cat("parallel.pipeline_parallel_degree=", other, cuts));
    }
    for (const auto& [schedule, name] : {std::pair(PipelineSchedule::one_forward_one_backward, "1f1b"),
                                         {PipelineSchedule::gpipe, "gpipe"},
                                         {PipelineSchedule::interleaved, "interleaved"},
                                         {PipelineSchedule::zero_bubble, "zero_bubble"}}) {
      if (parallel.pipeline_parallel_degree > 1 && schedule != parallel.pipeline_schedule)
        out.push_back(cat("parallel.pipeline_schedule=", name, cuts));
    }
    const bool state = recipe.parallel.sharding == ShardPolicy::optimizer;
    out.push_back(cat("parallel.sharding=", state ? "parameters" : "optimizer"));
    const int context = recipe.parallel.context_parallel_degree, shard = recipe.parallel.hybrid_shard_degree;
    out.push_back(cat("parallel.context_parallel_degree=", 2 * context));
    if (context > 1) out.push_back(cat("parallel.context_parallel_degree=", context / 2));
    for (const auto& [comm, name] : {std::pair(ContextComm::all_gather, "all_gather"),
                                     {ContextComm::ring, "ring"},
                                     {ContextComm::all_to_all, "all_to_all"},
                                     {ContextComm::hybrid, "hybrid"}}) {
      if (context > 1 && comm != recipe.parallel.context_comm) out.push_back(cat("parallel.context_comm=", name));
    }
    if (shard != 0 && shard != world) out.push_back("parallel.hybrid_shard_degree=0");
    if (world > 8 && shard != 8) out.push_back("parallel.hybrid_shard_degree=8");
    const bool local = recipe.parallel.gradient_accumulation == GradientAccumulation::local;
    out.push_back(cat("parallel.gradient_accumulation=", local ? "sharded" : "local"));
  }
  return out;
}

// The plan as it is, `own`, and what each change gives, fastest first; changes that no run can have are left out. None
// changes the number of steps.
std::vector<plan::Compared> alternatives_of(const Subject& subject, const plan::RunSteps& steps,
                                            const plan::Forecast& own, int world, const PlanOptions& options) {
  std::vector<plan::Compared> rows;
  for (const std::string& change : changes_to_try(subject.recipe, subject.target, world)) {
    try {
      const Recipe recipe = override_recipe(subject.recipe, changes_in(change));
      Problems problems;
      check_layout(recipe, world, problems);
      if (!problems.empty()) continue;
      const Doing doing("planning --set " + change);
      const Subject changed = read_subject(recipe, options, {});
      rows.push_back(
          compared("--set " + change, changed, steps, forecaster_of(changed, world).forecast(), options.price));
    } catch (const UserError&) {
      continue;  // the model or the target does not support it
    }
  }
  std::ranges::stable_sort(rows, [](const plan::Compared& a, const plan::Compared& b) {
    const auto speed = [](const plan::Compared& row) {
      return row.forecast->fits() ? row.forecast->tokens_per_second : 0.0;
    };
    return speed(a) > speed(b);
  });
  rows.insert(rows.begin(), compared("as it is", subject, steps, own, options.price));
  return rows;
}

// The data may be on another machine: a plan needs its size at most.
void warn_of_missing_data(const Recipe& recipe) {
  Problems missing;
  prepare::find_sources(recipe.data.train, recipe.folder, "data.train", missing);
  prepare::find_validation(plan::validation_sets_of(recipe.data), recipe.folder, missing);
  if (!missing.empty()) print("warning: ", with_origins(recipe, missing).lines());
}

// Plans for `world` ranks and prints the plan; returns 4 if it does not fit.
int plan_one(const Subject& subject, int world, const PlanOptions& options) {
  const auto& [recipe, target, description, model] = subject;
  const plan::Forecaster forecaster = forecaster_of(subject, world);
  plan::PlanFacts facts{.steps = steps_of(subject), .price = options.price};
  const plan::Forecast forecast = [&] {
    const Doing doing("planning");
    plan::Forecast out = forecaster.forecast();
    if (!out.fits()) facts.alternatives = forecaster.alternatives();
    return out;
  }();
  facts.disk = plan::disk_use(recipe, *model, forecast.layout, facts.steps.count, forecast.seconds);
  const bool here = target.is_this_cpu() || (target.cuda && cuda_info().devices > 0);
  if (here && !recipe.output.empty()) facts.free_disk = plan::free_disk(resolve_path(recipe, recipe.output));
  const std::vector<plan::Compared> others = options.alternatives
                                                 ? alternatives_of(subject, facts.steps, forecast, world, options)
                                                 : std::vector<plan::Compared>();
  if (!options.timeline.empty()) {
    const Doing doing("drawing the timeline");
    write_timeline(options.timeline,
                   profile::predicted_timeline(*model, forecast.layout, target, forecaster.rate_scale()));
  }
  if (options.common.json) {
    std::puts(options.alternatives ? plan::comparison_json("with", others, target).c_str()
                                   : plan::plan_json(recipe, *model, target, forecast, facts).c_str());
  } else {
    std::string text = plan::plan_text(recipe, *model, target, forecast, facts);
    if (options.alternatives) {
      text += "\ninstead of what the recipe says\n" + plan::comparison_text("with", others, target);
    }
    if (!options.timeline.empty()) text += cat("wrote ", options.timeline, "\n");
    std::fputs(printable(text, Newlines::keep).c_str(), stdout);
  }
  if (options.model.empty()) warn_of_missing_data(recipe);
  const std::string lacks = lacks_for_fit(recipe);
  if (!lacks.empty() && options.model.empty()) {
    print("", cat("`hawser fit` needs keys that this recipe lacks: ", lacks));
  }
  if (facts.free_disk && facts.disk.total() > *facts.free_disk) {
    print("warning: ", cat("the run takes up to ", format_bytes(Bytes(facts.disk.total())), " of disk, and ",
                           format_bytes(Bytes(*facts.free_disk)), " are free for ", recipe.output, "; try ",
                           facts.disk.kept > 1 ? "--set checkpoint.keep_last=1, or " : "", "another output"));
  }
  if (!forecast.fits()) throw Error(ExitCode::does_not_fit, plan::rejection(recipe, forecast, facts.alternatives));
  return 0;
}

// A table of numbers of ranks; returns 4 if none fits.
int plan_several(const Subject& subject, const PlanOptions& options) {
  std::vector<plan::Compared> rows;
  const plan::RunSteps steps = steps_of(subject);
  bool fits = false;
  for (const int world : options.common.rank_counts) {
    Problems problems;
    check_layout(subject.recipe, world, problems);
    if (!problems.empty()) {
      rows.push_back({.what = cat(world), .forecast = {}, .cost = {}, .problem = first_line(problems.lines())});
      continue;
    }
    const Doing doing(cat("planning ", world, " ranks"));
    rows.push_back(compared(cat(world), subject, steps, forecaster_of(subject, world).forecast(), options.price));
    fits = fits || rows.back().forecast->fits();
  }
  if (options.common.json) {
    std::puts(plan::comparison_json("ranks", rows, subject.target).c_str());
  } else {
    const Recipe& recipe = subject.recipe;
    const std::string name = recipe.name.empty() ? "plan" : recipe.name;
    const std::string text =
        cat(name, ": ", plural(recipe.train.global_batch_size, "sequence"), " of ", recipe.data.sequence_length,
            " tokens per step; ranks of ", subject.target.name, " (", subject.target.about, ")\n",
            subject.target.never_run ? plan::kNeverRun : "", subject.target.never_run ? "\n\n" : "\n",
            plan::comparison_text("ranks", rows, subject.target));
    std::fputs(printable(text, Newlines::keep).c_str(), stdout);
  }
  if (!fits) throw Error(ExitCode::does_not_fit, "the recipe fits on none of these numbers of ranks");
  return 0;
}

// A recipe for --model; `assumed`: the values of what the plan needs and --set does not say.
Recipe recipe_of_model(const PlanOptions& options, std::string& assumed, Problems& problems) {
  Recipe base;
  const bool config = options.model.ends_with(".json");
  (config ? base.model.config : base.model.path) = find_model(options.model, options.common, hub::Parts::configuration);
  Recipe recipe = recipe_without_file(base, options.common, /*runs=*/false, /*keep_relative=*/false, problems);
  if (recipe.name.empty()) recipe.name = options.model;
  const auto assume = [&](const char* key, const std::string& value) {
    assumed += cat(assumed.empty() ? "" : ", ", key, "=", value);
  };
  if (recipe.data.sequence_length == 0 && !recipe.rejected.contains("data.sequence_length")) {
    recipe.data.sequence_length = 4096;
    assume("data.sequence_length", "4096");
  }
  if (!recipe.places.contains("train.global_batch_size")) {
    const std::vector<int>& counts = options.common.rank_counts;
    const int most = counts.empty() ? default_ranks(recipe, recipe.run.device) : *std::ranges::max_element(counts);
    recipe.train.global_batch_size =
        recipe.parallel.data_ranks(most) * recipe.train.micro_batch_size * recipe.parallel.micro_batches_to_try();
    assume("train.global_batch_size", cat(recipe.train.global_batch_size));
  }
  if (!recipe.places.contains("memory.activation_checkpointing")) {
    recipe.memory.activation_checkpointing = Checkpointing::automatic;
    assume("memory.activation_checkpointing", "auto");
  }
  return recipe;
}

}  // namespace

int plan(const PlanOptions& options) {
  Problems problems;
  std::string assumed;
  const Recipe recipe = options.model.empty() ? read_recipe_for(options.recipe, options.common, Purpose::plan, problems)
                                              : recipe_of_model(options, assumed, problems);
  const bool several = !options.common.rank_counts.empty();
  const int world = several ? 1 : default_ranks(recipe, recipe.run.device);  // any number: nothing is started
  if (!several) check_layout(recipe, world, problems);
  if (several && options.alternatives) {
    problems.add({.what = "--alternatives is for one number of ranks",
                  .got = cat(options.common.rank_counts.size()),
                  .at = "--ranks"});
  }
  if (several && !options.timeline.empty()) {
    problems.add({.what = "--timeline is for one number of ranks",
                  .got = cat(options.common.rank_counts.size()),
                  .at = "--ranks"});
  }
  if (!options.timeline.empty()) check_timeline_file(options.timeline, "--timeline", options.model, problems);
  const Subject subject = read_subject(recipe, options, std::move(problems));
  if (!assumed.empty()) print("", "without a recipe, a plan for " + assumed);
  print_notes(subject);
  return several ? plan_several(subject, options) : plan_one(subject, world, options);
}

void add_plan(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "plan",
       .what = "predict memory, FLOPs and communication of a recipe, and whether it fits",
       .examples = {"hawser plan recipe.yaml --ranks 8 --memory 80GB",
                    "hawser plan recipe.yaml --ranks 1024 --target h200 --set data.sequence_length=128K",
                    "hawser plan recipe.yaml --ranks 8,16,32 --target h100 --price 2.50",
                    "hawser plan recipe.yaml --set parallel.pipeline_parallel_degree=4 --timeline step.svg",
                    "hawser plan --model llama/config.json --ranks 8 --target h200 --set data.sequence_length=32K"},
       .several_ranks = true},
      options->common);
  add_positional(*command, "RECIPE", options->recipe, "YAML recipe; `hawser recipe init` writes one");
  add_text(*command, "--model", "PATH", options->model,
           "a config.json, a model folder or ORG/NAME, instead of a recipe; --set gives keys");
  add_text(*command, "--target", "NAME", options->target,
           cat(joined(plan::shipped_targets(), ", "), ", or a file; default: this machine's").c_str());
  set_completions(*command, "--target", plan::shipped_targets());
  add_parsed(*command, options->common, "--price", "PRICE",
             "price of a rank (a GPU) for an hour: prints that of the run",
             [options](const std::string& value) { options->price = real_number("--price", value, 0, 1e6); });
  add_switch(*command, "--alternatives", options->alternatives,
             "also plan what the recipe could say instead, FP8 among it, and compare");
  add_text(*command, "--timeline", "FILE", options->timeline,
           "write the predicted step, with one row of each pipeline stage, for Perfetto; FILE.svg: as a picture");
  on_chosen(*command, [options, &commands, &chosen] {
    if (options->model.empty()) need(options->common, {{options->recipe, "RECIPE"}}, "plan");
    if (!options->model.empty() && !options->recipe.empty()) {
      options->common.problems.add({.what = "both a recipe and --model", .expected = "one of them"});
    }
    chosen = [options, &commands] { return commands.plan(*options); };
  });
}

}  // namespace hawser::cli
