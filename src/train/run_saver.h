// `RunSaver`: decides when a run saves, and saves: at step and time intervals, after the best evaluation and at the
// end. It saves while steps continue if host memory has space for a snapshot, and between steps otherwise.
//
// All ranks do the same at the same step. What only one rank knows (rank 0's clock shows that a save is due, a disk is
// full) is exchanged in the ranks' synchronization before each step: requests() before it, apply() after it.
//
// Before each save it checks that the output folder is still this run's. If it is not (moved, removed, its lock lost),
// it saves where the state can be found, and stops the run.
//
// One save runs at a time. If a step is due while the previous save is still being written, the loop waits for that
// save; none is skipped.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "base/validation_metric.h"
#include "comm/mpi/world.h"
#include "plan/run_plan.h"
#include "train/background_saver.h"
#include "train/restore_best.h"
#include "train/run_folder.h"

namespace hawser::train {

struct RunSaverHooks {
  std::function<engine::RunState(std::int64_t step)> state;  // contents of that step's checkpoint besides tensors
  // Called by every rank before a save; writes to disk what must precede a checkpoint, such as the metrics. If it
  // throws, nothing is saved.
  std::function<void()> before;
  // Rank 0's: the folder to save in if the output folder is no longer this run's (run_folder.h).
  std::function<std::optional<Displaced>()> displaced;
  std::function<void(const std::string& line)> log;
  std::function<void(const std::string& folder)> saved;  // a checkpoint is complete; rank 0 logs it
  Validation validation;                                 // rank 0's
};

// Times spent on saves.
struct SaveTimes {
  int saves = 0;
  double waited_s = 0;   // the loop was blocked by a save
  double writing_s = 0;  // from the start of a save to its complete checkpoint
};

class RunSaver {
 public:
  // Every rank constructs one; borrows all arguments. ranks_here: ranks on this machine. If a snapshot does not fit,
  // logs one line and saves between steps.
  RunSaver(const plan::RunPlan& plan, comm::World* world, engine::Session& session, int ranks_here,
           RunSaverHooks hooks);

  // Bits exchanged between ranks: kFailed, the running save failed on this rank; kDue, rank 0's clock.
  static constexpr std::uint64_t kFailed = 2, kDue = 4;
  std::uint64_t requests() const;
  // The union of all ranks' bits. If a save failed, throws its error on every rank.
  void apply(std::uint64_t bits);

  bool asynchronous() const { return background_ != nullptr; }
  // Whether this step must be saved.
  bool due(std::int64_t step) const;

  // Asynchronous mode, after `step` was enqueued: copies its state alongside the next steps. `retire_earlier` retires
  // steps until the one copied before is retired; called if that is necessary.
  void take(std::int64_t step, const Event& step_end, const std::function<void()>& retire_earlier);
  // The steps after this one changed nothing and run again: a copy of one of them is not saved.
  void discard(std::int64_t step);
  // Reports the result of an evaluation after this step, which is the last one enqueued. `diverged`: training has made
  // the model worse, which is never the best one.
  void evaluated(std::int64_t step, const ValidationLosses& losses, bool diverged);
  // The step has ended and its loss is finite. Starts writing the state that take() copied, and saves the best
  // checkpoint so far.
  void retired(std::int64_t step, const Event& step_end);
  // Saves the last step between steps, unless it is saved already. Waits for a running save.
  void save(std::int64_t step);
  // The same, although the step is saved already, or a save of it is running: replaces its checkpoint.
  void save_again(std::int64_t step);
  // Waits for a running save and throws its error. Every rank calls it.
  void settle();
  // The session ends, and another one continues the run: settles, and saves nothing in between. Every rank calls both.
  void close_session();
  void open_session(engine::Session& session);

  // The run resumes from this checkpoint, and first evaluates it if `evaluates`. `trains`: it has steps left. Every
  // rank calls it.
  void resumed(std::int64_t step, bool evaluates, bool trains);
  std::int64_t saved_step() const { return saved_step_; }  // of the last complete checkpoint; -1: none
  const SaveTimes& times() const { return times_; }
  // The lowest validation loss so far, by Validation::metric, whose checkpoint is OUTPUT/best; nullopt without one.
  std::optional<double> best_loss() const {
    return std::isfinite(best_loss_) ? std::optional(best_loss_) : std::nullopt;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void reserve();
  // Every rank. Asks rank 0 before a save.
  std::optional<Displaced> find_displaced();
  [[noreturn]] void stop(const Displaced& displaced, std::int64_t step);
  SaveTo destination(std::int64_t step, const std::string& folder);
  engine::RunState state_of(std::int64_t step) const;
  void start(std::int64_t step);
  void write(std::int64_t step, const std::string& folder);
  void note(const BackgroundSaver::Saved& saved);

  const plan::RunPlan& plan_;
  comm::World* world_;
  engine::Session* session_;  // null between close_session() and open_session()
  int ranks_here_;
  RunSaverHooks hooks_;
  std::unique_ptr<BackgroundSaver> background_;  // null: saves between steps
  std::int64_t writing_step_ = -1;               // in the background
  std::int64_t taken_step_ = -1;                 // copied, and its save not yet started
  std::int64_t saved_step_ = -1;
  std::int64_t best_step_ = -1, evaluated_step_ = -1;
  double best_loss_ = std::numeric_limits<double>::infinity();
  ValidationLosses evaluated_losses_;
  bool keeps_best_;  // evaluations decide which checkpoint OUTPUT/best is
  bool due_by_time_ = false, reported_slow_ = false, reported_not_removed_ = false;
  bool warned_ = false;                                       // that snapshots have no space
  std::string not_removed_;                                   // SaveTo::not_removed of the running save
  Clock::time_point last_save_, started_, last_save_before_;  // last_save_before_: taken_step_ was copied
  SaveTimes times_;
};

}  // namespace hawser::train
