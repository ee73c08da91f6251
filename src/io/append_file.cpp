#include "io/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/paths.h"
#include "base/units.h"

namespace hawser::io {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

}  // namespace

AppendFile::AppendFile(std::string path, std::int64_t size) : path_(std::move(path)), size_(size) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
  if (descriptor_ < 0) fail();
  buffer_.reserve(kBuffer);
  try {
    struct stat status;
    if (::fstat(descriptor_, &status) != 0) fail();
    if (status.st_size < size) {
      throw UserError(
          {.file = path_, .what = "shorter than recorded", .expected = cat(size), .got = cat(status.st_size)});
    }
    truncate(size);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      buffer_(std::move(other.buffer_)) {}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AppendFile::fail() const {
  throw UserError({.file = path_, .what = cat("cannot write: ", std::strerror(errno))});
}

void AppendFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  size_ += static_cast<std::int64_t>(bytes);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kBuffer - buffer_.size());
    buffer_.insert(buffer_.end(), from, from + part);
    from += part;
    bytes -= part;
    if (buffer_.size() == kBuffer) flush();
  }
}

void AppendFile::flush() {
  for (std::size_t done = 0; done < buffer_.size();) {
    const ssize_t written = ::write(descriptor_, buffer_.data() + done, buffer_.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail();
    done += static_cast<std::size_t>(written);
  }
  buffer_.clear();
}

void AppendFile::sync() {
  flush();
  if (::fsync(descriptor_) != 0) fail();
}

void AppendFile::truncate(std::int64_t size) {
  flush();
  if (::ftruncate(descriptor_, size) != 0 || ::lseek(descriptor_, size, SEEK_SET) < 0) fail();
  size_ = size;
}

void AppendFile::close() {
  if (::close(std::exchange(descriptor_, -1)) != 0) fail();
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), file_(path_ + ".tmp") {}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(file_.path().c_str());
}

void AtomicFile::commit() {
  file_.sync();
  file_.close();
  rename_file(file_.path(), path_);
  committed_ = true;
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw UserError({.file = to, .what = cat("cannot write: ", std::strerror(errno))});
  }
  sync_name(to);
}

}  // namespace hawser::io
