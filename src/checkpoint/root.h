// The root folder of a run's checkpoints: which are complete, and which may be removed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/files.h"

namespace hawser::checkpoint {

// "step-00000120"
std::string step_name(std::int64_t step);
std::optional<std::int64_t> step_of(const std::string& name);  // inverse; nullopt for any other name

// All folders named like a checkpoint, complete or not, newest first, as ROOT/NAME. Empty if the root does not exist.
std::vector<std::string> step_folders(const std::string& root);

// The complete ones: the manifest is valid and every file has its size. `skipped` gets lines for the others, also for
// those that cannot be read (io::IoError).
std::vector<std::string> complete_checkpoints(const std::string& root, Problems& skipped);

// Removes the oldest complete checkpoints until `count` (at least 1) are left, and returns their folders. A folder is
// renamed to a dot-name before its contents are removed; the next save removes what a crash left under such a name. A
// checkpoint with a reader (its folder is locked, see hold()) stays until a later call. `saved`, the checkpoint that was
// just written, is never removed, even if others have later steps.
std::vector<std::string> keep_last(const std::string& root, int count, const std::string& saved = "");

// Opens a checkpoint's folder with a shared lock, held while the File exists: keep_last does not remove it. Without
// locks in the file system the folder is only opened. UserError if there is no such folder.
io::File hold(const std::string& folder);

// The newest complete checkpoint before this one, which need not be complete itself: of its root, or for PARENT/best of
// PARENT/checkpoints. "": none.
std::string complete_before(const std::string& folder);

// Makes `path`, next to or outside the root, the same checkpoint as `folder`, by hard links, or copies where there are
// none. It replaces `path` in one step; a reader continues with the files it holds. One process at a time.
void keep_also_as(const std::string& folder, const std::string& path);

// Where the file system cannot swap two folders, a crash in keep_also_as may leave no `path`: renames the newest complete
// folder that was to be it, or was it, to `path`. Does nothing if `path` exists or there is no such folder.
void finish_keep(const std::string& path);

// Names of folders that are not or no longer checkpoints: ".step-00000120.tmp-NONCE", ".step-00000120.trash-NONCE".
enum class Leftover { none, temporary, trash };
std::string temporary_name(std::int64_t step);
Leftover leftover_kind(const std::string& name);

// Serializes the short critical sections of all processes that save into one root. If the file system has no locks, or
// the holder hangs for 10 s, held() is false and the caller continues without cleaning.
class RootLock {
 public:
  explicit RootLock(const std::string& root);
  bool held() const { return held_; }

 private:
  io::File file_;
  bool held_ = false;
};

// Removes leftovers, except temporary folders of a live session, whose file `lock_name` is locked. Requires the root's
// lock.
void clean_leftovers(const std::string& root, const std::string& lock_name);

// Renames a corrupt checkpoint to ROOT/damaged-NAME, so that it is neither loaded as the newest nor counted by
// keep_last. Returns the new path.
std::string set_aside_corrupt(const std::string& folder);

// Removes ROOT/NAME. Renames it first, so that a crash leaves no folder that looks like a checkpoint.
void discard(const std::string& root, const std::string& name);

}  // namespace hawser::checkpoint
