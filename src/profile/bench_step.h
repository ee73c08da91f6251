// `hawser bench step`: times training steps on synthetic data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/world.h"
#include "config/recipe.h"
#include "engine/open_model.h"
#include "engine/rank_device.h"
#include "plan/run_plan.h"
#include "profile/roofline.h"
#include "profile/step_mix.h"
#include "profile/step_power.h"
#include "profile/synthetic.h"
#include "profile/timeline.h"

namespace hawser::profile {

struct BenchRequest {
  Recipe recipe;  // model, data.sequence_length, train.steps and batch sizes, parallel, memory, precision, optimizer
  DocumentMix documents;  // of every sequence; the caller has called set_packing with it
  int threads = 1;
  int ranks_here = 1;       // ranks on this machine
  std::int64_t warmup = 1;  // steps before those that are timed; of none, the first step has one-time work
  engine::RankDevice device;
  bool profile = false;   // seconds per op family; always on the CPU. Slows the steps down on a GPU
  bool roofline = false;  // on a GPU: the ceilings R_burst, R_alone and R_mix, measured after the steps
  bool trace = false;     // a timeline of one more step, after the timed ones, and after one more if there is a warmup
};

struct BenchResult {
  std::vector<double> steps;     // seconds of each, after the warmup
  double step_seconds = 0;       // their median
  double tokens_per_second = 0;  // of all ranks, at the median
  // Mean of one rank: forward and backward without recompute; attention counts visible query-key pairs only.
  double model_flops_per_second = 0;
  std::string context;   // plan::context_text of the form that runs; empty without context ranks
  std::string pipeline;  // plan::pipeline_text; empty with one stage
  double imbalance = 1;  // of attention work over this rank's context group, as in metrics.jsonl
  double documents = 1;  // mean per sequence
  // Length of a single-document sequence with the same attention FLOPs per token.
  double equivalent_length = 0;
  std::int64_t parameters = 0;
  std::int64_t planned_bytes = 0;  // all memory that this rank reserves on its device
  // Memory in use as reported by the GPU's driver, of all processes: right after the device is opened (the query needs
  // its context), and after the last step. Zeros on the CPU.
  DeviceMemory before, after;
  std::int64_t allocations = 0;  // device allocations inside the timed steps
  StepPower power;               // of the timed steps
  double loss = 0;               // of the last step
  std::string tiles;             // plan::tiles_text
  std::int64_t mlp_tile_rows = 0;
  std::string offload;        // plan::offload_text
  std::string checkpointing;  // memory.activation_checkpointing: the recipe's value, or the choice for auto
  // Seconds per step that this rank's streams spent in each op family, in descending order. Streams run concurrently,
  // so the sum may exceed the step time.
  std::vector<std::pair<std::string, double>> families;
  std::optional<Roofline> roofline;
  std::optional<StepMix> mix;  // with `roofline`
  // With `trace`: timelines of all ranks, the same on every rank, and the duration of this rank's traced step.
  std::vector<RankTimeline> timelines;
  struct Idle {
    double measured = 0, predicted = 0;  // idle_of(timelines)
  };
  std::optional<Idle> idle;  // with pipeline stages and a trace; on the first rank
  double traced_seconds = 0;
  std::vector<std::string> notes;  // the kernels that the steps use, for the user
};

// Runs complete training steps with AdamW on random tokens, with the folder's weights or, for a config.json, random
// ones. `world` null: single process. Every rank calls it. The recipe has passed config's checks for this world, and
// the model was opened without problems.
BenchResult bench_step(const BenchRequest& request, engine::OpenModel& model, comm::World* world);

}  // namespace hawser::profile
