#include "checkpoint/storage/posix_storage.h"

#include <chrono>
#include <map>
#include <thread>

#include "base/cat.h"
#include "base/error.h"
#include "checkpoint/manifest.h"
#include "checkpoint/root.h"
#include "checkpoint/storage/posix_staging.h"
#include "io/files.h"

namespace hawser::checkpoint {
namespace {

class PosixReader final : public StorageReader {
 public:
  explicit PosixReader(io::File folder) : StorageReader(folder.path()), folder_(std::move(folder)) {}

  bool has(const std::string& name) const override { return folder_.has(name); }

  std::int64_t bytes(const std::string& name) const override { return io::File::open_in(folder_, name).bytes(); }

  void read(const std::string& name, std::int64_t begin, std::byte* to, std::int64_t count) override {
    auto found = files_.find(name);
    if (found == files_.end()) {
      // Limits the number of open files for checkpoints of many ranks.
      constexpr std::size_t kMaxOpenFiles = 64;
      if (files_.size() >= kMaxOpenFiles) files_.erase(files_.begin());
      found = files_.emplace(name, io::File::open_in(folder_, name)).first;
    }
    found->second.read_at(begin, to, count);
  }

  std::string read_text(const std::string& name, std::int64_t limit) const override {
    return io::read_text(io::File::open_in(folder_, name), limit);
  }

 private:
  io::File folder_;  // files are opened relative to it, so they stay readable if the folder is renamed or replaced
  std::map<std::string, io::File> files_;
};

void expect_folder(const std::string& path) {
  if (!io::is_folder(path)) throw UserError(Problem{.file = path, .what = "no such checkpoint folder"});
}

// PATH is PARENT/NAME; folders that copy() is filling or replacing are PARENT/.NAME.tmp-NONCE.
struct Copies {
  explicit Copies(const std::string& path) : parts(split_path(path)) {}
  std::string temporary() const { return cat(parts.parent, "/", temporary_name(parts.name)); }
  std::vector<std::string> leftovers() const {
    std::vector<std::string> paths;
    for (const std::string& name : io::list_folder(parts.parent)) {
      if (name.starts_with(cat(".", parts.name, ".tmp-"))) paths.push_back(cat(parts.parent, "/", name));
    }
    return paths;
  }
  PathParts parts;
};

class PosixStorage final : public Storage {
 public:
  std::vector<std::string> list(const std::string& prefix) override {
    std::vector<std::string> names = io::list_folder(prefix);
    std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
    return names;
  }

  std::unique_ptr<StorageReader> open(const std::string& path) override {
    constexpr std::chrono::seconds kPatience{2};
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (true) {
      expect_folder(path);
      io::File folder = io::File::open_folder(path);
      // Held elsewhere: it is being removed or replaced.
      const bool locked = folder.try_lock_shared() != io::File::Lock::held_elsewhere;
      if (locked && folder.still_at(path)) return std::make_unique<PosixReader>(std::move(folder));
      if (std::chrono::steady_clock::now() > deadline) {
        throw UserError(Problem{.file = path, .what = "the checkpoint is being replaced", .hint = "again"});
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::unique_ptr<StorageReader> peek(const std::string& path) override {
    expect_folder(path);
    return std::make_unique<PosixReader>(io::File::open_folder(path));
  }

  std::unique_ptr<Staging> stage(const std::string& path, const std::string& owner, std::int64_t bytes) override {
    return stage_folder(path, owner, bytes);
  }

  std::unique_ptr<Staging> join(const std::string& path, const std::string& ticket) override {
    return join_folder(path, ticket);
  }

  bool remove(const std::string& path) override {
    io::File folder = io::File::open_folder(path);
    if (folder.try_lock() == io::File::Lock::held_elsewhere) return false;
    remove_folder(path);
    return true;
  }

  bool move(const std::string& from, const std::string& to) override {
    if (io::exists(to)) return false;
    const io::File folder = io::File::open_folder(from);
    io::rename_path(from, to);
    expect_renamed(folder, to);
    io::sync_folder(split_path(from).parent);
    return true;
  }

  void copy(const std::string& from, const std::string& to) override {
    const Copies copies(to);
    // Leftovers of earlier calls: of a crash, or still read when they were replaced.
    for (const std::string& left : copies.leftovers()) {
      try {
        if (io::File::open_folder(left).try_lock() != io::File::Lock::held_elsewhere) io::remove_tree(left);
      } catch (const io::IoError&) {
        continue;  // another user's
      }
    }
    const std::string fresh = copies.temporary();
    io::make_folder(fresh);
    bool complete = false;
    try {
      for (const std::string& name : io::list_folder(from))
        io::link_or_copy(cat(from, "/", name), cat(fresh, "/", name));
      io::sync_folder(fresh);
      complete = true;
      const io::File folder = io::File::open_folder(fresh);
      const bool replaces = io::exists(to);
      std::string before = fresh;  // the name of what `to` was
      if (!replaces) {
        io::rename_path(fresh, to);
      } else if (!io::exchange_paths(fresh, to)) {
        before = copies.temporary();
        if (!io::try_rename_path(to, before)) {
          remove_folder_in_place(to);  // recover() finds the new one after a crash
          before.clear();
        }
        io::rename_path(fresh, to);
      }
      expect_renamed(folder, to);
      io::sync_folder(copies.parts.parent);
      if (!replaces || before.empty()) return;
      io::File old = io::File::open_folder(before);
      if (old.try_lock() != io::File::Lock::held_elsewhere) io::remove_tree(before);
    } catch (...) {
      if (!complete || io::exists(cat(to, "/", kManifestName))) io::remove_tree(fresh);
      throw;
    }
  }

  void recover(const std::string& to,
               const std::function<std::optional<std::int64_t>(StorageReader&)>& version) override {
    // Without its manifest it is one that copy() was removing in place.
    const bool exists = io::exists(to);
    if (exists && io::exists(cat(to, "/", kManifestName))) return;
    const Copies copies(to);
    std::string newest;
    std::int64_t newest_version = -1;
    for (const std::string& left : copies.leftovers()) {
      try {
        const auto found = version(*peek(left));
        if (!found || *found <= newest_version) continue;
        newest = left;
        newest_version = *found;
      } catch (const io::IoError&) {
        continue;  // another user's
      }
    }
    if (newest.empty()) return;
    if (exists) remove_folder_in_place(to);
    const io::File folder = io::File::open_folder(newest);
    io::rename_path(newest, to);
    expect_renamed(folder, to);
    io::sync_folder(copies.parts.parent);
  }
};

}  // namespace

Storage& posix_storage() {
  static PosixStorage storage;
  return storage;
}

void expect_renamed(const io::File& opened, const std::string& path) {
  if (opened.still_at(path)) return;
  throw io::IoError(Problem{.file = path,
                            .what = "the file system reported a rename that it did not make",
                            .hint = "an output folder on another file system"});
}

std::string temporary_name(const std::string& name) {
  return cat(".", name, ".tmp-", io::make_nonce());
}

Leftover leftover_kind(const std::string& name) {
  constexpr std::size_t kNonceDigits = 16;
  const auto dash = name.rfind('-');
  if (dash == std::string::npos || name.size() - dash - 1 != kNonceDigits || name[0] != '.' ||
      name.find_first_not_of("0123456789abcdef", dash + 1) != std::string::npos) {
    return Leftover::none;
  }
  const auto dot = name.rfind('.', dash);
  if (dot == 0 || !step_of(name.substr(1, dot - 1))) return Leftover::none;
  const std::string kind = name.substr(dot + 1, dash - dot - 1);
  return kind == "tmp" ? Leftover::temporary : kind == "trash" ? Leftover::trash : Leftover::none;
}

}  // namespace hawser::checkpoint
