// `check_resume`: whether a run can continue its newest checkpoint, before text is prepared and a session exists.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "engine/open_model.h"
#include "plan/run_plan.h"

namespace hawser::train {

// What of a run decides whether it continues a checkpoint.
struct ResumedRun {
  const plan::RunPlan& plan;      // without its layout
  const engine::OpenModel& open;  // model null: it could not be opened, and is not compared
  DeviceKind device = DeviceKind::cpu;
  std::string frozen_weights = {};                           // engine::RunState::base
  std::vector<checkpoint::Attachment> tokenizer_files = {};  // tokenizer_files_of
};

// The tokenizer's files as a checkpoint has them: with the chat template of the recipe, because `generate`, `eval` and
// exported models use the one of the training, and with generation_config.json. Without a tokenizer: that file alone.
std::vector<checkpoint::Attachment> tokenizer_files_of(const plan::RunPlan& plan);

// A problem for each setting that the checkpoint's run had otherwise, and that a resumed run must not change: model,
// adapter, frozen parameters and their weights, precision, optimizer, batch size and tokenizer. The batch size, because
// a batch is a function of its step: the data continue where they ended only if steps have the same size. Another model
// is one problem, whatever of it has changed. Settings in Recipe::rejected are not compared. CorruptCheckpoint if a
// file of the tokenizer fails its checksum.
Problems resume_changes(const ResumedRun& run, const checkpoint::Checkpoint& checkpoint);

// resume_changes of the checkpoint that load_newest() (saver.h) would load if no tensor is corrupt; false if there is
// none. Adds the problems, also if there are checkpoints and none is complete. Reads no tensors, writes nothing and
// does not communicate.
bool check_resume(const ResumedRun& run, Problems& problems);

// Both `problems`, found before, and `changes`, of check_resume() if it found a checkpoint. Those of a key that has
// changed are left out: `changes` has what to do. If the batch size does not divide, the hint is other ranks or another
// micro-batch size, as the batch size is the checkpoint's.
Problems as_resumed(const Recipe& recipe, int world, const Problems& problems, const Problems& changes);

}  // namespace hawser::train
