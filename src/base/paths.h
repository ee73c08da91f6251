// Paths as people type them. All that takes one from a recipe or a command line goes through here.
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

}  // namespace hawser
