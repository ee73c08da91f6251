#include "plan/run_plan.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "base/paths.h"
#include "config/config.h"
#include "io/files.h"
#include "plan/host_memory.h"
#include "plan/target.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::plan {

namespace fs = std::filesystem;

RunFiles files_in(const std::string& output) {
  return {.folder = output,
          .checkpoints = output + "/checkpoints",
          .best = output + "/best",
          .metrics = output + "/metrics.jsonl",
          .recipe = output + "/recipe.json",
          .html = output + "/report.html",
          .tensorboard = output + "/tensorboard",
          .wandb = output + "/wandb",
          .mlflow = output + "/mlflow.json",
          .gemm_algorithms = output + "/gemm_algorithms.txt"};
}

std::vector<prepare::ValidationSet> validation_sets_of(const DataRecipe& data) {
  std::vector<prepare::ValidationSet> sets;
  for (const ValidationSetRecipe& set : data.validation) sets.push_back({.name = set.name, .patterns = set.paths});
  return sets;
}

prepare::PrepareOptions resolve_data(const Recipe& recipe) {
  std::vector<std::size_t> sets;
  for (const DataSetRecipe& set : recipe.data.sets) sets.push_back(set.paths.size());
  prepare::PrepareOptions options{.train = recipe.data.train,
                                  .sets = sets,
                                  .validation = validation_sets_of(recipe.data),
                                  .folder = recipe.folder,
                                  .tokenizer = recipe.data.tokenizer,
                                  .output = recipe.data.prepared,
                                  .validation_fraction = recipe.data.validation_fraction,
                                  .seed = recipe.train.seed,
                                  .chat_template = recipe.data.chat_template,
                                  .template_date = recipe.data.template_date,
                                  .names = {.columns = recipe.data.columns, .roles = recipe.data.roles},
                                  .deduplicate = recipe.data.deduplicate,
                                  .threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()))};
  if (options.tokenizer.empty()) {
    // The model's folder; without a tokenizer there, lines must have ids.
    const fs::path beside =
        recipe.model.path.empty() ? fs::path(recipe.model.config).parent_path() : fs::path(recipe.model.path);
    const fs::path file = resolve_path((beside / "tokenizer.json").string(), recipe.folder);
    options.tokenizer = text::tokenizer_in(file.parent_path().string());
    options.tokenizer_origin = origin_of(recipe, recipe.model.path.empty() ? "model.config" : "model.path");
  } else {
    options.tokenizer_origin = origin_of(recipe, "data.tokenizer");
    options.tokenizer = resolve_path(options.tokenizer, recipe.folder);
  }
  options.with_origins = [recipe](const Problems& problems) { return with_origins(recipe, problems); };
  options.own_folder = options.output.empty();
  options.output = options.own_folder ? resolve_path((fs::path(recipe.output) / "data").string(), recipe.folder)
                                      : resolve_path(options.output, recipe.folder);
  return options;
}

bool evaluates(const Recipe& recipe) {
  const DataRecipe& data = recipe.data;
  if (!data.train.empty()) return !data.validation.empty() || data.validation_fraction > 0;
  return !data.prepared.empty() && !prepare::token_files(resolve_data(recipe)).validation.empty();
}

batches::PackingPlan packing_of(const DataRecipe& data, std::uint64_t seed) {
  const bool given = data.max_documents > 0 && data.pack != Packing::chunks;
  return {.pack = data.pack,
          .sequence_length = data.sequence_length,
          .max_documents = given ? data.max_documents : batches::default_max_documents(data.pack, data.sequence_length),
          .long_documents = data.long_documents,
          .seed = seed};
}

std::vector<batches::DataSetPlan> data_sets_of(const DataRecipe& data) {
  std::vector<batches::DataSetPlan> sets;
  for (const DataSetRecipe& set : data.sets) {
    sets.push_back({.name = set.paths.front(), .weight = set.weight, .repeat = set.repeat.value_or(1.0)});
  }
  return sets;
}

optim::LearningRatePlan learning_rate_of(const Recipe& recipe) {
  const OptimizerRecipe& optimizer = recipe.optimizer;
  const std::int64_t steps = recipe.train.steps;
  return {.learning_rate = optimizer.learning_rate,
          .schedule = optimizer.schedule,
          .warmup_steps = optimizer.warmup_of(steps),
          .decay_steps = optimizer.decay_of(steps),
          .decay_type = optimizer.decay_type,
          .power = optimizer.power,
          .minimum_learning_rate = optimizer.minimum_learning_rate,
          .steps = steps};
}

static_assert(kMaxParamGroups + 1 == optim::kGroups, "other parameters are a group, too");

step::LearningRates learning_rates_at(const RunPlan& plan, std::int64_t step) {
  const double rate = optim::learning_rate(plan.learning_rate, step);
  step::LearningRates rates(static_cast<float>(rate));
  for (std::size_t group = 0; group < plan.group_factors.size(); ++group) {
    rates.of[group + 1] = static_cast<float>(rate * plan.group_factors[group]);
  }
  return rates;
}

namespace {

std::vector<double> group_factors_of(const OptimizerRecipe& optimizer) {
  std::vector<double> factors;
  for (const ParamGroupRecipe& group : optimizer.groups) {
    factors.push_back(group.learning_rate ? *group.learning_rate / optimizer.learning_rate
                                          : group.learning_rate_factor.value_or(1.0));
  }
  return factors;
}

// A number of the recipe, where 0 is none.
template <class Number>
std::optional<Number> if_positive(Number number) {
  return number > 0 ? std::optional(number) : std::nullopt;
}

}  // namespace

// Not normalized: a/../b is another folder than b if a is a link.
std::string model_of(const Recipe& recipe) {
  const std::string& named = recipe.model.path.empty() ? recipe.model.config : recipe.model.path;
  return named.empty() ? "" : (fs::path(recipe.folder) / named).string();
}

RunPlan resolve(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  return {.recipe = recipe,
          .files = files_in(resolve_path(recipe, recipe.output)),
          .model = model_of(recipe),
          .random_weights = recipe.model.path.empty(),
          .data = resolve_data(recipe),
          .prepares = !recipe.data.train.empty(),
          .packing = packing_of(recipe.data, train.seed),
          .data_sets = data_sets_of(recipe.data),
          .global_batch_size = train.global_batch_size,
          .micro_batch_size = train.micro_batch_size,
          .seed = train.seed,
          .steps = train.steps,
          .epochs = if_positive(train.epochs),
          .learning_rate = learning_rate_of(recipe),
          .group_factors = group_factors_of(recipe.optimizer),
          .gradient_clip = gradient_clip_of(recipe),
          .evaluate_every = if_positive(train.evaluate_every),
          .evaluate_sequences = if_positive(train.evaluate_batches * train.global_batch_size),
          .log_every = train.log_every,
          .saves = {.every_steps = if_positive(recipe.checkpoint.every_steps),
                    .every_minutes = if_positive(recipe.checkpoint.minutes_between()),
                    .keep_last = recipe.checkpoint.keep_last,
                    .keep_best = train.evaluate_every > 0,
                    .asynchronous = saves_asynchronously(recipe)},
          .report = recipe.report,
          .capacity = recipe.memory.capacity,
          .host_capacity = recipe.memory.host_capacity,
          .collective_timeout_s = recipe.run.collective_timeout_s};
}

void lay_out(RunPlan& plan, const models::Model& model, int world, int threads, DeviceKind device) {
  plan.layout = make_layout(plan.recipe, model, world, compute_dtype(plan.recipe.precision, device), threads, device);
}

void resolve_steps(RunPlan& plan, std::int64_t sequences) {
  if (!plan.epochs) return;
  constexpr double kRounding = 1e-6;  // in steps: 0.07 epochs of 100 sequences are 7, not 7.000000000000001
  const double steps = *plan.epochs * static_cast<double>(sequences) / static_cast<double>(plan.global_batch_size);
  // The last step may read the first sequences of the next epoch.
  plan.steps = std::max<std::int64_t>(1, std::llround(std::ceil(steps - kRounding)));
  plan.recipe.train.steps = plan.steps;
  plan.learning_rate = learning_rate_of(plan.recipe);
  Problems problems;
  check_warmup(plan.recipe, problems);
  problems.throw_if_any();
}

}  // namespace hawser::plan
