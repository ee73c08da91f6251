// A file that grows by whole records: a record is there entirely or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hawser::report {

class AppendFile {
 public:
  // Opens or makes `path`, with its folders, and cuts off all behind its first `keep` bytes. UserError where that
  // fails.
  explicit AppendFile(const std::string& path, std::int64_t keep = 0);
  ~AppendFile();  // on the disk, where that works
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // The system gets a record in one call, so that a killed process leaves whole ones. UserError, with nothing of the
  // record left, when it cannot be written; the next one may be tried.
  void append(std::string_view record);
  void sync();  // to the disk; UserError
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
  std::int64_t bytes_ = 0;  // of whole records
  bool dirty_ = false, torn_ = false;
};

}  // namespace hawser::report
