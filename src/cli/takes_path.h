// Which options and arguments are paths. Internal to cli/.
#pragma once

#include <string>

namespace hawser::cli {

// Whether the value of an option or argument ("FILE", "[FILE]") may be a path: ~ is expanded, and the shell completes
// files.
bool takes_path(const std::string& takes);

}  // namespace hawser::cli
