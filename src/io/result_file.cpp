#include "io/result_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/paths.h"
#include "io/files.h"

namespace hawser::io {
namespace {

namespace fs = std::filesystem;

// Read by signal handlers: the names do not change while `g_unfinished` is set.
char g_temporary[PATH_MAX] = "", g_part[PATH_MAX] = "";
std::atomic<bool> g_unfinished = false, g_keep = false;

void remember(const std::string& temporary, const std::string& part) {
  if (g_unfinished || temporary.size() >= PATH_MAX || part.size() >= PATH_MAX) return;
  std::memcpy(g_temporary, temporary.c_str(), temporary.size() + 1);
  std::memcpy(g_part, part.c_str(), part.size() + 1);
  g_keep = false;
  g_unfinished = true;
}

void forget(const std::string& temporary) {
  if (temporary == g_temporary) g_unfinished = false;
}

constexpr std::size_t kMaxPartName = PATH_MAX + 16;

// Renames `temporary` to the first of PART, PART-2 and so on that does not exist, and writes that name to `name`: what
// an earlier interruption kept stays, and processes that are interrupted together keep one file each. The name is
// claimed by creating the file, since rename() would replace one. 0 or errno. Async-signal-safe.
int keep_as_part(const char* temporary, const char* part, char (&name)[kMaxPartName]) noexcept {
  const std::size_t size = std::strlen(part);
  if (size >= PATH_MAX) return ENAMETOOLONG;
  std::memcpy(name, part, size + 1);
  int claim = -1;
  for (unsigned number = 2;; ++number) {
    claim = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (claim >= 0 || errno != EEXIST) break;
    char digits[10];  // the last first
    std::size_t count = 0, end = size;
    for (unsigned rest = number; rest > 0; rest /= 10) digits[count++] = static_cast<char>('0' + rest % 10);
    name[end++] = '-';
    while (count > 0) name[end++] = digits[--count];
    name[end] = '\0';
  }
  if (claim < 0) return errno;
  ::close(claim);
  if (::rename(temporary, name) == 0) return 0;
  const int error = errno;
  ::unlink(name);
  return error;
}

// A unique name in the folder of `path`.
std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter = 0;
  unsigned long long random = 0;
  if (::getrandom(&random, sizeof random, GRND_NONBLOCK) < 0) random = 0;
  char ending[64];
  std::snprintf(ending, sizeof ending, ".tmp-%d-%u-%08llx", static_cast<int>(::getpid()), counter++,
                random & 0xffffffff);
  constexpr std::size_t kLongestName = 200;  // the system's limit is 255
  return (fs::path(path).parent_path() / (fs::path(path).filename().string().substr(0, kLongestName) + ending))
      .string();
}

}  // namespace

ResultPlace find_result_place(const std::string& path) {
  ResultPlace place{.path = path};
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    place.straight = !S_ISDIR(status.st_mode);
    return place;
  }
  constexpr int kMaxLinks = 40;  // the kernel's limit; open() rejects longer chains
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code none;
    const fs::path here = place.path;
    if (!fs::is_symlink(here, none)) break;
    // A link below /proc is an open file: replacing it would leave its opener with the old file.
    const fs::path folder = fs::canonical(folder_of(place.path), none);
    if (!none && folder.string().starts_with("/proc/")) {
      place.straight = true;
      return place;
    }
    const fs::path target = fs::read_symlink(here, none);
    if (none) break;
    place.path = target.is_absolute() ? target.string() : (here.parent_path() / target).string();
  }
  return place;
}

ResultFile::ResultFile(std::string path, Unfinished unfinished)
    : path_(std::move(path)), place_(find_result_place(path_)) {
  struct stat status {};
  const bool there = ::stat(place_.path.c_str(), &status) == 0;
  if (!there && errno == ELOOP) fail(ELOOP);
  if (there && S_ISDIR(status.st_mode)) fail(EISDIR);
  if (place_.straight) {
    descriptor_ = ::open(place_.path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
    if (descriptor_ < 0) fail(errno);
    return;
  }
  // A file without write permission is not replaced.
  if (there && ::faccessat(AT_FDCWD, place_.path.c_str(), W_OK, AT_EACCESS) != 0) fail(errno);
  temporary_ = temporary_name(place_.path);
  if (unfinished == Unfinished::kept_as_part) part_ = place_.path + ".part";
  remember(temporary_, part_);
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, there ? 0600 : 0666);
  if (descriptor_ < 0) {
    const int error = errno;
    forget(temporary_);
    fail(error);
  }
  if (!there) return;
  // Only root can change the owner; the permissions are kept without it.
  if (::fchown(descriptor_, status.st_uid, status.st_gid) != 0) errno = 0;
  if (::fchmod(descriptor_, status.st_mode & 0777) != 0) errno = 0;
}

ResultFile::~ResultFile() {
  if (!part_.empty() && !keep_written().empty()) return;
  if (descriptor_ >= 0) ::close(descriptor_);
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  forget(temporary_);
}

void ResultFile::fail(int error) const {
  throw UserError({.file = path_, .what = cat("cannot write: ", std::strerror(error)), .cause = "cannot write"});
}

std::string ResultFile::keep_written() {
  if (written_ == 0 || descriptor_ < 0 || temporary_.empty()) return "";
  if (::ftruncate(descriptor_, written_) != 0) return "";
  ::close(std::exchange(descriptor_, -1));
  char name[kMaxPartName];
  if (keep_as_part(temporary_.c_str(), part_.c_str(), name) != 0) return "";
  forget(temporary_);
  temporary_.clear();
  return name;
}

void ResultFile::write(std::string_view text) {
  const auto bytes = static_cast<std::int64_t>(text.size());
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      const std::string kept = part_.empty() ? "" : keep_written();
      if (kept.empty()) fail(error);
      throw UserError({.file = path_,
                       .what = cat("cannot write: ", std::strerror(error), "; ", kept, " has what was written before"),
                       .cause = "cannot write"});
    }
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  written_ += bytes;
  if (temporary_ == g_temporary) g_keep = g_part[0] != 0;
}

void ResultFile::close_synced() {
  // Some file systems, and all pipes, do not support fsync.
  if (::fsync(descriptor_) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS) fail(errno);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(errno);
}

void ResultFile::commit() {
  close_synced();
  if (place_.straight) return;
  if (::rename(temporary_.c_str(), place_.path.c_str()) != 0) fail(errno);
  forget(temporary_);
  temporary_.clear();
  sync_name(place_.path);
}

std::string ResultFile::keep_part() {
  close_synced();
  if (place_.straight) return path_;
  char name[kMaxPartName];
  if (const int error = keep_as_part(temporary_.c_str(), (place_.path + ".part").c_str(), name)) fail(error);
  forget(temporary_);
  temporary_.clear();
  sync_name(name);
  return name;
}

void write_result(const std::string& path, std::string_view text) {
  ResultFile file(path);
  file.write(text);
  file.commit();
}

void drop_unfinished_result() noexcept {
  if (!g_unfinished) return;
  if (g_keep) {
    char name[kMaxPartName];
    keep_as_part(g_temporary, g_part, name);
  } else {
    ::unlink(g_temporary);
  }
}

}  // namespace hawser::io
