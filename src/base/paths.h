// Paths given by users. Every path of a recipe or a command line is expanded here. Also the folder of a file.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace hawser {

// Replaces a leading ~ with the user's home folder (HOME if it is set, else the password database's) and a leading
// ~name with that user's; other paths are unchanged. None if there is no such user.
std::optional<std::string> expand_home(const std::string& path);

// The error for a path that expand_home rejects; the caller adds `file` and `at`.
Problem no_such_user(const std::string& path);

// expand_home for paths without a place in a file; throws UserError.
std::string with_home(const std::string& path);

// The path without "." and "..", as the system follows it: LINK/.. is the folder that contains the link's target.
std::string without_dots(const std::string& path);

// Makes a path absolute and removes "..": relative paths start at the working directory. Throws UserError if the
// working directory is needed and no longer exists.
std::string absolute_path(const std::string& path);

// `path` relative to `folder`, as an absolute path without ".."; ~ is the home folder. Throws UserError as with_home.
std::string resolve_path(const std::string& path, const std::string& folder);

// The folder that contains the path's last component; "." if the path names none.
std::string folder_of(const std::string& path);

// Makes a new name durable by syncing its folder. If the folder cannot be synced (some network file systems, no read
// permission), the name exists but may not survive a crash.
void sync_name(const std::string& path);

}  // namespace hawser
