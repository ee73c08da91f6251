// `MappedFile`: a file mapped for reading.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace hawser::io {

// A file mapped for reading. Movable; unmaps in the destructor.
class MappedFile {
 public:
  MappedFile() = default;
  // UserError if the file cannot be opened; Error(does_not_fit) if mmap fails for lack of memory or address space.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace hawser::io
