// `family_of`: the family of an op's work in reports, such as "gemm", "attention" or "communication".
#pragma once

#include <string>

#include "device/trace.h"

namespace hawser::profile {

// Work on the host and copies to and from it have no family: theirs is the name of the op record.
std::string family_of(const OpRecord& record);

}  // namespace hawser::profile
