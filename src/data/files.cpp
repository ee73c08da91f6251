#include "data/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/paths.h"
#include "base/units.h"

namespace hawser::data {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const auto fail = [&] { throw UserError({.file = path, .what = cat("cannot read: ", std::strerror(errno))}); };
  // Non-blocking: opening a FIFO would hang.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail();
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    if (!S_ISREG(status.st_mode)) errno = S_ISDIR(status.st_mode) ? EISDIR : ENODEV;
    ::close(descriptor);
    fail();
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped == MAP_FAILED) {
      const int error = errno;
      ::close(descriptor);
      if (error == ENOMEM) {
        throw Error(ExitCode::does_not_fit,
                    cat("memory: cannot allocate ", format_bytes(Bytes(status.st_size)), " for ", path, " (",
                        std::strerror(error), "); try fewer ranks or a higher limit (ulimit -v)"));
      }
      errno = error;
      fail();
    }
    data_ = static_cast<const std::byte*>(mapped);
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

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

void make_folders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw UserError({.file = path, .what = cat("cannot create the folder: ", error.message())});
}

}  // namespace hawser::data
