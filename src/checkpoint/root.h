// The root folder of a run's checkpoints: which are complete, and which may be removed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace hawser::checkpoint {

// "step-00000120"
std::string step_name(std::int64_t step);
std::optional<std::int64_t> step_of(const std::string& name);  // inverse; nullopt for any other name

// All folders named like a checkpoint, complete or not, newest first, as ROOT/NAME. Empty if the root does not exist.
std::vector<std::string> step_folders(const std::string& root);

// The complete ones: the manifest is valid and every file has its size. `skipped` gets lines for the others, also for
// those that cannot be read (io::IoError).
std::vector<std::string> complete_checkpoints(const std::string& root, Problems& skipped);

// Removes the oldest complete checkpoints until `count` (at least 1) are left, and returns their folders. One with a
// reader (Storage::open) stays until a later call. `saved`, the checkpoint that was just written, is never removed,
// even if others have later steps. With `failed`, a checkpoint that cannot be removed stays, and `failed` gets a line
// for it; without, the UserError is thrown.
std::vector<std::string> keep_last(const std::string& root, int count, const std::string& saved = "",
                                   Problems* failed = nullptr);

// The newest complete checkpoint before this one, which need not be complete itself: of its root, or for PARENT/best of
// PARENT/checkpoints. "": none.
std::string complete_before(const std::string& folder);

// Makes `path`, next to or outside the root, the same checkpoint as `folder`, in place of an earlier one; its reader
// continues with what it opened. One process at a time.
void keep_also_as(const std::string& folder, const std::string& path);

// A crash in keep_also_as may leave no `path`: gives `path` to the newest complete checkpoint that was to be it, or was
// it. Does nothing if `path` exists or there is no such checkpoint.
void finish_keep(const std::string& path);

// Renames a corrupt checkpoint to ROOT/damaged-NAME, so that it is neither loaded as the newest nor counted by
// keep_last. Returns the new path.
std::string set_aside_corrupt(const std::string& folder);

}  // namespace hawser::checkpoint
