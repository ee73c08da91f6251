// `SafetensorsWriter`: writes safetensors in Hugging Face's layout: model.safetensors, or shards with an index. The
// name may be another than "model": adapter_model.safetensors.
//
//   SafetensorsWriter writer(folder, specs);
//   for (const SafetensorsSpec& spec : specs) writer.append(view_of(spec));   // at once, or in pieces
//   writer.add_file("config.json", text);
//   writer.finish();
//
// Files are written into a temporary folder next to the target; finish() syncs and renames it. Without finish() nothing
// is left. What a killed export left is removed by the next export to the same folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "io/files.h"
#include "tensor/tensor.h"

namespace hawser::checkpoint {

struct SafetensorsSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;  // as stored
  bool f16 = false;          // stored as float16 instead, from pieces of `dtype` float32
};

struct SafetensorsOptions {
  std::int64_t max_shard_bytes = 5'000'000'000;  // bytes of tensors per file; a larger tensor gets its own file
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  // transformers requires this entry
  // Replaces an existing folder in one swap if it looks like an earlier export: files only, including NAME.safetensors
  // or its index. An empty folder is always replaced; any other is rejected.
  bool replace = false;
  std::string name = "model";
};

class SafetensorsWriter {
 public:
  // Checks names, the target and free space, and creates the temporary folder. UserError.
  SafetensorsWriter(std::string folder, std::vector<SafetensorsSpec> specs, SafetensorsOptions options = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;

  // The next elements, row-major, of the tensors in the order of the specs; a piece does not cross the end of a tensor.
  // Dense, cpu; float32 and bfloat16 convert into each other. UserError if float16 cannot represent an element: those
  // above 65504 would become infinite.
  void append(const TensorView& piece);
  // A small file next to the tensors.
  void add_file(const std::string& name, const std::string& content, const std::string& folder = "");
  // Requires every tensor to be complete.
  void finish();

 private:
  struct Place {
    int shard = 0;
    std::int64_t begin = 0;  // byte offset in the shard
  };
  void plan_shards();
  void check_target() const;
  void open_shard(int shard);
  void skip_empty();  // tensors without elements need no piece
  std::string shard_name(int shard) const;
  std::string single_name() const { return options_.name + ".safetensors"; }
  std::string index_name() const { return options_.name + ".safetensors.index.json"; }
  void write_index();

  std::string folder_;
  std::vector<SafetensorsSpec> specs_;
  SafetensorsOptions options_;
  std::string temporary_;             // "" once finished
  std::vector<Place> places_;         // per spec
  std::vector<std::string> headers_;  // per shard, including the length
  std::size_t next_ = 0;              // spec being written
  std::int64_t done_ = 0;             // elements of it that are written
  int open_shard_ = -1;
  io::File lock_;  // of the temporary folder: distinguishes a running export from the leftovers of a killed one
  io::File file_;
  std::vector<std::byte> staging_;
};

// Writes all specs, with each tensor from `supply`; the view must stay valid until the next call.
void write_safetensors(const std::string& folder, const std::vector<SafetensorsSpec>& specs,
                       const std::function<TensorView(const SafetensorsSpec&)>& supply,
                       const SafetensorsOptions& options = {});

}  // namespace hawser::checkpoint
