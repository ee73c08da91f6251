// For tests: the system calls by which files become durable, observed, cut short and made to fail.
//
//   SystemCalls calls(folder.path());                     // of files below the folder, as long as it lives
//   calls.fail("link", EXDEV);                            // a file system without hard links
//   io::link_or_copy(folder / "a", folder / "b");
//   EXPECT_EQ(calls.log(), (Lines{"link a b (error)", "write b", "fsync b"}));
//   EXPECT_EQ(calls.not_durable(), Lines{"name not synced: b"});
//
// The functions below replace the C library's in every test program that includes this file, for std::filesystem too;
// without a SystemCalls they do the same. One object at a time.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/paths.h"

namespace hawser {

class SystemCalls {
 public:
  using Lines = std::vector<std::string>;

  explicit SystemCalls(std::string folder) : folder_(std::move(folder)) { current() = this; }
  ~SystemCalls() { current() = nullptr; }
  SystemCalls(const SystemCalls&) = delete;
  SystemCalls& operator=(const SystemCalls&) = delete;

  // The next `times` calls of this name ("link", "rename", "exchange", "fsync", "flock", "write", "read") whose path,
  // or target, contains `in_path` fail with `error`.
  void fail(const std::string& name, int error, const std::string& in_path = "", int times = INT_MAX) {
    failures_.push_back({name, in_path, error, times});
  }
  // They do nothing and report success.
  void lose(const std::string& name, const std::string& in_path) { failures_.push_back({name, in_path, 0, INT_MAX}); }
  void stop_failing() { failures_.clear(); }
  // A read or write transfers at most this many bytes.
  void shorten(std::size_t bytes) { longest_ = bytes; }
  // Called before each call, with its line of the log.
  void observe(std::function<void(const std::string& line)> observer) { observer_ = std::move(observer); }

  // The calls in order, with paths relative to the folder ("."): "write PATH" once for several in a row, "fsync PATH",
  // "link FROM TO", "rename FROM TO", "exchange A B"; failed ones end with " (error)".
  const Lines& log() const { return log_; }

  // What a crash of the machine may still lose: files whose bytes are not synced ("not synced: PATH"), and names in
  // folders that are not synced ("name not synced: PATH"). And what it could have lost at an earlier moment: "renamed
  // before ...: PATH", of a file that got another name, or whose folder did, before it was durable.
  Lines not_durable() const {
    Lines lines = early_;
    const auto add = [&](const char* what, const std::string& path) {
      if (::access(path.c_str(), F_OK) == 0) lines.push_back(cat(what, relative(path)));
    };
    for (const std::string& path : unsynced_) add("not synced: ", path);
    for (const auto& [folder, name] : names_) add("name not synced: ", cat(folder, "/", name));
    return lines;
  }

  // For the functions below.
  enum class Outcome { call, lost, failed };  // failed: errno is set
  static Outcome enter(const std::string& name, const std::string& path, const std::string& target = "") {
    SystemCalls* const calls = current();
    return calls != nullptr && (calls->has(path) || calls->has(target)) ? calls->enter_one(name, path, target)
                                                                        : Outcome::call;
  }
  static void succeeded(const std::string& name, const std::string& path, const std::string& target = "") {
    SystemCalls* const calls = current();
    if (calls != nullptr && (calls->has(path) || calls->has(target))) calls->apply(name, path, target);
  }
  static std::size_t length_of(const std::string& path, std::size_t bytes) {
    return current()->has(path) ? std::min(bytes, current()->longest_) : bytes;
  }
  static bool active() { return current() != nullptr; }
  static std::string path_of(int fd) {
    std::array<char, PATH_MAX> path{};
    const ssize_t size = ::readlink(cat("/proc/self/fd/", fd).c_str(), path.data(), path.size());
    return size < 0 ? "" : std::string(path.data(), static_cast<std::size_t>(size));
  }

 private:
  struct Failure {
    std::string name, in_path;
    int error, times;
  };

  static SystemCalls*& current() {
    static SystemCalls* one = nullptr;
    return one;
  }

  static bool is_in(const std::string& path, const std::string& folder) {
    return path == folder || path.starts_with(folder + "/");
  }
  bool has(const std::string& path) const { return is_in(path, folder_); }
  std::string relative(const std::string& path) const {
    return path == folder_ ? "." : has(path) ? path.substr(folder_.size() + 1) : path;
  }

  Outcome enter_one(const std::string& name, const std::string& path, const std::string& target) {
    std::string line = cat(name, " ", relative(path));
    if (!target.empty()) line += cat(" ", relative(target));
    if (observer_) observer_(line);
    const std::lock_guard lock(mutex_);
    const bool logged = name != "read" && name != "flock";
    for (Failure& failure : failures_) {
      if (failure.times == 0 || failure.name != name) continue;
      if ((target.empty() ? path : target).find(failure.in_path) == std::string::npos) continue;
      --failure.times;
      if (failure.error == 0) return Outcome::lost;
      if (logged) log_.push_back(line + " (error)");
      errno = failure.error;
      return Outcome::failed;
    }
    if (logged && (name != "write" || log_.empty() || log_.back() != line)) log_.push_back(line);
    return Outcome::call;
  }

  void apply(const std::string& name, const std::string& path, const std::string& target) {
    const std::lock_guard lock(mutex_);
    if (name == "write") {
      if (known_.insert(path).second) add_name(path);
      unsynced_.insert(path);
    } else if (name == "fsync") {
      unsynced_.erase(path);
      std::erase_if(names_, [&](const auto& entry) { return entry.first == path; });
    } else if (name == "link") {
      add_name(target);
    } else if (name == "rename" || name == "exchange") {
      rename(path, target, name == "exchange");
    }
  }

  void rename(const std::string& from, const std::string& to, bool exchange) {
    for (const std::string& path : unsynced_) {
      if (is_in(path, from)) early_.push_back(cat("renamed before it was synced: ", relative(path)));
    }
    for (const auto& [folder, name] : names_) {
      if (is_in(folder, from))
        early_.push_back(cat("renamed before its name was synced: ", relative(folder), "/", name));
    }
    const auto renamed = [&](const std::string& path) {
      if (is_in(path, from)) return to + path.substr(from.size());
      if (exchange && is_in(path, to)) return from + path.substr(to.size());
      return path;
    };
    for (std::set<std::string>* const paths : {&unsynced_, &known_}) {
      std::set<std::string> all;
      for (const std::string& path : *paths) all.insert(renamed(path));
      *paths = std::move(all);
    }
    std::set<std::pair<std::string, std::string>> names;
    for (const auto& [folder, name] : names_) {
      if (cat(folder, "/", name) != from) names.emplace(renamed(folder), name);
    }
    names_ = std::move(names);
    add_name(to);
  }

  void add_name(const std::string& path) { names_.emplace(folder_of(path), path.substr(path.rfind('/') + 1)); }

  std::string folder_;
  std::mutex mutex_;
  std::vector<Failure> failures_;
  std::size_t longest_ = SSIZE_MAX;
  std::function<void(const std::string&)> observer_;
  Lines log_, early_;
  std::set<std::string> unsynced_, known_;
  std::set<std::pair<std::string, std::string>> names_;  // folder and name of entries that are not durable
};

}  // namespace hawser

// NOLINTBEGIN: declared by the C library, with its names
#define HAWSER_REPLACED extern "C" __attribute__((used)) inline

namespace hawser::replaced_calls {

// A read or write of at most `bytes`.
template <class Call>
ssize_t transfer(const char* name, int fd, std::size_t bytes, Call call) {
  if (!SystemCalls::active()) return call(bytes);
  const std::string path = SystemCalls::path_of(fd);
  if (SystemCalls::enter(name, path) == SystemCalls::Outcome::failed) return -1;
  const ssize_t count = call(SystemCalls::length_of(path, bytes));
  if (count > 0) SystemCalls::succeeded(name, path);
  return count;
}

template <class Call>
int change(const char* name, const std::string& path, const std::string& target, Call call) {
  const SystemCalls::Outcome outcome = SystemCalls::enter(name, path, target);
  if (outcome != SystemCalls::Outcome::call) return outcome == SystemCalls::Outcome::lost ? 0 : -1;
  const long result = call();
  if (result == 0) SystemCalls::succeeded(name, path, target);
  return static_cast<int>(result);
}

template <class Call>
int change(const char* name, int fd, Call call) {
  return SystemCalls::active() ? change(name, SystemCalls::path_of(fd), "", call) : static_cast<int>(call());
}

}  // namespace hawser::replaced_calls

HAWSER_REPLACED ssize_t pread(int fd, void* to, std::size_t bytes, off_t begin) {
  return hawser::replaced_calls::transfer(
      "read", fd, bytes, [&](std::size_t count) { return ::syscall(SYS_pread64, fd, to, count, begin); });
}
HAWSER_REPLACED ssize_t pwrite(int fd, const void* from, std::size_t bytes, off_t begin) {
  return hawser::replaced_calls::transfer(
      "write", fd, bytes, [&](std::size_t count) { return ::syscall(SYS_pwrite64, fd, from, count, begin); });
}
HAWSER_REPLACED ssize_t write(int fd, const void* from, std::size_t bytes) {
  return hawser::replaced_calls::transfer("write", fd, bytes,
                                          [&](std::size_t count) { return ::syscall(SYS_write, fd, from, count); });
}
HAWSER_REPLACED int fsync(int fd) {
  return hawser::replaced_calls::change("fsync", fd, [&] { return ::syscall(SYS_fsync, fd); });
}
HAWSER_REPLACED int fdatasync(int fd) {
  return hawser::replaced_calls::change("fsync", fd, [&] { return ::syscall(SYS_fdatasync, fd); });
}
HAWSER_REPLACED int flock(int fd, int how) noexcept {
  return hawser::replaced_calls::change("flock", fd, [&] { return ::syscall(SYS_flock, fd, how); });
}
HAWSER_REPLACED int link(const char* from, const char* to) noexcept {
  return hawser::replaced_calls::change("link", from, to, [&] { return ::syscall(SYS_link, from, to); });
}
HAWSER_REPLACED int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                              unsigned flags) noexcept {
  return hawser::replaced_calls::change((flags & RENAME_EXCHANGE) != 0 ? "exchange" : "rename", from, to, [&] {
    return ::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  });
}
HAWSER_REPLACED int rename(const char* from, const char* to) noexcept {
  return ::renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}
#undef HAWSER_REPLACED
// NOLINTEND
