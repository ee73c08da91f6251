// Export of a native checkpoint to a Hugging Face folder.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/checkpoint.h"

namespace hawser::train {

enum class ExportDType { of_run, f32, bf16, f16 };  // of_run: engine::CheckpointMetadata::stored

struct Exported {
  std::string checkpoint;  // its folder
  std::int64_t step = 0;
  std::int64_t parameters = 0;
  std::string dtype;  // "float32", "bfloat16" or "float16"
};

// Writes the model atomically to the folder `output`, which must be empty or missing and in no checkpoint. UserError on
// failure.
Exported export_checkpoint(checkpoint::Checkpoint& checkpoint, const std::string& output,
                           ExportDType dtype = ExportDType::of_run);

}  // namespace hawser::train
