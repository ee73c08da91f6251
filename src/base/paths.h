// Paths as people type them: all that takes one from a recipe or a command line goes through here. And the folder that
// a file lies in.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"

namespace hawser {

// `path` with a leading ~ made the user's home folder (HOME where it is set, else that of the password database), and a
// leading ~name that of the user of this name; others as they are. None where there is no such user.
std::optional<std::string> expand_home(const std::string& path);

// What to say where expand_home gives none; `file` and `at` are for the caller to add.
Problem no_such_user(const std::string& path);

// The same for what has no place but itself: throws UserError.
std::string with_home(const std::string& path);

// Absolute and without "..": a relative path starts at the working directory. Throws UserError where it is needed and
// does not exist any more.
std::string absolute_path(const std::string& path);

// The folder that the path's last part lies in; "." where the path names none.
std::string folder_of(const std::string& path);

// Makes a name that a file was just given durable, which takes its folder. Where that cannot be synced (some network
// file systems, a folder that may not be read) the name is there all the same.
void sync_name(const std::string& path);

}  // namespace hawser
