#include <algorithm>
#include <array>
#include <filesystem>
#include <string>

#include "checkpoint/formats/safetensors_writer.h"
#include "device/device.h"
#include "io/files.h"
#include "models/file_form.h"
#include "models/weights.h"

namespace hawser::models {
namespace {

constexpr std::int64_t kMaxTokenizerBytes = std::int64_t{1} << 28;

// Tokenizer files that transformers reads, besides tokenizer.json.
constexpr std::array<const char*, 8> kTokenizerFiles{"tokenizer_config.json",
                                                     "special_tokens_map.json",
                                                     "added_tokens.json",
                                                     "tokenizer.model",
                                                     "vocab.json",
                                                     "merges.txt",
                                                     "chat_template.jinja",
                                                     "chat_template.json"};

// A folder with more chat templates, each in a file NAME.jinja.
constexpr const char* kMoreTemplates = "additional_chat_templates";

// Without a tokenizer_config.json transformers would use the family's own class, which adds a beginning-of-text token
// regardless of tokenizer.json.
std::string plain_tokenizer_config(const Model& model) {
  return cat("{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"model_max_length\": ",
             model.description().max_position, ",\n  \"clean_up_tokenization_spaces\": false\n}\n");
}

}  // namespace

void add_tokenizer(const Model& model, const std::vector<checkpoint::Attachment>& all,
                   checkpoint::SafetensorsWriter& writer) {
  const std::vector<checkpoint::Attachment> files = with_one_chat_template(all);
  bool described = false, is_json = false;
  const std::string more = cat(kMoreTemplates, ".");
  for (const auto& [name, text] : files) {
    if (name.starts_with(more)) {
      writer.add_file(name.substr(more.size()), text, kMoreTemplates);
      continue;
    }
    writer.add_file(name, text);
    // For other formats, transformers takes the class from config.json.
    described = described || name == "tokenizer_config.json" || name == "tokenizer.model" || name == "tekken.json";
    is_json = is_json || name == "tokenizer.json";
  }
  if (is_json && !described) writer.add_file("tokenizer_config.json", plain_tokenizer_config(model));
}

std::vector<checkpoint::Attachment> tokenizer_files(const std::string& from) {
  namespace fs = std::filesystem;
  std::vector<checkpoint::Attachment> files;
  const bool folder = io::is_folder(from);
  const fs::path parent = folder ? fs::path(from) : fs::path(from).parent_path();
  const std::string main = folder ? (parent / "tokenizer.json").string() : from;
  if (!folder || io::exists(main)) {
    files.push_back({"tokenizer.json", io::read_text(main, kMaxTokenizerBytes)});
  } else if (const std::string tekken = (parent / "tekken.json").string(); io::exists(tekken)) {
    files.push_back({"tekken.json", io::read_text(tekken, kMaxTokenizerBytes)});
  }
  for (const char* name : kTokenizerFiles) {
    const std::string path = (parent / name).string();
    if (io::exists(path)) files.push_back({name, io::read_text(path, kMaxTokenizerBytes)});
  }
  const auto add_templates = [&](const fs::path& in, const std::string& prefix) {
    for (const std::string& name : io::list_folder(in.string())) {
      const std::string stored = prefix + name;
      if (!stored.starts_with(cat(kMoreTemplates, ".")) || !stored.ends_with(".jinja")) continue;
      if (io::is_plain_name(stored)) files.push_back({stored, io::read_text((in / name).string(), kMaxTokenizerBytes)});
    }
  };
  const fs::path more = parent / kMoreTemplates;
  if (io::is_folder(more.string())) {
    add_templates(more, cat(kMoreTemplates, "."));
  } else {
    add_templates(parent.empty() ? "." : parent, "");
  }
  return files;
}

bool is_chat_template_file(const std::string& name) {
  return name == "chat_template.jinja" || name.starts_with(cat(kMoreTemplates, "."));
}

void add_generation_config(const std::string& path, std::vector<checkpoint::Attachment>& files) {
  namespace fs = std::filesystem;
  const auto is_it = [](const checkpoint::Attachment& file) { return file.name == kGenerationConfigFile; };
  const fs::path folder = io::is_folder(path) ? fs::path(path) : fs::path(path).parent_path();
  const std::string file = (folder / kGenerationConfigFile).string();
  if (std::ranges::any_of(files, is_it) || !io::exists(file)) return;
  files.push_back({kGenerationConfigFile, io::read_text(file, kMaxTokenizerBytes)});
}

bool is_model_file(const std::string& name) {
  for (const char* ending : {".safetensors", ".safetensors.index.json", ".jinja"}) {
    if (name.ends_with(ending)) return true;
  }
  for (const char* one : {"config.json", kGenerationConfigFile, "tokenizer.json", "tekken.json"}) {
    if (name == one) return true;
  }
  return std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end();
}

void export_folder(const std::string& folder, const Model& model, const StateSource& source,
                   const ExportOptions& options) {
  HAWSER_CHECK(options.stored == DType::f32 || options.stored == DType::bf16, to_string(options.stored));
  HAWSER_CHECK(!options.config.empty(), "an export without config.json");
  const std::vector<HfTensor> tensors = hf_tensors(model);
  std::vector<checkpoint::SafetensorsSpec> specs;
  std::int64_t piece_elements = 0;  // of the longest piece; one in another form has at least a row of the file
  for (const HfTensor& tensor : tensors) {
    specs.push_back({tensor.name, tensor.file_shape, options.stored, options.f16});
    const std::int64_t all = tensor.shape.elements();
    std::int64_t piece = options.piece_elements;
    if (!(tensor.file == nn::FileForm()))
      piece = std::max(piece, all / std::max<std::int64_t>(1, tensor.file_shape[0]));
    piece_elements = std::max(piece_elements, std::min(all, piece));
  }
  checkpoint::SafetensorsWriter writer(folder, std::move(specs),
                                       {.max_shard_bytes = options.max_shard_bytes, .replace = options.replace});
  writer.add_file("config.json", options.config);
  add_tokenizer(model, options.tokenizer, writer);

  const auto device = make_cpu_device();
  const Storage staging(*device, DType::f32, {piece_elements});
  for (const HfTensor& tensor : tensors) {
    const std::int64_t total = tensor.shape.elements();
    if (!(tensor.file == nn::FileForm())) {
      const std::int64_t row = total / std::max<std::int64_t>(1, tensor.file_shape[0]);
      const std::int64_t at_once = std::max<std::int64_t>(1, options.piece_elements / std::max<std::int64_t>(1, row));
      for (std::int64_t first = 0; first < tensor.file_shape[0]; first += at_once) {
        const std::int64_t rows = std::min(at_once, tensor.file_shape[0] - first);
        const TensorView piece = staging.view().rows(0, rows * row);
        read_file_rows(source, tensor, first, rows, piece);
        writer.append(piece);
      }
      continue;
    }
    for (std::int64_t at = 0; at < total; at += options.piece_elements) {
      const TensorView piece = staging.view().rows(0, std::min(options.piece_elements, total - at));
      source({{.name = tensor.name,
               .shape = tensor.shape,
               .dtype = DType::f32,
               .boxes = boxes_of_range(tensor.shape, at, piece.elements(), piece)}});
      writer.append(piece);
    }
  }
  writer.finish();
}

}  // namespace hawser::models
