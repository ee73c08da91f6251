// `RepoCache`: a model or data set in the Hub's local cache, in the layout of huggingface_hub, which reads what this
// writes and writes what this reads:
//
//   CACHE/models--ORG--NAME/blobs/ETAG               content of a file; its ETag is its checksum (checksum.h)
//   CACHE/models--ORG--NAME/blobs/ETAG.incomplete    what has arrived of it
//   CACHE/models--ORG--NAME/snapshots/COMMIT/FILE    link to ../../blobs/ETAG
//   CACHE/models--ORG--NAME/refs/REVISION            commit of a branch or tag
//   CACHE/.locks/models--ORG--NAME/ETAG.lock         locked (flock) by who writes the blob
//
// The folder of a data set is datasets--ORG--NAME. Source: https://huggingface.co/docs/hub/local-cache
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/hub_name.h"
#include "io/files.h"

namespace hawser::hub {

enum class RepoKind { model, dataset };

struct Repo {
  RepoKind kind = RepoKind::model;
  HubName name;

  std::string revision() const { return name.revision.empty() ? "main" : name.revision; }
  // "models--ORG--NAME".
  std::string folder() const;
  // "" or "datasets/": what precedes the name in URLs of files and pages.
  std::string prefix() const { return kind == RepoKind::model ? "" : "datasets/"; }
  std::string kind_name() const { return kind == RepoKind::model ? "model" : "data set"; }
};

// Forty hexadecimal digits.
bool is_commit(const std::string& text);

class RepoCache {
 public:
  RepoCache(const std::string& cache, const Repo& repo);

  const std::string& folder() const { return folder_; }
  std::string blob(const std::string& etag) const { return folder_ + "/blobs/" + etag; }
  std::string incomplete(const std::string& etag) const { return blob(etag) + ".incomplete"; }
  std::string snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }

  // The commit of a branch or tag; the revision itself if the cache has no such reference.
  std::string commit_of(const std::string& revision) const;

  // Creates the folders.
  void make();
  // Makes the snapshot's file a link to the blob; a file that is there is replaced.
  void link(const std::string& commit, const std::string& file, const std::string& etag);
  // Stores the commit of a branch or tag; nothing for a revision that is a commit.
  void set_reference(const std::string& revision, const std::string& commit);

  // The lock of a blob, or another of the repo. While another process has it, calls `waiting` ten times a second, which
  // may throw. A file system without locks gives none: what two processes write then is the same.
  io::File lock(const std::string& name, const std::function<void()>& waiting);

 private:
  std::string folder_, locks_;
};

// Whether a snapshot has what a command needs of a model: its configuration, or its weights as well (an adapter's are
// those of the adapter).
enum class Parts { configuration, all };
bool has_parts(const std::string& snapshot, Parts parts);

// The files that an index of weights names, in the order of their names; UserError if the index cannot be read.
std::vector<std::string> files_of_index(const std::string& path);

}  // namespace hawser::hub
