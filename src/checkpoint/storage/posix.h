// Files and folders on a POSIX file system, with errors a person can act on.
//
// Every failure of the system is a UserError of one line naming the path; a full disk names the bytes needed as well.
// (A process over its file-size limit gets SIGXFSZ before the error; whoever wants the error ignores that signal.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hawser::checkpoint {

// An open regular file. Move-only; closes itself.
class File {
 public:
  File() = default;
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;

  // Throws when the path is not a readable regular file (links are followed; pipes and devices are rejected).
  static File open(const std::string& path);
  // A new file for reading and writing; throws when the path exists.
  static File create(const std::string& path);

  // For reading and writing, made when missing; what a lock needs on every file system.
  static File open_or_create(const std::string& path);

  // A folder, for its lock and for what lies in it.
  static File open_folder(const std::string& path);
  // As open(), for a name in a folder that was opened: found there even when the folder has another name by now.
  static File open_in(const File& folder, const std::string& name);

  bool has(const std::string& name) const;  // of a folder: that name lies in it; links followed

  const std::string& path() const { return path_; }
  bool is_open() const { return fd_ >= 0; }
  std::int64_t bytes() const;  // its size now

  // Fills `to` from byte `begin`; throws when the file ends before.
  void read_at(std::int64_t begin, std::byte* to, std::int64_t count) const;
  void write_at(std::int64_t begin, const std::byte* from, std::int64_t count);
  void sync();
  void close();  // throws what the system found only now

  // An advisory lock of the whole file, held until the file is closed or the process ends, however it ends.
  enum class Lock { taken, held_elsewhere, unsupported };
  Lock try_lock();
  Lock try_lock_shared();  // beside other shared ones

  // Whether the path names what was opened, and nothing else took its place.
  bool still_at(const std::string& path) const;

 private:
  File(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  static File open_at(int folder, const std::string& name, const std::string& path);
  int fd_ = -1;
  std::string path_;
};

// The problem behind errno after `doing` ("cannot write") to `path`; `needed`: bytes that were to be written, or 0.
Problem io_problem(const std::string& path, const std::string& doing, int error, std::int64_t needed = 0);

bool exists(const std::string& path);  // links followed
bool is_folder(const std::string& path);
// Names in a folder, sorted, without "." and ".."; empty when it cannot be read.
std::vector<std::string> list_folder(const std::string& path);

void make_folders(const std::string& path);  // with parents; existing ones are fine
void make_folder(const std::string& path);   // throws when it exists
void sync_folder(const std::string& path);   // makes names created, renamed or removed in it durable
void rename_path(const std::string& from, const std::string& to);  // replaces a file or an empty folder, atomically
// `to`, which must not exist, is the file `from` under another name, or a synced copy where file systems differ or have
// no hard links.
void link_or_copy(const std::string& from, const std::string& to);
// Swaps two paths atomically; false where the file system cannot.
bool exchange_paths(const std::string& a, const std::string& b);
// Removes a tree, as far as it can be removed; never throws, never follows links.
void remove_tree(const std::string& path) noexcept;

// Bytes that this user may still write to the file system of `path`; none when the file system does not say.
std::optional<std::int64_t> free_bytes(const std::string& path);
// Throws when `needed` bytes do not fit where `file` is to be written (its folder exists).
void check_space(const std::string& file, std::int64_t needed);

// Adds a problem when files cannot be made in `folder`, which is created with its parents when missing.
void check_writable(const std::string& folder, Problems& problems);
// The same as far as it shows without making anything: for when it is known already that nothing will be written.
void check_may_write(const std::string& folder, Problems& problems);

// The whole of a file of at most `limit` bytes.
std::string read_text(const std::string& path, std::int64_t limit);
std::string read_text(const File& file, std::int64_t limit);
// Writes beside, syncs, renames: `path` holds either its old content or all of the new. The folder is not synced.
void write_text_atomically(const std::string& path, std::string_view text);

// Name parts that no two sessions share: host, process, time and a counter, hashed; 16 hexadecimal digits.
std::string make_nonce();

// A file name inside one folder: not empty, no slash or backslash, no control characters, not "." or "..".
bool is_plain_name(std::string_view name);

// A name from a file, cut to a length fit for a message, in quotes.
std::string in_quotes(std::string_view name);

}  // namespace hawser::checkpoint
