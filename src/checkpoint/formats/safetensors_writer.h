// Writing safetensors as Hugging Face lays them out: model.safetensors, or shards with an index.
//
//   SafetensorsWriter writer(folder, specs);
//   for (const SafetensorsSpec& spec : specs) writer.append(view_of(spec));   // whole, or piece after piece
//   writer.add_file("config.json", text);
//   writer.finish();
//
// All is written into a temporary folder beside; finish() syncs it and renames it. Without finish() nothing is left;
// what a killed export left goes with the next one to the same folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/storage/posix.h"
#include "tensor/tensor.h"

namespace hawser::checkpoint {

struct SafetensorsSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;  // as stored
};

struct SafetensorsOptions {
  std::int64_t max_shard_bytes = 5'000'000'000;  // of tensors a file; a larger tensor gets a file of its own
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  // transformers asks for this entry
  // An existing folder is replaced, in one swap, when it looks like an earlier export: files only, with a
  // model.safetensors or its index among them. An empty folder is always replaced; any other is rejected.
  bool replace = false;
};

class SafetensorsWriter {
 public:
  // Checks names, the target and free space, and makes the temporary folder; UserError.
  SafetensorsWriter(std::string folder, std::vector<SafetensorsSpec> specs, SafetensorsOptions options = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;

  // The next elements, row-major, of the tensors in the order of the specs; a piece does not pass a tensor's end.
  // Dense, cpu; float32 and bfloat16 convert into each other.
  void append(const TensorView& piece);
  // A small file beside the tensors.
  void add_file(const std::string& name, const std::string& content);
  // Every tensor must be complete.
  void finish();

 private:
  struct Place {
    int shard = 0;
    std::int64_t begin = 0;  // byte in the shard
  };
  void plan_shards();
  void check_target() const;
  void open_shard(int shard);
  void skip_empty();  // tensors without elements take no piece
  std::string shard_name(int shard) const;
  void write_index();

  std::string folder_;
  std::vector<SafetensorsSpec> specs_;
  SafetensorsOptions options_;
  std::string temporary_;             // "" once finished
  std::vector<Place> places_;         // a spec
  std::vector<std::string> headers_;  // a shard, length included
  std::size_t next_ = 0;              // spec being written
  std::int64_t done_ = 0;             // elements of it already written
  int open_shard_ = -1;
  File lock_;  // of the temporary folder: tells an export under way from what a killed one left
  File file_;
  std::vector<std::byte> staging_;
};

// Writes all specs, taking each tensor from `supply`; the view must stay until the next call.
void write_safetensors(const std::string& folder, const std::vector<SafetensorsSpec>& specs,
                       const std::function<TensorView(const SafetensorsSpec&)>& supply,
                       const SafetensorsOptions& options = {});

}  // namespace hawser::checkpoint
