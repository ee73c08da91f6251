// Batch, duration, learning rate, checkpoints and evaluations: what axolotl and LLaMA-Factory have in common.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/text.h"
#include "config/convert/conversion.h"
#include "config/rows.h"

namespace hawser::convert {
namespace {

// The first of several names of a setting that the file has; "" if it has none.
std::string_view first_of(const Conversion& c, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (c.has(name)) return name;
  }
  return "";
}

std::int64_t degree(Conversion& c, std::initializer_list<std::string_view> names) {
  const std::string_view name = first_of(c, names);
  const auto value = name.empty() ? std::nullopt : c.number(name);
  return std::max<std::int64_t>(1, std::llround(value.value_or(1)));
}

// A number of steps, or a part of all steps below 1, as transformers reads it. None if the steps are unknown.
std::optional<std::int64_t> steps_of(double given, std::int64_t all) {
  if (given >= 1) return std::llround(given);
  if (given <= 0 || all == 0) return std::nullopt;
  return std::max<std::int64_t>(1, std::llround(std::ceil(given * static_cast<double>(all) - 1e-6)));
}

struct Schedule {
  std::string_view theirs;
  const char* ours;
};

constexpr auto kSchedules = std::to_array<Schedule>({
    {"cosine", "cosine"},
    {"linear", "linear"},
    {"constant", "constant"},
    {"constant_with_warmup", "constant"},
    {"cosine_with_min_lr", "cosine"},
    {"cosine_warmup_with_min_lr", "cosine"},
    {"warmup_stable_decay", "wsd"},
    {"inverse_sqrt", "inverse_sqrt"},
    {"polynomial", "polynomial"},
});

// Keys of schedules, and the keys of lr_scheduler_kwargs that they are.
struct ScheduleKey {
  std::string_view schedule, theirs;
  const char* ours;
};

constexpr auto kScheduleKeys = std::to_array<ScheduleKey>({
    {"warmup_stable_decay", "lr_scheduler_kwargs.num_decay_steps", "optimizer.decay_steps"},
    {"warmup_stable_decay", "lr_scheduler_kwargs.decay_type", "optimizer.decay_type"},
    {"polynomial", "lr_scheduler_kwargs.power", "optimizer.power"},
});

// Keys of the minimum learning rate; `relative` to the peak.
struct MinimumKey {
  std::string_view theirs;
  bool relative = false;
};

constexpr auto kMinimumKeys = std::to_array<MinimumKey>({
    {"cosine_min_lr_ratio", true},
    {"lr_scheduler_kwargs.min_lr_rate", true},
    {"lr_scheduler_kwargs.min_lr_ratio", true},
    {"lr_scheduler_kwargs.min_lr"},
    {"lr_scheduler_kwargs.lr_end"},
});

// Their product is the ranks that a file needs.
constexpr auto kDegrees =
    std::to_array<std::string_view>({"context_parallel_size", "sequence_parallel_degree", "dist_config.cp_size",
                                     "sequence_parallel_size", "tensor_parallel_size", "tensor_model_parallel_size",
                                     "pipeline_model_parallel_size", "dp_shard_size", "dp_replicate_size"});

constexpr const char* kNeverSaved = "the strategy saves nothing";
constexpr const char* kSavedByTime = "checkpoints are saved every checkpoint.every_minutes, 15, and at the end";
constexpr const char* kAtBothEnds = "held-out data are evaluated before the first step and at the end";
constexpr const char* kSetEvaluations =
    "held-out data are evaluated at the beginning and the end; set train.evaluate_every to more often, in steps";

// 0 if the run ends after epochs.
std::int64_t known_steps(Conversion& c) {
  return c.recipe().train.steps;
}

// Also of a run that ends after steps: intervals of a part of an epoch ask for it.
double epochs_of(Conversion& c) {
  const TrainerKeys& keys = c.trainer().keys;
  return c.number(keys.epochs).value_or(rows::parse_number<double>(keys.epochs_default).value_or(1));
}

// axolotl's ring-flash-attn gathers keys with varlen_llama3, and otherwise moves them in a ring.
void convert_context_form(Conversion& c) {
  const std::string ring = c.text("ring_attn_func"), mode = c.text("sequence_parallel_mode");
  if (ring.starts_with("batch_")) c.set("parallel.context_comm", "ring", "ring_attn_func");
  if (mode == "ulysses") c.set("parallel.context_comm", "all_to_all", "sequence_parallel_mode");
  if (mode == "zigzag-ring") c.set("parallel.context_comm", "ring", "sequence_parallel_mode");
}

// Megatron's schedule of a file with virtual stages is interleaved.
void convert_stages(Conversion& c, std::int64_t stages) {
  constexpr const char* kStages = "pipeline_model_parallel_size";
  constexpr const char* kVirtual = "virtual_pipeline_model_parallel_size";
  c.set("parallel.pipeline_parallel_degree", static_cast<double>(stages), kStages);
  const auto chunks = c.number(kVirtual);
  if (!chunks || *chunks < 2) return;
  c.set("parallel.pipeline_schedule", "interleaved", kVirtual);
  c.set("parallel.pipeline_virtual_stages", *chunks, kVirtual);
}

}  // namespace

void convert_batch(Conversion& c) {
  const TrainerKeys& keys = c.trainer().keys;
  const auto at_least_one = [&](std::string_view name, double otherwise) -> std::int64_t {
    const double value = c.number(name).value_or(otherwise);
    if (value >= 1 && value == std::floor(value)) return std::llround(value);
    c.problem(name, {.what = "wrong type", .expected = "a whole number of at least 1", .got = c.text(name)});
    return 1;
  };
  const std::int64_t micro = at_least_one(keys.micro_batch, keys.micro_batch_default);
  std::int64_t accumulation = at_least_one("gradient_accumulation_steps", 1);
  std::string per_rank = cat(keys.micro_batch, " ", micro, " x gradient_accumulation_steps ", accumulation);
  if (c.has("batch_size")) {
    if (c.has("gradient_accumulation_steps")) {
      c.drop("batch_size", WhyDropped::not_needed, "gradient_accumulation_steps comes first");
    } else {
      accumulation = std::max<std::int64_t>(1, at_least_one("batch_size", 1) / micro);
      per_rank = cat("batch_size ", accumulation * micro);
    }
  }

  const std::string_view context_key = first_of(
      c, {"context_parallel_size", "sequence_parallel_degree", "dist_config.cp_size", "sequence_parallel_size"});
  const std::int64_t context = degree(c, {context_key});
  const std::string_view tensor_key = first_of(c, {"tensor_parallel_size", "tensor_model_parallel_size"});
  const std::int64_t tensor = degree(c, {tensor_key});
  const std::int64_t stages = degree(c, {"pipeline_model_parallel_size"});
  const std::int64_t shards = degree(c, {"dp_shard_size"}), replicas = degree(c, {"dp_replicate_size"});
  const std::int64_t needed = context * tensor * stages * shards * replicas;
  const std::int64_t ranks = c.options().ranks.value_or(static_cast<int>(std::max<std::int64_t>(1, needed)));
  if (tensor > 1) c.set("parallel.tensor_parallel_degree", static_cast<double>(tensor), tensor_key);
  if (stages > 1) convert_stages(c, stages);
  if (context > 1) {
    c.set("parallel.context_parallel_degree", static_cast<double>(context), context_key);
    convert_context_form(c);
  }
  if (shards > 1 && replicas > 1) {
    c.set("parallel.hybrid_shard_degree", static_cast<double>(shards * context), "dp_shard_size",
          cat("dp_shard_size ", shards, context > 1 ? cat(" x context parallel degree ", context) : "",
              "; the rest replicates it"));
  }
  if (!c.options().ranks && needed > 1) {
    std::vector<std::string> degrees;
    for (const std::string_view name : kDegrees) {
      if (const auto value = c.number(name); value && *value > 1) degrees.push_back(cat(name, " ", *value));
    }
    c.set("run.ranks", static_cast<double>(needed), keys.micro_batch, joined(degrees, " x "));
  }
  const std::int64_t data_ranks = std::max<std::int64_t>(1, ranks / (context * tensor * stages));
  std::int64_t global = micro * accumulation * data_ranks, fitting = micro;
  while (fitting > 1 && global % (fitting * data_ranks) != 0) --fitting;
  if (global % data_ranks != 0) global = data_ranks * fitting;

  const std::string why = cat(per_rank, " x ", plural(data_ranks, data_ranks == ranks ? "rank" : "data rank"));
  if (const auto total = c.number("global_batch_size")) {
    c.set("train.global_batch_size", *total, "global_batch_size");
  } else {
    c.set("train.global_batch_size", static_cast<double>(global), keys.micro_batch, why);
    c.remark(cat("train.global_batch_size ", global, " is ", why,
                 c.options().ranks ? "" : "; for a run of more, convert with --ranks N"));
  }
  c.set("train.micro_batch_size", static_cast<double>(fitting), keys.micro_batch);
}

void convert_duration(Conversion& c) {
  const TrainerKeys& keys = c.trainer().keys;
  const auto steps = c.number(keys.steps);
  if (steps && *steps > 0) {
    c.set("train.steps", *steps, keys.steps);
    c.drop(keys.epochs, WhyDropped::not_needed, cat(keys.steps, " comes first"));
    return;
  }
  c.drop(keys.steps, WhyDropped::not_needed, cat("below 1: ", keys.epochs, " counts"));
  if (c.has(keys.epochs)) {
    c.set("train.epochs", *c.find(keys.epochs), keys.epochs);
  } else {
    c.set_default("train.epochs", keys.epochs_default, keys.epochs);
  }
}

namespace {

void convert_warmup(Conversion& c, const std::string& schedule) {
  if (schedule == "constant") {
    for (const std::string_view name : {"warmup_steps", "warmup_ratio"}) {
      c.drop(name, WhyDropped::not_needed, "the schedule constant has no warmup");
    }
    return;
  }
  const auto steps = c.number("warmup_steps"), ratio = c.number("warmup_ratio");
  const char* ratio_default = c.trainer().keys.warmup_ratio_default;
  const std::int64_t all = known_steps(c);
  if (steps && (*steps >= 1 || !ratio)) {
    c.drop("warmup_ratio", WhyDropped::not_needed, "warmup_steps comes first");
    if (*steps > 0 && *steps < 1) {
      c.set("optimizer.warmup_ratio", *steps, "warmup_steps");
    } else if (all > 0 && *steps > static_cast<double>(all)) {
      c.set("optimizer.warmup_steps", static_cast<double>(all), "warmup_steps",
            cat(c.trainer_name(), "'s warmup_steps ", c.text("warmup_steps"), ", which the run does not reach"));
    } else {
      c.set("optimizer.warmup_steps", *c.find("warmup_steps"), "warmup_steps");
    }
  } else if (ratio) {
    c.drop("warmup_steps", WhyDropped::not_needed, "0: warmup_ratio counts");
    c.set("optimizer.warmup_ratio", *ratio, "warmup_ratio");
  } else if (ratio_default != nullptr) {
    c.set_default("optimizer.warmup_ratio", ratio_default, "warmup_ratio");
  }
}

void convert_minimum(Conversion& c, const std::string& schedule) {
  const double peak = c.recipe().optimizer.learning_rate;
  const bool decays = schedule != "constant" && schedule != "inverse_sqrt";
  for (const auto& [name, relative] : kMinimumKeys) {
    const auto value = c.number(name);
    if (value && decays) {
      c.set("optimizer.minimum_learning_rate", relative ? *value * peak : *value, name,
            cat(c.trainer_name(), "'s ", name, " ", c.text(name)));
    } else if (value) {
      c.drop(name, WhyDropped::not_needed, cat("the schedule ", schedule, " has no minimum"));
    }
  }
}

}  // namespace

void convert_schedule(Conversion& c) {
  const TrainerKeys& keys = c.trainer().keys;
  if (!c.has("learning_rate")) {
    if (keys.learning_rate_default != nullptr) {
      c.set_default("optimizer.learning_rate", keys.learning_rate_default, "learning_rate");
    } else {
      c.problem("learning_rate", {.what = "missing key", .hint = "learning_rate: 2e-5"});
    }
  }
  const std::string theirs = c.has(keys.schedule) ? c.text(keys.schedule) : keys.schedule_default;
  const auto found = std::ranges::find(kSchedules, theirs, &Schedule::theirs);
  const bool known = found != kSchedules.end();
  const std::string schedule = known ? found->ours : "cosine";
  if (!c.has(keys.schedule)) {
    c.set_default("optimizer.schedule", schedule, keys.schedule);
  } else if (known) {
    c.set("optimizer.schedule", schedule, keys.schedule);
  } else {
    c.set("optimizer.schedule", schedule, keys.schedule, cat("in place of ", theirs));
    c.drop(keys.schedule, WhyDropped::unsupported, cat("the schedule ", theirs, "; ", schedule, " in its place"));
  }
  for (const ScheduleKey& key : kScheduleKeys) {
    if (!c.has(key.theirs)) continue;
    if (known && key.schedule == theirs) {
      c.set(key.ours, *c.find(key.theirs), key.theirs);
    } else {
      c.drop(key.theirs, WhyDropped::unsupported, cat("a setting of a schedule that the recipe does not have"));
    }
  }
  convert_minimum(c, schedule);
  convert_warmup(c, theirs);
}

void convert_saves(Conversion& c) {
  const std::string strategy = c.text("save_strategy");
  if (strategy == "no") {
    c.set("checkpoint.every_minutes", "0", "save_strategy", "save_strategy: no; a checkpoint is saved at the end");
    for (const std::string_view name : {"save_steps", "saves_per_epoch"}) {
      if (c.has(name)) c.drop(name, WhyDropped::not_needed, kNeverSaved);
    }
    return;
  }
  const std::int64_t all = known_steps(c);
  if (strategy == "best") {
    c.drop("save_strategy", WhyDropped::automatic, "OUTPUT/best is the checkpoint with the lowest validation loss");
  } else if (strategy == "epoch") {
    c.drop("save_strategy", WhyDropped::automatic, kSavedByTime);
    if (c.has("save_steps")) c.drop("save_steps", WhyDropped::not_needed, "save_strategy: epoch comes first");
    return;
  }
  const auto per_epoch = c.number("saves_per_epoch");
  const auto given = c.number("save_steps");
  const double epochs = epochs_of(c);
  const bool derived = per_epoch && *per_epoch > 0;
  const double wanted = derived ? 1 / (*per_epoch * epochs) : given.value_or(0);
  const std::string_view name = derived ? "saves_per_epoch" : "save_steps";
  if (derived && given) c.drop("save_steps", WhyDropped::not_needed, "saves_per_epoch comes first");
  const bool at_end = derived && wanted >= 1;
  if (const auto every = at_end ? std::nullopt : steps_of(wanted, all)) {
    c.set("checkpoint.every_steps", static_cast<double>(*every), name,
          wanted < 1 ? cat(c.trainer_name(), "'s ", name, " ", c.text(name), " of ", all, " steps") : "");
  } else {
    c.drop(name, WhyDropped::automatic, kSavedByTime);
  }
  if (!derived && per_epoch) c.drop("saves_per_epoch", WhyDropped::automatic, kSavedByTime);
  if (strategy == "steps" && c.recipe().checkpoint.every_steps == 0) {
    c.drop("save_strategy", WhyDropped::automatic, kSavedByTime);
  }
  const char* by_default = c.trainer().keys.save_steps_default;
  if (by_default != nullptr && !given && strategy != "best") {
    c.set_default("checkpoint.every_steps", by_default, "save_steps");
  }
}

void convert_evaluations(Conversion& c) {
  const std::string_view size = c.trainer().keys.validation_size;
  if (const auto held_out = c.number(size)) {
    if (*held_out >= 1) {
      c.drop(size, WhyDropped::unsupported,
             "data.validation_fraction is a part, not a number of documents; or name files in data.validation");
    } else {
      c.set("data.validation_fraction", *held_out, size);
    }
  }
  const bool validates = c.recipe().data.validation_fraction > 0 || c.has("test_datasets") || c.has("eval_dataset");
  constexpr std::array<std::string_view, 6> kNames = {"eval_steps",          "evals_per_epoch", "eval_strategy",
                                                      "evaluation_strategy", "do_eval",         "eval_on_start"};
  const std::string strategy = c.text(first_of(c, {"eval_strategy", "evaluation_strategy"}));
  if (!validates || strategy == "no") {
    for (const std::string_view name : kNames) {
      if (c.has(name)) c.drop(name, WhyDropped::not_needed, validates ? "evaluations are off" : "no data are held out");
    }
    return;
  }
  const std::int64_t all = known_steps(c);
  const auto per_epoch = c.number("evals_per_epoch");
  const auto given = c.number("eval_steps");
  const double epochs = epochs_of(c);
  const bool derived = per_epoch && *per_epoch > 0;
  if (derived && given) c.drop("eval_steps", WhyDropped::not_needed, "evals_per_epoch comes first");
  double wanted = derived ? 1 / (*per_epoch * epochs) : given.value_or(0);
  std::string_view name = derived ? "evals_per_epoch" : "eval_steps";
  if (strategy == "epoch" && !derived && !given) {
    name = first_of(c, {"eval_strategy", "evaluation_strategy"});
    wanted = 1 / epochs;
  } else if (strategy == "steps" && !derived && !given) {
    wanted = c.number("logging_steps").value_or(0);  // as transformers does
    name = "eval_strategy";
  }
  const bool whole_run = derived && wanted >= 1;  // once: at the end
  if (const auto every = whole_run ? std::nullopt : steps_of(wanted, all)) {
    c.set("train.evaluate_every", static_cast<double>(*every), name,
          wanted < 1 ? cat(c.trainer_name(), "'s ", name, " ", c.text(name), " of ", all, " steps") : "");
    for (const std::string_view patience : {"early_stopping_patience", "early_stopping_steps"}) {
      if (c.has(patience)) c.set("train.early_stopping.patience", *c.find(patience), patience);
    }
  } else {
    const bool at_end = whole_run || (derived && *per_epoch * epochs <= 1);
    c.drop(name, at_end ? WhyDropped::automatic : WhyDropped::unsupported, at_end ? kAtBothEnds : kSetEvaluations);
    if (!at_end && !strategy.empty()) {
      c.drop(first_of(c, {"eval_strategy", "evaluation_strategy"}), WhyDropped::unsupported, kSetEvaluations);
    }
  }
  if (!derived) c.drop_if_off("evals_per_epoch");
}

}  // namespace hawser::convert
