// Checkpoints as folders of a POSIX file system; objects are files.
//
// A staged set is the folder `.NAME.tmp-NONCE` beside NAME; commit() renames it. A removed set is `.NAME.trash-NONCE`
// until its files are gone. A reader, and a process that stages, lock their folder or file, so that no other process
// removes it; file systems without locks do not have this protection, and leftovers stay there.
#pragma once

#include <string>

#include "checkpoint/storage.h"
#include "io/files.h"

namespace hawser::checkpoint {

Storage& posix_storage();

// What a folder beside the checkpoints is by its name. Only names of checkpoints (step_of() in root.h) count, so that
// no folder of the user is removed.
enum class Leftover { none, temporary, trash };
Leftover leftover_kind(const std::string& name);
std::string temporary_name(const std::string& name);  // ".NAME.tmp-NONCE"

// io::IoError unless `path` names what was opened before it was renamed to `path`: some network file systems report a
// rename that they did not make.
void expect_renamed(const io::File& opened, const std::string& path);

}  // namespace hawser::checkpoint
