#include "base/build.h"

namespace hawser {

const Build& build() {
  static constexpr Build kBuild{.version = HAWSER_VERSION,
                                .type = HAWSER_BUILD_TYPE,
#ifdef HAWSER_CUDA_VERSION
                                .cuda = true,
                                .cuda_version = HAWSER_CUDA_VERSION,
                                .cuda_architectures = HAWSER_CUDA_ARCHITECTURES
#else
                                .cuda = false,
                                .cuda_version = "",
                                .cuda_architectures = ""
#endif
  };
  return kBuild;
}

}  // namespace hawser
