// String building for headers that device code may include (fmt does not compile under nvcc with C++20).
#pragma once

#include <sstream>
#include <string>

namespace hawser {

// cat("step ", 7, ": ", loss) == "step 7: 3.5": the arguments as operator<< prints them, one after another.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace hawser
