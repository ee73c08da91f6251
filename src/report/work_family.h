// Families of work as people think of them: "gemm", "attention", "communication".
#pragma once

#include <string>

namespace hawser::report {

// Of an op record's name ("rms_norm_forward" is "norm"); what belongs to none is a family of its own name.
std::string family_of(const std::string& work);

}  // namespace hawser::report
