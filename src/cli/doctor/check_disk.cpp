// The disk of a run's checkpoints.
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/cat.h"
#include "base/clock.h"
#include "base/units.h"
#include "cli/doctor/findings.h"

namespace hawser::cli::checks {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBlock = 4 * kMiB, kSync = 32 * kMiB, kMax = 256 * kMiB;
constexpr double kWriting = 1.5;  // seconds after which no more writes begin

// An unnamed file, removed when the process ends in any way; -1 with errno.
int nameless_file(const std::string& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)) return file;
  // For file systems without O_TMPFILE: a named file, unlinked at once.
  std::string name = folder + "/.hawser-doctor-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

struct Speed {
  double written = 0, read = 0;  // bytes per second; written includes fsync
  int error = 0;
};

Speed measure(int file) {
  Speed out;
  std::vector<char> block(kBlock, 'h');
  const auto start = Clock::now();
  std::int64_t bytes = 0;
  while (bytes < kMax && seconds_since(start) < kWriting) {
    const ssize_t size = write(file, block.data(), block.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return {.error = errno};
    bytes += size;
    // Bounds the final fsync on a slow disk.
    if (bytes % kSync < size && fdatasync(file) != 0) return {.error = errno};
  }
  if (fsync(file) != 0) return {.error = errno};
  out.written = static_cast<double>(bytes) / seconds_since(start);
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);  // drops the page cache, if the file system complies
  const auto reading = Clock::now();
  std::int64_t read_bytes = 0;
  while (read_bytes < bytes && seconds_since(reading) < kWriting) {
    const ssize_t size = pread(file, block.data(), block.size(), read_bytes);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return {.error = errno};
    read_bytes += size;
  }
  out.read = static_cast<double>(read_bytes) / seconds_since(reading);
  return out;
}

}  // namespace

void check_disk(const std::string& folder, Findings& out) {
  // A run creates the folder: check its nearest existing parent.
  std::error_code error;
  fs::path there = fs::absolute(folder, error).lexically_normal();
  while (!fs::is_directory(there, error) && !fs::exists(there, error) && there != there.root_path()) {
    there = there.has_filename() ? there.parent_path() : there.parent_path().parent_path();
  }
  const std::string name =
      there.has_filename() || there == there.root_path() ? there.string() : there.parent_path().string();
  const std::string advice = "use another folder: --output FOLDER, or output in the recipe";
  if (!fs::is_directory(there, error)) {
    return out.problem("output folder", name, "not a folder", advice);
  }
  const int file = nameless_file(name);
  if (file < 0) {
    return out.problem("output folder", name, cat("cannot be written: ", std::strerror(errno)), advice);
  }
  struct statvfs volume {};
  const bool known = statvfs(name.c_str(), &volume) == 0;
  const auto free = static_cast<std::int64_t>(volume.f_bavail) * static_cast<std::int64_t>(volume.f_frsize);
  const std::string space = known ? cat(format_bytes(Bytes(free)), " free") : "";
  if (known && free < 64 * kMiB) {
    close(file);
    return out.problem("output folder", cat(name, ", ", space), "a checkpoint takes 12 bytes per parameter",
                       "free some space, or " + advice);
  }
  const Speed speed = measure(file);
  close(file);
  if (speed.error != 0) {
    return out.problem("output folder", name, cat("write error: ", std::strerror(speed.error)), advice);
  }
  const std::string value = cat(name, ", ", space, ", writes ", format_bytes(Bytes(std::int64_t(speed.written))),
                                "/s, reads ", format_bytes(Bytes(std::int64_t(speed.read))), "/s");
  // 12 bytes per parameter: 12 GB of checkpoint.
  const std::string meaning = cat("a checkpoint of 1B parameters takes ", format_seconds(12e9 / speed.written));
  if (speed.written < 50e6) {
    out.warn("output folder", value, meaning, "save less often (checkpoint.every_steps), or " + advice);
  } else if (free < std::int64_t{12} << 30) {
    out.warn("output folder", value, meaning + ", and does not fit here", "free some space, or " + advice);
  } else {
    out.ok("output folder", value, meaning);
  }
}

}  // namespace hawser::cli::checks
