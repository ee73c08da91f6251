// Saving and loading a session's state as native checkpoints, all ranks together.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "comm/mpi/world.h"
#include "train/open_model.h"
#include "train/session.h"

namespace hawser::train {

// What a checkpoint's manifest says besides tensors; a JSON object with these keys.
struct RunState {
  std::int64_t step = 0;       // steps done
  std::int64_t sequences = 0;  // drawn from the data so far, over all ranks
  std::string recipe;          // text of config's recipe_json
  std::string config;          // text of the model's config.json
  std::string tokenizer;       // a tokenizer.json or its folder; "" where there is none
  std::string data;            // identity of the training data (data/identity.h) as JSON; "" where nobody knows
  std::optional<double> validation_loss;  // of the evaluation after this step, where there was one
  // Algorithms of the GEMMs (ops::gemm_choices): a resumed run takes them again, so that it is the same run.
  std::string gemm_algorithms;  // "": none, as on the CPU
  // The tokenizer's files, which the checkpoint carries along; rank 0's count, and a resumed run compares them with its
  // own.
  std::vector<checkpoint::Attachment> tokenizer_files;
};
std::string to_json(const RunState& state);
RunState run_state_of(const std::string& json);  // UserError for text that is no such object

// What in the recipe (text of recipe_json) draws or cuts sequences in another way than the checkpoint's own did:
// "train.seed was 7 and is 8, ..."; "" when the data come as they would have.
std::string data_order_changes(const RunState& state, const std::string& recipe);

// "the training data are not those of before: ..."; "" when they are, as far as both are known.
std::string data_changes(const RunState& state, const std::string& data);

// "the tokenizer is not that of before, in FOLDER: ...", by the files that the checkpoint carries along and those of
// now; "" when it is, as far as both are known. Damaged where a file that it carries is not what was saved.
std::string tokenizer_changes(const checkpoint::Checkpoint& checkpoint, const std::vector<checkpoint::Attachment>& now);

// Where a checkpoint goes.
struct SaveTo {
  std::string root;
  int keep = 1;      // the newest so many stay
  std::string best;  // this path becomes the same checkpoint (checkpoint::keep_also_as); "": none does
};

// Writes the session's state and waits until it is on the disk. Every rank calls it between steps; all return the new
// folder or throw the same UserError, and then older checkpoints are as they were.
std::string save(Session& session, comm::World* world, const SaveTo& to, const RunState& state);

// The same with states in host memory, which `fetch` fills. `ranks`: the channel of the thread that calls; null: this
// process alone. Touches no device but through `fetch`.
std::string save_states(comm::Channel* ranks, const SaveTo& to, const RunState& state,
                        const std::vector<NamedState>& states, const std::function<void()>& fetch);

// Fills the session's parameters and, with `optimizer`, its moments.
void load(Session& session, checkpoint::Checkpoint& checkpoint, bool optimizer);

// Fills the parameters with a model's weights, or those of its checkpoint.
void load_weights(Session& session, OpenModel& open);

// Fills the session, moments too, from the newest checkpoint under `root` (RUN/checkpoints) that every rank can read;
// none: there is no checkpoint, whole or not. UserError where there are some and none is whole. Rank 0 chooses, so that
// all agree whatever their views of a shared disk are. One that turns out damaged on any rank is set aside
// (checkpoint/root.h) and all go back to the next older; UserError when there is none. `judge` throws for a checkpoint
// that is not to be loaded; `say` hears, on rank 0, what is passed over.
std::optional<checkpoint::Checkpoint> load_newest(Session& session, comm::World* world, const std::string& root,
                                                  const std::function<void(const checkpoint::Checkpoint&)>& judge,
                                                  const std::function<void(const std::string&)>& log);

}  // namespace hawser::train
