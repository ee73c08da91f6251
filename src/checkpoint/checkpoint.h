// Loading a native checkpoint: any mesh loads what any mesh saved.
//
//   Problems skipped;
//   if (auto checkpoint = Checkpoint::latest(root, skipped)) checkpoint->read(states);
//
// Files are read with pread through a buffer of kStagingBytes: mapped pages would count as this process's memory,
// which is planned to the byte, and a failing disk would be a signal instead of an error. An open checkpoint is held
// (root.h): a run that goes on saving beside its reader does not take it away.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/storage/posix.h"
#include "tensor/named_state.h"

namespace hawser::checkpoint {

// A checkpoint whose files are not what was saved: another one may do, since nothing is wrong with the request.
class CorruptCheckpoint : public UserError {
 public:
  using UserError::UserError;
};

class Checkpoint {
 public:
  static constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;

  // The newest whole checkpoint of the root; `skipped` gets a line for each newer one that is not whole. None when
  // there is none. Checksums of data are verified by read().
  static std::optional<Checkpoint> latest(const std::string& root, Problems& skipped);
  // Throws a UserError of all that is wrong with its manifest and file sizes.
  static Checkpoint open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::int64_t step() const { return manifest_.step; }
  int world() const { return manifest_.world; }
  const std::string& meta() const { return manifest_.meta; }  // text of a JSON object
  const std::vector<SavedTensor>& tensors() const { return manifest_.tensors; }
  const SavedTensor* find(const std::string& name) const;  // null when absent

  // Fills the wanted boxes (views on the cpu device, dense) from the saved ones; float32 and bfloat16 convert into each
  // other. First, before a byte is read, a UserError of all that cannot be: missing tensors, other shapes or types,
  // elements that were not saved. Then every saved box that is touched is read whole and its checksum verified, once in
  // this object's life, with the padding before it; a mismatch, or a file that cannot be read, is Damaged and leaves
  // the views with undefined values.
  void read(const std::vector<NamedState>& wanted);

  // Names of the files that it carries along, and the bytes of one of them; Damaged when those are not what was saved.
  std::vector<std::string> attached() const;
  std::string read_attached(const std::string& name) const;

  // Reads and verifies every box and what is attached; adds a problem for each that is damaged. `progress` hears the
  // bytes read so far.
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;
  void verify(Problems& problems, const Progress& progress = {});
  // The part of it that read() leaves out: what is attached.
  void verify_attached(Problems& problems) const;
  std::int64_t data_bytes() const;  // of all boxes
  const std::vector<SavedFile>& files() const { return manifest_.files; }

 private:
  struct Target {
    Region common;  // of the saved box and a wanted one
    BoxMemory memory;
  };

  Checkpoint(File folder, Manifest manifest);
  std::optional<Problem> read_box(const SavedTensor& tensor, int box, const std::vector<Target>& targets, CastRun cast);
  const File& file(int index);

  std::optional<Problem> check_padding(const File& data, std::int64_t begin, std::int64_t end);

  File held_;  // as hold() gives it: what is read stays, whoever removes or replaces the folder
  std::string folder_;
  Manifest manifest_;
  std::unordered_map<std::string, int> places_;     // name to place in manifest_.tensors
  std::vector<std::vector<bool>> verified_;         // a tensor, a box
  std::vector<std::vector<std::int64_t>> padding_;  // the same: where the padding before the box begins
  std::map<int, File> files_;
  std::vector<std::byte> staging_;
};

}  // namespace hawser::checkpoint
