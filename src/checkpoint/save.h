// Saving a native checkpoint from many ranks, so that at every moment the last whole one can be loaded.
//
// This room knows no communication: rank 0's ticket and the parts travel by whatever the caller has.
//
//   SaveOptions options{.root = output + "/checkpoints", .step = 120, .world = world};
//   SaveSession session = rank == 0 ? SaveSession::begin(options)                              // then broadcast
//   ticket()
//                                   : SaveSession::join(options, ticket, rank);
//   std::string part;
//   try { part = session.write(states); }
//   catch (const UserError& error) { part = SaveSession::failed_part(rank, error.what()); }    // gather to rank 0
//   if (rank == 0) session.commit(parts, meta), keep_last(root, 3);
//
// Rank 0 makes a folder `.step-00000120.tmp-NONCE`; each rank writes and syncs its file in it; rank 0 writes and syncs
// the manifest, then renames the folder to `step-00000120`. Only that last rename makes it a checkpoint. A session that
// ends without commit removes what it wrote; what a killed one left is removed by the next begin().
//
// Views lie on the cpu device: a caller with another device copies into host memory first. write() may run on a thread
// of its own; a session is used by one thread at a time, and a process has one session a root at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/root.h"
#include "checkpoint/storage/posix.h"
#include "tensor/named_state.h"

namespace hawser::checkpoint {

struct SaveOptions {
  std::string root;  // the folder that holds the run's checkpoints; created when missing; seen by all ranks
  std::int64_t step = 0;
  int world = 1;
  std::int64_t expected_bytes = 0;  // of all ranks together; begin() rejects when they do not fit. 0: not checked there
  // Larger boxes are saved in pieces, so that another mesh reads and verifies little more than it wants.
  std::int64_t max_box_bytes = std::int64_t{64} << 20;
};

struct Attachment {
  std::string name;
  std::string text;
};

class SaveSession {
 public:
  // Rank 0. Removes what crashed saves left in the root (never what a live process, here or on another machine with
  // working locks, is writing), checks the space and makes the temporary folder. UserError when that fails.
  static SaveSession begin(const SaveOptions& options);
  // The other ranks, after begin() returned on rank 0, with its ticket.
  static SaveSession join(const SaveOptions& options, const std::string& ticket, int rank);

  ~SaveSession();
  SaveSession(SaveSession&& other) noexcept;
  SaveSession& operator=(SaveSession&&) = delete;

  const std::string& ticket() const { return ticket_; }

  // Writes the given boxes to this rank's file, with their checksums, and syncs it. Replicated data: only the boxes
  // that this rank is responsible for; over all ranks every element of a tensor is written once. Returns this rank's
  // part. Once a session. UserError when it cannot be written; this rank's file is removed then.
  std::string write(const std::vector<NamedState>& states);

  // A part that says that this rank could not write.
  static std::string failed_part(int rank, const std::string& message);

  // Rank 0, with the parts of all ranks in rank order, `meta`, the text of a JSON object, and small files to carry
  // along under plain names of their own (no rank-….bin, no manifest.json). Returns the checkpoint's folder; it
  // replaces one of the same step. UserError with the lines of all failed parts, or when the last writes fail; nothing
  // is left behind then and older checkpoints are as they were.
  std::string commit(const std::vector<std::string>& parts, const std::string& meta,
                     const std::vector<Attachment>& attached = {});

 private:
  SaveSession(SaveOptions options, std::string ticket, int rank);
  void abandon() noexcept;

  SaveOptions options_;
  std::string ticket_;  // the temporary folder's name
  std::string folder_;
  int rank_ = 0;
  bool open_ = true;  // neither committed nor abandoned
  bool written_ = false;
  File file_;  // rank 0 holds its lock as long as the session lives: that is what tells a live session from a leftover
};

}  // namespace hawser::checkpoint
