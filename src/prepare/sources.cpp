#include "prepare/sources.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/paths.h"
#include "base/text.h"
#include "base/utf8.h"
#include "io/files.h"
#include "prepare/byte_reader.h"
#include "prepare/other_formats.h"
#include "prepare/parquet_reader.h"

namespace hawser::prepare {
namespace {

namespace fs = std::filesystem;

// The names in a folder that do not begin with a dot, as `*` in a shell: the others belong to tools
// (.ipynb_checkpoints, .git, ._NAME of macOS).
std::vector<std::string> visible_names(const std::string& folder) {
  std::vector<std::string> names = io::list_folder(folder);
  std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
  return names;
}

// `above`: the folders on the way to `folder` without links, since a link may lead back to one of them.
void add_folders(const std::string& folder, std::vector<std::string>& above, std::vector<std::string>& folders) {
  const std::string real = without_links(folder);
  if (std::ranges::find(above, real) != above.end()) return;
  above.push_back(real);
  folders.push_back(folder);
  for (const std::string& name : visible_names(folder)) {
    const std::string inside = (fs::path(folder) / name).string();
    if (io::is_folder(inside)) add_folders(inside, above, folders);
  }
  above.pop_back();
}

// The folder and all folders below it, links followed.
std::vector<std::string> folders_under(const std::string& folder) {
  std::vector<std::string> above, folders;
  add_folders(folder, above, folders);
  return folders;
}

std::string escaped_for_glob(const std::string& path) {
  std::string out;
  for (const char c : path)
    out += std::string_view("*?[]{}\\").find(c) != std::string_view::npos ? cat('\\', c) : cat(c);
  return out;
}

// Whether a match of a glob is the folder itself or the one above it, which ".*" finds.
bool is_dots(const std::string& path) {
  const fs::path name = fs::path(path).filename();
  return name == "." || name == "..";
}

// Paths that match a pattern, sorted. "**" between slashes is any number of folders, also none.
std::vector<std::string> expand(const std::string& pattern) {
  if (io::exists(pattern)) return {pattern};  // a name may contain * or [
  const std::size_t stars = pattern.find("/**");
  if (stars != std::string::npos && (stars + 3 == pattern.size() || pattern[stars + 3] == '/')) {
    const std::string rest = pattern.substr(stars + 3);
    std::set<std::string> found;
    for (const std::string& base : expand(pattern.substr(0, stars))) {
      if (!io::is_folder(base)) continue;
      if (rest.empty()) {
        found.insert(base);  // a folder is read with all below it
        continue;
      }
      for (const std::string& folder : folders_under(base)) {
        const auto inside = expand(escaped_for_glob(folder) + rest);
        found.insert(inside.begin(), inside.end());
      }
    }
    return {found.begin(), found.end()};
  }
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), GLOB_BRACE, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  std::erase_if(paths, is_dots);
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Folders often have .json and .csv files that are no training data, such as dataset_info.json.
bool is_read_from_folders(const std::string& path) {
  const std::string name = without_compression(path);
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".txt") || is_parquet_name(path);
}

struct FolderFiles {
  std::vector<std::string> read, other;  // other: not read from folders, but a reader or a converter exists
};

// The files below `folder`, sorted. A link to nothing counts as a file that is read if it has the name of one, or could
// be a folder, so that it is reported.
FolderFiles files_under(const std::string& folder) {
  FolderFiles files;
  for (const std::string& inside : folders_under(folder)) {
    for (const std::string& name : visible_names(inside)) {
      const std::string path = (fs::path(inside) / name).string();
      std::error_code gone;
      const bool broken = fs::is_symlink(path, gone) && !io::exists(path);
      if (!broken && !io::is_file(path)) continue;
      const bool lost_folder = broken && fs::path(name).extension().empty();
      if (is_read_from_folders(path) || lost_folder) {
        files.read.push_back(path);
      } else if (!broken && (kind_by_name(path) || !unread_format(path).hint.empty())) {
        files.other.push_back(path);
      }
    }
  }
  std::ranges::sort(files.read);
  std::ranges::sort(files.other);
  return files;
}

// The files that match a pattern, or the prefix of a token file.
std::vector<std::string> matches_of(const std::string& pattern, const std::string& folder) {
  const std::vector<std::string> matches = expand(resolve_path(pattern, folder));
  // A prefix is not a file itself. A folder of that name takes precedence.
  if (const auto prefix = matches.empty() ? token_prefix(pattern, folder) : std::nullopt) return {*prefix};
  return matches;
}

// The patterns that the first braces of a pattern mean, in order: "{a,b}.txt" is a.txt and b.txt. The pattern itself
// if it has none.
std::vector<std::string> alternatives(const std::string& pattern) {
  std::vector<std::size_t> cuts;  // of the brace, the commas in it and its end
  int depth = 0;
  for (std::size_t i = 0; i < pattern.size() && (cuts.empty() || depth > 0); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (c == '{') {
      if (++depth == 1) cuts.push_back(i);
    } else if (depth > 0 && (c == '}' || (c == ',' && depth == 1))) {
      if (c == '}') --depth;
      if (c == ',' || depth == 0) cuts.push_back(i);
    }
  }
  if (cuts.size() < 3 || depth > 0) return {pattern};  // like the shell, braces without a comma are text
  std::vector<std::string> out;
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
    const std::string one = pattern.substr(cuts[k] + 1, cuts[k + 1] - cuts[k] - 1);
    for (std::string& rest : alternatives(one + pattern.substr(cuts.back() + 1))) {
      out.push_back(pattern.substr(0, cuts.front()) + rest);
    }
  }
  return out;
}

// Adds a problem if the start of a file is not text, and if a Parquet file is none.
bool begins_badly(const std::string& path, const std::string& at, Problems& problems) {
  std::array<char, 512> bytes{};
  std::string_view start;
  try {
    if (is_parquet(path)) {
      std::optional<Problem> problem = parquet_problem(path);
      if (!problem) return false;
      problem->at = at;
      problems.add(*problem);
      return true;
    }
    start = {bytes.data(), open_bytes(path)->read(bytes)};
  } catch (const UserError& error) {
    problems.add_lines(error.what());
    return true;
  }
  if (start.empty()) {
    problems.add({.file = path, .what = "empty file", .at = at});
  } else if (const char* ending = compressed_ending(start)) {
    problems.add({.file = path,
                  .what = "compressed file without the matching extension",
                  .expected = "text",
                  .at = at,
                  .hint = cat("mv ", path, " ", path, ending)});
  } else if (looks_like_utf16(start)) {
    problems.add({.file = path, .what = "UTF-16 text", .expected = "UTF-8", .at = at, .hint = kFromUtf16});
  } else {
    return false;
  }
  return true;
}

// Label files are optional.
bool is_label_file(const std::string& path) {
  return path.ends_with(".labels.bin");
}

// Total size and latest modification time of a token file's parts: the source changes if any part is rewritten.
std::optional<Source> token_source(const std::string& prefix) {
  Source source{.path = prefix, .kind = SourceKind::tokens};
  for (const char* ending : {".bin", ".idx", ".labels.bin"}) {
    const std::string path = prefix + ending;
    std::error_code error;
    if (is_label_file(path) && !io::exists(path)) continue;
    const auto bytes = fs::file_size(path, error);
    if (error || ::access(path.c_str(), R_OK) != 0) return std::nullopt;
    const auto modified = fs::last_write_time(path, error).time_since_epoch();
    source.bytes += static_cast<std::int64_t>(bytes);
    source.modified =
        std::max<std::int64_t>(source.modified, std::chrono::duration_cast<std::chrono::nanoseconds>(modified).count());
  }
  return source;
}

}  // namespace

std::string without_links(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? path : real.string();
}

std::optional<SourceKind> kind_by_name(const std::string& path) {
  const std::string name = without_compression(path);
  for (const char* ending : {".jsonl", ".ndjson", ".json", ".csv", ".tsv"}) {
    if (name.ends_with(ending)) return SourceKind::jsonl;
  }
  if (name.ends_with(".txt")) return SourceKind::text;
  if (is_parquet_name(path)) return SourceKind::jsonl;
  return std::nullopt;
}

bool is_token_prefix(const std::string& pattern, const std::string& folder) {
  const std::string prefix = resolve_path(pattern, folder);
  return io::exists(prefix + ".idx") && io::exists(prefix + ".bin");
}

std::optional<std::string> token_prefix(const std::string& path, const std::string& folder) {
  for (const char* ending : {"", ".bin", ".idx", ".labels.bin"}) {
    if (!path.ends_with(ending)) continue;
    const std::string prefix = path.substr(0, path.size() - std::strlen(ending));
    if (is_token_prefix(prefix, folder)) return resolve_path(prefix, folder);
  }
  return std::nullopt;
}

namespace {

// ORG/NAME, as the Hub names data sets, of a path that the recipe's reader may have joined to one of `folders`; "" for
// any other path.
std::string hub_data_set(const fs::path& path, const std::vector<fs::path>& folders) {
  if (path.has_extension() || path.string().find_first_of("*?[{~") != std::string::npos) return "";
  std::vector<fs::path> names{path};
  if (path.is_absolute()) names.clear();
  for (const fs::path& folder : folders) {
    if (path.is_absolute() && folder.is_absolute()) names.push_back(path.lexically_relative(folder));
  }
  for (const fs::path& name : names) {
    if (std::distance(name.begin(), name.end()) != 2 || *name.begin() == "." || *name.begin() == "..") continue;
    return name.string();
  }
  return "";
}

// A place that is not on this machine's disks; nullopt for a path. `folder`: where relative paths of a recipe start.
std::optional<Problem> remote_place(const std::string& path, const std::string& folder) {
  const auto scheme_end = path.find("://");
  if (scheme_end == std::string::npos) {
    std::error_code error;
    const std::string name = hub_data_set(path, {fs::absolute(folder, error), fs::current_path(error)});
    if (name.empty()) return std::nullopt;
    return Problem{.file = path,
                   .what = "no such file",
                   .hint = cat("if it is a data set of the Hub, hf download ", name,
                               " --repo-type dataset --local-dir FOLDER, and that folder")};
  }
  const std::string scheme = path.substr(0, scheme_end), rest = path.substr(scheme_end + 3);
  std::string command = "a copy on this machine";
  if (scheme == "s3") command = "aws s3 cp --recursive " + path + " FOLDER, and that folder";
  if (scheme == "gs") command = "gcloud storage cp -r " + path + " FOLDER, and that folder";
  if (scheme == "http" || scheme == "https") command = "curl -LO " + path + ", and the file";
  if (scheme == "hf") {
    const std::string name = rest.starts_with("datasets/") ? rest.substr(std::strlen("datasets/")) : rest;
    command = "hf download " + name + " --repo-type dataset --local-dir FOLDER, and that folder";
  }
  return Problem{.file = path, .what = "not a local file: data are read from disks", .hint = command};
}

}  // namespace

std::vector<Source> find_sources(const std::vector<std::string>& patterns, const std::string& folder,
                                 const std::string& key, Problems& problems, Split split) {
  std::vector<Source> sources;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    const std::string at = cat(key, "[", i, "]");
    std::vector<std::string> paths;
    bool is_folder = false, rejected = false;
    std::string other;  // a file in the folder that is not read
    for (const std::string& path : matches_of(patterns[i], folder)) {
      if (io::is_folder(path)) {
        is_folder = true;
        const FolderFiles inside = files_under(path);
        const ChosenSplit chosen = choose_split(path, inside.read, split);
        if (std::optional<Problem> problem = split_problem(path, chosen, split)) {
          problem->at = at;
          problems.add(*problem);
          rejected = true;
          continue;
        }
        paths.insert(paths.end(), chosen.read.begin(), chosen.read.end());
        if (other.empty() && !inside.other.empty()) other = inside.other.front();
      } else {
        paths.push_back(path);
      }
    }
    // Braces list files: one that is missing is a mistake, as if it were named alone.
    const std::vector<std::string> named = alternatives(patterns[i]);
    for (const std::string& one : named) {
      if (paths.empty() || named.size() == 1 || !matches_of(one, folder).empty()) continue;
      if (!io::exists(resolve_path(patterns[i], folder))) {
        problems.add({.file = one, .what = "no such file", .at = at});
      }
    }
    if (auto remote = remote_place(patterns[i], folder); remote && paths.empty() && !rejected && !is_folder) {
      remote->at = at;
      problems.add(*remote);
      continue;
    }
    if (paths.empty() && !rejected) {
      const fs::path found(other);
      const std::string glob = (found.parent_path() / ("*" + found.extension().string())).string();
      problems.add({.file = patterns[i],
                    .what = is_folder ? "folder without .jsonl, .ndjson, .parquet or .txt files" : "no such file",
                    .got = found.filename().string(),
                    .at = at,
                    .hint = other.empty()         ? ""
                            : kind_by_name(other) ? glob
                                                  : unread_format(other).hint});
    }
    for (const std::string& path : paths) {
      const auto prefix = token_prefix(path, "");
      if (!seen.insert(prefix.value_or(without_links(path))).second) continue;
      if (prefix) {
        if (const auto source = token_source(*prefix)) {
          sources.push_back(*source);
          sources.back().set = static_cast<std::int64_t>(i);
        } else {
          problems.add({.file = *prefix, .what = "cannot be read", .at = at});
        }
        continue;
      }
      std::error_code error;
      const bool regular = io::is_file(path);
      // Parquet's first bytes count more than the name.
      const auto kind = regular && is_parquet(path) ? std::optional(SourceKind::jsonl) : kind_by_name(path);
      if (!regular) {  // a link to nothing; a FIFO, which would wait for a writer when it is opened
        problems.add({.file = path, .what = io::exists(path) ? "not a regular file" : "cannot be read", .at = at});
      } else if (!kind) {
        const fs::path file(path);
        const bool half = file.extension() == ".bin" || file.extension() == ".idx";
        Problem problem = unread_format(path);
        if (half) {
          problem.what = "incomplete token file";
          problem.expected = "a .bin and an .idx with the same name";
        }
        problem.at = at;
        problems.add(problem);
      } else if (const auto bytes = fs::file_size(path, error); error || ::access(path.c_str(), R_OK) != 0) {
        problems.add({.file = path, .what = "cannot be read", .at = at});
      } else if (!begins_badly(path, at, problems)) {
        const auto modified = fs::last_write_time(path, error).time_since_epoch();
        sources.push_back({path, *kind, static_cast<std::int64_t>(bytes),
                           std::chrono::duration_cast<std::chrono::nanoseconds>(modified).count(),
                           static_cast<std::int64_t>(i)});
      }
    }
  }
  return sources;
}

std::vector<std::string> unread_in_folders(const std::vector<std::string>& patterns, const std::string& folder) {
  std::set<std::string> read;
  std::map<std::string, std::vector<std::string>> other;  // by folder
  for (const std::string& pattern : patterns) {
    for (const std::string& path : matches_of(pattern, folder)) {
      if (!io::is_folder(path)) {
        read.insert(path);
      } else if (FolderFiles inside = files_under(path); !inside.read.empty()) {
        other[path] = std::move(inside.other);
      }
    }
  }
  std::vector<std::string> notes;
  for (auto& [inside, files] : other) {
    std::erase_if(files, [&](const std::string& path) { return read.contains(path); });
    if (files.empty()) continue;
    const std::string first = fs::path(files.front()).filename().string();
    notes.push_back(
        cat(inside, ": ", plural(static_cast<std::int64_t>(files.size()), "file"), " of other types ",
            files.size() == 1 ? "is" : "are", " not read (", first, files.size() > 1 ? ", ..." : "",
            "); of a folder, .jsonl, .ndjson, .parquet and .txt files are read; name others in data.train"));
  }
  return notes;
}

std::vector<std::string> left_out_of_folders(const std::vector<std::string>& patterns, const std::string& folder,
                                             bool key) {
  std::set<std::string> notes;
  for (const std::string& pattern : patterns) {
    for (const std::string& path : matches_of(pattern, folder)) {
      if (!io::is_folder(path)) continue;
      const ChosenSplit chosen = choose_split(path, files_under(path).read, Split::train);
      if (chosen.read.empty() || chosen.left_out.empty()) continue;
      const bool with_key = key && chosen.left_out.contains(name_of(Split::validation));
      notes.insert(cat(path, ": data.train takes the train split and leaves out ", left_out_text(chosen),
                       with_key ? cat("; data.validation: [", path, "] evaluates on the validation split") : ""));
    }
  }
  return {notes.begin(), notes.end()};
}

}  // namespace hawser::prepare
