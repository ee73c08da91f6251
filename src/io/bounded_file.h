// `read_bounded`: reads a small file, with a limit on the bytes read rather than on the size that the disk reports. A
// pipe, a device or a growing file has no size, and a sparse file has any.
#pragma once

#include <cstdint>
#include <string>

namespace hawser::io {

// The contents of `path`; pipes and devices are read to their end. UserError if the file cannot be read, with `what`
// ("cannot read the tokenizer") and the reason, or if it has more than `limit` bytes.
std::string read_bounded(const std::string& path, std::int64_t limit, const std::string& what = "cannot be read");

}  // namespace hawser::io
