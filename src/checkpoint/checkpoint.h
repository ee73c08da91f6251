// `Checkpoint`: loads a native checkpoint. Any mesh loads what any mesh saved.
//
//   Problems skipped;
//   if (auto checkpoint = Checkpoint::latest(root, skipped)) checkpoint->read(states);
//
// Files are read with pread through a buffer of kStagingBytes. Mapped pages would count as memory of this process,
// which is planned to the byte, and a failing disk would raise a signal instead of an error. An open checkpoint is held
// (root.h): a run that continues to save does not remove it.
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

// The files of a checkpoint are not what was saved. The request is valid, so another checkpoint may work.
class CorruptCheckpoint : public UserError {
 public:
  using UserError::UserError;
};

class Checkpoint {
 public:
  static constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;

  // The newest complete checkpoint of the root, or nullopt; `skipped` gets a line for each newer one that is
  // incomplete.
  // read() verifies the checksums of data.
  static std::optional<Checkpoint> latest(const std::string& root, Problems& skipped);
  // Throws a UserError with all problems of its manifest and file sizes.
  static Checkpoint open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::int64_t step() const { return manifest_.step; }
  int world() const { return manifest_.world; }
  const std::string& metadata() const { return manifest_.metadata; }  // text of a JSON object
  const std::vector<SavedTensor>& tensors() const { return manifest_.tensors; }
  const SavedTensor* find(const std::string& name) const;  // null when absent

  // Fills the wanted boxes (views on the cpu device, dense) from the saved ones; float32 and bfloat16 convert into each
  // other. Before reading, throws a UserError with all missing tensors, wrong shapes or dtypes, and elements that were
  // not saved. Then reads every saved box that overlaps completely and verifies its checksum, once per object, and the
  // padding before it. A mismatch, or a file that cannot be read, is CorruptCheckpoint and leaves the views undefined.
  void read(const std::vector<NamedState>& wanted);

  // Names of the attached files, and the bytes of one; CorruptCheckpoint if they are not what was saved.
  std::vector<std::string> attached() const;
  std::string read_attached(const std::string& name) const;

  // Reads and verifies every box and attached file; adds a problem for each corrupt one. Calls `progress` with the
  // bytes read so far.
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;
  void verify(Problems& problems, const Progress& progress = {});
  // Verifies the attached files only, which read() does not.
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

  File held_;  // from hold(): remains readable if the folder is removed or replaced
  std::string folder_;
  Manifest manifest_;
  std::unordered_map<std::string, int> places_;     // name to index in manifest_.tensors
  std::vector<std::vector<bool>> verified_;         // [tensor][box]
  std::vector<std::vector<std::int64_t>> padding_;  // [tensor][box]: begin of the padding before the box
  std::map<int, File> files_;
  std::vector<std::byte> staging_;
};

}  // namespace hawser::checkpoint
