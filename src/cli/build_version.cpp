#include "cli/build_version.h"

#include "base/cat.h"
#include "ops/cpu/levels.h"

namespace hawser::cli {

std::string devices_text() {
#ifdef HAWSER_CUDA
  return "cpu and cuda (H100, H200)";
#else
  return "cpu";
#endif
}

std::string version_text() {
  const auto level = [] {
    switch (ops::best_vector_level()) {
      case ops::VectorLevel::avx512:
        return "AVX-512";
      case ops::VectorLevel::avx2:
        return "AVX2";
      case ops::VectorLevel::baseline:
        break;
    }
    return "neither AVX2 nor AVX-512";
  };
  return cat("hawser ", HAWSER_VERSION, "\nbuild: ", HAWSER_BUILD_TYPE, ", GCC ", __VERSION__,
             "\ndevices: ", devices_text(), "; this processor has ", level(), "\n");
}

}  // namespace hawser::cli
