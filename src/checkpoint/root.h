// The folder that holds a run's checkpoints: which of them are whole, which may go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/storage/posix.h"

namespace hawser::checkpoint {

// "step-00000120"
std::string step_name(std::int64_t step);
std::optional<std::int64_t> step_of(const std::string& name);  // and back; none for any other name

// All folders named like a checkpoint, whole or not, newest first, as ROOT/NAME. A root that does not exist has none.
std::vector<std::string> step_folders(const std::string& root);

// Those that are whole: the manifest is sound and every file has its size. `skipped` gets lines for the others.
std::vector<std::string> complete_checkpoints(const std::string& root, Problems& skipped);

// Removes the oldest whole checkpoints until `count` (at least 1) are left and returns their folders. Each is renamed
// to a dot-name before anything in it is removed; what a crash leaves under such a name goes at the next save.
// One that somebody reads now (its folder is locked, see hold()) stays until a later call.
std::vector<std::string> keep_last(const std::string& root, int count);

// Opens a checkpoint's folder and holds a shared lock on it as long as the file lives: keep_last leaves it alone. Where
// the file system has no locks, the folder is open only. UserError where there is no such folder.
File hold(const std::string& folder);

// The newest whole checkpoint before this one, which need not be whole itself: of its root, or for one that is kept as
// PARENT/best of PARENT/checkpoints. "": none.
std::string complete_before(const std::string& folder);

// Makes `path`, beside or anywhere outside the root, the same checkpoint as `folder`: hard links, or copies where there
// are none. It replaces what is there in one step; a reader of that goes on with what it holds. One process at a time.
void keep_also_as(const std::string& folder, const std::string& path);

// Names of folders that are not checkpoints yet, or no more: ".step-00000120.tmp-NONCE", ".step-00000120.trash-NONCE".
enum class Leftover { none, temporary, trash };
std::string temporary_name(std::int64_t step);
Leftover leftover_kind(const std::string& name);

// Serialises the short critical pieces of all processes that save into one root. Where the file system has no locks, or
// the holder is stuck for 10 s, it is not held, and the caller goes on without cleaning.
class RootLock {
 public:
  explicit RootLock(const std::string& root);
  bool held() const { return held_; }

 private:
  File file_;
  bool held_ = false;
};

// Removes leftovers, except temporary folders whose session lives: one in which the file `lock_name` is locked. Call it
// while holding the root's lock.
void clean_leftovers(const std::string& root, const std::string& lock_name);

// Renames a checkpoint that turned out to be damaged to ROOT/damaged-NAME, so that it neither is taken for the newest
// nor counts among those that are kept. Returns the new path.
std::string set_aside_corrupt(const std::string& folder);

// Removes ROOT/NAME, out of sight first: a crash in between must not leave a folder that looks like a checkpoint.
void discard(const std::string& root, const std::string& name);

}  // namespace hawser::checkpoint
