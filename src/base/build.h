// What this binary is: its version, and what it was compiled with. No other source has these values in it, so that
// builds of a checkout take each other's objects from the compiler cache.
//
//   cat("hawser ", build().version)  // "hawser 0.2.0"
#pragma once

namespace hawser {

struct Build {
  const char* version;
  const char* type;  // of CMake: "RelWithDebInfo" or "Release"
  bool cuda;         // has the cuda device
  // "" without the cuda device:
  const char* cuda_version;        // of the CUDA toolkit, such as "13.0.48"
  const char* cuda_architectures;  // for which there are kernels (HAWSER_CUDA_ARCHITECTURES), such as "80 90a"
};

const Build& build();

}  // namespace hawser
