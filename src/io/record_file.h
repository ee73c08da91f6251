// `RecordFile`: a file that grows by complete records. A record is written fully or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hawser::io {

class RecordFile {
 public:
  // Opens or creates `path` and its parent folders, and truncates the file to its first `keep` bytes. UserError on
  // failure.
  explicit RecordFile(const std::string& path, std::int64_t keep = 0);
  ~RecordFile();  // syncs; ignores errors
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // Writes the record in one call, so that a killed process leaves complete records. UserError when it cannot be
  // written; nothing of the record stays then, and the next call may retry.
  void append(std::string_view record);
  void sync();                                  // fdatasync; UserError
  bool in_place() const;                        // path() still names this file
  void copy_to(const std::string& path) const;  // all records, even if the file was removed; UserError
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
  std::int64_t bytes_ = 0;  // of complete records
  bool dirty_ = false, torn_ = false;
};

}  // namespace hawser::io
