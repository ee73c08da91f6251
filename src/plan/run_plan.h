// `RunPlan`: a recipe resolved for a run: defaults, automatic values and relative paths are decided here, once.
// Training reads the plan and not the recipe, which it only stores with the run and names in messages.
//
//   RunPlan plan = resolve(recipe);                           // data, files, schedule: no model is needed
//   lay_out(plan, model, ranks, threads, DeviceKind::cuda);   // plan.layout
//   resolve_steps(plan, sequences);                           // plan.steps of train.epochs, when the data are known
//
// `resolve_data` and `packing_of` serve commands that only read or prepare data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "batches/data_sets.h"
#include "batches/sequence.h"
#include "config/recipe.h"
#include "optim/lr_schedule.h"
#include "plan/layout.h"
#include "prepare/prepare.h"

namespace hawser::plan {

// The files of a run: paths below its output folder.
struct RunFiles {
  std::string folder;
  std::string checkpoints;
  std::string best;  // the checkpoint with the lowest validation loss so far, by train.early_stopping.metric
  std::string metrics;
  std::string recipe;
  std::string html, tensorboard, wandb, mlflow;  // of the reports that are enabled
  // The algorithms chosen for the run's GEMMs. The file is not set aside, so that the next run in the folder uses the
  // same.
  std::string gemm_algorithms;
};
RunFiles files_in(const std::string& output);

struct SavePlan {
  // A checkpoint is due by either of these, and there is one at the end.
  std::optional<std::int64_t> every_steps;
  std::optional<double> every_minutes;
  int keep_last = 3;
  bool keep_best = false;
  bool asynchronous = false;  // a snapshot in host memory is written while steps continue
};

struct RunPlan {
  Recipe recipe;  // with automatic values and epochs resolved; stored with the run
  RunFiles files;
  std::string model;            // folder or config.json, as a path that can be opened
  bool random_weights = false;  // `model` is a config.json
  prepare::PrepareOptions data;
  bool prepares = false;  // there are sources; otherwise the token files in data.output exist already
  batches::PackingPlan packing;
  std::vector<batches::DataSetPlan> data_sets;               // of data.train, if it has several
  std::int64_t global_batch_size = 1, micro_batch_size = 1;  // sequences
  std::uint64_t seed = 0;
  std::int64_t steps = 0;        // of the run; 0 until resolve_steps(), if the recipe has epochs in place of steps
  std::optional<double> epochs;  // of train.epochs
  optim::LearningRatePlan learning_rate;
  std::vector<double> group_factors;               // of the learning rate: of each group of optimizer.groups
  std::optional<double> gradient_clip;             // the maximum global norm
  std::optional<std::int64_t> evaluate_every;      // steps; besides before the first one and at the end
  std::optional<std::int64_t> evaluate_sequences;  // of each validation set, in place of all
  std::int64_t log_every = 1;
  SavePlan saves;
  ReportRecipe report;
  std::optional<Bytes> capacity;       // memory limit per rank
  std::optional<Bytes> host_capacity;  // of host memory, for the ranks of a machine together
  double collective_timeout_s = 0;
  Layout layout;  // empty until lay_out()

  double tokens_per_step() const {
    return static_cast<double>(global_batch_size) * static_cast<double>(packing.sequence_length);
  }
};

RunPlan resolve(const Recipe& recipe);

std::string model_of(const Recipe& recipe);  // RunPlan::model

// Sources and token files: the tokenizer in the model's folder by default, token files in OUTPUT/data.
prepare::PrepareOptions resolve_data(const Recipe& recipe);
std::vector<prepare::ValidationSet> validation_sets_of(const DataRecipe& data);

// Whether training evaluates: the recipe holds out data, or its token files, prepared before, have some. False without
// these files, as where only memory is planned.
bool evaluates(const Recipe& recipe);

batches::PackingPlan packing_of(const DataRecipe& data, std::uint64_t seed = 0);
std::vector<batches::DataSetPlan> data_sets_of(const DataRecipe& data);

optim::LearningRatePlan learning_rate_of(const Recipe& recipe);

// The learning rates of a step, by nn::FlatSpec::group: that of the schedule, and its multiples for optimizer.groups.
step::LearningRates learning_rates_at(const RunPlan& plan, std::int64_t step);

// Fills plan.layout.
void lay_out(RunPlan& plan, const models::Model& model, int world, int threads, DeviceKind device);

// Computes plan.steps from plan.epochs, if the recipe has epochs. UserError if the warm-up does not end within them.
void resolve_steps(RunPlan& plan, std::int64_t sequences);

}  // namespace hawser::plan
