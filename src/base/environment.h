// Environment variables.
#pragma once

#include <cstdlib>
#include <string>

namespace hawser {

// The variable's value; "" if it is not set.
inline std::string environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace hawser
