// `Manifest`: contents of a native checkpoint. manifest.json is written last.
//
//   step-00000120/
//     rank-00000.bin …   the boxes' elements, little-endian, row-major, each box at a multiple of 64 bytes
//     tokenizer.json …   attached: small files of the caller
//     manifest.json      {"format": "hawser-checkpoint", "version": 1, "step": 120, "world": 4,
//                         "files": [["rank-00000.bin", BYTES], …],
//                         "tensors": [{"name": …, "shape": […], "dtype": "float32",
//                                      "boxes": [[FILE, BEGIN, BYTES, [offset…], [extent…], "XXH3"], …]}, …],
//                         "attached": [["tokenizer.json", BYTES, "XXH3"], …], (omitted if there is none)
//                         "meta": {…},
//                         "checksum": "…"}
//
// FILE is an index into "files", BEGIN and BYTES are bytes in that file, XXH3 is the 64-bit XXH3 of those bytes in
// hexadecimal. "checksum" is the XXH3 of the document without this key, printed without white space and with sorted
// keys. The file must equal manifest_text of its document, so that any changed byte is found, white space included.
// Bytes between boxes are zero.
//
// A folder is complete if its manifest is valid, its name is not that of another step, and every file has its size.
// Attached files are checked when they are read, since a run can continue without them. "meta" belongs to the caller:
// data position, RNG key, schedule, recipe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "checkpoint/boxes.h"
#include "checkpoint/storage.h"

namespace hawser::checkpoint {

constexpr int kManifestVersion = 1;
constexpr const char* kManifestName = "manifest.json";
std::string rank_file(int rank);  // "rank-00012.bin"; every checkpoint has rank 0's, even one without a manifest
constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 31;

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
  std::vector<ObjectSize> files;
  std::vector<SavedTensor> tensors;
  std::vector<SavedAttachment> attached;
  std::string metadata = "{}";  // text of the JSON object "meta"
};

// What one rank wrote, as sent to rank 0: a file and tensors whose boxes all have file 0, or a failure.
struct Part {
  int rank = 0;
  std::int64_t step = 0;
  std::string failure;
  ObjectSize file;
  std::vector<SavedTensor> tensors;
};

std::string part_text(const Part& part);
Part read_part(const std::string& text);  // InternalError if it is not a part

// Merges the parts of ranks 0 … world-1, given in that order. InternalError if two ranks describe a tensor differently,
// boxes overlap, elements are missing, or `metadata` is not the text of a JSON object.
Manifest merge_parts(std::vector<Part> parts, std::int64_t step, const std::string& metadata);

std::string manifest_text(const Manifest& manifest);

// Reads and validates FOLDER/manifest.json, and checks the sizes of the files next to it. Adds every problem found;
// returns nullopt if there is one. IoError if the storage cannot be read.
std::optional<Manifest> read_manifest(const std::string& folder, Problems& problems);
std::optional<Manifest> read_manifest(StorageReader& reader, Problems& problems);

// Two boxes of the tensor that share elements, as "[0:4] and [2:6]"; "" if there are none.
std::string find_overlap(const SavedTensor& tensor);

std::optional<DType> dtype_from(const std::string& name);  // "float32"
std::string checksum_text(std::uint64_t checksum);         // 16 hexadecimal digits

}  // namespace hawser::checkpoint
