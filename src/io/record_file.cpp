#include "io/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/error.h"
#include "base/paths.h"
#include "io/files.h"

namespace hawser::io {
namespace {

[[noreturn]] void fail(const std::string& path, const char* doing, int error, std::int64_t needed = 0) {
  throw UserError(io_problem(path, doing, error, needed));
}

}  // namespace

namespace {

// A copy of a folder by hard links (cp -al) shares its files: makes this one a file of its own.
void unshare(const std::string& path, std::int64_t keep) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink < 2) return;
  const std::string kept = read_text(path, status.st_size).substr(0, static_cast<std::size_t>(keep));
  write_text_atomically(path, kept);
}

}  // namespace

RecordFile::RecordFile(const std::string& path, std::int64_t keep) : path_(path), bytes_(keep) {
  const std::string folder = folder_of(path);
  make_folders(folder);
  // Non-blocking, so that open() does not hang on a pipe of this name. Here or at ftruncate it is rejected.
  unshare(path, keep);
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file_ < 0) fail(path, "cannot write", errno);
  try {
    if (::ftruncate(file_, keep) != 0) fail(path, "cannot truncate", errno);
    if (::fsync(file_) != 0) fail(path, "cannot write", errno);
    sync_folder(folder);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

RecordFile::~RecordFile() {
  if (dirty_) ::fdatasync(file_);
  ::close(file_);
}

void RecordFile::append(std::string_view record) {
  // Removes the partial record of an earlier failure.
  if (torn_ && ::ftruncate(file_, bytes_) != 0) fail(path_, "cannot truncate", errno);
  torn_ = false;
  dirty_ = true;
  for (std::size_t done = 0; done < record.size();) {
    const ssize_t count = ::write(file_, record.data() + done, record.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : EIO;
      torn_ = ::ftruncate(file_, bytes_) != 0;
      fail(path_, "cannot write", error, static_cast<std::int64_t>(record.size()));
    }
    done += static_cast<std::size_t>(count);
  }
  bytes_ += static_cast<std::int64_t>(record.size());
}

void RecordFile::sync() {
  if (!dirty_) return;
  if (::fdatasync(file_) != 0) fail(path_, "cannot write", errno);
  dirty_ = false;
}

bool RecordFile::in_place() const {
  return names_open_file(file_, path_);
}

void RecordFile::copy_to(const std::string& path) const {
  std::error_code error;
  std::filesystem::copy_file(cat("/proc/self/fd/", file_), path, error);
  if (error) fail(path, "cannot write", error.value());
}

}  // namespace hawser::io
