#include "cli/build_version.h"

#include "base/build.h"
#include "base/cat.h"
#include "device/gpus.h"
#include "ops/cpu/levels.h"

namespace hawser::cli {

std::string devices_text() {
  return build().cuda ? cat("cpu and cuda (", architectures_text(build().cuda_architectures), ")") : "cpu";
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
  return cat("hawser ", build().version, "\nbuild: ", build().type, ", GCC ", __VERSION__,
             "\ndevices: ", devices_text(), "; this processor has ", level(), "\n");
}

}  // namespace hawser::cli
