// Disk space of a run: checkpoints, the best one, and the token files of its data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "config/recipe.h"
#include "models/model.h"
#include "plan/layout.h"

namespace hawser::plan {

// Bytes of the tensors of a checkpoint, which are the state that all shards of a run have together: trained weights in
// float32, their scales, the optimizer's slots, and what a quantizer keeps of x and dy; with tensor and expert ranks
// complete tensors and all experts, of which `model` has this rank's. AdamW: 12 for each parameter that is trained.
// Frozen weights are not saved.
std::int64_t checkpoint_bytes(const models::Model& model, const Layout& layout);

struct DiskUse {
  std::int64_t checkpoint = 0;  // checkpoint_bytes()
  int kept = 0;                 // checkpoints of OUTPUT/checkpoints when the run ends
  bool writing = false;         // a further one exists while it is written, before the oldest is removed
  bool best = false;            // OUTPUT/best may be one that is no longer kept
  std::int64_t prepared = 0;    // bytes of OUTPUT/data, estimated from the sources. 0 if none, or unknown

  int checkpoints() const { return kept + (writing ? 1 : 0) + (best ? 1 : 0); }
  // The maximum during the run.
  std::int64_t total() const { return checkpoints() * checkpoint + prepared; }
};

// `steps`: of the run, if known. `step_seconds`: predicted, for checkpoints saved by time. Looks up the sizes of the
// data sources that exist.
DiskUse disk_use(const Recipe& recipe, const models::Model& model, const Layout& layout,
                 std::optional<std::int64_t> steps, double step_seconds);

// Bytes that are free on the file system of this folder, which need not exist yet; nullopt if unknown.
std::optional<std::int64_t> free_disk(const std::string& folder);

}  // namespace hawser::plan
