#include "engine/gemm_cache.h"

#include <set>
#include <sstream>

#include "base/environment.h"
#include "base/error.h"
#include "base/paths.h"
#include "base/text.h"
#include "io/bounded_file.h"
#include "io/files.h"

namespace hawser::engine {

namespace {

constexpr std::int64_t kMaxBytes = 4 << 20;  // more than 10,000 GEMMs

// The lines after the first one, without notes.
std::set<std::string> choices_in(const std::string& text) {
  std::set<std::string> out;
  std::istringstream in(text);
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    if (!line.empty() && !line.starts_with('#')) out.insert(line);
  }
  return out;
}

}  // namespace

std::string GemmCache::default_folder() {
  const std::string caches = environment_variable("XDG_CACHE_HOME");
  const auto folder = expand_home(caches.empty() ? "~/.cache" : caches);
  return folder && folder->starts_with('/') ? *folder + "/hawser/gemm_algorithms" : "";
}

std::string GemmCache::path_of(const std::string& heading) const {
  std::string name = heading;
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return folder_ + "/" + name + ".txt";
}

std::string GemmCache::read(const std::string& heading) const {
  if (folder_.empty()) return "";
  try {
    if (!io::is_file(path_of(heading))) return "";
    std::string text = io::read_bounded(path_of(heading), kMaxBytes);
    return first_line(text) == heading ? text : "";
  } catch (const UserError&) {
    return "";
  }
}

void GemmCache::add(const std::string& before, const std::string& now) const {
  if (folder_.empty()) return;
  const std::string heading = first_line(now);
  const std::set<std::string> old = choices_in(before);
  std::string measured;
  for (const std::string& line : choices_in(now)) {
    if (!old.contains(line)) measured += line + "\n";
  }
  if (measured.empty()) return;
  const std::string there = read(heading);
  // A reader takes the last of several lines for one GEMM: what is there comes last.
  std::string text = heading + "\n" + measured;
  for (const std::string& line : choices_in(there)) text += line + "\n";
  if (static_cast<std::int64_t>(text.size()) > kMaxBytes) return;
  try {
    io::make_folders(folder_);
    io::write_text_atomically(path_of(heading), text);
  } catch (const UserError&) {
    return;
  }
}

}  // namespace hawser::engine
