// `Checkpoint`: reads a native checkpoint. Any mesh loads what any other mesh saved. Boxes and regions: see boxes.h.
//
//   Problems skipped;
//   if (auto checkpoint = Checkpoint::latest(root, skipped)) checkpoint->read(states);
//
// Objects are read by range through a buffer of kStagingBytes. Mapped pages would be memory of this process that the
// plan does not include, and a failing disk would raise SIGBUS instead of returning an error.
//
// A Checkpoint holds its StorageReader, so a training run that still saves under the same root does not remove it as an
// old checkpoint (posix_storage.h says where this protection ends).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/storage.h"
#include "tensor/named_state.h"

namespace hawser::checkpoint {

// The contents of a checkpoint's files differ from what was saved. It is thrown for damaged files only, not for
// a wrong call: the same call on another checkpoint, such as the one before, may succeed.
class CorruptCheckpoint : public UserError {
 public:
  using UserError::UserError;
};

class Checkpoint {
 public:
  static constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;

  // latest() and open() verify the manifest and the sizes of the files that it lists. They do not verify the data;
  // read() and verify() do.
  //
  // The newest complete checkpoint of the root folder, or nullopt. Adds lines to `skipped` for each newer one that is
  // incomplete. One that cannot be read is an io::IoError here and in all reads: it may be complete.
  static std::optional<Checkpoint> latest(const std::string& root, Problems& skipped);
  // The checkpoint in `folder`. Throws a UserError with all problems of its manifest and file sizes.
  static Checkpoint open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::int64_t step() const { return manifest_.step; }
  int world() const { return manifest_.world; }                       // number of ranks that saved it
  const std::string& metadata() const { return manifest_.metadata; }  // text of a JSON object: the manifest's "meta"
  const std::vector<SavedTensor>& tensors() const { return manifest_.tensors; }
  const SavedTensor* find(const std::string& name) const;  // null when absent
  const SavedTensor* find(const NamedState& state) const;  // of its name, or else of its former name
  // From now on the tensor PREFIX/NAME, where there is one, is found and read in place of NAME.
  void prefer(const std::string& prefix) { preferred_ = prefix; }
  bool has_preferred() const { return !preferred_.empty(); }

  // Fills the wanted boxes, whose views are dense and on the cpu device, from the saved boxes of find(); float32 and
  // bfloat16 convert into each other. Before it reads, it throws a UserError with all missing tensors, wrong shapes or
  // dtypes, and elements that were not saved.
  //
  // The first time in the life of this Checkpoint that a saved box overlaps a wanted one, the saved box is read in
  // full, its checksum is verified, and the padding before it in the file must be zero. Later reads of that box read
  // only the range that spans the wanted elements. Corrupt data, or a file that cannot be read, throws
  // CorruptCheckpoint; the contents of the views are then undefined.
  void read(const std::vector<NamedState>& wanted);

  // Attached files: small files, such as tokenizer.json, that a save stores in the checkpoint besides the tensors.
  // Their names, and the contents of one; CorruptCheckpoint if they differ from what was saved.
  std::vector<std::string> attached() const;
  std::string read_attached(const std::string& name) const;

  // Reads and verifies every box and attached file, except boxes that are verified already; adds a problem for each
  // corrupt one. Calls `progress` after each box, with the bytes of boxes done and of all boxes.
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;
  void verify(Problems& problems, const Progress& progress = {});
  // Verifies the attached files only, which read() does not.
  void verify_attached(Problems& problems) const;
  std::int64_t data_bytes() const;  // of all boxes
  const std::vector<ObjectSize>& files() const { return manifest_.files; }

 private:
  struct Target {
    Region common;     // the intersection of a saved and a wanted box
    BoxMemory memory;  // of the wanted box
  };

  Checkpoint(std::unique_ptr<StorageReader> reader, Manifest manifest);
  std::optional<Problem> read_box(const SavedTensor& tensor, int box, const std::vector<Target>& targets, CastRun cast);
  std::optional<Problem> check_padding(const std::string& file, std::int64_t begin, std::int64_t end);

  std::unique_ptr<StorageReader> reader_;
  std::string folder_;
  Manifest manifest_;
  std::string preferred_;                           // prefer()
  std::unordered_map<std::string, int> places_;     // name to index in manifest_.tensors
  std::vector<std::vector<bool>> verified_;         // [tensor][box]
  std::vector<std::vector<std::int64_t>> padding_;  // [tensor][box]: begin of the padding before the box
  std::vector<std::byte> staging_;
};

}  // namespace hawser::checkpoint
