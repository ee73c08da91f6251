// Saving and loading a session's state as native checkpoints, all ranks together.
#pragma once

#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "comm/mpi/world.h"
#include "train/session.h"

namespace hawser::train {

// What a checkpoint's manifest says besides tensors; a JSON object with these keys.
struct RunState {
  std::int64_t step = 0;       // steps done
  std::int64_t sequences = 0;  // drawn from the data so far, over all ranks
  std::string recipe;          // text of config's recipe_json
  std::string config;          // text of the model's config.json
  std::string tokenizer;       // a tokenizer.json or its folder; "" where there is none
};
std::string to_json(const RunState& state);
RunState run_state_of(const std::string& json);  // UserError for text that is no such object

// What in the recipe (text of recipe_json) draws or cuts sequences in another way than the checkpoint's own did:
// "train.seed was 7 and is 8, ..."; "" when the data come as they would have.
std::string data_order_changes(const RunState& state, const std::string& recipe);

// Writes the session's state under `root` and keeps the newest `keep` checkpoints. Every rank calls it between steps;
// all return the new folder or throw the same UserError, and then older checkpoints are as they were.
std::string save(Session& session, comm::World* world, const std::string& root, const RunState& state, int keep);

// Fills the session's parameters and, with `optimizer`, its moments.
void load(Session& session, checkpoint::Checkpoint& checkpoint, bool optimizer);

}  // namespace hawser::train
