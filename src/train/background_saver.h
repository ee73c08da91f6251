// Checkpoints that are written while steps go on.
//
//   BackgroundSaver saver(session, world->open_channel("checkpoints"));
//   saver.take(output.end);           // after a step was enqueued: its state is copied beside the next one
//   ...                               // the step has ended and its numbers are sound
//   saver.start(to, state);           // a thread waits for the copy, writes it, agrees with the other ranks, commits
//   ...                               // any number of steps
//   if (auto saved = saver.collect()) say(saved->folder);
//   saver.finish();                   // waits; throws what went wrong
//
// One save at a time. The thread has a channel of its own: ranks agree that a checkpoint is whole, or why it is not,
// without a word from the threads that train. All of them then hold the same folder or the same error; a rank that
// sees failed() must bring all ranks to finish() (by any_of on the run's channel), so that all throw it at one place.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "comm/mpi/world.h"
#include "train/saver.h"
#include "train/snapshot.h"

namespace hawser::train {

class BackgroundSaver {
 public:
  struct Saved {
    std::string folder;
    std::int64_t step = 0;
    double seconds = 0;  // from start() on
  };

  // Every rank makes one. `ranks` null: this process alone. Error(does_not_fit) where the snapshot's memory is refused.
  BackgroundSaver(Session& session, std::unique_ptr<comm::Channel> ranks);
  // Waits for a save under way: with other ranks, they must be there to end it.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Host memory of the snapshot; 0 on a rank that does not own its states.
  std::int64_t bytes() const { return snapshot_ ? snapshot_->bytes() : 0; }

  // Enqueues the snapshot of the last step enqueued, which ends with `step_end`. Nothing is under way.
  void take(const Event& step_end);
  // Saves what take() took. Nothing is under way. Returns at once.
  void start(SaveTo to, RunState state);

  bool under_way() const { return thread_.joinable(); }  // started, and neither collected nor finished
  bool failed() const { return over_ && error_ != nullptr; }
  // The checkpoint that was started, once it is whole; none while it is not, or failed.
  std::optional<Saved> collect();
  // Waits for the save under way. None where there is none; throws its error.
  std::optional<Saved> finish();

 private:
  std::unique_ptr<comm::Channel> ranks_;
  std::unique_ptr<Snapshot> snapshot_;
  Saved saved_;
  std::exception_ptr error_;
  std::atomic<bool> over_ = false;  // of the thread: saved_ and error_ may be read
  std::thread thread_;
};

}  // namespace hawser::train
