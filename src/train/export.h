// Export of a native checkpoint to a Hugging Face folder, and lookup of the checkpoint that a path refers to.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "tensor/dtype.h"

namespace hawser::train {

// The metadata that `fit` stores in a checkpoint:
//   {"step": N, "recipe": {every key}, "config": "text of config.json", "tokenizer": "path of its folder or file"}
// The checkpoint contains the tokenizer's files. The path is their origin; checkpoints of earlier versions have only
// the path.
struct CheckpointMetadata {
  std::int64_t step = 0;
  std::string recipe;  // JSON text
  std::string config;
  std::string tokenizer;      // folder or file: the checkpoint's own, or its origin; "": none
  DType stored = DType::f32;  // dtype of exported weights: bf16 if the run computed in it
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

enum class ExportDType { of_run, f32, bf16, f16 };  // of_run: CheckpointMetadata::stored

struct Exported {
  std::string checkpoint;  // its folder
  std::int64_t step = 0;
  std::int64_t parameters = 0;
  std::string dtype;  // "float32", "bfloat16" or "float16"
};

// Writes the model atomically to the folder `output`, which must be empty or missing. UserError on failure.
Exported export_checkpoint(checkpoint::Checkpoint& checkpoint, const std::string& output,
                           ExportDType dtype = ExportDType::of_run);

}  // namespace hawser::train
