#include "io/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/paths.h"
#include "base/philox.h"
#include "base/units.h"

namespace hawser::io {
namespace {

// Maximum bytes per system call; Linux itself stops at 2 GiB.
constexpr std::int64_t kCallBytes = std::int64_t{1} << 30;

bool means_absent(int error) {
  return error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
}

[[noreturn]] void fail(const std::string& path, const std::string& doing, int error, std::int64_t needed = 0) {
  const Problem problem = io_problem(path, doing, error, needed);
  if (means_absent(error) || error == EISDIR || error == EEXIST) throw UserError(problem);
  throw IoError(problem);
}

}  // namespace

Problem io_problem(const std::string& path, const std::string& doing, int error, std::int64_t needed) {
  Problem problem{.file = path};
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  if (full) {
    problem.what = error == ENOSPC   ? "no space left on the disk"
                   : error == EDQUOT ? "disk quota exceeded"
                                     : "file size limit exceeded";
    if (needed > 0) problem.expected = cat("space for ", needed, " bytes");
    const auto free = free_bytes(folder_of(path));
    if (needed > 0 && free && error == ENOSPC) problem.got = cat(*free, " bytes");
    problem.hint = "freeing space, a smaller checkpoint.keep_last, or another output folder";
  } else {
    problem.what = cat(doing, ": ", std::strerror(error));
    problem.cause = doing;
  }
  return problem;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

File::File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

File File::open_at(int folder, const std::string& name, const std::string& path) {
  // Non-blocking, so that open() does not hang on a pipe of this name.
  const int fd = ::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(path, "cannot open", errno);
  File file(fd, path);
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail(path, "cannot open", errno);
  if (!S_ISREG(status.st_mode)) throw UserError(Problem{.file = path, .what = "not a regular file"});
  return file;
}

File File::open(const std::string& path) {
  return open_at(AT_FDCWD, path, path);
}

File File::open_in(const File& folder, const std::string& name) {
  return open_at(folder.fd_, name, cat(folder.path_, "/", name));
}

bool File::has(const std::string& name) const {
  struct stat status {};
  if (::fstatat(fd_, name.c_str(), &status, 0) == 0) return true;
  if (means_absent(errno)) return false;
  fail(cat(path_, "/", name), "cannot read", errno);
}

File File::create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) fail(path, "cannot create", errno);
  return File(fd, path);
}

File File::open_or_create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (fd < 0) fail(path, "cannot open", errno);
  return File(fd, path);
}

File File::open_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(path, "cannot open", errno);
  return File(fd, path);
}

std::int64_t File::bytes() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail(path_, "cannot read", errno);
  return status.st_size;
}

void File::read_at(std::int64_t begin, std::byte* to, std::int64_t count) const {
  while (count > 0) {
    const ssize_t got = ::pread(fd_, to, static_cast<std::size_t>(std::min(count, kCallBytes)), begin);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path_, "cannot read", errno);
    if (got == 0) {
      throw UserError(Problem{.file = path_,
                              .what = "truncated file",
                              .expected = cat(count, " more bytes"),
                              .got = "end of file",
                              .at = cat("byte ", begin)});
    }
    begin += got;
    to += got;
    count -= got;
  }
}

void File::write_at(std::int64_t begin, const std::byte* from, std::int64_t count) {
  while (count > 0) {
    const ssize_t put = ::pwrite(fd_, from, static_cast<std::size_t>(std::min(count, kCallBytes)), begin);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail(path_, "cannot write", errno, count);
    if (put == 0) fail(path_, "cannot write", ENOSPC, count);
    begin += put;
    from += put;
    count -= put;
  }
}

void File::sync() {
  if (::fsync(fd_) != 0) fail(path_, "cannot write", errno, bytes());
}

void File::close() {
  const int fd = std::exchange(fd_, -1);
  // After EINTR the descriptor is closed on Linux; the data was synced before.
  if (fd >= 0 && ::close(fd) != 0 && errno != EINTR) fail(path_, "cannot write", errno);
}

namespace {

File::Lock lock_as(int fd, int kind) {
  while (::flock(fd, kind | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    return errno == EWOULDBLOCK ? File::Lock::held_elsewhere : File::Lock::unsupported;
  }
  return File::Lock::taken;
}

}  // namespace

File::Lock File::try_lock() {
  return lock_as(fd_, LOCK_EX);
}

File::Lock File::try_lock_shared() {
  return lock_as(fd_, LOCK_SH);
}

bool names_open_file(int fd, const std::string& path) {
  struct stat mine {
  }, there{};
  if (::fstat(fd, &mine) != 0) return true;
  if (::stat(path.c_str(), &there) != 0) return errno != ENOENT && errno != ENOTDIR && errno != ELOOP;
  return mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

bool File::still_at(const std::string& path) const {
  return names_open_file(fd_, path);
}

std::string File::path_now() const {
  std::error_code ignored;
  const std::string path = std::filesystem::read_symlink(cat("/proc/self/fd/", fd_), ignored).string();
  return still_at(path) ? path : "";  // a removed file's link ends with " (deleted)"
}

namespace {

// False if nothing is there. Another error is no absence: a run that took it for one would start over.
bool look_up(const std::string& path, struct stat& status) {
  if (::stat(path.c_str(), &status) == 0) return true;
  if (means_absent(errno)) return false;
  fail(path, "cannot read", errno);
}

}  // namespace

bool exists(const std::string& path) {
  struct stat status {};
  return look_up(path, status);
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return look_up(path, status) && S_ISDIR(status.st_mode);
}

bool is_file(const std::string& path) {
  struct stat status {};
  return look_up(path, status) && S_ISREG(status.st_mode);
}

std::vector<std::string> list_folder(const std::string& path) {
  DIR* opened = ::opendir(path.c_str());
  if (opened == nullptr && (errno == ENOENT || errno == ENOTDIR)) return {};
  if (opened == nullptr) fail(path, "cannot read", errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opened, ::closedir);
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr && errno != 0) fail(path, "cannot read", errno);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail(path, "cannot create the folder", error.value());
  if (!is_folder(path)) fail(path, "cannot create the folder", ENOTDIR);
}

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) != 0) fail(path, "cannot create the folder", errno);
}

void sync_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail(path, "cannot write", errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some network file systems do not sync folders (EINVAL): their renames are durable by themselves.
  if (result != 0 && error != EINVAL && error != ENOTSUP) fail(path, "cannot write", error);
}

void link_or_copy(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return;
  const File source = File::open(from);
  const std::int64_t bytes = source.bytes();
  check_space(to, bytes);
  File copy = File::create(to);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::int64_t>(bytes, std::int64_t{4} << 20)));
  for (std::int64_t at = 0; at < bytes;) {
    const std::int64_t count = std::min(static_cast<std::int64_t>(piece.size()), bytes - at);
    source.read_at(at, piece.data(), count);
    copy.write_at(at, piece.data(), count);
    at += count;
  }
  copy.sync();
  copy.close();
}

void rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "cannot rename to this name", errno);
}

bool try_rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return true;
  if (errno == EXDEV) return false;
  fail(to, "cannot rename to this name", errno);
}

bool exchange_paths(const std::string& a, const std::string& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP || errno == EXDEV) return false;
  fail(b, "cannot rename to this name", errno);
}

void remove_tree(const std::string& path) noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

std::optional<std::int64_t> free_bytes(const std::string& path) {
  struct statvfs status {};
  if (::statvfs(path.c_str(), &status) != 0 || status.f_blocks == 0) return std::nullopt;
  return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
}

void check_space(const std::string& file, std::int64_t needed) {
  const auto free = free_bytes(folder_of(file));
  if (free && *free < needed) fail(file, "cannot write", ENOSPC, needed);
}

namespace {

bool is_other_than_folder(const std::string& folder, Problems& problems) {
  if (!exists(folder) || is_folder(folder)) return false;
  problems.add({.file = folder, .what = "is a file, not a folder", .hint = "another folder"});
  return true;
}

void add_not_writable(const std::string& folder, const std::string& reason, Problems& problems) {
  problems.add({.file = folder, .what = "the folder is not writable", .got = reason});
}

}  // namespace

void check_may_write(const std::string& folder, Problems& problems) {
  if (is_other_than_folder(folder, problems)) return;
  std::string above = folder;  // the nearest existing ancestor
  while (!exists(above) && above.find('/') != std::string::npos) {
    above.resize(above.rfind('/'));
    if (above.empty()) above = "/";
  }
  if (!exists(above)) above = ".";
  if (!is_folder(above)) {
    add_not_writable(folder, std::strerror(ENOTDIR), problems);
  } else if (::access(above.c_str(), W_OK | X_OK) != 0) {
    add_not_writable(folder, std::strerror(errno), problems);
  }
}

void check_writable(const std::string& folder, Problems& problems) {
  if (is_other_than_folder(folder, problems)) return;
  try {
    make_folders(folder);
    const std::string probe = folder + "/.probe-" + make_nonce();
    File::create(probe);
    ::unlink(probe.c_str());
  } catch (const UserError& error) {
    const std::string line = error.what();  // "PATH: cannot ...: REASON"
    const auto colon = line.rfind(": ");
    add_not_writable(folder, colon == std::string::npos ? line : line.substr(colon + 2), problems);
  }
}

std::string read_text(const std::string& path, std::int64_t limit) {
  return read_text(File::open(path), limit);
}

std::string read_text(const File& file, std::int64_t limit) {
  const std::int64_t bytes = file.bytes();
  if (bytes > limit) {
    throw UserError(Problem{
        .file = file.path(), .what = "file too long", .expected = cat("at most ", limit, " bytes"), .got = cat(bytes)});
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read_at(0, reinterpret_cast<std::byte*>(text.data()), bytes);
  return text;
}

void write_text_atomically(const std::string& path, std::string_view text) {
  const std::string temporary = cat(path, ".tmp-", make_nonce());
  try {
    File file = File::create(temporary);
    file.write_at(0, reinterpret_cast<const std::byte*>(text.data()), static_cast<std::int64_t>(text.size()));
    file.sync();
    file.close();
    rename_path(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

std::string make_nonce() {
  static std::atomic<std::uint64_t> counter{0};
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const std::uint64_t hash = fnv1a(cat(host, '/', ::getpid(), '/', now, '/', counter++));
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || name == "." || name == ".." || name.size() > 255) return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kLongest = 120;
  if (name.size() <= kLongest) return cat("'", name, "'");
  std::size_t length = kLongest;
  while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xc0) == 0x80) --length;  // full characters
  return cat("'", name.substr(0, length), "…'");
}

}  // namespace hawser::io
