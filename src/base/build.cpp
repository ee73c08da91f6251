#include "base/build.h"

namespace hawser {

const Build& build() {
  static constexpr Build kBuild{.version = HAWSER_VERSION,
                                .type = HAWSER_BUILD_TYPE,
#ifdef HAWSER_CUDA_VERSION
                                .cuda = true,
                                .cuda_version = HAWSER_CUDA_VERSION
#else
                                .cuda = false,
                                .cuda_version = ""
#endif
  };
  return kBuild;
}

}  // namespace hawser
