// Evaluation of a model on data: loss and, on request, gradient norms. The same numbers on every mesh.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batches/batch_loader.h"
#include "comm/mpi/world.h"
#include "config/recipe.h"
#include "engine/open_model.h"
#include "engine/rank_device.h"
#include "engine/session.h"

namespace hawser::evaluate {

struct EvaluateRequest {
  std::string model;                       // a Hugging Face folder, a checkpoint or a run's folder
  std::vector<std::string> adapters = {};  // folders of PEFT, on a Hugging Face folder
  bool averages = false;                   // of a run: the average of its weights
  std::string data;                        // a JSONL or text file, or a token file; loaded as one batch (eval_data.h)
  std::string bigram;  // token file to fit a bigram model on, which is scored on the token file `data`; "": none
  std::int64_t sequence_length = 0;  // 0: that of the checkpoint's run
  bool gradient_norms = false;
  // true: a token file is one running text. false: documents are separate, unless the checkpoint's run used one running
  // text; targets and loss are then those of the run's own evaluation.
  bool across_documents = false;
  Recipe recipe;  // parallel, memory, precision, run
  int threads = 1;
  int ranks_here = 0;  // ranks on this machine; 0: all
  engine::RankDevice device;
};

struct Evaluation {
  double loss = 0;          // mean over all targets, plus router_loss
  std::int64_t tokens = 0;  // targets
  // Hugging Face names, in model order; of a model with adapters those that train, as adapter_model.safetensors names
  // them.
  std::vector<std::pair<std::string, double>> gradient_norms;
  // The load-balancing loss of all tokens of the data times its coefficient, if the model's own loss includes it
  // (output_router_logits). bits_per_byte is without it.
  std::optional<double> router_loss;
  std::optional<double> bits_per_byte;  // of the text; for a token file if the model's folder has a tokenizer
  std::optional<double> bigram_loss;
  std::vector<std::string> notes;  // the kernels it used, for the user
};

// Checked inputs of an evaluation: model and weights, and this rank's part of the data.
struct OpenEvaluation {
  std::string folder;  // the model's
  std::string data;    // the file's name
  Recipe recipe;
  int threads = 1;
  engine::RankDevice device;
  bool gradient_norms = false;
  bool across_documents = false;  // the resolved value
  std::string note;               // on texts that are longer than a sequence; "" if there are none
  engine::OpenModel open;
  plan::Layout layout;
  std::shared_ptr<const batches::BatchLoader> loader;
  std::shared_ptr<const prepare::TokenFile> tokens, bigram;  // null: `data` is no token file; no bigram model requested
  std::unique_ptr<text::Tokenizer> tokenizer;                // of `tokens`; null: the model has none
  // Called with the share of the data whose loss is computed.
  std::function<void(double)> progress = nullptr;
  bool all_text = false;  // the loss is of all of `tokens`: no labels, none left out
};

// Opens the inputs as rank `rank` of `ranks`, without communication. Adds every problem of model and data, and returns
// nullopt if there is one. Otherwise throws Error(does_not_fit) if a rank needs more memory than it may use.
std::optional<OpenEvaluation> open_evaluation(const EvaluateRequest& request, int rank, int ranks, Problems& problems);

// The kind of step whose gradients an evaluation of this model has. The loss of routers is one of all tokens together:
// the step of gradients gets the statistics of the steps of losses.
step::Purpose gradient_purpose(const models::Model& model);

// `world` null: single process. Every rank calls it and gets the same result. UserError if the loss is not finite.
// `after`, if given, is called before the session ends, while the gradients of gradient_purpose() are available.
Evaluation evaluate(OpenEvaluation& input, comm::World* world,
                    const std::function<void(engine::Session&)>& after = nullptr);

// open_evaluation and evaluate in one call. UserError with all problems of model and data.
Evaluation evaluate(const EvaluateRequest& request, comm::World* world,
                    const std::function<void(engine::Session&)>& after = nullptr);

}  // namespace hawser::evaluate
