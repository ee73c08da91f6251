// `nccl_version`: the version of the NCCL library that this process has loaded.
#pragma once

#include <string>

namespace hawser::comm {

// "2.28.3"; "" in builds without CUDA.
std::string nccl_version();
std::string nccl_version_text(int code);  // of an NCCL_VERSION_CODE; builds with CUDA only

}  // namespace hawser::comm
