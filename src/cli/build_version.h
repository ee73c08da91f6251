// Version, build and devices of this program.
#pragma once

#include <string>

namespace hawser::cli {

// "cpu" or "cpu and cuda (compute capability 8.0 and 9.0)".
std::string devices_text();

// Three lines: the version, the build, the devices.
std::string version_text();

}  // namespace hawser::cli
