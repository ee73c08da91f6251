// `Doing`: shows on a terminal what a command computes at the moment. Erased at the end.
#pragma once

#include <cstdio>
#include <string>

#include "launch/launcher_environment.h"

namespace hawser::cli {

class Doing {
 public:
  explicit Doing(const std::string& what) {
    if (!terminal_.is_terminal) return;
    std::fprintf(stderr, "\r\033[K%s ...", what.c_str());
    std::fflush(stderr);
  }
  ~Doing() {
    if (terminal_.is_terminal) std::fputs("\r\033[K", stderr);
  }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  Terminal terminal_ = user_terminal();
};

}  // namespace hawser::cli
