// `Source`, `find_sources`: the files that a recipe's data patterns match.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "prepare/hub_splits.h"

namespace hawser::prepare {

enum class SourceKind { jsonl, text, tokens };  // jsonl: every format of open_lines.h

struct Source {
  std::string path;  // absolute; for a token file, its prefix
  SourceKind kind = SourceKind::jsonl;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // modification time in nanoseconds, in the file system clock's epoch
  std::int64_t set = 0;       // of find_sources: index of the pattern; of a prepare: that of its data set

  bool operator==(const Source&) const = default;
};

// A pattern is a path, a glob ("books/*.jsonl", "{a,b}.txt", "books/**/*.txt", "~/x"), a folder (all .jsonl, .ndjson,
// .parquet and .txt files in it, recursively, or if there are none, .csv and .tsv, or else .json, that choose_split of
// hub_splits.h chooses for `split`; names that begin with a dot, and those of licenses and the like, are skipped; the
// configs of a README.md take precedence, hub_configs.h), or a token file: its prefix or one of its files. Other files
// than token files and Parquet may be compressed (.gz, .zst). Relative patterns start at `folder`. Files are in the
// order of the patterns, sorted by name within a pattern, without duplicates. Adds a problem at `key` for a pattern
// without files, and for a file of another kind, unreadable or empty.
std::vector<Source> find_sources(const std::vector<std::string>& patterns, const std::string& folder,
                                 const std::string& key, Problems& problems, Split split = Split::train);

// A line for each folder that a pattern matches and that has, next to files that are read, files of other types that
// could be: named in a pattern, or converted. Such files may be data that a user believes to be trained on.
std::vector<std::string> unread_in_folders(const std::vector<std::string>& patterns, const std::string& folder);

// A line for each folder of data.train that has files of other splits than training data. `key`: for a validation
// split, the line has the key that evaluates on it.
std::vector<std::string> left_out_of_folders(const std::vector<std::string>& patterns, const std::string& folder,
                                             bool key);

// Kind of a file by its name: .jsonl, .ndjson, .json, .csv, .tsv or .txt, optionally followed by .gz or .zst, or
// .parquet; nullopt for others.
std::optional<SourceKind> kind_by_name(const std::string& path);

// Whether a pattern is the prefix of a token file (PATTERN.bin and PATTERN.idx exist), of `prepare` or of Megatron.
bool is_token_prefix(const std::string& pattern, const std::string& folder);

// The absolute prefix "data/train" for "data/train", "data/train.bin", "data/train.idx" or "data/train.labels.bin",
// relative to `folder`, if that token file exists; nullopt otherwise.
std::optional<std::string> token_prefix(const std::string& path, const std::string& folder);

// The path without links; the path itself if it does not exist. Sources are equal if this is.
std::string without_links(const std::string& path);

}  // namespace hawser::prepare
