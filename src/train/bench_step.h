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
#include "report/timeline.h"
#include "train/open_model.h"
#include "train/rank_device.h"
#include "train/roofline.h"
#include "train/synthetic.h"

namespace hawser::train {

struct BenchRequest {
  Recipe recipe;  // model, data.sequence_length, train.steps and batch sizes, parallel, memory, precision, optimizer
  DocumentMix documents;  // of every sequence; set_packing has been called with it
  int threads = 1;
  int ranks_here = 1;  // ranks on this machine
  RankDevice device;
  bool profile = false;   // seconds by family; on the CPU always. On a GPU the steps of such a call are slower
  bool roofline = false;  // on a GPU: R, measured behind the steps
  bool trace = false;     // a timeline of one more step, behind those that are timed
};

struct BenchResult {
  std::vector<double> steps;     // seconds each, after one step to warm up
  double step_seconds = 0;       // their median
  double tokens_per_second = 0;  // of all ranks, at the median
  // A rank's mean: forward and backward, recompute not counted, attention as far as its documents see.
  double model_flops_per_second = 0;
  double imbalance = 1;  // of attention work over this rank's context group, as in metrics.jsonl
  double documents = 1;  // a sequence, mean
  // Sequences of one document of so many tokens cost attention the same FLOPs a token.
  double equivalent_length = 0;
  std::int64_t parameters = 0;
  std::int64_t planned_bytes = 0;  // all that this rank reserves on its device
  // What the GPU's driver counts, of all processes: before the device was taken (its context is there, which the count
  // needs), and after the last step. Zeros on the CPU.
  DeviceMemory before, after;
  std::int64_t allocations = 0;  // asked of the device inside the timed steps
  double loss = 0;               // of the last step
  std::string checkpointing;     // memory.activation_checkpointing: what auto came to, or what the recipe said
  // Seconds a step that this rank's streams spent in each family of ops, most first. Streams run side by side, so they
  // may add up to more than a step.
  std::vector<std::pair<std::string, double>> families;
  std::optional<Roofline> roofline;
  // With trace: of every rank, the same on all; and the seconds that this rank's traced step took.
  std::vector<report::RankTimeline> timelines;
  double traced_seconds = 0;
  std::vector<std::string> notes;  // which kernels the steps took, for people
};

// Whole training steps with AdamW on random tokens; weights from the folder, or random ones from a config.json. `world`
// null: this process alone. Every rank calls it. The recipe has passed config's checks for this world, and the model
// was opened without problems.
BenchResult bench_step(const BenchRequest& request, OpenModel& model, comm::World* world);

}  // namespace hawser::train
