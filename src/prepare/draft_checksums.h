// `DraftChecksums`: checksums of files that grow. state.json records those of the unfinished token files, so that
// damage is found before a prepare resumes. Internal to prepare.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace hawser::prepare {

class DraftChecksums {
 public:
  DraftChecksums();
  ~DraftChecksums();
  DraftChecksums(const DraftChecksums&) = delete;
  DraftChecksums& operator=(const DraftChecksums&) = delete;

  // XXH3-64 of a file's first `bytes` bytes, which the file must have. Those of an earlier call for the same path must
  // not have changed, and are not read again. `between_blocks` is called from time to time.
  std::uint64_t up_to(const std::string& path, std::int64_t bytes, const std::function<void()>& between_blocks = {});

 private:
  struct Sum;
  std::map<std::string, std::unique_ptr<Sum>> sums_;
};

}  // namespace hawser::prepare
