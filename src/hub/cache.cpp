#include "hub/cache.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "base/error.h"
#include "hub/file_names.h"
#include "io/bounded_file.h"
#include "io/json.h"

namespace hawser::hub {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::int64_t kMaxRefBytes = 4096, kMaxIndexBytes = std::int64_t{256} << 20;

bool has_file(const fs::path& folder, const std::string& name) {
  return io::exists((folder / name).string());
}

// The whole of an index.
bool has_weights(const fs::path& folder) {
  if (has_file(folder, kWeights)) return true;
  if (!has_file(folder, kWeightsIndex)) return false;
  try {
    const auto files = files_of_index((folder / kWeightsIndex).string());
    return std::ranges::all_of(files, [&](const std::string& name) { return has_file(folder, name); });
  } catch (const UserError&) {
    return true;  // whoever reads it says what is wrong with it
  }
}

}  // namespace

bool is_commit(const std::string& text) {
  constexpr std::size_t kDigits = 40;
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

std::string Repo::folder() const {
  const std::string as_model = hub_folder(name);
  return kind == RepoKind::model ? as_model : "datasets" + as_model.substr(as_model.find("--"));
}

RepoCache::RepoCache(const std::string& cache, const Repo& repo)
    : folder_(cache + "/" + repo.folder()), locks_(cache + "/.locks/" + repo.folder()) {}

std::string RepoCache::commit_of(const std::string& revision) const {
  const std::string reference = cat(folder_, "/refs/", revision);
  if (!io::is_file(reference)) return revision;
  std::string commit = io::read_bounded(reference, kMaxRefBytes);
  commit.erase(commit.find_last_not_of(" \t\r\n") + 1);
  return commit;
}

void RepoCache::make() {
  for (const std::string& folder : {folder_ + "/blobs", folder_ + "/refs", folder_ + "/snapshots", locks_}) {
    io::make_folders(folder);
  }
}

void RepoCache::link(const std::string& commit, const std::string& file, const std::string& etag) {
  const fs::path at = fs::path(snapshot(commit)) / file;
  io::make_folders(at.parent_path().string());
  const fs::path target = fs::path(blob(etag)).lexically_relative(at.parent_path());
  std::error_code error;
  if (fs::read_symlink(at, error) == target) return;
  // A new link takes the name at once: a reader finds the old or the new one.
  const std::string temporary = cat(at.string(), ".", io::make_nonce());
  fs::create_symlink(target, temporary, error);
  if (error) throw io::IoError(io::io_problem(at.string(), "cannot create a link", error.value()));
  io::rename_path(temporary, at.string());
}

void RepoCache::set_reference(const std::string& revision, const std::string& commit) {
  if (revision == commit || commit_of(revision) == commit) return;
  const fs::path at = fs::path(folder_) / "refs" / revision;
  io::make_folders(at.parent_path().string());
  io::write_text_atomically(at.string(), commit);
}

io::File RepoCache::lock(const std::string& name, const std::function<void()>& waiting) {
  io::make_folders(locks_);
  const std::string path = cat(locks_, "/", name, ".lock");
  for (;;) {
    io::File file = io::File::open_or_create(path);
    const auto taken = file.try_lock();
    // A holder may remove the file when it is done: then the lock is one of a file without a name.
    if (taken == io::File::Lock::unsupported || (taken == io::File::Lock::taken && file.still_at(path))) return file;
    if (taken != io::File::Lock::held_elsewhere) continue;
    waiting();
    std::this_thread::sleep_for(100ms);
  }
}

std::vector<std::string> files_of_index(const std::string& path) {
  const auto index = io::json_or_null(io::read_bounded(path, kMaxIndexBytes));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    throw UserError(Problem{.file = path, .what = "not an index of weights", .expected = "an object weight_map"});
  }
  std::set<std::string> names;
  for (const auto& file : *map) {
    if (!file.is_string() || !is_safe_file_name(file.get<std::string>())) {
      throw UserError(Problem{.file = path, .what = "not an index of weights", .expected = "names of files"});
    }
    names.insert(file.get<std::string>());
  }
  return {names.begin(), names.end()};
}

bool has_parts(const std::string& snapshot, Parts parts) {
  const fs::path folder = snapshot;
  if (has_file(folder, kConfig)) return parts == Parts::configuration || has_weights(folder);
  return has_file(folder, kAdapterConfig) && (parts == Parts::configuration || has_file(folder, kAdapterWeights));
}

}  // namespace hawser::hub
