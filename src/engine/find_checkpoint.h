// Which checkpoint, run or other folder a path refers to, and what a checkpoint says of its run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "tensor/dtype.h"

namespace hawser::engine {

// The metadata that `fit` stores in a checkpoint:
//   {"step": N, "recipe": {every key}, "config": "text of config.json", "tokenizer": "path of its folder or file"}
// The checkpoint contains the tokenizer's files. The path is their origin; checkpoints of earlier versions have only
// the path.
struct CheckpointMetadata {
  std::int64_t step = 0;
  std::string recipe;  // JSON text
  std::string config;
  std::string base_model;                  // RunState::base_model
  std::string base;                        // RunState::base
  std::string tokenizer;                   // folder or file: the checkpoint's own, or its origin, if any
  std::optional<bool> conversations = {};  // RunState::conversations
  DType stored = DType::f32;               // dtype of exported weights: bf16 if the run computed in it
};
// UserError if the checkpoint was not written by a run.
CheckpointMetadata read_metadata(const checkpoint::Checkpoint& checkpoint);

// The checkpoints folder of a run's folder, or `path` itself if it is one; nullopt for any other path.
std::optional<std::string> checkpoints_below(const std::string& path);

// Whether a folder is a checkpoint, or one whose manifest is missing.
bool looks_like_checkpoint(const std::string& path);

// The problem to report for a folder that is no model, checkpoint or run with checkpoints, if its kind is recognized:
// prepared data, or a run that has not saved yet.
std::optional<Problem> other_folder(const std::string& path);

// Opens a checkpoint's folder, or the newest complete checkpoint of a run. Adds a line to `skipped` for each newer
// checkpoint that is incomplete. UserError if there is none.
checkpoint::Checkpoint open_checkpoint(const std::string& path, Problems& skipped);

}  // namespace hawser::engine
