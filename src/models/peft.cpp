#include "models/peft.h"

#include <algorithm>
#include <array>

#include "checkpoint/boxes.h"
#include "checkpoint/formats/safetensors_writer.h"
#include "device/device.h"
#include "io/json.h"
#include "io/json_text.h"
#include "models/file_form.h"
#include "models/lora.h"

namespace hawser::models {

namespace {

constexpr std::array<const char*, 2> kMatrices = {".lora_A", ".lora_B"};
constexpr const char* kMagnitude = ".lora_magnitude_vector";

// "a.b", ".", "c" of "a.b.c" at the last place of `part`.
std::optional<std::pair<std::string, std::string>> split_at(const std::string& name, const std::string& part) {
  const std::size_t at = name.rfind(part);
  if (at == std::string::npos) return {};
  const std::string after = name.substr(at + part.size());
  if (!after.empty() && after.front() != '.') return {};
  return std::pair(name.substr(0, at), after);
}

// The adapter's name in what follows ".lora_A": "" of ".weight", "default" of ".default.weight" and of ".default".
std::string inserted_name(std::string after) {
  const std::string weight = ".weight";
  if (after.ends_with(weight)) after.resize(after.size() - weight.size());
  return after.empty() ? "" : after.substr(1);
}

// A folder without a model has no config.json that tells transformers the class of the tokenizer.
std::vector<checkpoint::Attachment> with_tokenizer_class(std::vector<checkpoint::Attachment> files) {
  const auto is_json = [](const checkpoint::Attachment& file) { return file.name == "tokenizer.json"; };
  if (std::ranges::none_of(files, is_json)) return files;
  for (checkpoint::Attachment& file : files) {
    if (file.name != "tokenizer_config.json") continue;
    const io::Json config = io::json_or_null(file.text);
    if (!config.is_object() || config.contains("tokenizer_class") || config.contains("auto_map")) continue;
    file.text = io::with_value(file.text, "tokenizer_class", "\"PreTrainedTokenizerFast\"");
  }
  return files;
}

}  // namespace

std::optional<std::string> name_of_peft(const std::string& file_name, const std::string& adapter) {
  const std::string prefix = kPeftPrefix, own = adapter.empty() ? "" : "." + adapter;
  if (!file_name.starts_with(prefix)) return {};
  std::string name = file_name.substr(prefix.size());
  for (const char* matrix : kMatrices) {
    if (const auto parts = split_at(name, matrix)) return parts->first + matrix + own + ".weight";
  }
  if (const auto parts = split_at(name, kMagnitude)) {
    return parts->first + kMagnitude + own + (own.empty() ? "" : ".weight");
  }
  if (const auto parts = split_at(name, ".base_layer")) return parts->first + parts->second;
  if (const auto parts = split_at(name, ".modules_to_save")) {
    const std::size_t end = parts->second.find('.', 1);  // of the adapter's name
    return parts->first + (end == std::string::npos ? parts->second : parts->second.substr(end));
  }
  return name;
}

std::string peft_name(const std::string& name, const std::string& adapter) {
  const std::string own = adapter.empty() ? "" : "." + adapter;
  for (const char* matrix : kMatrices) {
    const auto parts = split_at(name, matrix);
    if (parts && parts->second == own + ".weight") return kPeftPrefix + parts->first + matrix + ".weight";
  }
  const auto parts = split_at(name, kMagnitude);
  if (parts && inserted_name(parts->second) == adapter) return kPeftPrefix + parts->first + kMagnitude;
  return kPeftPrefix + name;
}

void export_adapter(const std::string& folder, const Model& model, const StateSource& source,
                    const AdapterExportOptions& options) {
  HAWSER_CHECK(!options.config.empty(), "an export without adapter_config.json");
  std::vector<HfTensor> tensors;
  std::vector<checkpoint::SafetensorsSpec> specs;
  for (const HfTensor& tensor : hf_tensors(model)) {
    if (!model.flat(tensor.flat).spec().trainable) continue;
    const std::string name = peft_name(tensor.name, options.adapter);
    if (is_lora_tensor(name) && name_of_peft(name, options.adapter) != tensor.name) continue;  // another adapter's
    tensors.push_back(tensor);
    specs.push_back({name, tensor.file_shape, options.stored});
  }
  HAWSER_CHECK(!tensors.empty(), "an adapter without trainable tensors");
  checkpoint::SafetensorsWriter writer(
      folder, std::move(specs), {.max_shard_bytes = INT64_MAX, .replace = options.replace, .name = "adapter_model"});
  writer.add_file("adapter_config.json", options.config);
  add_tokenizer(model, with_tokenizer_class(options.tokenizer), writer);
  const auto device = make_cpu_device();
  for (const HfTensor& tensor : tensors) {
    const std::int64_t rows = tensor.file_shape[0], row = tensor.shape.elements() / std::max<std::int64_t>(1, rows);
    const std::int64_t at_once = std::max<std::int64_t>(1, options.piece_elements / std::max<std::int64_t>(1, row));
    for (std::int64_t first = 0; first < rows; first += at_once) {
      const std::int64_t count = std::min(at_once, rows - first);
      const Storage piece(*device, DType::f32, {count * row});
      read_file_rows(source, tensor, first, count, piece);
      writer.append(piece);
    }
  }
  writer.finish();
}

}  // namespace hawser::models
