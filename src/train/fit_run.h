// One call of fit(), from opening to its result: the loop (fit.cpp) and what surrounds it (fit_open.cpp). Internal to
// fit.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/storage/posix.h"
#include "data/batch_loader.h"
#include "train/fit.h"
#include "train/gemm_algorithms.h"
#include "train/open_model.h"
#include "train/run_watch.h"
#include "train/saver.h"

namespace hawser::train {

class FitRun {
 public:
  FitRun(const FitRequest& request, comm::World* world) : request_(request), recipe_(request.recipe), world_(world) {}

  FitResult run();

  // After an error: what is said next stands on a line of its own.
  void end_progress();

 private:
  // A step on its way through the device.
  struct InFlightStep {
    std::int64_t step = 0, targets = 0;
    double flops = 0;  // model FLOPs of this rank
    double lr = 0;
    step::StepOutput output;
    data::MeanImbalance imbalance;
  };
  bool first_rank() const { return world_ == nullptr || world_->rank().value() == 0; }
  std::int64_t total_steps() const { return recipe_.train.steps; }

  void open();

  // A run that must repeat to the bit takes no part in a measurement, which may turn out otherwise another time.
  void choose_algorithms();

  // Those of the run that goes on; else of an earlier one in this folder.
  StoredChoices stored_choices() const;
  void open_data();
  void resume();

  // A batch is a function of its step: the run goes on with the data that follows only when steps are as large as
  // before.
  void check_position(const checkpoint::Checkpoint& checkpoint);

  // What this rank does from now on, for the line about a time limit that passed.
  void phase(const std::string& text, const char* kind = "starting");
  void log(const std::string& line);

  // The same, and in the result.
  void remark(const std::string& line);
  void train();
  bool on_beat(std::int64_t every) const { return every > 0 && done_ % every == 0; }

  // The ranks' meeting before each step: what any of them has to say, all hear.
  bool asked_to_stop();
  InFlightStep enqueue(std::int64_t step, data::Prefetcher& prefetcher);

  // Waits for the oldest step on its way and reports it; the newest one may be followed by an evaluation.
  void retire(bool evaluate_after);

  // The weights are spoilt from this step on: nothing is saved, and what was saved before stays.
  [[noreturn]] void diverged(const report::StepMetrics& metrics);
  std::optional<double> evaluate();
  RunState state_of(std::int64_t step);
  void finish();

  static constexpr std::int64_t kMaxChoices = 16 << 20;  // bytes of a text of choices that is read
  static constexpr std::size_t kInFlight = 2;            // steps enqueued before the oldest is waited for

  const FitRequest& request_;
  Recipe recipe_;  // the request's; auto becomes what it stands for
  comm::World* world_;
  std::string stage_;
  checkpoint::File lock_;
  OpenModel open_;
  std::string config_text_;    // of the model's config.json
  std::string tokenizer_;      // where it lies; "": there is none
  std::string data_identity_;  // rank 0's
  std::vector<checkpoint::Attachment> tokenizer_files_;
  plan::Layout layout_;
  data::BatchLayout batch_layout_;
  std::shared_ptr<const data::BatchLoader> loader_, validation_;
  std::int64_t sequences_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<report::Progress> progress_;
  report::PhaseClock phases_;
  std::optional<double> peak_flops_;  // of all ranks
  std::unique_ptr<RunWatch> watch_;   // rank 0's
  std::unique_ptr<RunSaver> saver_;   // ends before what it reads and says
  std::deque<InFlightStep> in_flight_;
  std::int64_t done_ = 0, retired_ = 0;
  double counted_tokens_ = 0, counted_seconds_ = 0;
  data::MeanImbalance imbalance_;
  std::chrono::steady_clock::time_point last_end_;  // of the step before, or of what the loop paused for
  FitResult result_;
};

}  // namespace hawser::train
