#include "io/bounded_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/units.h"
#include "io/files.h"

namespace hawser::io {

std::string read_bounded(const std::string& path, std::int64_t limit, const std::string& what) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  const auto fail = [&] {
    const Problem problem{.file = path, .what = errno == 0 ? what : cat(what, ": ", std::strerror(errno))};
    if (errno == ENOENT || errno == ENOTDIR || errno == EISDIR) throw UserError(problem);
    throw IoError(problem);
  };
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) fail();
  std::string text;
  while (in) {
    const auto have = static_cast<std::int64_t>(text.size());
    if (have > limit) {
      throw UserError({.file = path, .what = "file too large", .expected = "at most " + format_bytes(Bytes(limit))});
    }
    text.resize(static_cast<std::size_t>(have + std::min(kBlock, limit + 1 - have)));
    in.read(text.data() + have, static_cast<std::streamsize>(text.size()) - have);
    text.resize(static_cast<std::size_t>(have + in.gcount()));
  }
  if (in.bad()) fail();
  if (static_cast<std::int64_t>(text.size()) > limit) {
    throw UserError({.file = path, .what = "file too large", .expected = "at most " + format_bytes(Bytes(limit))});
  }
  return text;
}

}  // namespace hawser::io
