// Saves and loads a session's state as native checkpoints. Collective over all ranks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/mpi/world.h"
#include "engine/host_copy.h"
#include "engine/run_state.h"
#include "engine/session.h"

namespace hawser::train {

// What a run saves: frozen weights are those of the base model's folder (RunState::base_model).
constexpr engine::StateScope kSavedByRun{.frozen = false};

// Destination of a checkpoint.
struct SaveTo {
  std::string root;
  int keep = 1;      // number of newest checkpoints to keep
  std::string best;  // path that becomes the same checkpoint (checkpoint::keep_also_as); "": none
  // Called on rank 0, on the saving thread, with a line for the first older checkpoint that cannot be removed; null:
  // none.
  std::function<void(const std::string& line)> not_removed;
};

// Writes the session's state and returns when it is on disk. Every rank calls it between steps; all return the new
// folder or throw the same UserError, for instance if a value is not finite. On error, older checkpoints are unchanged.
std::string save(engine::Session& session, comm::World* world, const SaveTo& to, const engine::RunState& state,
                 engine::StateScope scope = {});

// As save(), with states in host memory, which `fetch` fills. `ranks`: the calling thread's channel; null: single
// process. Uses no device except through `fetch`.
std::string save_states(comm::Channel* ranks, const SaveTo& to, const engine::RunState& state,
                        const std::vector<NamedState>& states, const std::function<void()>& fetch);

// Fills what kSavedByRun names, including moments, from the newest checkpoint under `root` (RUN/checkpoints) that every
// rank can read. nullopt if there is no checkpoint at all; UserError if there are some and none is complete. Rank 0
// chooses, so that all ranks agree even if their views of a shared disk differ. A checkpoint that is corrupt on any
// rank is set aside (checkpoint/root.h), and all ranks use the next older one; UserError if there is none. `judge` is
// called on rank 0 and throws if a checkpoint must not be loaded; all ranks then throw. `log` is called on rank 0 with
// a line for each skipped checkpoint.
std::optional<checkpoint::Checkpoint> load_newest(engine::Session& session, comm::World* world, const std::string& root,
                                                  const std::function<void(const checkpoint::Checkpoint&)>& judge,
                                                  const std::function<void(const std::string&)>& log);

// The problem to report if there are checkpoints under `root` and load_newest() finds none complete; nullopt if there
// are none at all. The user may want to recover the run: it must not start over.
std::optional<Problem> none_is_complete(const std::string& root);
// That to report after the last complete checkpoint turned out to be corrupt.
Problem no_older_checkpoint(const std::string& root);

}  // namespace hawser::train
