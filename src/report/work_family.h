// `family_of`: the family of an op's work, such as "gemm", "attention" or "communication".
#pragma once

#include <string>

namespace hawser::report {

// Family of an op record's name ("rms_norm_forward" is "norm"). A name without a family is its own.
std::string family_of(const std::string& work);

}  // namespace hawser::report
