// How fast one training step is: `hawser bench step`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/recipe.h"
#include "comm/mpi/world.h"
#include "train/open_model.h"

namespace hawser::train {

struct BenchRequest {
  Recipe recipe;  // model, data.sequence_length, train.steps and batch sizes, parallel, memory, precision, optimizer
  int threads = 1;
};

struct BenchResult {
  std::vector<double> steps;          // seconds each, after one step to warm up
  double step_seconds = 0;            // their median
  double tokens_per_second = 0;       // of all ranks, at the median
  double model_flops_per_second = 0;  // of this rank: forward and backward, recompute not counted
  std::int64_t parameters = 0;
  std::int64_t planned_bytes = 0;  // state and arena of this rank
  double loss = 0;                 // of the last step
  // Seconds a step that this rank's streams spent in each family of ops, most first. Streams run side by side, so they
  // may add up to more than a step.
  std::vector<std::pair<std::string, double>> families;
};

// Whole training steps with AdamW on random tokens; weights from the folder, or random ones from a config.json. `world`
// null: this process alone. Every rank calls it. The recipe has passed config's checks for this world, and the model
// was opened without problems.
BenchResult bench_step(const BenchRequest& request, OpenModel& model, comm::World* world);

}  // namespace hawser::train
