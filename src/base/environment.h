// Variables of the environment.
#pragma once

#include <cstdlib>
#include <string>

namespace hawser {

// Its value; "" where it is not set.
inline std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace hawser
