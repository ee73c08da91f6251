// Export of a checkpoint, or of a model with adapters, to a folder of Hugging Face or of PEFT.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace hawser::train {

enum class ExportDType { of_source, f32, bf16, f16 };  // of_source: an adapter's is float32

struct ExportRequest {
  std::string source;                 // a run's folder, a checkpoint, or a Hugging Face folder with `adapters`
  std::vector<std::string> adapters;  // folders of PEFT
  std::string output;
  ExportDType dtype = ExportDType::of_source;
  bool merge = false;     // an adapter run: the model with the adapter added to its weights, not the adapter alone
  bool averages = false;  // of a run: the average of its weights (optimizer.ema) in their place
};

struct Exported {
  std::string source;     // the checkpoint's folder, or the model's
  std::int64_t step = 0;  // of a checkpoint
  std::int64_t parameters = 0;
  std::string dtype;     // "float32", "bfloat16" or "float16"
  bool adapter = false;  // PEFT's format
  Problems notes = {};   // what the folder lacks
};

// Writes the model, or the adapter of a run that trains one, atomically to the folder `output`, which must be empty or
// missing and in no checkpoint, with the tokenizer and one chat template. After training on conversations, the end of
// turn at which `generate` stops is among the eos_token_id of generation_config.json. UserError on failure. `skipped`:
// newer checkpoints of the run that are incomplete.
Exported export_model(const ExportRequest& request, Problems& skipped);

}  // namespace hawser::train
