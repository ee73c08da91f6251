// `BackgroundSaver`: writes a checkpoint on a thread while training steps continue.
//
//   BackgroundSaver saver(session, world->open_channel("checkpoints"));
//   saver.take(output.end);           // after a step was enqueued: copies its state alongside the next step
//   ...                               // the step has ended and its loss is finite
//   saver.start(to, state);           // a thread waits for the copy, writes it, agrees with the other ranks, commits
//   ...                               // any number of steps
//   if (auto saved = saver.collect()) log(saved->folder);
//   saver.finish();                   // waits; rethrows the save's error
//
// One save at a time. The thread uses its own channel to agree with the other ranks whether the checkpoint is complete,
// without communication from the training threads. All ranks then hold the same folder or the same error. A rank on
// which failed() is true must bring all ranks to finish() (by any_of on the run's channel), so that all throw at the
// same place.
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
    double seconds = 0;  // since start()
  };

  // Every rank constructs one. `ranks` null: single process. Error(does_not_fit) if the snapshot cannot be allocated.
  BackgroundSaver(engine::Session& session, std::unique_ptr<comm::Channel> ranks);
  // Waits for a running save. With other ranks, all of them must take part until it ends.
  ~BackgroundSaver();
  BackgroundSaver(const BackgroundSaver&) = delete;
  BackgroundSaver& operator=(const BackgroundSaver&) = delete;

  // Host memory of the snapshot; 0 on a rank that does not own its states.
  std::int64_t bytes() const { return snapshot_ ? snapshot_->bytes() : 0; }

  // Enqueues the snapshot of the last enqueued step, which ends with `step_end`. No save may be running.
  void take(const Event& step_end);
  // Saves what take() copied and returns at once. No save may be running.
  void start(SaveTo to, engine::RunState state);

  bool under_way() const { return thread_.joinable(); }  // started, and neither collected nor finished
  bool failed() const { return over_ && error_ != nullptr; }
  // The checkpoint, once it is complete; nullopt while it is being written, or if the save failed.
  std::optional<Saved> collect();
  // Waits for a running save and rethrows its error. nullopt if there is none.
  std::optional<Saved> finish();

 private:
  std::unique_ptr<comm::Channel> ranks_;
  std::unique_ptr<Snapshot> snapshot_;
  Saved saved_;
  std::exception_ptr error_;
  std::atomic<bool> over_ = false;  // set by the thread: saved_ and error_ may be read
  std::thread thread_;
};

}  // namespace hawser::train
