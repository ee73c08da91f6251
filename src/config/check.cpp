#include "config/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <numeric>
#include <set>

#include "base/build.h"
#include "base/nearest.h"
#include "base/paths.h"
#include "base/text.h"
#include "config/check_to_write.h"
#include "config/schema.h"
#include "io/files.h"

namespace hawser {
namespace {

// Each micro-batch has its own instructions in the step's program: planning a thousand takes seconds and gigabytes.
constexpr std::int64_t kMaxMicroBatches = 1024;

// The multiples of `step` around `value`, as a hint: "train.global_batch_size: 8 or 12".
std::string multiples_near(const std::string& key, std::int64_t value, std::int64_t step) {
  const std::int64_t below = value / step * step;
  if (below == 0) return cat(key, ": ", step);
  const bool no_next = below > std::numeric_limits<std::int64_t>::max() - step;
  return below == value || no_next ? cat(key, ": ", below) : cat(key, ": ", below, " or ", below + step);
}

std::string degree_words(const std::vector<int>& degrees) {
  std::string out;
  for (std::size_t i = 0; i < degrees.size(); ++i)
    out += cat(i == 0 ? "" : i + 1 == degrees.size() ? " or " : ", ", degrees[i]);
  return out;
}

// Allowed hybrid degrees: multiples of the context degree that divide the ranks left for data and context.
std::vector<int> hybrid_degrees(int ranks, int context) {
  std::vector<int> out;
  for (int degree = context; degree <= ranks; degree += context)
    if (ranks % degree == 0) out.push_back(degree);
  return out;
}

std::string file_of(const Recipe& recipe, std::string_view key) {
  const auto found = recipe.places.find(std::string(key));
  return found != recipe.places.end() && found->second == "--set" ? "--set" : recipe.file;
}

// The key and its line; for an override `file` is already the place.
std::string at(const Recipe& recipe, std::string_view key) {
  return file_of(recipe, key) == "--set" ? std::string(key) : key_place(recipe, key);
}

}  // namespace

Problem problem_at(const Recipe& recipe, std::string_view key) {
  return {.file = file_of(recipe, key), .at = at(recipe, key)};
}

namespace {

// Given, and not as the default.
bool changes(const Recipe& recipe, const Key& key) {
  return recipe.places.contains(key.name) && key.write(recipe) != key.write(Recipe());
}

}  // namespace

bool accepted(const Recipe& recipe, const std::vector<std::string>& keys) {
  return std::ranges::none_of(keys, [&](const std::string& key) { return recipe.rejected.contains(key); });
}

std::string key_place(const Recipe& recipe, std::string_view key) {
  const auto found = recipe.places.find(std::string(key));
  if (found == recipe.places.end()) return std::string(key);
  const std::string& place = found->second;
  return place.starts_with("--") && place != "--set" ? place : cat(key, ", ", place);
}

std::string resolve_path(const Recipe& recipe, const std::string& path) {
  if (path.empty() || path.find("://") != std::string::npos) return path;
  return without_dots((std::filesystem::path(recipe.folder) / path).string());
}

std::string unused_fp8_keys(const Recipe& recipe) {
  std::string out;
  if (recipe.precision.compute == ComputePrecision::fp8) return out;
  for (const Key& key : schema()) {
    if (key.name.starts_with("precision.fp8.") && changes(recipe, key)) out += cat(out.empty() ? "" : ", ", key.name);
  }
  return out;
}

std::string high_learning_rate(const Recipe& recipe) {
  constexpr double kHigh = 0.1;
  const double rate = recipe.optimizer.learning_rate;
  if (rate <= kHigh || recipe.optimizer.kind == OptimizerKind::sgd) return "";
  return cat("optimizer.learning_rate ", fmt::format("{:g}", rate), " is above ", fmt::format("{:g}", kHigh),
             ", where training hardly ever works; usual are 1e-6 to 1e-2");
}

void check_warmup(const Recipe& recipe, Problems& problems) {
  const OptimizerRecipe& optimizer = recipe.optimizer;
  const std::int64_t steps = recipe.train.steps, warmup = optimizer.warmup_of(steps);
  if (!accepted(recipe, {"optimizer.warmup_steps", "optimizer.warmup_ratio", "train.steps", "train.epochs"})) return;
  const bool by_epochs = recipe.train.epochs > 0;
  const std::string run =
      by_epochs ? cat(steps, ", the steps of train.epochs ", recipe.train.epochs) : cat("train.steps ", steps);
  // `needed`: steps of a run that is long enough.
  const auto add = [&](const std::string& key, std::int64_t needed, Problem problem) {
    problem.file = file_of(recipe, key);
    problem.at = at(recipe, key);
    problem.hint = cat(key, ": 0, or ", by_epochs ? "more epochs" : cat("train.steps: ", needed));
    problems.add(std::move(problem));
  };
  if (warmup > steps) {
    add("optimizer.warmup_steps", warmup,
        {.what = "warm-up is longer than the run", .expected = "at most " + run, .got = cat(warmup)});
    return;
  }
  const std::int64_t decay = optimizer.decay_steps;
  const bool decays = optimizer.schedule == LearningRateSchedule::wsd &&
                      accepted(recipe, {"optimizer.decay_steps", "optimizer.schedule"});
  if (decays && warmup + decay > steps) {
    add("optimizer.decay_steps", warmup + decay,
        {.what = "warm-up and decay are longer than the run",
         .expected = cat("at most ", steps - warmup, " after ", plural(warmup, "step"), " of warm-up in ", run),
         .got = cat(decay)});
  }
}

void check_metric(const Recipe& recipe, const std::vector<std::string>& sets, Problems& problems) {
  const char* key = "train.early_stopping.metric";
  const std::string& metric = recipe.train.early_stopping_metric;
  if (!accepted(recipe, {key}) || metric == kAllSets) return;
  Problem problem = problem_at(recipe, key);
  std::vector<std::string> known{kAllSets};
  for (const std::string& set : sets) {
    if (!set.empty()) known.push_back(set);
  }
  if (std::ranges::find(known, metric) == known.end()) {
    problem.what = "no validation set of this name";
    problem.expected = joined(known, " or ");
    problem.got = metric;
    problem.hint = nearest(metric, known);
    problems.add(std::move(problem));
  } else if (recipe.train.evaluate_every == 0 && accepted(recipe, {"train.evaluate_every"})) {
    problem.what = "the metric of early stopping and OUTPUT/best without evaluations";
    problem.expected = "train.evaluate_every";
    problem.hint = "train.evaluate_every: N, in steps";
    problems.add(std::move(problem));
  }
}

namespace {

// Forms of the frozen weights that do not go together with other keys. `add(KEY, PROBLEM)`.
template <class Add>
void check_base(const Recipe& recipe, const Add& add) {
  const AdapterRecipe& adapter = recipe.adapter;
  if (!accepted(recipe, {"adapter.kind", "adapter.base"})) return;
  const bool quantizes = adapter.kind == AdapterKind::qlora;
  if (quantizes && (adapter.base == AdapterBase::bf16 || adapter.base == AdapterBase::fp8)) {
    add("adapter.base", {.what = "adapter.kind: qlora has its base in NF4",
                         .expected = "auto or nf4",
                         .got = adapter.base == AdapterBase::fp8 ? "fp8" : "bf16",
                         .hint = "adapter.kind: lora, or adapter.base: auto"});
    return;
  }
  if (!adapter.in_nf4() && !adapter.double_quantization && accepted(recipe, {"adapter.double_quantization"})) {
    add("adapter.double_quantization", {.what = "double quantization is of NF4",
                                        .hint = "adapter.base: nf4, or removing adapter.double_quantization"});
  }
  if (adapter.in_nf4() && adapter.dora && accepted(recipe, {"adapter.dora"})) {
    add("adapter.dora", {.what = "NF4 with DoRA is not supported",
                         .hint = "adapter.dora: false, or adapter.kind: lora with adapter.base: auto"});
  }
  if (!accepted(recipe, {"precision.compute", "precision.fp8.scaling"})) return;
  const bool computes_in_fp8 = recipe.precision.compute == ComputePrecision::fp8;
  const bool by_block = recipe.precision.fp8.scaling == Fp8Scaling::block;
  if (adapter.in_nf4() && computes_in_fp8) {
    add("precision.compute",
        {.what = "a base in NF4 is not computed in FP8",
         .expected = "auto, bf16 or float32",
         .got = "fp8",
         .hint = quantizes ? "adapter.kind: lora, whose base is then in FP8, or precision.compute: auto"
                           : "adapter.base: fp8, or precision.compute: auto"});
  } else if (adapter.base == AdapterBase::fp8 && !computes_in_fp8) {
    add("adapter.base", {.what = "only GEMMs of FP8 read a base in FP8",
                         .expected = "auto, bf16 or nf4",
                         .got = "fp8",
                         .hint = "precision.compute: fp8, or adapter.base: nf4"});
  } else if (adapter.base == AdapterBase::fp8 && by_block) {
    add("adapter.base", {.what = "precision.fp8.scaling: block rounds weights where GEMMs read them",
                         .expected = "auto or bf16",
                         .got = "fp8",
                         .hint = "adapter.base: auto, or precision.fp8.scaling: delayed"});
  } else if (adapter.base == AdapterBase::bf16 && computes_in_fp8 && !by_block) {
    add("adapter.base", {.what = "GEMMs of FP8 with this scaling read weights in FP8 alone",
                         .expected = "auto or fp8",
                         .got = "bf16",
                         .hint = "adapter.base: auto, or precision.fp8.scaling: block"});
  }
}

// Keys that the kind of optimizer does not read. `add(KEY, PROBLEM)`.
template <class Add>
void check_kind(const Recipe& recipe, const Add& add) {
  constexpr OptimizerKind kAdamW = OptimizerKind::adamw, k8bit = OptimizerKind::adamw_8bit, kLion = OptimizerKind::lion,
                          kSgd = OptimizerKind::sgd, kMuon = OptimizerKind::muon;
  struct KeyOf {
    const char* key;
    std::vector<OptimizerKind> kinds;
    const char* names;
  };
  static const std::vector<KeyOf> keys = {
      {"optimizer.beta1", {kAdamW, k8bit, kLion, kMuon}, "adamw, adamw_8bit, lion or muon"},
      {"optimizer.beta2", {kAdamW, k8bit, kLion, kMuon}, "adamw, adamw_8bit, lion or muon"},
      {"optimizer.epsilon", {kAdamW, k8bit, kMuon}, "adamw, adamw_8bit or muon"},
      {"optimizer.state_dtype", {kAdamW, kLion, kSgd}, "adamw, lion or sgd"},
      {"optimizer.momentum", {kSgd, kMuon}, "sgd or muon"},
      {"optimizer.nesterov", {kSgd, kMuon}, "sgd or muon"},
      {"optimizer.scale_parameter", {OptimizerKind::adafactor}, "adafactor"},
      {"optimizer.relative_step", {OptimizerKind::adafactor}, "adafactor"},
  };
  const OptimizerRecipe& optimizer = recipe.optimizer;
  if (!accepted(recipe, {"optimizer.kind"})) return;
  for (const auto& [key, kinds, names] : keys) {
    if (std::ranges::find(kinds, optimizer.kind) != kinds.end()) continue;
    if (!changes(recipe, *find_key(key)) || !accepted(recipe, {key})) continue;
    add(key, {.what = "a key of another optimizer",
              .expected = cat("optimizer.kind: ", names),
              .hint = cat("optimizer.kind: ", names, ", or remove ", key)});
  }
  const bool still = optimizer.kind == OptimizerKind::sgd && optimizer.momentum_or_default() == 0;
  if (still && optimizer.nesterov_or_default() && accepted(recipe, {"optimizer.momentum", "optimizer.nesterov"})) {
    add("optimizer.nesterov", {.what = "Nesterov's momentum without momentum",
                               .expected = "optimizer.momentum above 0",
                               .got = "0",
                               .hint = "optimizer.momentum: 0.9, or optimizer.nesterov: false"});
  }
}

// Keys of the optimizer that its schedule does not read, and both lengths of its warm-up. `add(KEY, PROBLEM)`.
template <class Add>
void check_schedule(const Recipe& recipe, const Add& add) {
  const OptimizerRecipe& optimizer = recipe.optimizer;
  const auto given = [&](const char* key) { return recipe.places.contains(key); };
  const bool both = given("optimizer.warmup_steps") && given("optimizer.warmup_ratio");
  if (both && accepted(recipe, {"optimizer.warmup_steps", "optimizer.warmup_ratio"})) {
    add("optimizer.warmup_ratio", {.what = "both optimizer.warmup_steps and optimizer.warmup_ratio",
                                   .expected = "one of the two",
                                   .hint = cat("optimizer.warmup_steps: ", optimizer.warmup_steps,
                                               " or optimizer.warmup_ratio: ", optimizer.warmup_ratio, " alone")});
  }
  if (!accepted(recipe, {"optimizer.schedule"})) return;
  const auto only_for = [&](const char* key, LearningRateSchedule schedule, const char* name) {
    if (optimizer.schedule == schedule || !changes(recipe, *find_key(key)) || !accepted(recipe, {key})) return;
    add(key, {.what = "a key of another learning-rate schedule",
              .expected = cat("optimizer.schedule: ", name),
              .hint = cat("optimizer.schedule: ", name, ", or remove ", key)});
  };
  only_for("optimizer.decay_steps", LearningRateSchedule::wsd, "wsd");
  only_for("optimizer.decay_type", LearningRateSchedule::wsd, "wsd");
  only_for("optimizer.power", LearningRateSchedule::polynomial, "polynomial");
  const bool has_minimum = optimizer.schedule != LearningRateSchedule::inverse_sqrt;
  if (!has_minimum && optimizer.minimum_learning_rate > 0 && accepted(recipe, {"optimizer.minimum_learning_rate"})) {
    add("optimizer.minimum_learning_rate", {.what = "the schedule inverse_sqrt has no minimum",
                                            .expected = "0",
                                            .got = cat(optimizer.minimum_learning_rate),
                                            .hint = "optimizer.schedule: polynomial, or cosine"});
  }
}

}  // namespace

void check_across(Recipe& recipe, Purpose purpose, Problems& problems) {
  const auto accepted = [&](const std::vector<std::string>& keys) { return hawser::accepted(recipe, keys); };
  const auto add = [&](const char* key, Problem problem) {
    problem.file = file_of(recipe, key);
    problem.at = at(recipe, key);
    problems.add(std::move(problem));
  };
  // For keys that other checks would find wrong, too.
  const auto reject = [&](const char* key, Problem problem) {
    add(key, std::move(problem));
    recipe.rejected.insert(key);
  };

  if (accepted({"model.path", "model.config"})) {
    if (!recipe.model.path.empty() && !recipe.model.config.empty()) {
      reject("model.config", {.what = "both model.path and model.config",
                              .expected = "one of the two",
                              .hint = "model.path to fine-tune, model.config to start from random weights"});
    }
    const bool needed = purpose != Purpose::prepare || recipe.data.tokenizer.empty();
    if (needed && recipe.model.path.empty() && recipe.model.config.empty()) {
      problems.add({.file = recipe.file,
                    .what = "missing key",
                    .at = "model.path",
                    .hint = "model: {path: MODEL_FOLDER}, or model: {config: config.json}"});
      recipe.rejected.insert("model.path");
    }
  }

  const bool long_documents = recipe.data.long_documents != LongDocuments::split;
  if (accepted({"data.pack", "data.long_documents"}) && recipe.data.pack == Packing::chunks && long_documents) {
    add("data.long_documents",
        {.what = "data.pack: chunks has no long documents", .expected = "split", .hint = "data.pack: documents"});
  }

  // A run folder must not be the file system's root.
  const std::string output = resolve_path(recipe, recipe.output);
  if (accepted({"output"}) && !recipe.output.empty() && output.find_first_not_of("/.") == std::string::npos &&
      output.starts_with("/")) {
    reject("output", {.what = "the root folder",
                      .expected = "a folder of its own",
                      .got = recipe.output,
                      .hint = "output: runs/NAME"});
  }
  // eval and generate would take the model there for the run's.
  if (accepted({"output"}) && !recipe.output.empty() && io::is_file(output + "/config.json")) {
    reject("output", {.what = "the folder of a model",
                      .expected = "a folder of its own",
                      .got = recipe.output,
                      .hint = "output: runs/NAME"});
  }

  const auto& train = recipe.train;
  if (accepted({"train.global_batch_size", "train.micro_batch_size"}) &&
      train.global_batch_size % train.micro_batch_size != 0) {
    reject("train.global_batch_size",
           {.what = kBatchSizesDoNotDivide,
            .expected = cat("a multiple of train.micro_batch_size ", train.micro_batch_size),
            .got = cat(train.global_batch_size),
            .hint = multiples_near("train.global_batch_size", train.global_batch_size, train.micro_batch_size)});
  }

  if (accepted({"parallel.tensor_parallel_degree", "parallel.tensor_parallel_modules"}) &&
      recipe.parallel.tensor_parallel_degree > 1 && recipe.parallel.tensor_parallel_modules.empty()) {
    reject("parallel.tensor_parallel_modules", {.what = "empty list",
                                                .expected = "attention, mlp or vocabulary",
                                                .hint = "parallel.tensor_parallel_degree: 1"});
  }

  const int hybrid = recipe.parallel.hybrid_shard_degree;
  const int context = recipe.parallel.context_parallel_degree;
  if (accepted({"parallel.hybrid_shard_degree", "parallel.context_parallel_degree"}) && hybrid > 1 &&
      hybrid % context != 0) {
    reject("parallel.hybrid_shard_degree", {.what = "degrees do not divide",
                                            .expected = cat("a multiple of parallel.context_parallel_degree ", context),
                                            .got = cat(hybrid),
                                            .hint = multiples_near("parallel.hybrid_shard_degree", hybrid, context)});
  }

  if (accepted({"train.steps", "train.epochs"}) && train.steps > 0 && train.epochs > 0) {
    reject("train.epochs", {.what = "both train.steps and train.epochs",
                            .expected = "one of the two",
                            .hint = cat("train.steps: ", train.steps, " or train.epochs: ", train.epochs, " alone")});
  }

  const AdapterRecipe& adapter = recipe.adapter;
  const bool adapts = adapter.kind != AdapterKind::none;
  if (accepted({"adapter.kind"}) && !adapts && !recipe.places.contains("adapter.kind")) {
    for (const Key& key : schema()) {
      if (key.section() != "adapter" || !changes(recipe, key) || !accepted({key.name})) continue;
      const bool of_base = key.name == "adapter.base" && adapter.base == AdapterBase::nf4;
      add(key.name.c_str(), {.what = "no adapter trains without adapter.kind",
                             .hint = of_base ? "adapter.kind: qlora" : "adapter.kind: lora"});
    }
  }
  if (adapts) check_base(recipe, reject);
  if (accepted({"adapter.kind", "adapter.targets"}) && adapter.kind != AdapterKind::none && adapter.targets.empty()) {
    add("adapter.targets", {.what = "empty list", .expected = "names of Linears", .hint = "all-linear"});
  }
  if (accepted({"precision.compute", "precision.fp8.layers"}) && recipe.precision.compute == ComputePrecision::fp8 &&
      recipe.precision.fp8.layers.empty()) {
    add("precision.fp8.layers",
        {.what = "empty list", .expected = "blocks in FP8", .hint = "all, or precision.compute: auto"});
  }
  const bool random_weights = purpose != Purpose::plan && accepted({"model.path", "model.config"}) &&
                              recipe.model.path.empty() && !recipe.model.config.empty();
  if (random_weights && accepted({"adapter.kind"}) && adapter.kind != AdapterKind::none) {
    add("adapter.kind", {.what = "an adapter of random weights",
                         .expected = "a model with weights",
                         .hint = "model.path in place of model.config, or adapter.kind: none"});
  }
  if (random_weights && accepted({"train.freeze"}) && !train.freeze.empty()) {
    add("train.freeze", {.what = "random weights are frozen",
                         .expected = "a model with weights",
                         .hint = "model.path in place of model.config, or removing train.freeze"});
  }
  if (accepted({"train.freeze", "adapter.kind"}) && !train.freeze.empty() && adapter.kind != AdapterKind::none) {
    reject("train.freeze", {.what = "an adapter freezes the model's weights already", .hint = "removing train.freeze"});
  }

  const auto& optimizer = recipe.optimizer;
  if (recipe.train.early_stopping_patience > 0 && recipe.train.evaluate_every == 0 &&
      accepted({"train.early_stopping.patience", "train.evaluate_every"})) {
    add("train.early_stopping.patience", {.what = "early stopping without evaluations",
                                          .expected = "train.evaluate_every",
                                          .hint = "train.evaluate_every: N, in steps"});
  }
  if (!recipe.data.train.empty() && accepted({"data.train", "data.validation"})) {
    std::vector<std::string> sets;
    for (const ValidationSetRecipe& set : recipe.data.validation) sets.push_back(set.name);
    check_metric(recipe, sets, problems);
  }
  check_kind(recipe, reject);
  check_schedule(recipe, reject);
  if (train.steps > 0) check_warmup(recipe, problems);
  if (accepted({"optimizer.minimum_learning_rate", "optimizer.learning_rate"}) &&
      optimizer.minimum_learning_rate > optimizer.learning_rate) {
    add("optimizer.minimum_learning_rate", {.what = "minimum learning rate above the peak",
                                            .expected = cat("at most learning_rate ", optimizer.learning_rate),
                                            .got = cat(optimizer.minimum_learning_rate)});
  }
  // In a CUDA build the code that opens the device checks for a GPU.
  if (!build().cuda && purpose == Purpose::train && recipe.run.device == DeviceChoice::cuda) {
    reject("run.device", {.what = "this binary was built without CUDA",
                          .expected = "auto or cpu",
                          .got = "cuda",
                          .hint = "run.device: cpu"});
  }
}

void check_without(const std::vector<std::string>& open, Recipe& recipe, Problems& problems) {
  const std::set<std::string> before = recipe.rejected;
  recipe.rejected.insert(open.begin(), open.end());
  check_across(recipe, Purpose::plan, problems);
  for (const std::string& key : open) {
    if (!before.contains(key)) recipe.rejected.erase(key);
  }
}

namespace {

// Whether the number of ranks and the degrees that divide them are known. default_ranks derives it from the degrees.
bool ranks_accepted(const Recipe& recipe) {
  return accepted(recipe, {"run.ranks", "parallel.context_parallel_degree", "parallel.tensor_parallel_degree",
                           "parallel.pipeline_parallel_degree"}) &&
         (recipe.run.ranks > 0 ||
          accepted(recipe, {"parallel.hybrid_shard_degree", "parallel.expert_parallel_degree", "run.device"}));
}

}  // namespace

namespace {

// The key of the largest degree of context, tensor and pipeline parallelism, its value, and the product of the degrees
// as text: "4", or "tensor x context = 8".
struct DividingDegrees {
  const char* key;
  int degree;
  std::string product;
};

DividingDegrees dividing_degrees(const ParallelRecipe& parallel) {
  struct Degree {
    const char *name, *key;
    int value;
  };
  const std::array<Degree, 3> all{
      {{"context", "parallel.context_parallel_degree", parallel.context_parallel_degree},
       {"tensor", "parallel.tensor_parallel_degree", parallel.tensor_parallel_degree},
       {"pipeline", "parallel.pipeline_parallel_degree", parallel.pipeline_parallel_degree}}};
  const Degree& largest = *std::ranges::max_element(all, {}, &Degree::value);
  std::string names;
  std::int64_t product = 1;
  for (const Degree& degree : all) {
    if (degree.value == 1) continue;
    names += cat(names.empty() ? "" : " x ", degree.name);
    product *= degree.value;
  }
  return {largest.key, largest.value, largest.value == product ? cat(product) : cat(names, " = ", product)};
}

}  // namespace

void check_mesh(const Recipe& recipe, int world, Problems& problems) {
  if (!ranks_accepted(recipe)) return;
  const ParallelRecipe& parallel = recipe.parallel;
  const int context = parallel.context_parallel_degree;
  const int inner = parallel.ranks_of_a_data_rank();
  const auto add = [&](const char* key, Problem problem) {
    problem.file = file_of(recipe, key);
    problem.at = at(recipe, key);
    problem.cause = "ranks and degrees do not fit";
    problems.add(std::move(problem));
  };
  if (accepted(recipe, {"memory.mlp_tile_rows", "parallel.tensor_parallel_modules"}) &&
      recipe.memory.mlp_tile_rows > 0 && parallel.tensor_parallel_degree > 1 &&
      std::ranges::count(parallel.tensor_parallel_modules, "mlp") > 0) {
    add("memory.mlp_tile_rows", {.what = "tiles of rows of an MLP that tensor-parallel ranks divide",
                                 .expected = "0 with parallel.tensor_parallel_degree above 1",
                                 .got = cat(recipe.memory.mlp_tile_rows),
                                 .hint = "memory.mlp_tile_rows: 0, as each of these ranks has a part of the MLP's "
                                         "activations, or parallel.context_parallel_degree"});
  }
  if (world < 1 || world % inner != 0) {
    const std::int64_t each = inner, below = world / each * each;
    std::string hint = cat("--ranks ", below > 0 ? cat(below, " or ", below + each) : cat(each));
    const auto [key, degree, product] = dividing_degrees(parallel);
    int fitting = degree - 1;  // the largest divisor of the degree with which the ranks divide
    while (fitting > 1 && (degree % fitting != 0 || world % (inner / degree * fitting) != 0)) --fitting;
    if (world > 0 && fitting > 1) hint += cat(", or ", key, ": ", fitting);
    add(key, {.what = "ranks do not divide by the degrees",
              .expected = cat("ranks a multiple of ", product),
              .got = plural(world, "rank"),
              .hint = hint});
    return;  // no hybrid degree is valid
  }
  const int model = parallel.tensor_parallel_degree * parallel.pipeline_parallel_degree;
  const int ranks = world / model;
  const int hybrid = parallel.hybrid_shard_degree;
  const bool hybrid_accepted = accepted(recipe, {"parallel.hybrid_shard_degree"});
  if (hybrid_accepted && hybrid > 1 && (hybrid % context != 0 || ranks % hybrid != 0)) {
    const std::string left =
        model == 1 ? plural(ranks, "rank") : cat(world, " / ", model, " = ", plural(ranks, "rank"));
    const std::string expected = context == 1
                                     ? "a divisor of " + left
                                     : cat("a multiple of context_parallel_degree ", context, " that divides ", left);
    add("parallel.hybrid_shard_degree",
        {.what = "degrees do not divide",
         .expected = expected,
         .got = cat(hybrid),
         .hint = cat("parallel.hybrid_shard_degree: ", degree_words(hybrid_degrees(ranks, context)))});
  }
}

void check_layout(const Recipe& recipe, int world, Problems& problems) {
  check_mesh(recipe, world, problems);
  const int inner = recipe.parallel.ranks_of_a_data_rank();
  if (world < 1 || world % inner != 0) return;  // reported above
  const std::int64_t data_ranks = world / inner;
  const std::int64_t step = data_ranks * recipe.train.micro_batch_size;
  const bool batch_accepted =
      ranks_accepted(recipe) && accepted(recipe, {"train.global_batch_size", "train.micro_batch_size"});
  if (batch_accepted && recipe.train.global_batch_size % step != 0) {
    problems.add({.file = file_of(recipe, "train.global_batch_size"),
                  .what = "batch does not divide over the ranks",
                  .expected = cat("a multiple of ", step, ": ", data_ranks, " data ranks x micro_batch_size ",
                                  recipe.train.micro_batch_size),
                  .got = cat(recipe.train.global_batch_size),
                  .at = at(recipe, "train.global_batch_size"),
                  .hint = multiples_near("train.global_batch_size", recipe.train.global_batch_size, step)});
    return;
  }
  const std::int64_t micro_batches = recipe.train.global_batch_size / step;
  if (batch_accepted && micro_batches > kMaxMicroBatches) {
    problems.add({.file = file_of(recipe, "train.global_batch_size"),
                  .what = "too many micro-batches in a step",
                  .expected = cat("at most ", kMaxMicroBatches),
                  .got = cat(micro_batches, ": ", recipe.train.global_batch_size, " sequences, ",
                             plural(data_ranks, "data rank"), ", micro_batch_size ", recipe.train.micro_batch_size),
                  .at = at(recipe, "train.global_batch_size"),
                  .hint = "more ranks, a larger train.micro_batch_size, or a smaller global batch"});
  }
  // Positions of a micro-batch are counted in 32 bits.
  const std::int64_t rows = std::numeric_limits<std::int32_t>::max();
  if (recipe.data.sequence_length > 0 && recipe.train.micro_batch_size > rows / recipe.data.sequence_length) {
    problems.add({.file = file_of(recipe, "train.micro_batch_size"),
                  .what = "too many tokens in a micro-batch",
                  .expected = cat("at most ", rows),
                  .got = cat(recipe.train.micro_batch_size, " sequences of ", recipe.data.sequence_length),
                  .at = at(recipe, "train.micro_batch_size"),
                  .hint = "train.micro_batch_size: 1"});
  }
}

void check_blocks(const Recipe& recipe, std::int64_t blocks, Problems& problems) {
  const auto listed = static_cast<std::int64_t>(recipe.memory.per_layer.size());
  if (listed == 0 || listed == blocks) return;
  const char* key = "memory.activation_checkpointing";
  problems.add({.file = file_of(recipe, key),
                .what = "list length differs from the number of blocks",
                .expected = cat(blocks),
                .got = cat(listed),
                .at = at(recipe, key)});
}

int default_ranks(const Recipe& recipe, DeviceChoice device, int gpus) {
  if (recipe.run.ranks > 0) return recipe.run.ranks;
  if (device == DeviceChoice::cuda && gpus > 0) return gpus;
  const ParallelRecipe& parallel = recipe.parallel;
  const int data =
      std::max({1, parallel.hybrid_shard_degree, parallel.context_parallel_degree, parallel.expert_parallel_degree});
  const double all = double{1} * data * parallel.tensor_parallel_degree * parallel.pipeline_parallel_degree;
  return all < std::numeric_limits<int>::max() ? static_cast<int>(all) : std::numeric_limits<int>::max();
}

}  // namespace hawser
