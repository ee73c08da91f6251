// Import, initialization and export of the elements of a model's flat buffers.
//
// A piece of a flat buffer is a range of its elements (nn/segment_ranges.h); gaps are zero. Results do not depend on
// how the buffers are sharded, nor on how ranks slice a tensor (nn::Slice): any pieces that cover a tensor give the
// same elements. Names are those of Hugging Face's files, one per global tensor. Tensors have the model's form here,
// and in checkpoints; load_flat and export_folder convert from and to the file's (nn::FileForm).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/save.h"
#include "models/model.h"
#include "nn/segment_ranges.h"
#include "tensor/named_state.h"

namespace hawser::checkpoint {
class SafetensorsWriter;
}

namespace hawser::models {

using nn::gap_ranges;
using nn::segment_ranges;
using nn::SegmentRange;

// All global tensors of the model, in the order of their first segments; a tied head has no tensor of its own. A model
// with a part of the experts (nn::MoeConfig::part) has the tensors of these only.
struct HfTensor {
  std::string name;
  Shape shape;  // in the model's form
  nn::FileForm file;
  Shape file_shape;
  int flat = 0, param = 0, segment = 0;  // the first segment
};
std::vector<HfTensor> hf_tensors(const Model& model);

// The folders that a model's weights are read from. They outlive it.
class WeightSources {
 public:
  WeightSources(checkpoint::SafetensorsFolder& folder) { add(folder); }
  // The tensors of `folder` replace those of the folders before it. Its names are `prefix` and the model's.
  void add(checkpoint::SafetensorsFolder& folder, std::string prefix = "") {
    folders_.push_back({.files = &folder, .prefix = std::move(prefix)});
  }

  // The same for an adapter of PEFT, whose names are those of models/peft.h. `adapter`: AdapterConfig::name.
  void add_adapter(checkpoint::SafetensorsFolder& folder, const std::string& adapter = "");

  struct Folder {
    checkpoint::SafetensorsFolder* files;
    std::string prefix;
    std::optional<std::string> adapter = {};  // of PEFT
    // Of PEFT: the file's names by the model's. Of several names of one tensor, the first in order.
    std::unordered_map<std::string, std::string> renamed = {};
    // The model's name of a tensor of the files; empty if it cannot be one.
    std::optional<std::string> name_in_model(const std::string& name) const;
    // The inverse, if the files have the tensor.
    std::optional<std::string> name_in_files(const std::string& name) const;
  };
  const std::vector<Folder>& folders() const { return folders_; }

  // Where the model's tensor `name` is read: the last folder that has it; `name` is its name there. files is null if
  // none has it.
  struct Place {
    checkpoint::SafetensorsFolder* files = nullptr;
    std::string name;
    bool of_adapter = false;
  };
  Place find(const std::string& name) const;

 private:
  std::vector<Folder> folders_;
};

// `model` has all experts. Adds a problem for every tensor that is missing, unless Segment::may_be_absent, but one for
// all tensors of experts; that has another shape, or a dtype that is not supported (F32, BF16, F16 and F64 are); and
// for every tensor that the model does not have. Exceptions: ModelDescription::ignored_tensors, and a tensor that is
// one of the model's a second time (models/tensor_aliases.h, or another of PEFT's names), if it is bitwise equal to it.
void check_weights(const Model& model, const WeightSources& sources, Problems& problems);

// Fills `values` [count] (float32 or bf16, dense, cpu) with the piece of the model's flat `flat`. Reads only the bytes
// it needs. The sources must have passed check_weights. Returns the parts of the piece that they do not have; these
// elements are 0, and the caller gives them initial values (initialise_flat).
std::vector<SegmentRange> load_flat(const Model& model, int flat, const WeightSources& sources, std::int64_t begin,
                                    std::int64_t count, const TensorView& values);

// Fills `values` [count] (float32 or bf16, dense, on the stream's device) with initial values, on the stream. A normal
// parameter has
//   std * RandomStream(seed, fnv1a(segment name)).normal(element of the global tensor)
// One with norms of rows (nn::Initial::Kind::row_norms) has those of the matrix that `sources` have, or otherwise of
// the matrix's own initial values; these are computed on the host from `piece_elements` of the matrix at a time, and
// the stream is synchronized.
void initialise_flat(const Model& model, int flat, std::uint64_t seed, std::int64_t begin, std::int64_t count,
                     Stream& stream, const TensorView& values, const WeightSources* sources = nullptr,
                     std::int64_t piece_elements = std::int64_t{16} << 20);

// The tokenizer files that transformers reads from a model folder: those of a folder, or a tokenizer.json and the
// others in its folder, by their names in a model folder; additional_chat_templates/NAME.jinja is
// additional_chat_templates.NAME.jinja, until it is exported. UserError if one cannot be read.
std::vector<checkpoint::Attachment> tokenizer_files(const std::string& folder_or_tokenizer_json);

// Whether it is the name of a chat template among them.
bool is_chat_template_file(const std::string& name);

// The files with the chat template that training and transformers read, in one place: chat_template.jinja if it is
// there, and then tokenizer_config.json has none; otherwise tokenizer_config.json's, and then there are no
// additional_chat_templates. Other bytes of tokenizer_config.json stay. Without either, the files as they are.
std::vector<checkpoint::Attachment> with_one_chat_template(std::vector<checkpoint::Attachment> files);

// Adds the generation_config.json in a folder, or in the folder of a file, if there is one and the files have none.
constexpr const char* kGenerationConfigFile = "generation_config.json";
void add_generation_config(const std::string& folder_or_file, std::vector<checkpoint::Attachment>& files);

// Whether a model is read from files of this name in its folder: weights, config and tokenizer.
bool is_model_file(const std::string& name);

// The files with `end`, the end of turn of conversations, among the eos_token_id of generation_config.json; other bytes
// of it stay. Without the file, or without the key in it, the ids are those of `config`, the text of config.json, and
// `end`; a new file also has the other keys of config.json that transformers then reads for generation. UserError if
// one of both texts is no JSON object.
std::vector<checkpoint::Attachment> with_end_token(std::vector<checkpoint::Attachment> files, const std::string& config,
                                                   std::int64_t end);

constexpr std::int64_t kExportElements = std::int64_t{16} << 20;

struct ExportOptions {
  DType stored = DType::bf16;                     // or f32
  bool f16 = false;                               // float16 instead; `stored` is f32
  std::string config;                             // text of config.json (models/families.h)
  std::vector<checkpoint::Attachment> tokenizer;  // its files, and generation_config.json
  std::int64_t max_shard_bytes = 5'000'000'000;
  bool replace = false;                           // replace an earlier export in the folder
  std::int64_t piece_elements = kExportElements;  // read and written at a time
};

// Fills the boxes of these states (float32 views on the cpu), like checkpoint::Checkpoint::read.
using StateSource = std::function<void(const std::vector<NamedState>& wanted)>;

// The states that the sources have, which must have passed check_weights and outlive the result.
StateSource read_weights(const Model& model, const WeightSources& sources);

// Writes the model to a Hugging Face folder, atomically: tensors in pieces, config.json, and the tokenizer's files.
// UserError if that fails.
void export_folder(const std::string& folder, const Model& model, const StateSource& source,
                   const ExportOptions& options);

// Adds the tokenizer's files, with_one_chat_template, to an export, and a tokenizer_config.json if a tokenizer.json has
// none.
void add_tokenizer(const Model& model, const std::vector<checkpoint::Attachment>& files,
                   checkpoint::SafetensorsWriter& writer);

}  // namespace hawser::models
