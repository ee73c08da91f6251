// `FitRun`: one call of fit(): setup (fit_open.cpp) and training loop (fit.cpp). Internal to fit.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batches/batch_loader.h"
#include "batches/data_sets.h"
#include "engine/fp8_fallback.h"
#include "engine/gemm_algorithms.h"
#include "engine/open_model.h"
#include "io/files.h"
#include "prepare/prepare.h"
#include "prepare/token_file.h"
#include "train/check_resume.h"
#include "train/collect_facts.h"
#include "train/fit.h"
#include "train/power_watch.h"
#include "train/run_folder.h"
#include "train/run_watch.h"
#include "train/saver.h"
#include "train/slow_steps.h"

namespace hawser::train {

// The kind of phase before the first step.
inline constexpr const char* kStarting = "starting";

class FitRun {
 public:
  FitRun(const FitRequest& request, comm::World* world) : request_(request), plan_(request.plan), world_(world) {}

  FitResult run();

  // After an error: ends the progress line, so that the next message starts on a line of its own.
  void end_progress();

 private:
  // A step that is enqueued and not retired.
  struct InFlightStep {
    std::int64_t step = 0, targets = 0;
    double flops = 0;  // model FLOPs of this rank
    double lr = 0;
    step::StepOutput output;
    std::optional<step::StepOutput> reference;  // of a step that is verified (engine::Session::enqueue_verified)
    batches::MeanImbalance imbalance;
    bool with_fallback_rows = false;  // it may have plan::Layout::expert_row_fallback
  };
  // A validation set, or all of the validation data if they have no named sets.
  struct ValidationData {
    std::string name;  // "": it has none
    std::shared_ptr<const batches::BatchLoader> loader;
  };
  int rank() const { return world_ == nullptr ? 0 : world_->rank().value(); }
  bool first_rank() const { return rank() == 0; }
  std::int64_t total_steps() const { return plan_.steps; }

  void open();
  // plan_.layout and session_, for the Linears that are in FP8 now: chooses GEMM algorithms and checkpointing policies.
  void lay_out();
  void open_session();

  RunPlace run_place() const;

  // A deterministic run does not measure: two measurements may choose differently.
  void choose_algorithms();

  // Of the checkpoint to resume, and of RunFiles::gemm_algorithms for GEMMs that the checkpoint lacks: a fallback
  // chooses algorithms after its checkpoint was saved, and the run may end before the next one. Without a checkpoint,
  // the file is of an earlier run in this folder.
  std::vector<engine::StoredChoices> stored_choices() const;
  void open_data();
  void note_long_documents(const prepare::TokenFile& file, const std::string& what);
  void open_validation(const std::vector<prepare::TokenFiles::Validation>& files);
  // UserError on every rank if the ranks' texts differ. `prefix`: of the token file that it identifies.
  void expect_equal_recipes() const;
  void expect_equal_on_ranks(const std::string& identity, const std::string& prefix);
  void resume();
  // Fills the session, without frozen weights, from the newest checkpoint. nullopt: there is none.
  std::optional<checkpoint::Checkpoint> load_checkpoint();
  // What a checkpoint has counted so far.
  void open_loader();
  void set_mixture(const engine::RunState& state);
  void set_progress(const engine::RunState& state);
  void load_initial();  // the model's weights, or random ones

  // UserError on every rank if the token files of one rank have changed during the run: steps since the last save may
  // have used the new bytes. Waits for a running save.
  void expect_unchanged_data();

  ResumedRun resumed_run() const;
  // Rejects a checkpoint that this run does not continue: resume_changes, and scales that it lacks.
  void check_position(const checkpoint::Checkpoint& checkpoint);

  // Sets this rank's current phase, which the message about an expired timeout names.
  void phase(const std::string& text, const char* kind = kStarting);
  void log(const std::string& line);

  // Logs the line and adds it to the result's notes.
  void remark(const std::string& line);
  void train();
  bool on_beat(std::int64_t every) const { return every > 0 && done_ % every == 0; }

  // Synchronizes the ranks before each step: each sends its requests, and all receive the union.
  bool asked_to_stop();
  InFlightStep enqueue(std::int64_t step, batches::Prefetcher& prefetcher);

  // Waits for the oldest in-flight step and reports it; an evaluation may follow after the newest one.
  void retire(bool evaluate_after);

  // What FP8 changes of a verified step.
  report::Fp8Error fp8_error(const InFlightStep& ended) const;

  // Whether the oldest in-flight step, which has ended, changed nothing and is replayed: its values were saturated
  // (nn::Quantizer::judge), a layer refused it, or another one is replayed before it. Logs it.
  bool is_replayed(const InFlightStep& ended);
  // That of the largest share of saturated values.
  const step::ScaledSite& saturated_site(const InFlightStep& ended) const;
  // "block 1's q_proj, k_proj, v_proj": the names that precision.fp8.exclude takes.
  std::string name_of(int layer, nn::Site site) const;
  // Names the Linear with the largest share of saturated values.
  void log_saturation(const InFlightStep& ended, const std::string& consequence);
  // Retires the in-flight steps and continues before the one to replay. Does nothing if there is none.
  bool rewind();

  // Linears that fall back from FP8 (fit_fallback.cpp). Between steps: if one saturates too often, the run is saved,
  // opened without it and resumed, in this process. If that does not fit in memory, it stays in FP8. Logs it. `saved`:
  // the newest checkpoint has the present state.
  void fall_back(bool saved);
  // The fallbacks of the checkpoint to resume from, as rank 0 reads it. They decide what the session is planned for.
  std::vector<engine::Fp8Fallback> resumed_fallbacks() const;
  // The model with the FP8 weights that are left of the recipe's.
  void rebuild_model();
  // A new session in place of the present one, whose state is lost; it has frozen weights only.
  void reopen(std::vector<engine::Fp8Fallback> fallbacks);

  // The weights are invalid from this step on: nothing more is saved, and earlier checkpoints stay.
  [[noreturn]] void not_finite(const report::StepMetrics& metrics, const std::string& remedy);
  // Whether training has made the model worse. Every rank calls it.
  bool has_diverged() const;
  // Whether train.early_stopping ends the run here, which it then says. Every rank calls it.
  bool stops_early();
  std::optional<ValidationLosses> evaluate();
  // The evaluation of the resumed checkpoint's step, if a stop interrupted it: its loss goes into the metrics and the
  // checkpoint, as if the run had never stopped.
  void finish_evaluation();
  void announce_stop();  // says which step ends first, and when
  engine::RunState state_of(std::int64_t step);

  // On rank 0, before a save: whether the output folder and metrics.jsonl are still this run's. Copies the metrics and
  // the recipe to the folder that is to be used instead.
  std::optional<Displaced> find_displaced();
  void finish();

  static constexpr std::int64_t kMaxChoices = 16 << 20;  // maximum bytes of stored GEMM choices to read
  // Steps enqueued before waiting for the oldest. A stop waits for all of them, so slow steps have only one: the time
  // that the host needs to prepare a batch is short beside theirs.
  static constexpr std::size_t kInFlight = 2, kInFlightOfSlow = 1;
  static constexpr double kSlowStep = 2.0;  // seconds

  const FitRequest& request_;
  plan::RunPlan plan_;
  comm::World* world_;
  std::string stage_;
  OutputHold hold_;  // rank 0's
  engine::OpenModel open_;
  std::string config_text_;                          // of the model's config.json
  std::string tokenizer_;                            // its path; "": none
  std::string data_identity_, validation_identity_;  // engine::RunState::data and engine::RunState::validation
  std::string frozen_weights_;                       // engine::RunState::base
  std::vector<checkpoint::Attachment> tokenizer_files_;
  std::optional<bool> conversations_;  // engine::RunState::conversations; rank 0's
  std::int64_t evaluated_ = -1;        // the step of the last evaluation, or of the checkpoint that the run continues
  std::optional<report::StepMetrics> unfinished_evaluation_;  // engine::RunState::unfinished_evaluation
  batches::BatchLayout batch_layout_;
  batches::TrainingSequences training_;
  std::vector<batches::Mixture::Shares> mixture_;  // engine::RunState::mixture
  std::vector<std::shared_ptr<const prepare::TokenFile>> token_files_;
  std::shared_ptr<const batches::BatchLoader> loader_;
  std::vector<ValidationData> validation_;  // empty: the run does not evaluate
  std::int64_t sequences_ = 0, validation_sequences_ = 0, held_out_sequences_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<PowerWatch> power_;
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<engine::Session> session_;
  std::unique_ptr<report::Progress> progress_;
  report::PhaseClock phases_;
  std::optional<double> peak_flops_;     // of all ranks
  std::unique_ptr<RunWatch> watch_;      // rank 0's
  std::optional<SlowSteps> slow_steps_;  // rank 0's; none without report.rules
  std::unique_ptr<RunSaver> saver_;      // destroyed before the members above, which it uses
  std::deque<InFlightStep> in_flight_;
  std::vector<engine::Fp8Fallback> fallbacks_;
  engine::SaturationHistory saturations_;
  std::int64_t refused_step_ = -1;  // the last step that a layer refused; it runs again
  bool rewinds_ = false;            // a retired step is to be replayed, and done_ counts it still
  bool slow_ = false;               // a step took longer than kSlowStep, on some rank
  // The resumed checkpoint is of the last step, or of a later one: only missing files are written, there is no watch_.
  bool nothing_to_do_ = false;
  std::int64_t done_ = 0, retired_ = 0;
  step::OptimizerProgress progress_of_retired_;                         // after the newest retired step
  double counted_tokens_ = 0, counted_seconds_ = 0, step_seconds_ = 0;  // step_seconds_: of the newest retired step
  batches::MeanImbalance imbalance_;
  std::chrono::steady_clock::time_point last_end_;  // end of the previous step, or of a pause of the loop
  FitResult result_;
};

}  // namespace hawser::train
