// `SaveSession`: saves a native checkpoint from many ranks. The last complete checkpoint stays loadable at every
// moment.
//
// This module does not communicate: the caller sends rank 0's ticket and the parts.
//
//   SaveOptions options{.root = output + "/checkpoints", .step = 120, .world = world};
//   SaveSession session = rank == 0 ? SaveSession::begin(options)                    // then broadcast ticket()
//                                   : SaveSession::join(options, ticket, rank);
//   std::string part;
//   try { part = session.write(states); }
//   catch (const UserError& error) { part = SaveSession::failed_part(rank, error.what()); }
//   // gather the parts on rank 0
//   if (rank == 0) session.commit(parts, metadata), keep_last(root, 3);
//
// Rank 0 creates a staging area (storage.h). Each rank puts its file in it. Rank 0 commits it with the manifest; only
// this makes it a checkpoint. A session that ends without commit removes what it wrote; the next begin() removes what a
// killed one left.
//
// Views are on the cpu device: a caller with another device copies to host memory first. write() may run on a thread of
// its own. A session is used by one thread at a time, and a process has one session per root at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/root.h"
#include "checkpoint/storage.h"
#include "tensor/named_state.h"

namespace hawser::checkpoint {

struct SaveOptions {
  std::string root;  // folder of the run's checkpoints, seen by all ranks; created if missing
  std::int64_t step = 0;
  int world = 1;
  std::int64_t expected_bytes = 0;  // sum over all ranks; begin() rejects it if it does not fit. 0: not checked
  // Larger boxes are split, so that another mesh reads and verifies little more than it needs.
  std::int64_t max_box_bytes = std::int64_t{64} << 20;
};

struct Attachment {
  std::string name;
  std::string text;
};

class SaveSession {
 public:
  // Rank 0. Removes what crashed saves left in the root (but nothing that a live process writes, here or on another
  // machine with working locks), checks the space and creates the staging area. UserError on failure.
  static SaveSession begin(const SaveOptions& options);
  // The other ranks, with rank 0's ticket, after begin() returned there.
  static SaveSession join(const SaveOptions& options, const std::string& ticket, int rank);

  const std::string& ticket() const { return staging_->ticket(); }

  // Writes the boxes and their checksums to this rank's file and syncs it. Of replicated data, pass only the boxes that
  // this rank is responsible for: over all ranks every element of a tensor is written once. Returns this rank's part.
  // Once per session. On failure throws UserError and removes this rank's file.
  std::string write(const std::vector<NamedState>& states);

  // A part that reports that this rank could not write.
  static std::string failed_part(int rank, const std::string& message);

  // Rank 0. `parts`: of all ranks, in rank order. `metadata`: the text of a JSON object. `attached`: small files with
  // plain names (not rank-….bin or manifest.json). Returns the checkpoint's folder, which replaces one of the same
  // step. UserError with the lines of all failed parts, or if the last writes fail; then nothing is left and older
  // checkpoints are unchanged.
  std::string commit(const std::vector<std::string>& parts, const std::string& metadata,
                     const std::vector<Attachment>& attached = {});

 private:
  SaveSession(SaveOptions options, std::unique_ptr<Staging> staging, int rank)
      : options_(std::move(options)), staging_(std::move(staging)), rank_(rank) {}

  SaveOptions options_;
  std::unique_ptr<Staging> staging_;
  int rank_ = 0;
  bool written_ = false;
};

}  // namespace hawser::checkpoint
