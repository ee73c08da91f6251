// `find_mpirun`: the mpirun that starts the ranks of a run on this machine, Open MPI's of version 4 or 5.
//
//   const Mpirun mpirun = find_mpirun();
//   // {.path = "/usr/bin/mpirun.openmpi", .version = "4.1.4"}
//
// It is that of HAWSER_MPIRUN, if this variable is set, as a Python environment sets it (packaging/wheel); otherwise the
// first of Open MPI in PATH. Another MPI's is passed over.
#pragma once

#include <string>

#include "base/error.h"

namespace hawser {

inline constexpr const char* kMpirunVariable = "HAWSER_MPIRUN";

struct Mpirun {
  std::string path;
  std::string version;  // "5.0.11"

  bool is_version_5() const { return !version.empty() && std::stoi(version) >= 5; }
};

// UserError if there is none.
Mpirun find_mpirun();

// That a process for it could not be created, for this errno.
UserError cannot_start_mpirun(int error);

}  // namespace hawser
