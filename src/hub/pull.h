// `pull`: the files of a model or data set that Hawser reads, from the Hub into its local cache.
//
//   const Pulled pulled = pull({.settings = read_settings(), .repo = {.name = *parse_hub_name("org/model")}});
//   pulled.folder    // CACHE/models--org--model/snapshots/COMMIT
//
// The list of files is one request; files that the cache has are not transferred again, so that a pull of a complete
// model ends after it. Eight files are transferred at a time. Several processes may pull the same repo: each file is
// transferred by one of them. A pull that ends early, for any reason, leaves what has arrived, and the next continues.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/hub_settings.h"

namespace hawser::hub {

struct PullProgress {
  std::int64_t files = 0, files_complete = 0;
  std::int64_t bytes = 0, bytes_complete = 0;  // of all files; those on the disk
  std::int64_t received = 0;                   // bytes of this pull
};

struct PulledFile {
  std::string name;
  std::int64_t bytes = 0;
  bool transferred = false;  // false: the cache had it
};

struct PullRequest {
  Settings settings;
  Repo repo;
  Parts parts = Parts::all;               // of a model
  std::vector<std::string> include = {};  // of a data set: patterns of files (data_files)
  // Called by the thread of pull(): several times a second while files are transferred, and for each complete file.
  std::function<void(const PullProgress&)> progress = {};
  std::function<void(const PulledFile&)> file_done = {};
};

struct Pulled {
  std::string folder, commit;
  std::vector<PulledFile> files;  // in the order of their names
  std::int64_t received = 0;      // bytes
};

// UserError with every reason why the repo cannot be pulled.
Pulled pull(const PullRequest& request);

}  // namespace hawser::hub
