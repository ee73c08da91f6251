// Loss, and gradients if asked, of a model on data: the same number on every mesh.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/recipe.h"
#include "comm/mpi/world.h"
#include "data/batch_loader.h"
#include "train/open_model.h"
#include "train/rank_device.h"
#include "train/session.h"

namespace hawser::train {

struct EvaluateRequest {
  std::string model;   // a Hugging Face folder, a checkpoint or a run's folder
  std::string data;    // a JSONL or text file, or a token file; taken as one batch (eval_data.h)
  std::string bigram;  // token file that a bigram model is fitted on, to be scored on the token file `data`; "": none
  std::int64_t sequence_length = 0;  // 0: that of the checkpoint's run
  bool gradient_norms = false;
  // A token file as one running text; else its documents are apart, or as the checkpoint's run has them: then all
  // targets are those of the run's own evaluation, and so is the loss.
  bool across_documents = false;
  Recipe recipe;  // parallel, memory, precision, run
  int threads = 1;
  int ranks_here = 0;  // ranks on this machine; 0: all
  RankDevice device;
};

struct Evaluation {
  double loss = 0;                                             // mean over all targets
  std::int64_t tokens = 0;                                     // targets
  std::vector<std::pair<std::string, double>> gradient_norms;  // Hugging Face names, in model order
  std::optional<double> bits_per_byte;  // of the text, for a token file whose tokenizer lies beside the model
  std::optional<double> bigram_loss;
  std::vector<std::string> notes;  // which kernels it took, for people
};

// What an evaluation reads, found sound: model and weights, and this rank's part of the data.
struct OpenEvaluation {
  std::string folder;  // the model's
  Recipe recipe;
  int threads = 1;
  RankDevice device;
  bool gradient_norms = false;
  bool across_documents = false;  // as it is done
  OpenModel open;
  plan::Layout layout;
  std::shared_ptr<const data::BatchLoader> loader;
  std::shared_ptr<const data::TokenFile> tokens, bigram;  // null: not that kind of data, not asked for
  std::unique_ptr<data::Tokenizer> tokenizer;             // of `tokens`; null: none beside the model
};

// Opens all of it as rank `rank` of `ranks`, without messages. Adds every problem of model and data, and returns none
// when there is one; where there is none, throws Error(does_not_fit) if a rank needs more memory than it may use.
std::optional<OpenEvaluation> open_evaluation(const EvaluateRequest& request, int rank, int ranks, Problems& problems);

// `world` null: this process alone. Every rank calls it and gets the same. UserError where the loss is not finite.
// `after`, if given, is called before the session ends, with the gradients of Purpose::gradient_norms still there.
Evaluation evaluate(OpenEvaluation& input, comm::World* world, const std::function<void(Session&)>& after = nullptr);

// Both in one. UserError with all problems of model and data.
Evaluation evaluate(const EvaluateRequest& request, comm::World* world,
                    const std::function<void(Session&)>& after = nullptr);

// The loss over `steps` steps of a loader without shuffling (all of it: loader.steps()), with a session made for
// Purpose::loss. Returns (sum of losses, targets). `progress` hears how many steps are done.
std::pair<double, std::int64_t> evaluate_loss(Session& session, const data::BatchLoader& loader, std::int64_t steps,
                                              const std::function<void(std::int64_t)>& progress = nullptr);

}  // namespace hawser::train
