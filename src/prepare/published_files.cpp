#include "prepare/published_files.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "io/files.h"

namespace hawser::prepare {
namespace {

namespace fs = std::filesystem;

std::int64_t modified(const std::string& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error).time_since_epoch();
  if (error) throw io::IoError(io::io_problem(path, "cannot read", error.value()));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

std::uint64_t checksum_of(const io::File& file) {
  constexpr std::int64_t kBlock = std::int64_t{4} << 20;
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  const std::unique_ptr<XXH3_state_t, Free> state(XXH3_createState());
  XXH3_64bits_reset(state.get());
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(kBlock, file.bytes())));
  for (std::int64_t at = 0; at < file.bytes(); at += kBlock) {
    const std::int64_t count = std::min(kBlock, file.bytes() - at);
    file.read_at(at, block.data(), count);
    XXH3_64bits_update(state.get(), block.data(), static_cast<std::size_t>(count));
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

std::vector<PublishedFile> published_files(const std::string& folder, const std::vector<std::string>& names) {
  std::vector<PublishedFile> out;
  for (const std::string& name : names) {
    for (const char* ending : kTokenFileEndings) {
      const std::string path = (fs::path(folder) / (name + ending)).string();
      if (!io::is_file(path)) continue;
      const io::File file = io::File::open(path);
      out.push_back(
          {.name = name + ending, .bytes = file.bytes(), .modified = modified(path), .checksum = checksum_of(file)});
    }
  }
  return out;
}

std::optional<std::vector<PublishedFile>> still_published(const std::string& folder,
                                                          const std::vector<PublishedFile>& before) {
  std::vector<PublishedFile> out;
  for (const PublishedFile& file : before) {
    const std::string path = (fs::path(folder) / file.name).string();
    if (!io::is_file(path)) return std::nullopt;
    const io::File now = io::File::open(path);
    if (now.bytes() != file.bytes) return std::nullopt;
    const std::int64_t time = modified(path);
    if (time != file.modified && checksum_of(now) != file.checksum) return std::nullopt;
    out.push_back({.name = file.name, .bytes = file.bytes, .modified = time, .checksum = file.checksum});
  }
  return out;
}

}  // namespace hawser::prepare
