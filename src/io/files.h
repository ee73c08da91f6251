// Files and folders on a POSIX file system, with actionable errors.
//
// A failed system call is a UserError of one line that names the path; for a full disk also the bytes needed. A process
// over its file-size limit gets SIGXFSZ before the error, unless it ignores that signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hawser::io {

// A system call failed for a reason that says nothing about what a file contains, or whether it exists: permissions, a
// failing disk, a server that does not answer. A caller must not continue as if the file were missing or corrupt.
class IoError : public UserError {
 public:
  using UserError::UserError;
};

// An open regular file. Move-only; closes itself.
class File {
 public:
  File() = default;
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  // Throws if the path is not a readable regular file (links are followed; pipes and devices are rejected).
  static File open(const std::string& path);
  // A new file for reading and writing; throws if the path exists.
  static File create(const std::string& path);

  // For reading and writing, created if missing; locks need this mode on some file systems.
  static File open_or_create(const std::string& path);

  // A folder, for its lock and its files.
  static File open_folder(const std::string& path);
  // Like open(), for a name in an open folder; works even if the folder was renamed.
  static File open_in(const File& folder, const std::string& name);

  bool has(const std::string& name) const;  // the folder contains that name; links followed; IoError

  const std::string& path() const { return path_; }
  bool is_open() const { return fd_ >= 0; }
  std::int64_t bytes() const;  // current size

  // Fills `to` from byte `begin`; throws if the file ends before.
  void read_at(std::int64_t begin, std::byte* to, std::int64_t count) const;
  void write_at(std::int64_t begin, const std::byte* from, std::int64_t count);
  void sync();
  void close();  // throws errors that close() reports

  // An advisory lock of the file, held until the file is closed or the process ends in any way.
  enum class Lock { taken, held_elsewhere, unsupported };
  Lock try_lock();
  Lock try_lock_shared();  // compatible with other shared locks

  // Whether the path still names the opened file (names_open_file).
  bool still_at(const std::string& path) const;
  // The current path of what was opened, after renames of it or of a folder above; "" if it was removed.
  std::string path_now() const;

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  static File open_at(int folder, const std::string& name, const std::string& path);
  int fd_ = -1;
  std::string path_;
};

// Whether the path names the file that is open as `fd`. An error that does not tell, such as one of a network file
// system, counts as yes.
bool names_open_file(int fd, const std::string& path);

// The problem for errno `error` of `doing` ("cannot write") on `path`; `needed`: bytes to be written, or 0.
Problem io_problem(const std::string& path, const std::string& doing, int error, std::int64_t needed = 0);

// False only if nothing is there, or something else; another error is an IoError. Links are followed. Code outside io
// asks these, not std::filesystem, which reports an error like an absence.
bool exists(const std::string& path);
bool is_folder(const std::string& path);
bool is_file(const std::string& path);  // a regular file
// Names in a folder, sorted, without "." and ".."; empty if there is no such folder.
std::vector<std::string> list_folder(const std::string& path);

void make_folders(const std::string& path);                        // with parents; existing ones are fine
void make_folder(const std::string& path);                         // throws if it exists
void sync_folder(const std::string& path);                         // makes created, renamed or removed names durable
void rename_path(const std::string& from, const std::string& to);  // atomic; replaces a file or an empty folder
// The same; false if the file system cannot move this folder at all (one of a lower layer of an overlay).
bool try_rename_path(const std::string& from, const std::string& to);
// Hard-links `from` as `to`, which must not exist; a synced copy where file systems differ or have no hard links.
void link_or_copy(const std::string& from, const std::string& to);
// Swaps two paths atomically; false if the file system cannot.
bool exchange_paths(const std::string& a, const std::string& b);
// Removes a tree as far as possible; never throws, never follows links.
void remove_tree(const std::string& path) noexcept;

// Bytes that this user may still write to the file system of `path`; nullopt if unknown.
std::optional<std::int64_t> free_bytes(const std::string& path);
// Throws if `needed` bytes do not fit at `file` (its folder exists).
void check_space(const std::string& file, std::int64_t needed);

// Adds a problem if files cannot be created in `folder`; creates the folder and its parents.
void check_writable(const std::string& folder, Problems& problems);
// The same check without creating anything, for a command that will not write.
void check_may_write(const std::string& folder, Problems& problems);

// Contents of a file of at most `limit` bytes.
std::string read_text(const std::string& path, std::int64_t limit);
std::string read_text(const File& file, std::int64_t limit);
// Writes a temporary file, syncs and renames it: `path` has either its old or all of its new content. The folder is not
// synced.
void write_text_atomically(const std::string& path, std::string_view text);

// A unique name part: hash of host, process, time and a counter, 16 hexadecimal digits.
std::string make_nonce();

// A file name in one folder: not empty, no slash or backslash, no control characters, not "." or "..".
bool is_plain_name(std::string_view name);

// A name from a file, shortened for a message, in quotes.
std::string in_quotes(std::string_view name);

}  // namespace hawser::io
