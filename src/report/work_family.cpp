#include "report/work_family.h"

#include <utility>

namespace hawser::report {

std::string family_of(const std::string& work) {
  static constexpr std::pair<const char*, const char*> kFamilies[] = {{"gemm", "gemm"},
                                                                      {"attention", "attention"},
                                                                      {"linear_cross_entropy", "head and loss"},
                                                                      {"rms_norm", "norm"},
                                                                      {"swiglu", "activation"},
                                                                      {"rope", "rope"},
                                                                      {"embedding", "embedding"},
                                                                      {"adamw", "adamw"},
                                                                      {"all_", "communication"},
                                                                      {"reduce_", "communication"},
                                                                      {"sum_squares", "gradient norm"},
                                                                      {"add", "residual and bias"},
                                                                      {"bias", "residual and bias"},
                                                                      {"copy", "copies"},
                                                                      {"cast", "copies"},
                                                                      {"fill", "copies"},
                                                                      {"gather_rows", "copies"},
                                                                      {"scatter_rows", "copies"}};
  for (const auto& [prefix, family] : kFamilies) {
    if (work.starts_with(prefix)) return family;
  }
  return work;
}

}  // namespace hawser::report
