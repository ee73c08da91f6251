#include "checkpoint/root.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "checkpoint/manifest.h"

namespace hawser::checkpoint {
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kDigits = "0123456789";

bool is_live(const std::string& folder, const std::string& lock_name) {
  const std::string path = cat(folder, "/", lock_name);
  try {
    if (!io::exists(path)) return false;  // created with the folder, under the root's lock: its process ended
    // Without locks, or in a folder that only another user may read, liveness is unknown: leave it.
    return io::File::open_or_create(path).try_lock() != io::File::Lock::taken;
  } catch (const UserError&) {
    return true;
  }
}

}  // namespace

std::string step_name(std::int64_t step) {
  const std::string digits = cat(step);
  return cat(kPrefix, std::string(digits.size() < 8 ? 8 - digits.size() : 0, '0'), digits);
}

std::optional<std::int64_t> step_of(const std::string& name) {
  const std::string prefix = kPrefix;
  if (name.rfind(prefix, 0) != 0) return std::nullopt;
  const std::string digits = name.substr(prefix.size());
  if (digits.size() < 8 || digits.size() > 18 || digits.find_first_not_of(kDigits) != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

std::string temporary_name(std::int64_t step) {
  return cat(".", step_name(step), ".tmp-", io::make_nonce());
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

RootLock::RootLock(const std::string& root) : file_(io::File::open_or_create(cat(root, "/.lock"))) {
  constexpr std::chrono::seconds kPatience{10};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const io::File::Lock lock = file_.try_lock();
    held_ = lock == io::File::Lock::taken;
    if (lock != io::File::Lock::held_elsewhere || std::chrono::steady_clock::now() > deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void clean_leftovers(const std::string& root, const std::string& lock_name) {
  for (const std::string& name : io::list_folder(root)) {
    const std::string path = cat(root, "/", name);
    const Leftover kind = leftover_kind(name);
    if (kind == Leftover::trash || (kind == Leftover::temporary && !is_live(path, lock_name))) io::remove_tree(path);
  }
}

void discard(const std::string& root, const std::string& name) {
  const std::string trash = cat(root, "/.", name, ".trash-", io::make_nonce());
  io::rename_path(cat(root, "/", name), trash);
  io::sync_folder(root);
  io::remove_tree(trash);
}

std::string set_aside_corrupt(const std::string& folder) {
  const auto slash = folder.rfind('/');
  const std::string root = folder.substr(0, slash), name = cat(root, "/damaged-", folder.substr(slash + 1));
  std::string aside = name;
  for (int number = 2; io::exists(aside); ++number) aside = cat(name, "-", number);
  io::rename_path(folder, aside);
  io::sync_folder(root);
  return aside;
}

std::vector<std::string> step_folders(const std::string& root) {
  std::multimap<std::int64_t, std::string, std::greater<>> found;
  for (const std::string& name : io::list_folder(root)) {
    if (const auto step = step_of(name)) found.emplace(*step, cat(root, "/", name));
  }
  std::vector<std::string> folders;
  for (auto& [step, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

std::vector<std::string> complete_checkpoints(const std::string& root, Problems& skipped) {
  std::vector<std::string> folders;
  for (const std::string& folder : step_folders(root)) {
    try {
      if (read_manifest(folder, skipped)) folders.push_back(folder);
    } catch (const io::IoError& error) {
      skipped.add_lines(error.what());
    }
  }
  return folders;
}

std::vector<std::string> keep_last(const std::string& root, int count, const std::string& saved) {
  HAWSER_CHECK(count >= 1, "keep_last of ", count);
  Problems ignored;
  const std::vector<std::string> folders = complete_checkpoints(root, ignored);
  std::vector<std::string> removed;
  // Oldest first, so that a crash in between leaves the newest.
  for (std::size_t i = folders.size(); i > static_cast<std::size_t>(count); --i) {
    if (folders[i - 1] == saved) continue;
    io::File folder = io::File::open_folder(folders[i - 1]);
    if (folder.try_lock() == io::File::Lock::held_elsewhere) continue;
    discard(root, folders[i - 1].substr(root.size() + 1));
    removed.push_back(folders[i - 1]);
  }
  return removed;
}

io::File hold(const std::string& folder) {
  constexpr std::chrono::seconds kPatience{2};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    if (!io::is_folder(folder)) throw UserError(Problem{.file = folder, .what = "no such checkpoint folder"});
    io::File file = io::File::open_folder(folder);
    // Held elsewhere: it is being removed or replaced.
    const bool locked = file.try_lock_shared() != io::File::Lock::held_elsewhere;
    if (locked && file.still_at(folder)) return file;
    if (std::chrono::steady_clock::now() > deadline) {
      throw UserError(Problem{.file = folder, .what = "the checkpoint is being replaced", .hint = "again"});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string complete_before(const std::string& folder) {
  std::string path = folder;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const auto slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  const auto step = step_of(path.substr(slash + 1));
  Problems ignored;
  for (const std::string& other : step_folders(step ? parent : cat(parent, "/checkpoints"))) {
    if (step && step_of(other.substr(other.rfind('/') + 1)) >= step) continue;
    try {
      if (read_manifest(other, ignored)) return other;
    } catch (const io::IoError&) {
      continue;  // no suggestion
    }
  }
  return "";
}

namespace {

// PATH is PARENT/NAME; folders that keep_also_as is filling or replacing are PARENT/.NAME.tmp-NONCE.
struct Kept {
  explicit Kept(const std::string& path) {
    const auto slash = path.rfind('/');
    parent = slash == std::string::npos ? "." : path.substr(0, slash);
    prefix = cat(".", path.substr(slash == std::string::npos ? 0 : slash + 1), ".tmp-");
  }
  std::string temporary() const { return cat(parent, "/", prefix, io::make_nonce()); }
  std::vector<std::string> leftovers() const {
    std::vector<std::string> paths;
    for (const std::string& name : io::list_folder(parent)) {
      if (name.starts_with(prefix)) paths.push_back(cat(parent, "/", name));
    }
    return paths;
  }
  std::string parent, prefix;
};

}  // namespace

void keep_also_as(const std::string& folder, const std::string& path) {
  const Kept kept(path);
  finish_keep(path);
  // Leftovers of earlier calls: of a crash, or still read when they were replaced.
  for (const std::string& left : kept.leftovers()) {
    try {
      if (io::File::open_folder(left).try_lock() != io::File::Lock::held_elsewhere) io::remove_tree(left);
    } catch (const io::IoError&) {
      continue;  // another user's
    }
  }
  const std::string fresh = kept.temporary();
  io::make_folder(fresh);
  bool complete = false;
  try {
    for (const std::string& name : io::list_folder(folder))
      io::link_or_copy(cat(folder, "/", name), cat(fresh, "/", name));
    io::sync_folder(fresh);
    complete = true;
    const bool replaces = io::exists(path);
    std::string before = fresh;  // the name of what `path` was
    if (!replaces) {
      io::rename_path(fresh, path);
    } else if (!io::exchange_paths(fresh, path)) {
      before = kept.temporary();
      io::rename_path(path, before);
      io::rename_path(fresh, path);
    }
    io::sync_folder(kept.parent);
    if (!replaces) return;
    io::File old = io::File::open_folder(before);
    if (old.try_lock() != io::File::Lock::held_elsewhere) io::remove_tree(before);
  } catch (...) {
    if (!complete || io::exists(path)) io::remove_tree(fresh);
    throw;
  }
}

void finish_keep(const std::string& path) {
  if (io::exists(path)) return;
  const Kept kept(path);
  std::string newest;
  std::int64_t newest_step = -1;
  for (const std::string& left : kept.leftovers()) {
    Problems incomplete;
    std::optional<Manifest> manifest;
    try {
      manifest = read_manifest(left, incomplete);
    } catch (const io::IoError&) {
      continue;  // another user's
    }
    if (!manifest || manifest->step <= newest_step) continue;
    newest = left;
    newest_step = manifest->step;
  }
  if (newest.empty()) return;
  io::rename_path(newest, path);
  io::sync_folder(kept.parent);
}

}  // namespace hawser::checkpoint
