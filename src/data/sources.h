// The files that a recipe's data patterns mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

namespace hawser::data {

enum class SourceKind { jsonl, text, tokens };

struct Source {
  std::string path;  // absolute; of a token file its prefix
  SourceKind kind = SourceKind::jsonl;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds since some epoch of the file system's

  bool operator==(const Source&) const = default;
};

// A path, a glob ("books/*.jsonl", "{a,b}.txt", "~/x"), a folder (all .jsonl and .txt files under it), or a token file:
// its prefix or one of its files. .jsonl and .txt files may be compressed (.gz, .zst). Relative ones start at
// `folder`. Files come in the order of the patterns, sorted by name within one, each once. Adds a problem at `key` for
// a pattern without files, a file of another kind, one that cannot be read and one that is empty.
std::vector<Source> find_sources(const std::vector<std::string>& patterns, const std::string& folder,
                                 const std::string& key, Problems& problems);

// What a file of this name holds: .jsonl or .txt, perhaps with .gz or .zst behind; none for others.
std::optional<SourceKind> kind_by_name(const std::string& path);

// Whether a pattern names token files (PATTERN.bin and PATTERN.idx exist), made by `prepare` or by Megatron.
bool is_token_prefix(const std::string& pattern, const std::string& folder);

// "data/train" of "data/train", "data/train.bin", "data/train.idx" or "data/train.labels.bin", as seen from `folder`,
// where there is such a token file; none otherwise.
std::optional<std::string> token_prefix(const std::string& path, const std::string& folder);

// `path` as seen from `folder`, absolute and without ".."; ~ is the home folder.
std::string resolve_path(const std::string& path, const std::string& folder);

}  // namespace hawser::data
