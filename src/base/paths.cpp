#include "base/paths.h"

#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>

namespace hawser {
namespace {

// "" if the password database has no entry.
std::string home_of(const std::string& name) {
  const char* const home = std::getenv("HOME");
  if (name.empty() && home != nullptr && *home != '\0') return home;
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16384> texts{};
  if (name.empty()) {
    ::getpwuid_r(::getuid(), &entry, texts.data(), texts.size(), &found);
  } else {
    ::getpwnam_r(name.c_str(), &entry, texts.data(), texts.size(), &found);
  }
  return found == nullptr || found->pw_dir == nullptr ? "" : found->pw_dir;
}

}  // namespace

std::optional<std::string> expand_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const std::size_t slash = std::min(path.find('/'), path.size());
  const std::string home = home_of(path.substr(1, slash - 1));
  if (home.empty()) return std::nullopt;
  return home + path.substr(slash);
}

Problem no_such_user(const std::string& path) {
  return {.what = "no home folder",
          .expected = "~ or ~NAME of an existing user",
          .got = path.substr(0, path.find('/')),
          .hint = cat("./", path, " for a file of that name")};
}

std::string with_home(const std::string& path) {
  if (auto expanded = expand_home(path)) return *std::move(expanded);
  throw UserError(no_such_user(path));
}

std::string without_dots(const std::string& path) {
  namespace fs = std::filesystem;
  fs::path out;
  for (const fs::path& part : fs::path(path)) {
    if (part == "..") {
      std::error_code none;
      const fs::path link = fs::read_symlink(out, none);
      const fs::path target = link.empty() ? fs::path() : fs::canonical(out, none);
      if (!target.empty()) out = target;
      if (!out.has_filename() || out.filename() == ".." || out == ".") {
        out = out.has_root_directory() ? out : out / part;
      } else {
        out = out.parent_path();
      }
    } else if (part != ".") {
      out /= part;
    }
  }
  return out.empty() ? "." : out.string();
}

std::string absolute_path(const std::string& path) {
  std::error_code gone;
  const auto absolute = std::filesystem::absolute(path, gone);
  if (gone) throw UserError(Problem{.file = path, .what = "the working directory does not exist any more"});
  return without_dots(absolute.string());
}

std::string resolve_path(const std::string& path, const std::string& folder) {
  return absolute_path((std::filesystem::path(folder) / with_home(path)).string());
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void sync_name(const std::string& path) {
  const int folder = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

}  // namespace hawser
