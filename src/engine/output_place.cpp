#include "engine/output_place.h"

#include <sys/stat.h>

#include <filesystem>
#include <optional>

#include "checkpoint/manifest.h"
#include "engine/find_checkpoint.h"
#include "io/files.h"
#include "models/weights.h"

namespace hawser::engine {
namespace {

namespace fs = std::filesystem;

fs::path without_links(const std::string& path) {
  std::error_code unknown;
  const fs::path whole = fs::absolute(path, unknown);  // a name alone has no folder to look into
  if (unknown) return path;
  const fs::path real = fs::weakly_canonical(whole, unknown);
  return unknown ? whole.lexically_normal() : real;
}

// Folders of other programs may have a manifest.json; only a checkpoint has a file of rank 0, too.
bool is_checkpoint(const fs::path& folder) {
  try {
    return io::exists((folder / checkpoint::rank_file(0)).string()) && looks_like_checkpoint(folder.string());
  } catch (const io::IoError&) {
    return false;  // a folder above that this user cannot enter: no run of this user replaces it
  }
}

bool in_checkpoint(const std::string& output) {
  for (fs::path folder = without_links(output); folder.has_relative_path(); folder = folder.parent_path()) {
    if (is_checkpoint(folder)) return true;
  }
  return false;
}

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

bool is_file(const struct stat& file, const std::string& path) {
  const auto other = status_of(path);
  return other && other->st_dev == file.st_dev && other->st_ino == file.st_ino;
}

bool is_in_model(const struct stat& file, const std::string& folder) {
  for (const std::string& name : io::list_folder(folder)) {
    if (models::is_model_file(name) && is_file(file, (fs::path(folder) / name).string())) return true;
  }
  return false;
}

}  // namespace

void check_output(const std::string& output, const std::string& at, const std::vector<Input>& inputs,
                  Problems& problems) {
  if (output.empty()) return;
  if (in_checkpoint(output)) {
    problems.add({.file = output,
                  .what = "in a checkpoint, which is removed with all files in it when others replace it",
                  .expected = "a folder of its own",
                  .at = at});
    return;
  }
  const auto replaced = status_of(output);
  if (!replaced || !S_ISREG(replaced->st_mode)) return;
  for (const Input& input : inputs) {
    const auto read = status_of(input.path);
    const bool folder = read && S_ISDIR(read->st_mode);
    if (!read || !(folder ? is_in_model(*replaced, input.path) : is_file(*replaced, input.path))) continue;
    problems.add({.file = output,
                  .what = cat(folder ? "a file of " : "the same file as ", input.option),
                  .expected = "another file",
                  .at = at});
    return;
  }
}

}  // namespace hawser::engine
