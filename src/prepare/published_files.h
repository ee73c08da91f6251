// The token files of a prepare as it wrote them: prepared.json records them, so that damage is found. Internal to
// prepare.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hawser::prepare {

// The endings of the files of a token file.
inline constexpr const char* kTokenFileEndings[] = {".bin", ".idx", ".labels.bin"};

struct PublishedFile {
  std::string name;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;   // nanoseconds since the file clock's epoch
  std::uint64_t checksum = 0;  // XXH3-64 of the contents

  bool operator==(const PublishedFile&) const = default;
};

// Reads the token files with these names, such as "train", in the folder once.
std::vector<PublishedFile> published_files(const std::string& folder, const std::vector<std::string>& names);

// The files as they are now, if their contents are still those of `before`. A file whose size and time are as recorded
// is not read; one with another time, such as a copy, is. nullopt if a file is missing or has other contents.
std::optional<std::vector<PublishedFile>> still_published(const std::string& folder,
                                                          const std::vector<PublishedFile>& before);

}  // namespace hawser::prepare
