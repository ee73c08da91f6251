// From a native checkpoint to a Hugging Face folder, and finding the checkpoint that a path means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "tensor/dtype.h"

namespace hawser::train {

// What `fit` keeps in a checkpoint's meta:
//   {"step": N, "recipe": {every key}, "config": "text of config.json", "tokenizer": "path of its folder or file"}
// The tokenizer's files lie in the checkpoint itself; the path is where they came from, and all that older ones have.
struct CheckpointMeta {
  std::int64_t step = 0;
  std::string recipe;  // JSON text
  std::string config;
  std::string tokenizer;      // folder or file: the checkpoint's own, or where it came from; "": none
  DType stored = DType::f32;  // what an export stores: bf16 where the run computed in it
};
// UserError when it is not one of a run.
CheckpointMeta read_meta(const checkpoint::Checkpoint& checkpoint);

// The folder of checkpoints that `path` is or has: a run's folder, or its `checkpoints`; none for any other.
std::optional<std::string> checkpoints_below(const std::string& path);

// Whether a folder is a checkpoint, or was one that lost its manifest.
bool looks_like_checkpoint(const std::string& path);

// What to say of a folder that is no model, checkpoint or run with checkpoints, where it can be told what it is:
// prepared data, or a run that has not saved.
std::optional<Problem> other_folder(const std::string& path);

// A checkpoint's folder, or the newest whole checkpoint of a run. `skipped` gets a line for each newer one that is not
// whole. UserError when there is none.
checkpoint::Checkpoint open_checkpoint(const std::string& path, Problems& skipped);

struct Exported {
  std::string checkpoint;  // its folder
  std::int64_t step = 0;
  std::int64_t parameters = 0;
  DType stored = DType::f32;
};

// Writes the model to the folder `output`, which must be empty or not there, all or nothing. UserError when that fails.
Exported export_checkpoint(checkpoint::Checkpoint& checkpoint, const std::string& output);

}  // namespace hawser::train
