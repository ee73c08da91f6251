// Reading safetensors: one file, or the files of an index.
//
// Source: https://huggingface.co/docs/safetensors (format), and its reference implementation for what is rejected.
// Files are read with pread, not mapped; checkpoint.h says why.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "checkpoint/boxes.h"
#include "checkpoint/storage/posix.h"

namespace hawser::checkpoint {

// A type of the format. Those with a DType, and f16, can be read as numbers; the others are bytes to us.
struct SafetensorsType {
  const char* name;  // "BF16"
  int bits;
  std::optional<DType> dtype;
};
const SafetensorsType* find_safetensors_type(const std::string& name);  // null when unknown

struct TensorInfo {
  const SafetensorsType* type = nullptr;
  Shape shape;
  int file = 0;            // place in files()
  std::int64_t begin = 0;  // byte in that file
  std::int64_t bytes = 0;
};

// One file's header, checked against the file's size: adds all problems; the map is complete when there are none.
// Rejected: a header too short or too long, broken JSON, a name twice, unknown types, more than Shape::kMaxRank dims,
// sizes that overflow, bytes that do not fit type and shape, ranges that overlap, leave holes, or pass the file's end,
// data behind the last tensor.
std::map<std::string, TensorInfo> read_safetensors_header(const File& file, Problems& problems);

class SafetensorsFolder {
 public:
  static constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;
  // Gaps between stretches of a box that are cheaper read over than skipped.
  static constexpr std::int64_t kGapBytes = std::int64_t{64} << 10;

  // `path` is a .safetensors file, an index (.json), or a folder with model.safetensors or model.safetensors.index.json
  // (in this order, as transformers does). Headers of all files are checked before anything is read: adds all problems,
  // each one line, and returns none when there is one. An index may name only files in its own folder (links are
  // followed: Hugging Face's cache is made of them), and must list exactly the tensors that those files hold.
  static std::optional<SafetensorsFolder> open(const std::string& path, Problems& problems);

  const std::vector<std::string>& names() const { return names_; }  // sorted
  const TensorInfo* find(const std::string& name) const;            // null when absent
  const std::string& file_of(const TensorInfo& info) const;         // its path, for messages

  // Fills `out` (dense, cpu, as many elements as the region) with a box of a tensor, reading little more than the box.
  // F32, BF16, F16 and F64 convert to float32 and bfloat16, I32, I64, U8 only to themselves; else a UserError.
  // InternalError for an unknown name or a region outside the tensor.
  void read(const std::string& name, const Region& region, const TensorView& out);
  // Bytes of a tensor as they lie in the file, of any type.
  void read_bytes(const std::string& name, std::int64_t begin, std::byte* out, std::int64_t count) const;

 private:
  void add_file(const std::string& path, Problems& problems);

  std::vector<File> files_;
  std::unordered_map<std::string, TensorInfo> tensors_;
  std::vector<std::string> names_;
  std::vector<std::byte> staging_;
};

}  // namespace hawser::checkpoint
