#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/printable.h"
#include "base/units.h"

namespace hawser::io {

struct MappedFile::Mapping {
  Mapping(int opened, const std::string& path, const struct stat& status)
      : descriptor(opened),
        size(static_cast<std::size_t>(status.st_size)),
        modified(status.st_mtim),
        printable_path(printable(path)) {}
  ~Mapping() {
    if (data != nullptr) ::munmap(const_cast<std::byte*>(data), size);
    ::close(descriptor);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  int descriptor;
  std::size_t size;
  timespec modified;
  std::string printable_path;
  const std::byte* data = nullptr;  // null: the file is empty
};

namespace {

// MappedFile::Mapping of each file.
std::array<std::atomic<const void*>, 64> g_mappings{};

void add_mapping(const void* mapping) {
  for (auto& slot : g_mappings) {
    const void* none = nullptr;
    if (slot.compare_exchange_strong(none, mapping)) return;
  }
}

void drop_mapping(const void* mapping) {
  for (auto& slot : g_mappings) {
    const void* expected = mapping;
    if (slot.compare_exchange_strong(expected, nullptr)) return;
  }
}

}  // namespace

const char* mapped_path(const void* address) noexcept {
  const auto* const at = static_cast<const std::byte*>(address);
  for (const auto& slot : g_mappings) {
    const auto* const mapping = static_cast<const MappedFile::Mapping*>(slot.load());
    if (mapping == nullptr || std::less<>{}(at, mapping->data)) continue;
    if (std::less<>{}(at, mapping->data + mapping->size)) return mapping->printable_path.c_str();
  }
  return nullptr;
}

MappedFile::MappedFile() = default;

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
  auto mapping = std::make_unique<Mapping>(descriptor, path, status);
  if (mapping->size > 0) {
    void* mapped = ::mmap(nullptr, mapping->size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapped == MAP_FAILED) {
      if (errno == ENOMEM) {
        throw Error(ExitCode::does_not_fit,
                    cat("memory: cannot allocate ", format_bytes(Bytes(status.st_size)), " for ", path, " (",
                        std::strerror(errno), "); try fewer ranks or a higher limit (ulimit -v)"));
      }
      fail();
    }
    mapping->data = static_cast<const std::byte*>(mapped);
    add_mapping(mapping.get());
  }
  mapping_ = std::move(mapping);
  bytes_ = {mapping_->data, mapping_->size};
}

MappedFile::~MappedFile() {
  if (mapping_) drop_mapping(mapping_.get());
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  mapping_.swap(other.mapping_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::release(std::size_t offset, std::size_t size) const {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page,
                    end = std::min(offset + size, bytes_.size()) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

bool MappedFile::changed() const {
  if (!mapping_) return false;
  struct stat now {};
  // An error is no change: the file may be on a disk that does not answer.
  if (::fstat(mapping_->descriptor, &now) != 0) return false;
  return static_cast<std::size_t>(now.st_size) != mapping_->size || now.st_mtim.tv_sec != mapping_->modified.tv_sec ||
         now.st_mtim.tv_nsec != mapping_->modified.tv_nsec;
}

}  // namespace hawser::io
