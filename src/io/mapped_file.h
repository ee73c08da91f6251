// `MappedFile`: a file mapped for reading.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hawser::io {

// A file mapped for reading. Movable; unmaps in the destructor. Another process may change the file: reading then
// returns its new bytes, and raises SIGBUS where it was cut short.
class MappedFile {
 public:
  MappedFile();
  // UserError if the file cannot be opened; Error(does_not_fit) if mmap fails for lack of memory or address space.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

  // The process no longer holds the whole pages of these bytes in memory; they can be read again. For a reader that is
  // done with a part of a large file, whose pages would count as the process's until the end.
  void release(std::size_t offset, std::size_t size) const;

  // Whether size or modification time of the opened file are no longer those at its opening. Its name may lead to
  // another file now, which makes no difference to what is read. False for a default-constructed object.
  bool changed() const;

 private:
  friend const char* mapped_path(const void* address) noexcept;
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
  std::span<const std::byte> bytes_;
};

// The path, fit to be printed, of the file whose mapping includes this address; null: none. Async-signal-safe, for a
// handler of SIGBUS. Knows the first 64 files of those mapped at a time.
const char* mapped_path(const void* address) noexcept;

}  // namespace hawser::io
