// What a native checkpoint holds: manifest.json, the file that is written last.
//
//   step-00000120/
//     rank-00000.bin …   the boxes' elements, little-endian, row-major, each box at a multiple of 64 bytes
//     tokenizer.json …   attached: small files of the caller's that the checkpoint is to carry along
//     manifest.json      {"format": "hawser-checkpoint", "version": 1, "step": 120, "world": 4,
//                         "files": [["rank-00000.bin", BYTES], …],
//                         "tensors": [{"name": …, "shape": […], "dtype": "float32",
//                                      "boxes": [[FILE, BEGIN, BYTES, [offset…], [extent…], "XXH3"], …]}, …],
//                         "attached": [["tokenizer.json", BYTES, "XXH3"], …], (left out where there is none)
//                         "meta": {…},
//                         "checksum": "…"}
//
// FILE is a place in "files", BEGIN and BYTES are bytes in it, XXH3 is the 64-bit XXH3 of those bytes in hexadecimal.
// "checksum" is that of the whole document without this key, printed without white space and with sorted keys, and the
// file is its document as manifest_text prints it: so any changed byte is found, white space too. Bytes between boxes
// are zero. A folder is whole when its manifest is, its name is not another step's, and every file has its size; what
// is attached is checked when it is read, since a run can go on without it. "meta" belongs to the caller: data
// position, RNG key, schedule, recipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "checkpoint/boxes.h"
#include "checkpoint/storage/posix.h"

namespace hawser::checkpoint {

constexpr int kManifestVersion = 1;
constexpr const char* kManifestName = "manifest.json";
std::string rank_file(int rank);  // "rank-00012.bin"; every checkpoint has rank 0's, one that lost its manifest too
constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 31;

struct SavedFile {
  std::string name;
  std::int64_t bytes = 0;
};

struct SavedBox {
  int file = 0;
  std::int64_t begin = 0;
  std::int64_t bytes = 0;
  Region region;
  std::uint64_t checksum = 0;
};

struct SavedTensor {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  std::vector<SavedBox> boxes;
};

struct SavedAttachment {
  std::string name;
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;
};

struct Manifest {
  std::int64_t step = 0;
  int world = 1;
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;
  std::vector<SavedAttachment> attached;
  std::string meta = "{}";  // JSON text
};

// What one rank wrote, as it travels to rank 0: a file and tensors whose boxes all have file 0, or a failure.
struct Part {
  int rank = 0;
  std::int64_t step = 0;
  std::string failure;
  SavedFile file;
  std::vector<SavedTensor> tensors;
};

std::string part_text(const Part& part);
Part read_part(const std::string& text);  // InternalError when it is not a part

// Merges the parts of ranks 0 … world-1, given in that order. InternalError where they break a promise: a tensor that
// two ranks describe differently, boxes that overlap, elements that nobody wrote, meta that is not a JSON object.
Manifest merge_parts(std::vector<Part> parts, std::int64_t step, const std::string& meta);

std::string manifest_text(const Manifest& manifest);

// Reads FOLDER/manifest.json and checks it against itself and against the sizes of the files beside it. Adds every
// problem found and returns none when there is one.
std::optional<Manifest> read_manifest(const std::string& folder, Problems& problems);
std::optional<Manifest> read_manifest(const File& folder, Problems& problems);  // of a folder that was opened

// A pair of boxes of the tensor that share elements, as "[0:4] and [2:6]"; "" when there is none.
std::string find_overlap(const SavedTensor& tensor);

std::optional<DType> dtype_from(const std::string& name);  // "float32"
std::string checksum_text(std::uint64_t checksum);         // 16 hexadecimal digits

}  // namespace hawser::checkpoint
