// Which options and arguments are paths. Internal to cli/.
#pragma once

#include <string>

namespace hawser::cli {

// Whether what an option or argument takes ("FILE", "[FILE]") is a path, or may be one: ~ in it is the home folder, and
// the shell completes it.
bool takes_path(const std::string& takes);

}  // namespace hawser::cli
