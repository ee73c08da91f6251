// `RunState`: what a checkpoint stores of its run besides tensors, and what differs between two runs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/validation_metric.h"
#include "batches/mixture.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "engine/fp8_fallback.h"
#include "models/families.h"
#include "step/step_record.h"

namespace hawser::engine {

// State of a run in a checkpoint's manifest besides tensors; a JSON object with these keys.
struct RunState {
  std::int64_t step = 0;       // steps finished
  std::int64_t sequences = 0;  // read from the data so far, over all ranks
  // Of a step. The losses of routers depend on it (nn/auxiliary_loss.h). State of an earlier version has 0: unknown.
  std::int64_t micro_batches = 0;
  // step::OptimizerProgress: the updates so far are step - skipped.
  std::int64_t skipped = 0;     // steps so far that updated nothing: without a target, or with an overflow
  std::int64_t good_steps = 0;  // 0 in a checkpoint of an earlier version
  float loss_scale = 1;
  decltype(step::OptimizerProgress::kept) kept{};  // the optimizer's own
  std::int64_t replay_step = -1;                   // step::OptimizerProgress::replay_step
  std::int64_t replays = 0;                        // step::OptimizerProgress::replays
  std::vector<Fp8Fallback> fp8_fallbacks;          // of the run so far
  std::vector<SaturatedStep> saturated_steps;      // SaturationHistory::steps()
  std::vector<SaturatedStep> kept_in_fp8;          // SaturationHistory::kept()
  std::string recipe;                              // text of config's recipe_json
  std::string config;                              // text of the model's config.json
  std::string tokenizer;                           // path of a tokenizer.json or its folder, if there is one
  std::string data;                 // identity of the training data (prepare/identity.h) as JSON, "" if unknown
  std::string compute;              // dtype that layers compute in; "" before version 0.2
  std::string optimizer = "adamw";  // optim::Optimizer::name()
  // The weights of frozen parameters, which are not trained and belong to this state: SafetensorsFolder::identity() of
  // their folder as hex digits. It is "" if nothing is frozen, or unknown.
  std::string base;
  // The Hugging Face folder of these weights, an absolute path. It is "" if nothing is frozen.
  std::string base_model;
  std::optional<ValidationLosses> validation_loss;          // of the evaluation after this step, where there was one
  std::optional<ValidationLosses> initial_validation_loss;  // before any training, where it was evaluated
  // metrics.jsonl's line of this step, if a stop interrupted the evaluation after it: a resumed run makes up for it.
  std::string unfinished_evaluation;
  // What these losses are means of: the data's identity and all settings that select or split sequences, as JSON; ""
  // without validation data, or before version 0.2. Losses are comparable where this is equal.
  std::string validation;
  // Whether the training data have turns of conversations (train/turns.h), in this run or before it was resumed.
  // nullopt: unknown, of an earlier version.
  std::optional<bool> conversations;
  // Shares of the data sets of data.train, from the sequence on from which a run had them. With one set
  // there are none.
  std::vector<batches::Mixture::Shares> mixture;
  // Algorithms of the GEMMs (ops::gemm_choices). A resumed run uses the same, so that it gives the same bits.
  std::string gemm_algorithms;  // "" if there are none, as on the CPU
  // The tokenizer's files, which a resumed run compares with its own, and generation_config.json, copied into the
  // checkpoint. Rank 0's are saved.
  std::vector<checkpoint::Attachment> tokenizer_files;
};
std::string to_json(const RunState& state);
RunState run_state_of(const std::string& json);  // UserError if the text is no such object

// Whether validation losses of these two RunState::validation can be compared. False if either is unknown. The keys may
// be in any order.
bool same_validation(const std::string& a, const std::string& b);

// What makes a run compute something else than the checkpoint's run did although all tensors have the same shapes, with
// `file` as the problems' file; none if the run continues the same computation.
//
// A Problem for the model's description: heads, norm epsilon, RoPE, ..., but not what routers add to the loss
// (router_changes). `key`: of the recipe, which names the model.
Problems description_changes(const RunState& state, const models::ModelDescription& description, const std::string& key,
                             const std::string& file);
// One each for the compute dtype (but not to or from FP8: fp8_changes) and the optimizer. The others are the resumed
// run's; `recipe`: text of recipe_json.
Problems computation_changes(const RunState& state, DType compute, const std::string& optimizer,
                             const std::string& recipe, const std::string& file);

// A Problem if the frozen weights `base` are not those that the checkpoint was trained with, `before` (both as
// RunState::base), with `file` as its file. None if either is unknown. `resumes`: a run continues the checkpoint.
Problems base_changes(const std::string& before, const std::string& base, const std::string& file, bool resumes);

// A Problem for each setting of `adapter`, besides the dropout, that the checkpoint's run had otherwise (`recipe`: text
// of recipe_json), with `file` as its file: another adapter is another model.
Problems adapter_changes(const RunState& state, const std::string& recipe, const std::string& file);

// A Problem if the model has other frozen parameters than the checkpoint's run had by train.freeze (`recipe`: text of
// recipe_json), with `file` as its file.
Problems frozen_changes(const RunState& state, const std::string& recipe, const models::Model& model,
                        const std::string& file);

// A Problem for each setting of `precision` that decides what is in FP8 and what the state has of it, and that the
// checkpoint's run had otherwise (`recipe`: text of recipe_json), with `file` as its file. `blocks`: of the model.
Problems fp8_changes(const RunState& state, const std::string& recipe, int blocks, const std::string& file);

// Lists the recipe keys (`recipe`: text of recipe_json) that change how sequences are sampled or split, compared with
// the checkpoint's own recipe: "train.seed was 7 and is 8, ..."; "" if the data order is unchanged.
std::string data_order_changes(const RunState& state, const std::string& recipe);

// Lists the other keys that change how a resumed run trains: "optimizer.learning_rate was 0.001 and is 0.0003, ...":
// the optimizer's, the adapter's dropout, how experts are balanced, and the run's steps, on which the schedule depends.
std::string training_changes(const RunState& state, const std::string& recipe);

// "the training data have changed: ..."; "" if they are unchanged or unknown.
std::string data_changes(const RunState& state, const std::string& data);

// "tokenizer.json has changed, special_tokens_map.json is new"; compares the files in the checkpoint with the current
// ones, except those that `is_other` names. "" if they are equal or unknown. CorruptCheckpoint if a file in the
// checkpoint fails its checksum.
std::string tokenizer_changes(const checkpoint::Checkpoint& checkpoint, std::vector<checkpoint::Attachment> now,
                              const std::function<bool(const std::string&)>& is_other);

}  // namespace hawser::engine
