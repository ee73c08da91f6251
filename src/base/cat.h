// String building for headers that device code may include (fmt does not compile under nvcc with C++20).
#pragma once

#include <sstream>
#include <string>

namespace hawser {

// Concatenates the arguments as operator<< prints them:
//
//   cat("step ", 7, ": ", loss) == "step 7: 3.5"
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace hawser
