// When a run saves, and how: by steps, by time, after the best evaluation and at the end; beside the steps where the
// host has the memory for a snapshot, else between them.
//
// All ranks do the same at the same step. What only one can know (its clock says that it is time, its disk is full)
// travels with the meeting that the ranks have before each step: says() before, heard() after.
//
// One save is under way at a time. A step that is to be saved while the one before is still being written waits for
// that; nothing is skipped.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "base/recipe.h"
#include "comm/mpi/world.h"
#include "train/background_saver.h"

namespace hawser::train {

struct RunSaverHooks {
  std::function<RunState(std::int64_t step)> state;  // what a checkpoint of that step says
  std::function<void()> before;                      // what must be on the disk first: the metrics
  std::function<void(const std::string& line)> log;
  std::function<void(const std::string& folder)> saved;  // a checkpoint is whole; rank 0 says so
};

// What saving cost.
struct SaveTimes {
  int saves = 0;
  double waited_s = 0;   // the loop stood still for a save
  double writing_s = 0;  // from a save's start to its checkpoint, beside steps or not
};

class RunSaver {
 public:
  // Every rank makes one; borrows all. ranks_here: of this machine. Says in one line where there is no room for a
  // snapshot, and then saves between steps.
  RunSaver(const Recipe& recipe, comm::World* world, Session& session, int ranks_here, RunSaverHooks hooks);

  // A meeting's bits: kFailed, the save under way failed on this rank; kDue, rank 0's clock.
  static constexpr std::uint64_t kFailed = 2, kDue = 4;
  std::uint64_t says() const;
  // What one rank or another said. Throws, on every rank, what the writers found.
  void heard(std::uint64_t bits);

  bool asynchronous() const { return background_ != nullptr; }
  // Whether this step is to be saved.
  bool due(std::int64_t step) const;

  // Asynchronous, after `step` was enqueued: takes its state beside the next steps. land_earlier: until the step taken
  // before has landed; called where that is to be waited for.
  void take(std::int64_t step, const Event& step_end, const std::function<void()>& land_earlier);
  // An evaluation after this step, the last one enqueued.
  void evaluated(std::int64_t step, double loss);
  // The step has ended and its numbers are sound. Starts writing what take() took of it, and takes and writes the best
  // so far.
  void retired(std::int64_t step, const Event& step_end);
  // Saves the last step between steps, unless it is saved. Waits for what is under way.
  void save(std::int64_t step);
  // Waits for what is under way; throws what the writers found. Every rank calls it.
  void settle();

  // The run goes on from this checkpoint; 0: from the start.
  void resumed(std::int64_t step) { saved_step_ = step; }
  std::int64_t saved_step() const { return saved_step_; }  // of the last whole checkpoint; -1: none
  const SaveTimes& times() const { return times_; }

 private:
  using Clock = std::chrono::steady_clock;

  void reserve(int ranks_here);
  void read_best();
  SaveTo destination(std::int64_t step) const;
  RunState state_of(std::int64_t step) const;
  void start(std::int64_t step);
  void note(const BackgroundSaver::Saved& saved);

  const Recipe& recipe_;
  comm::World* world_;
  Session& session_;
  RunSaverHooks hooks_;
  std::unique_ptr<BackgroundSaver> background_;  // null: saves between steps
  std::int64_t taken_step_ = -1;                 // taken and not yet started
  std::int64_t saved_step_ = -1;
  std::int64_t best_step_ = -1, evaluated_step_ = -1;
  double best_loss_ = std::numeric_limits<double>::infinity(), evaluated_loss_ = 0;
  bool due_by_time_ = false, reported_slow_ = false;
  Clock::time_point last_save_, started_;
  SaveTimes times_;
};

}  // namespace hawser::train
