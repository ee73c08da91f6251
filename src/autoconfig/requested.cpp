#include "autoconfig/requested.h"

#include <algorithm>

#include "base/error.h"
#include "config/check_to_write.h"
#include "config/config.h"
#include "device/device.h"
#include "engine/model_changes.h"
#include "engine/output_place.h"
#include "plan/run_plan.h"
#include "prepare/prepare.h"

namespace hawser::autoconfig {

int usable_gpus(const Recipe& recipe) {
  return recipe.run.device == DeviceChoice::cpu ? 0 : cuda_info().devices;
}

plan::Target choose_target(const Recipe& recipe, const std::string& name, int gpus) {
  if (!name.empty()) return plan::load_target(name);
  const bool cuda = recipe.run.device == DeviceChoice::cuda || gpus > 0;
  return plan::load_target(plan::target_of(cuda ? DeviceKind::cuda : DeviceKind::cpu));
}

int choose_ranks(const Recipe& recipe, const plan::Target& target, int gpus) {
  if (recipe.run.ranks > 0) return recipe.run.ranks;
  return target.cuda ? std::max(1, gpus) : default_ranks(recipe, DeviceChoice::cpu);
}

namespace {

using RateTable = std::vector<std::pair<double, double>>;  // most parameters, rate

double rate_in(const RateTable& table, std::int64_t parameters) {
  for (const auto& [max, rate] : table) {
    if (double(parameters) <= max) return rate;
  }
  return table.back().second;
}

constexpr double kAnySize = 1e18;

// From GPT-3's table (Brown et al. 2020, table 2.1).
const RateTable kScratchRates = {{50e6, 1e-3},    {250e6, 6e-4}, {550e6, 3e-4}, {1e9, 2.5e-4},   {2e9, 2e-4},
                                 {4.5e9, 1.6e-4}, {9e9, 1.2e-4}, {50e9, 1e-4},  {kAnySize, 6e-5}};

// All weights: that of 7B parameters is common; smaller models take more.
const RateTable kTuningRates = {{250e6, 2e-4}, {550e6, 1e-4}, {1.2e9, 7e-5},   {2.5e9, 5e-5},
                                {5e9, 3e-5},   {25e9, 2e-5},  {kAnySize, 1e-5}};

// Adapters whose output is scaled by alpha / rank = 2.
struct AdapterRate {
  double max;  // parameters of the model
  double rate;
  const char* source;
};
const std::vector<AdapterRate> kAdapterRates = {
    {400e6, 2e-3, "measured at 135M and 268M parameters, see docs/performance.md"},
    {900e6, 1e-3, "between those measured at 268M and published for 1B parameters"},
    {2.5e9, 5e-4, "5e-4 * (2000 / hidden size)^0.78, fitted to Llama models (Schulman et al. 2025)"},
    {5e9, 3e-4, "torchtune's for LoRA of Llama 3.2 3B"},
    {25e9, 2e-4, "QLoRA's for 7B and 13B parameters (Dettmers et al. 2023)"},
    {kAnySize, 1e-4, "QLoRA's for 33B and 65B parameters (Dettmers et al. 2023)"},
};

}  // namespace

UsualRate usual_learning_rate(const Recipe& recipe, std::int64_t parameters) {
  if (recipe.adapter.kind != AdapterKind::none) {
    const auto of_size =
        std::ranges::find_if(kAdapterRates, [&](const AdapterRate& of) { return double(parameters) <= of.max; });
    return {of_size->rate, cat("adapters take about ten times that of full fine-tuning; ", of_size->source)};
  }
  const bool scratch = recipe.model.path.empty();
  return {
      rate_in(scratch ? kScratchRates : kTuningRates, parameters),
      cat(scratch ? "from scratch" : "fine-tuning", ": common for ", format_count(double(parameters)), " parameters")};
}

bool may_share_sequences(const Recipe& recipe, int world) {
  return recipe.train.global_batch_size < recipe.parallel.data_ranks(world) * recipe.train.micro_batch_size &&
         !recipe.places.contains("parallel.context_parallel_degree") &&
         !recipe.places.contains("parallel.tensor_parallel_degree");
}

namespace {

void check_requested_layout(const Recipe& recipe, const std::string& named, Problems& problems) {
  try {
    const int gpus = usable_gpus(recipe);
    const plan::Target target = choose_target(recipe, named, gpus);
    plan::check_fp8(recipe, target, problems);
    const int world = choose_ranks(recipe, target, gpus);
    const bool proposed = !recipe.places.contains("train.global_batch_size") || may_share_sequences(recipe, world);
    const auto check = proposed ? check_mesh : check_layout;
    check(recipe, world, problems);
  } catch (const UserError& error) {  // of the target
    problems.add_lines(error.what());
  }
}

}  // namespace

namespace {

engine::OpenModel open_named(const Recipe& recipe, Problems& problems) {
  const std::string path = plan::model_of(recipe);
  if (!accepted(recipe, {"model.path", "model.config"}) || path.empty()) return {};
  Problems found;
  engine::OpenModel open = engine::open_model(path, recipe.model.path.empty(), found, engine::changes_of(recipe));
  problems.add(with_origins(recipe, found, recipe.model.path.empty() ? "model.config" : "model.path", path));
  return open;
}

}  // namespace

engine::OpenModel open_requested(const Recipe& recipe, const std::string& target, Problems& problems) {
  Problems of_model;  // shown after those of the layout
  engine::OpenModel open = open_named(recipe, of_model);
  if (!problems.empty() || !of_model.empty()) check_requested_layout(recipe, target, problems);
  problems.add(of_model);
  return open;
}

namespace {

// Folders that `fit` would reject.
void check_outputs(const Recipe& recipe, Problems& problems) {
  Problems found;
  const auto check = [&](const std::string& path, const char* key) {
    if (accepted(recipe, {key})) engine::check_output(resolve_path(recipe, path), key, {}, found);
  };
  check(recipe.output, "output");
  if (found.empty()) check(recipe.data.prepared, "data.prepared");
  problems.add(with_origins(recipe, found));
}

void check_data(const Recipe& recipe, const engine::OpenModel& open, Problems& problems) {
  if (!accepted(recipe, {"data.tokenizer", "data.chat_template", "data.validation"})) return;
  prepare::PrepareOptions options = plan::resolve_data(recipe);
  if (open.model) options.vocab_size = open.model->vocabulary();
  Problems found;
  prepare::check_sources(options, found);
  for (const Problem& problem : found.all()) {
    if (problem.at != "data.train") problems.add(problem);  // a recipe without data is written with a warning
  }
}

}  // namespace

void check_requested(Recipe recipe, const std::string& target, Problems& problems) {
  Problems of_model;  // shown after those of the keys
  const engine::OpenModel open = open_named(recipe, of_model);
  std::vector<std::string> chosen_later;
  const auto chosen = [&](const char* key) { return !recipe.places.contains(key); };
  for (const char* key : {"train.global_batch_size", "train.micro_batch_size"}) {
    if (chosen(key)) chosen_later.emplace_back(key);
  }
  if (chosen("train.steps") && chosen("train.epochs")) chosen_later.emplace_back("train.steps");
  if (chosen("optimizer.learning_rate")) {
    if (open.model) recipe.optimizer.learning_rate = usual_learning_rate(recipe, open.model->parameters()).rate;
    if (!open.model) chosen_later.emplace_back("optimizer.learning_rate");
  }
  check_without(chosen_later, recipe, problems);
  check_outputs(recipe, problems);
  check_requested_layout(recipe, target, problems);
  problems.add(of_model);
  if (!problems.empty()) check_data(recipe, open, problems);
}

}  // namespace hawser::autoconfig
