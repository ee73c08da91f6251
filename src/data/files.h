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
  // UserError when the file cannot be opened; Error(does_not_fit) when the system rejects the addresses.
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

// A file that is written at its end, and may be cut back. Every failure (disk full, no permission) is a UserError that
// names the file.
class AppendFile {
 public:
  // Makes the file, or cuts one that is there to `size` bytes and goes on behind them; UserError if it has fewer.
  explicit AppendFile(std::string path, std::int64_t size = 0);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;

  void write(const void* data, std::size_t bytes);
  template <class T>
  void write_value(const T& value) {
    write(&value, sizeof value);
  }
  void flush();  // out of the buffer: readers of the file see all that was written
  void sync();   // flush(), and onto the disk
  void truncate(std::int64_t size);
  void close();
  std::int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;  // with what is in the buffer
  std::vector<char> buffer_;
};

// Writes PATH.tmp; commit() flushes it to disk and renames it to PATH. Without commit() it is removed.
// Every failure (disk full, no permission) is a UserError.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes) { file_.write(data, bytes); }
  void commit();

 private:
  std::string path_;
  AppendFile file_;
  bool committed_ = false;
};

// Gives a file that is whole and on the disk its name, durably. UserError when that fails.
void rename_file(const std::string& from, const std::string& to);

// Creates a folder and those above it; UserError when that fails.
void make_folders(const std::string& path);

}  // namespace hawser::data
