// `SafetensorsFolder`: reads safetensors, one file or the files of an index.
//
// Source: https://huggingface.co/docs/safetensors (format), and its reference implementation for what is rejected.
// Files are read with pread, not mapped; checkpoint.h gives the reason. Tensors that bitsandbytes has quantized to NF4
// (bitsandbytes.h) are one tensor each, of the type "NF4" and the shape of the weights.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "checkpoint/boxes.h"
#include "checkpoint/formats/bitsandbytes.h"
#include "io/files.h"

namespace hawser::checkpoint {

// A dtype of the format. Those with a DType, and F16 and F64, can be read as numbers; the others only as bytes.
struct SafetensorsType {
  const char* name;  // "BF16"
  int bits;
  std::optional<DType> dtype;
};
const SafetensorsType* find_safetensors_type(const std::string& name);  // null when unknown

struct TensorInfo {
  const SafetensorsType* type = nullptr;
  Shape shape;
  int file = 0;            // index of the file
  std::int64_t begin = 0;  // byte offset in that file
  std::int64_t bytes = 0;
};

// One file's header, checked against the file's size. Adds all problems; the map is complete if there are none.
// Rejects: a header too short or too long, invalid JSON, duplicate names, unknown dtypes, more than Shape::kMaxRank
// dims, sizes that overflow, bytes that do not match dtype and shape, ranges that overlap, leave gaps or pass the end
// of the file, and data after the last tensor.
std::map<std::string, TensorInfo> read_safetensors_header(const io::File& file, Problems& problems);

class SafetensorsFolder {
 public:
  static constexpr std::int64_t kStagingBytes = std::int64_t{4} << 20;
  // Gaps between ranges of a box up to this size are read, not skipped.
  static constexpr std::int64_t kGapBytes = std::int64_t{64} << 10;

  // `path` is a .safetensors file, an index (.json), or a folder with model.safetensors or model.safetensors.index.json
  // (in this order, as in transformers). Checks the headers of all files before anything is read; adds all problems,
  // one line each, and returns nullopt if there is one. An index may name only files in its own folder (links are
  // followed, as Hugging Face's cache consists of them), and must list exactly the tensors of those files.
  static std::optional<SafetensorsFolder> open(const std::string& path, Problems& problems);

  const std::vector<std::string>& names() const { return names_; }  // sorted; of a quantized tensor the weight's
  const TensorInfo* find(const std::string& name) const;            // null when absent
  const std::string& file_of(const TensorInfo& info) const;         // its path, for messages

  // Fills `out` (dense, cpu, as many elements as the region) with a box of a tensor, and reads little more than the
  // box. F32, BF16, F16, F64 and NF4 convert to float32 and bfloat16; I32, I64 and U8 only to themselves; else a
  // UserError.
  // InternalError for an unknown name or a region outside the tensor.
  void read(const std::string& name, const Region& region, const TensorView& out);
  // Of a tensor of the type NF4; null for others.
  const QuantizedTensor* find_quantized(const std::string& name) const;
  // The groups of one with double quantization, and its blocks [first, first + count).
  std::vector<Nf4Group> read_groups(const std::string& name) const;
  void read_blocks(const std::string& name, std::int64_t first, std::int64_t count, Nf4DoubleBlock* out) const;
  // Raw bytes of a tensor of any dtype, as in the file.
  void read_bytes(const std::string& name, std::int64_t begin, std::byte* out, std::int64_t count) const;
  // Identifies the weights: XXH3-64 of the names, dtypes and shapes of all tensors, and of the first, middle and last
  // kSampleBytes of each (all of a smaller one). Training changes every tensor in almost all places, so equal samples
  // mean equal weights; a change of a few elements elsewhere goes unnoticed. Does not depend on how files are split.
  static constexpr std::int64_t kSampleBytes = 4096;
  std::uint64_t identity() const;

 private:
  void add_file(const std::string& path, Problems& problems);
  // Makes one tensor of each that is quantized.
  void find_quantized_tensors(Problems& problems);
  void read_quantized(const std::string& name, const Region& region, const TensorView& out);
  // The scales of all blocks of a quantized tensor, as float32. Those of the last one are kept.
  const std::vector<float>& scales_of(const std::string& name);
  template <class T>
  std::vector<T> read_all(const std::string& name) const;

  std::vector<io::File> files_;
  std::unordered_map<std::string, TensorInfo> tensors_;
  std::unordered_map<std::string, QuantizedTensor> quantized_;
  std::unordered_set<std::string> hidden_;  // parts of quantized tensors
  std::vector<std::string> names_;
  std::vector<std::byte> staging_;
  std::string scaled_;  // whose scales are kept
  std::vector<float> scales_;
};

}  // namespace hawser::checkpoint
