#include "launch/limits.h"

#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"

namespace hawser {

void expect_open_files(int ranks) {
  const rlim_t need = 32 + 4 * static_cast<rlim_t>(ranks);
  const rlim_t enough = 8 * need;  // with the ranks' data and checkpoints
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_max < need) {
    throw UserError(Problem{.what = cat("the limit of open files is too low to start ", ranks, " ranks"),
                            .expected = cat("at least ", need),
                            .got = cat(limit.rlim_max),
                            .hint = "a higher limit (ulimit -n), or --ranks 1"});
  }
  if (limit.rlim_cur >= enough) return;
  limit.rlim_cur = std::min(limit.rlim_max, enough);
  setrlimit(RLIMIT_NOFILE, &limit);
}

void expect_file_size() {
  constexpr rlim_t kMiB = 1 << 20, kNeed = 16 * kMiB;  // of Open MPI 5; 4 needs half of it
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= kNeed) return;
  if (limit.rlim_max < kNeed) {
    throw UserError(Problem{.what = "the limit of the size of files is too low to start ranks",
                            .expected = cat("at least ", kNeed / kMiB, " MiB"),
                            .got = cat(limit.rlim_max / 1024, " KiB"),
                            .hint = "a higher limit (ulimit -f), or --ranks 1"});
  }
  limit.rlim_cur = kNeed;
  setrlimit(RLIMIT_FSIZE, &limit);
}

void expect_shared_memory(const std::string& folder, int ranks) {
  constexpr std::uint64_t kOfAll = 8 << 20, kOfRank = 128 << 10, kMiB = 1 << 20;
  const std::uint64_t need = (kOfAll + kOfRank * static_cast<std::uint64_t>(ranks) + kMiB - 1) / kMiB;
  struct statvfs info {};
  if (statvfs(folder.c_str(), &info) != 0 || info.f_blocks == 0) return;  // no blocks: no limit
  const std::uint64_t free = std::uint64_t{info.f_bavail} * info.f_frsize >> 20;
  if (free >= need) return;
  throw UserError(Problem{.file = folder.substr(0, folder.rfind('/')),
                          .what = "not enough space for the shared memory of ranks",
                          .expected = cat("at least ", need, " MiB"),
                          .got = cat(free, " MiB"),
                          .hint = "docker run --shm-size=1g, or --ranks 1"});
}

}  // namespace hawser
