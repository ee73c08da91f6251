#include "prepare/draft_checksums.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "io/files.h"

namespace hawser::prepare {

struct DraftChecksums::Sum {
  Sum() { XXH3_64bits_reset(state); }
  ~Sum() { XXH3_freeState(state); }
  Sum(const Sum&) = delete;
  Sum& operator=(const Sum&) = delete;

  XXH3_state_t* state = XXH3_createState();
  std::int64_t bytes = 0;
};

DraftChecksums::DraftChecksums() = default;
DraftChecksums::~DraftChecksums() = default;

std::uint64_t DraftChecksums::up_to(const std::string& path, std::int64_t bytes,
                                    const std::function<void()>& between_blocks) {
  constexpr std::int64_t kBlock = std::int64_t{4} << 20;
  std::unique_ptr<Sum>& sum = sums_[path];
  if (!sum || sum->bytes > bytes) sum = std::make_unique<Sum>();
  const io::File file = io::File::open(path);
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(kBlock, bytes - sum->bytes)));
  while (sum->bytes < bytes) {
    const std::int64_t count = std::min(kBlock, bytes - sum->bytes);
    file.read_at(sum->bytes, block.data(), count);
    XXH3_64bits_update(sum->state, block.data(), static_cast<std::size_t>(count));
    sum->bytes += count;
    if (between_blocks) between_blocks();
  }
  return XXH3_64bits_digest(sum->state);
}

}  // namespace hawser::prepare
