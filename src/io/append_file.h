// `AppendFile`: a file written at its end through a buffer. `AtomicFile`: one that has its name only when complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hawser::io {

// A file that is written at its end and may be truncated. Every failure (disk full, no permission) is a UserError that
// names the file.
class AppendFile {
 public:
  // Creates the file, or truncates an existing one to `size` bytes and appends to it; UserError if it is shorter.
  explicit AppendFile(std::string path, std::int64_t size = 0);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;

  void write(const void* data, std::size_t bytes);
  template <class T>
  void write_value(const T& value) {
    write(&value, sizeof value);
  }
  void flush();  // writes the buffer, so that readers of the file see all data
  void sync();   // flush() and fsync
  void truncate(std::int64_t size);
  void close();
  std::int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;  // including the buffer
  std::vector<char> buffer_;
};

// Writes PATH.tmp; commit() syncs it to disk and renames it to PATH. Without commit() it is removed.
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

// Renames a complete and synced file, durably. UserError on failure.
void rename_file(const std::string& from, const std::string& to);

}  // namespace hawser::io
