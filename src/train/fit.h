// `fit`: runs training as a recipe describes: the training loop, checkpoints, evaluation and reports.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/validation_metric.h"
#include "comm/mpi/world.h"
#include "engine/rank_device.h"
#include "report/progress.h"
#include "train/run_folder.h"
#include "train/run_saver.h"

namespace hawser::train {

struct FitRequest {
  plan::RunPlan plan;   // without its layout
  bool resume = false;  // from the newest complete checkpoint; from step 0 if there is none
  int threads = 1;      // CPU threads of a rank
  int ranks_here = 1;   // ranks on this machine
  engine::RankDevice device;
  // Called once per step on every rank; if it returns true on any rank, all ranks save and stop.
  std::function<bool()> stop_requested = [] { return false; };
  report::ProgressOptions progress;  // rank 0's; fit sets total, first and log_every
};

struct FitResult {
  enum class Prompt { ids, text, chat };

  std::int64_t steps = 0;  // finished, counted from the start of the run
  bool interrupted = false;
  bool stopped_early = false;                       // train.early_stopping ended it before its last step
  bool diverged = false;                            // all steps are done, and training had diverged and not recovered
  std::optional<double> train_loss;                 // of the last step; nullopt if this call ran no step
  std::optional<ValidationLosses> validation_loss;  // of the last evaluation
  // Before any training, on the same text, if this run or the run that it resumes evaluated it.
  std::optional<ValidationLosses> initial_validation_loss;
  std::string metric = kAllSets;               // train.early_stopping.metric
  std::optional<double> best_validation_loss;  // the lowest by the metric; its checkpoint is OUTPUT/best
  double tokens_per_second = 0;     // mean over this call's steps without the first, unless it is the only one
  std::string checkpointing;        // in recipe syntax: the recipe's value, or the choice for auto
  std::string offload;              // plan::offload_text
  std::string context_comm;         // plan::context_text of the form that runs; empty without context ranks
  std::string pipeline_schedule;    // as parallel.pipeline_schedule; empty with one stage
  std::optional<double> imbalance;  // with context parallelism: of attention work, mean over this call's steps
  bool adapter = false;             // trained in place of all weights
  std::string checkpoint;           // folder of the last one written
  Prompt prompt = Prompt::ids;      // what the model takes: chat if it was trained on conversations
  std::string output;               // the run's folder
  // Notes about this run's kernels: the attention kernel used, and GEMMs without a fast kernel.
  std::vector<std::string> notes;
  SaveTimes saving;

  // A step before the last one has the best checkpoint.
  bool best_is_earlier() const {
    const auto last = validation_loss ? loss_of(*validation_loss, metric) : std::nullopt;
    return best_validation_loss && last && *best_validation_loss < *last;
  }
};

// The rank for which check_fit runs.
struct FitPlace {
  int world = 1, ranks_here = 1, threads = 1;  // ranks in total, ranks on this machine, threads per rank
  DeviceKind device = DeviceKind::cpu;
  bool first = true;    // only the first rank checks the data and the checkpoint, and creates the output folder
  bool resume = false;  // FitRequest::resume: Linears that have fallen back from FP8 are planned without it
  bool force = false;   // an earlier run in the output folder is moved aside, whatever it trained
};

// Checks all user input that can be checked without reading data or using devices: model, data files, tokenizer,
// output, and whether the run continues its newest checkpoint (check_resume.h). Adds all problems. If there are none,
// throws Error(does_not_fit) with settings that fit if a rank needs more memory than it may use, and creates the output
// folder if it is missing.
void check_fit(const plan::RunPlan& plan, const FitPlace& place, Problems& problems);

// `world` null: single process. Every rank calls it. The recipe has passed config's checks for this world and
// check_fit. Prepares token files that are missing or stale. Without `resume`, moves files of an earlier run in the
// output folder aside (run_folder.h). If it throws while there are other ranks, the process must end by World::abort:
// streams that wait for ranks that no longer take part are left as they are.
FitResult fit(const FitRequest& request, comm::World* world);

}  // namespace hawser::train
