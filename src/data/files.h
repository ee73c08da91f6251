// Reading and writing whole files safely: a read-only mapping, and an output that appears under its name only when
// done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::data {

// A file mapped for reading. Moves; unmaps at the end.
class MappedFile {
 public:
  MappedFile() = default;
  // UserError when the file cannot be opened.
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

// Writes PATH.tmp; commit() flushes it to disk and renames it to PATH. Without commit() it is removed.
// Every failure (disk full, no permission) is a UserError.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  template <class T>
  void write_value(const T& value) {
    write(&value, sizeof value);
  }
  // Empties the buffer into PATH.tmp, so that it may be read back.
  void flush();
  // sync() makes the bytes durable; commit() does so if it was not done, and renames.
  void sync();
  void commit();

  const std::string& temporary_path() const { return temporary_; }

 private:
  [[noreturn]] void fail(const char* what);

  std::string path_, temporary_;
  int descriptor_ = -1;
  std::vector<char> buffer_;
  bool synced_ = false;
};

// Creates a folder and those above it; UserError when that fails.
void make_folders(const std::string& path);

}  // namespace hawser::data
