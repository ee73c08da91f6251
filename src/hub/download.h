// `download`: one file of the Hub into its blob of the cache. It continues what an earlier download left, verifies the
// checksum, and gives the file its name last: a blob is complete.
//
//   blobs/ETAG.incomplete grows, is verified, and becomes blobs/ETAG
//
// A transfer that breaks or stalls is continued with a Range request, after 0.5, 1, 2, 4, ... seconds; the count of
// attempts starts again when data have arrived. A file with the wrong checksum is removed and transferred once more.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "hub/api.h"
#include "hub/cache.h"

namespace hawser::hub {

// Counted by all downloads of a pull; read while they run.
struct Transferred {
  std::atomic<std::int64_t> bytes = 0;     // received
  std::atomic<std::int64_t> complete = 0;  // of the files' bytes, those on the disk
};

// Returns false if another process has completed the blob in the meantime. Throws UserError, or net::NoAnswer or
// Interrupted if it was cancelled.
bool download(Api& api, RepoCache& cache, const std::string& commit, const RemoteFile& file, Transferred& transferred,
              const std::atomic<bool>& cancelled);

}  // namespace hawser::hub
