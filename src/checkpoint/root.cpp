#include "checkpoint/root.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "checkpoint/manifest.h"
#include "checkpoint/storage.h"
#include "io/files.h"

namespace hawser::checkpoint {
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kDigits = "0123456789";

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

std::string set_aside_corrupt(const std::string& folder) {
  const auto [root, name] = split_path(folder);
  Storage& storage = storage_of(folder);
  const std::string first = cat(root, "/damaged-", name);
  std::string aside = first;
  for (int number = 2; !storage.move(folder, aside); ++number) aside = cat(first, "-", number);
  return aside;
}

std::vector<std::string> step_folders(const std::string& root) {
  std::multimap<std::int64_t, std::string, std::greater<>> found;
  for (const std::string& name : storage_of(root).list(root)) {
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

std::vector<std::string> keep_last(const std::string& root, int count, const std::string& saved, Problems* failed) {
  HAWSER_CHECK(count >= 1, "keep_last of ", count);
  Problems ignored;
  const std::vector<std::string> folders = complete_checkpoints(root, ignored);
  std::vector<std::string> removed;
  // Oldest first, so that a crash in between leaves the newest.
  for (std::size_t i = folders.size(); i > static_cast<std::size_t>(count); --i) {
    if (folders[i - 1] == saved) continue;
    try {
      if (storage_of(root).remove(folders[i - 1])) removed.push_back(folders[i - 1]);
    } catch (const UserError& error) {
      if (failed == nullptr) throw;
      failed->add_lines(error.what());
    }
  }
  return removed;
}

std::string complete_before(const std::string& folder) {
  const auto [parent, name] = split_path(folder);
  const auto step = step_of(name);
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

void keep_also_as(const std::string& folder, const std::string& path) {
  Storage& storage = storage_of(path);
  HAWSER_CHECK(&storage == &storage_of(folder), folder, " and ", path, " are in different storages");
  finish_keep(path);
  storage.copy(folder, path);
}

void finish_keep(const std::string& path) {
  storage_of(path).recover(path, [](StorageReader& set) -> std::optional<std::int64_t> {
    Problems incomplete;
    const auto manifest = read_manifest(set, incomplete);
    return manifest ? std::optional(manifest->step) : std::nullopt;
  });
}

}  // namespace hawser::checkpoint
