#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/units.h"

namespace hawser::io {

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

}  // namespace hawser::io
