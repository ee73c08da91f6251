// The name of this machine.
#pragma once

#include <unistd.h>

#include <array>
#include <string>

namespace hawser {

// As the system gives it; "" if it gives none.
inline std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace hawser
