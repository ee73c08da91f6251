#include "prepare/sources.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include "base/ascii.h"
#include "base/paths.h"
#include "base/text.h"
#include "base/utf8.h"
#include "io/files.h"
#include "prepare/byte_reader.h"
#include "prepare/hub_configs.h"
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

// The files that are read of a folder, by what their names end with. Folders often have .json and .csv files that are no
// training data, such as those of statistics: they are read if a folder has no others.
constexpr std::array<std::array<const char*, 4>, 3> kFolderTypes = {{
    {".jsonl", ".ndjson", ".txt"},
    {".csv", ".tsv"},
    {".json"},
}};
constexpr const char* kFolderTypesText =
    ".jsonl, .ndjson, .parquet and .txt files are read; if there are none, .csv and .tsv; "
    "else .json";

// Index in kFolderTypes of a file; nullopt for others.
std::optional<std::size_t> rank_in_folders(const std::string& path) {
  if (is_parquet_name(path)) return 0;
  const std::string name = without_compression(path);
  for (std::size_t rank = 0; rank < kFolderTypes.size(); ++rank) {
    const auto ends = [&](const char* ending) { return ending && name.ends_with(ending); };
    if (std::ranges::any_of(kFolderTypes[rank], ends)) return rank;
  }
  return std::nullopt;
}

// Files that describe a data set, a repository, a model or prepared data, and have the types of data.
bool is_about_data(const std::string& path) {
  const fs::path file(lower_case(fs::path(path).filename().string()));
  const std::string name = file.string(), ending = file.extension().string();
  constexpr std::array kNames = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json",
                                 "state.json",        "requirements.txt",   "prepared.json",
                                 "config.json",       "tokenizer.json",     "tokenizer_config.json"};
  if (std::ranges::find(kNames, name) != kNames.end()) return true;
  constexpr std::array kTexts = {"", ".txt", ".md", ".rst", ".html"};
  if (std::ranges::find(kTexts, ending) == kTexts.end()) return false;
  const std::string word = name.substr(0, name.find_first_of(".-_ "));
  constexpr std::array kWords = {"readme", "license", "licence", "notice", "citation", "copying", "changelog"};
  return std::ranges::find(kWords, word) != kWords.end();
}

struct FolderFiles {
  std::vector<std::string> read, other;  // other: not read from folders, but a reader or a converter exists
};

// The files below `folder`, sorted. A link to nothing counts as a file that is read if it has the name of one, or could
// be a folder, so that it is reported.
FolderFiles files_under(const std::string& folder) {
  FolderFiles files;
  std::array<std::vector<std::string>, kFolderTypes.size()> ranked;
  for (const std::string& inside : folders_under(folder)) {
    for (const std::string& name : visible_names(inside)) {
      const std::string path = (fs::path(inside) / name).string();
      std::error_code gone;
      const bool broken = fs::is_symlink(path, gone) && !io::exists(path);
      if ((!broken && !io::is_file(path)) || is_about_data(path)) continue;
      if (const auto rank = rank_in_folders(path)) {
        ranked[*rank].push_back(path);
      } else if (broken && fs::path(name).extension().empty()) {  // a folder that is gone
        ranked.front().push_back(path);
      } else if (!broken && (kind_by_name(path) || !unread_format(path).hint.empty())) {
        files.other.push_back(path);
      }
    }
  }
  for (std::vector<std::string>& paths : ranked) {
    std::vector<std::string>& to = files.read.empty() ? files.read : files.other;
    to.insert(to.end(), paths.begin(), paths.end());
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

// Whether a path is below a folder, whatever ".." it has.
bool is_below(const std::string& path, const std::string& folder) {
  const fs::path below = fs::path(path).lexically_normal().lexically_relative(fs::path(folder).lexically_normal());
  return !below.empty() && *below.begin() != "..";
}

// The files that a config of the folder's README.md declares.
std::vector<SplitFile> files_of_config(const std::string& folder, const HubConfig& config) {
  std::vector<SplitFile> files;
  std::set<std::string> seen;
  for (const HubConfig::Part& part : config.parts) {
    const std::optional<Split> split = split_of(part.split);
    const std::string set = split && part.split == name_of(*split) ? "" : part.split;
    for (const std::string& pattern : part.patterns) {
      for (const std::string& match : expand(escaped_for_glob(folder) + "/" + pattern)) {
        if (!is_below(match, folder)) continue;
        const auto inside = io::is_folder(match) ? files_under(match).read : std::vector<std::string>{match};
        for (const std::string& path : inside) {
          const std::string plain = fs::path(path).lexically_normal().string();
          if (seen.insert(plain).second) files.push_back({plain, split, set, pattern});
        }
      }
    }
  }
  return files;
}

// A folder's files: those that are read for a split, and those of other types.
struct FolderChoice {
  ChosenSplit chosen;
  std::vector<std::string> other;
};

FolderChoice choose_of_folder(const std::string& folder, Split split) {
  const std::vector<HubConfig> configs = hub_configs(folder);
  const auto by_names = [&](const std::string& data) {
    FolderFiles inside = files_under(data);
    return FolderChoice{choose_split(data, inside.read, split), std::move(inside.other)};
  };
  if (configs.empty()) return by_names(folder);
  FolderChoice out;
  const auto path_of = [&](const HubConfig& config) {
    const bool named = !config.parts.empty() && !config.parts.front().patterns.empty();
    return (fs::path(folder) / (named ? config.parts.front().patterns.front() : config.data_dir)).string();
  };
  const HubConfig* config = config_to_read(configs);
  if (!config) {
    for (const HubConfig& one : configs) out.chosen.several.push_back(one.name);
    out.chosen.one = path_of(configs.back());
    return out;
  }
  if (config->parts.empty()) {
    out = by_names((fs::path(folder) / config->data_dir).string());
  } else {
    out.chosen = choose_split(folder, files_of_config(folder, *config), split);
  }
  if (out.chosen.read.empty() && out.chosen.left_out.empty()) {
    out.chosen.problem = Problem{.file = (fs::path(folder) / "README.md").string(),
                                 .what = "configs of a data set without their files",
                                 .expected = fs::path(path_of(*config)).lexically_relative(folder).string(),
                                 .hint = "a complete download, or the names of the files that are the data"};
  }
  for (const HubConfig& one : configs) {
    if (&one == config) continue;
    for (const SplitFile& file : files_of_config(folder, one)) {
      if (std::ranges::find(out.chosen.read, file.path) != out.chosen.read.end()) continue;
      out.chosen.left_out[cat("config ", one.name)].push_back(file.path);
    }
  }
  return out;
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

// Whether a file is what `git clone` leaves in place of a large file without Git LFS. Archives have pointers of plain text,
// too.
bool is_lfs_pointer(const std::string& path) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  std::array<char, kBegin.size()> bytes{};
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  return static_cast<std::size_t>(file.gcount()) == bytes.size() &&
         std::string_view(bytes.data(), bytes.size()) == kBegin;
}

// Adds a problem if the start of a file is not text, and if a Parquet file is none.
bool begins_badly(const std::string& path, const std::string& at, Problems& problems) {
  std::array<char, 512> bytes{};
  std::string_view start;
  try {
    if (is_lfs_pointer(path)) {
      const std::string folder = fs::path(path).parent_path().string();
      problems.add({.file = path,
                    .what = "pointer of Git LFS",
                    .expected = "the file itself",
                    .at = at,
                    .hint = cat("git -C ", folder.empty() ? "." : folder, " lfs pull")});
      return true;
    }
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
    return Problem{
        .file = path,
        .what = "no such file",
        .hint = cat("if it is a data set of the Hub, hawser pull ", name, " --dataset, and the folder that it prints")};
  }
  const std::string scheme = path.substr(0, scheme_end), rest = path.substr(scheme_end + 3);
  std::string command = "a copy on this machine";
  if (scheme == "s3") command = "aws s3 cp --recursive " + path + " FOLDER, and that folder";
  if (scheme == "gs") command = "gcloud storage cp -r " + path + " FOLDER, and that folder";
  if (scheme == "http" || scheme == "https") command = "curl -LO " + path + ", and the file";
  if (scheme == "hf") {
    const std::string name = rest.starts_with("datasets/") ? rest.substr(std::strlen("datasets/")) : rest;
    command = "hawser pull " + name + " --dataset, and the folder that it prints";
  }
  return Problem{.file = path, .what = "not a local file: data are read from disks", .hint = command};
}

}  // namespace

namespace {

// What to do with a file of a folder that has no files of a type that is read.
std::string unread_in_folder(const std::string& folder, const std::string& path) {
  const bool plain = folder.find_first_of("'\"\\$`{}") == std::string::npos;
  const std::string in = plain ? folder : "FOLDER";
  const std::string load = cat("python3 -c 'import datasets; ");
  const auto has = [&](const char* name) { return io::is_file((fs::path(folder) / name).string()); };
  // Folders of save_to_disk, whose shards and splits are not single files.
  if (has("dataset_dict.json")) {
    return cat(load, "[part.to_json(f\"", in, "/{name}.jsonl\") for name, part in datasets.load_from_disk(\"", in,
               "\").items()]'");
  }
  if (has("state.json")) return cat(load, "datasets.load_from_disk(\"", in, "\").to_json(\"", in, "/data.jsonl\")'");
  return unread_format(path).hint;
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
    std::string other, other_folder;  // a file that is not read, and the folder
    for (const std::string& path : matches_of(patterns[i], folder)) {
      if (io::is_folder(path)) {
        is_folder = true;
        const auto [chosen, others] = choose_of_folder(path, split);
        if (std::optional<Problem> problem = split_problem(path, chosen, split)) {
          problem->at = at;
          problems.add(*problem);
          rejected = true;
          continue;
        }
        paths.insert(paths.end(), chosen.read.begin(), chosen.read.end());
        if (other.empty() && !others.empty()) other = others.front(), other_folder = path;
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
      problems.add(
          {.file = patterns[i],
           .what = is_folder ? "folder without .jsonl, .parquet, .txt, .csv, .tsv or .json files" : "no such file",
           .got = fs::path(other).filename().string(),
           .at = at,
           .hint = other.empty() ? "" : unread_in_folder(other_folder, other)});
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
      } else if (FolderChoice inside = choose_of_folder(path, Split::train); !inside.chosen.read.empty()) {
        other[path] = std::move(inside.other);
      }
    }
  }
  std::vector<std::string> notes;
  for (auto& [inside, files] : other) {
    std::erase_if(files, [&](const std::string& path) { return read.contains(path); });
    if (files.empty()) continue;
    const std::string first = fs::path(files.front()).filename().string();
    notes.push_back(cat(inside, ": ", plural(static_cast<std::int64_t>(files.size()), "file"), " of other types ",
                        files.size() == 1 ? "is" : "are", " not read (", first, files.size() > 1 ? ", ..." : "",
                        "); of a folder, ", kFolderTypesText, "; name others in data.train"));
  }
  return notes;
}

std::vector<std::string> left_out_of_folders(const std::vector<std::string>& patterns, const std::string& folder,
                                             bool key) {
  std::set<std::string> notes;
  for (const std::string& pattern : patterns) {
    for (const std::string& path : matches_of(pattern, folder)) {
      if (!io::is_folder(path)) continue;
      const ChosenSplit chosen = choose_of_folder(path, Split::train).chosen;
      if (chosen.read.empty() || chosen.left_out.empty()) continue;
      const bool with_key = key && chosen.left_out.contains(name_of(Split::validation));
      notes.insert(cat(path, ": data.train takes the train split and leaves out ", left_out_text(chosen),
                       with_key ? cat("; data.validation: [", path, "] evaluates on the validation split") : ""));
    }
  }
  return {notes.begin(), notes.end()};
}

}  // namespace hawser::prepare
