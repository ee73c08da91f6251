// Whether folders have the weights of a model: every tensor, with its shape, and no others.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "models/peft.h"
#include "models/tensor_aliases.h"
#include "models/weights.h"

namespace hawser::models {
namespace {

bool is_ignored(const ModelDescription& description, const std::string& name) {
  return std::ranges::any_of(description.ignored_tensors, [&](const std::string& pattern) {
    if (pattern.starts_with('*')) return name.ends_with(pattern.substr(1));
    if (pattern.ends_with('*')) return name.starts_with(pattern.substr(0, pattern.size() - 1));
    return name == pattern;
  });
}

std::string folder_of(const checkpoint::SafetensorsFolder& folder) {
  if (folder.names().empty()) return "";
  const checkpoint::TensorInfo* first = folder.find(folder.names().front());
  return std::filesystem::path(folder.file_of(*first)).parent_path().string();
}

bool is_readable(const checkpoint::TensorInfo& info) {
  for (const char* name : {"F32", "BF16", "F16", "F64", "NF4"}) {
    if (std::strcmp(info.type->name, name) == 0) return true;
  }
  return false;
}

// Whether a tensor has the bytes of others, one after the other.
bool same_bytes(const checkpoint::SafetensorsFolder& folder, const std::string& name,
                const std::vector<std::string>& parts) {
  const checkpoint::TensorInfo* whole = folder.find(name);
  std::int64_t bytes = 0;
  for (const std::string& part : parts) {
    const checkpoint::TensorInfo* info = folder.find(part);
    if (info->type != whole->type || (parts.size() == 1 && !(info->shape == whole->shape))) return false;
    bytes += info->bytes;
  }
  if (bytes != whole->bytes) return false;
  constexpr std::int64_t kPiece = std::int64_t{1} << 20;
  std::vector<std::byte> left(kPiece), right(kPiece);
  std::int64_t before = 0;
  for (const std::string& part : parts) {
    const std::int64_t size = folder.find(part)->bytes;
    for (std::int64_t at = 0; at < size; at += kPiece) {
      const std::int64_t count = std::min(kPiece, size - at);
      folder.read_bytes(name, before + at, left.data(), count);
      folder.read_bytes(part, at, right.data(), count);
      if (std::memcmp(left.data(), right.data(), static_cast<std::size_t>(count)) != 0) return false;
    }
    before += size;
  }
  return true;
}

void check_tensor(const HfTensor& tensor, const WeightSources::Place& place, Problems& problems) {
  const checkpoint::TensorInfo* info = place.files->find(place.name);
  const std::string& file = place.files->file_of(*info);
  if (!(info->shape == tensor.file_shape)) {
    problems.add({.file = file,
                  .what = place.of_adapter ? "a tensor's shape differs from adapter_config.json and the base model"
                                           : "a tensor's shape differs from config.json",
                  .expected = tensor.file_shape.text(),
                  .got = info->shape.text(),
                  .at = place.name});
  }
  if (!is_readable(*info)) {
    problems.add({.file = file,
                  .what = "a tensor has an unsupported dtype",
                  .expected = "F32, BF16, F16, F64, or NF4 of bitsandbytes",
                  .got = info->type->name,
                  .at = place.name});
  }
}

// Whether a tensor is one expert's: "experts.", a number and a dot are in its name.
bool is_of_expert(const std::string& name) {
  const std::string before = ".experts.";
  const std::size_t at = name.find(before);
  if (at == std::string::npos) return false;
  const std::size_t first = at + before.size(), end = name.find_first_not_of("0123456789", first);
  return end != std::string::npos && end > first && name[end] == '.';
}

// The tensors of experts that are missing are one problem: a model may have thousands.
struct MissingExperts {
  std::int64_t all = 0, missing = 0;
  std::string first;

  void add_to(Problems& problems, const std::string& folder) const {
    if (missing == 0) return;
    problems.add({.file = folder,
                  .what = "tensors of experts are missing",
                  .expected = cat(all),
                  .got = cat(all - missing),
                  .at = first});
  }
};

// The names in a folder of the tensors that `name` is another name of; empty if it is none, or if one is not there.
std::vector<std::string> second_name_of(const WeightSources::Folder& folder, const TensorAliases& aliases,
                                        const std::string& name) {
  std::string own = name;
  if (folder.adapter) own = name_of_peft(kPeftPrefix + TensorAliases::bare(name), *folder.adapter).value_or(name);
  std::vector<std::string> parts;
  for (const std::string& tensor : aliases.tensors_of(own)) {
    auto part = folder.name_in_files(tensor);
    if (!part || *part == name) return {};
    parts.push_back(std::move(*part));
  }
  return parts;
}

// The tensor `name` of a folder is `parts` a second time. Programs read one or the other, so both must be equal.
void check_second(const WeightSources::Folder& folder, const std::string& name, const std::vector<std::string>& parts,
                  Problems& problems) {
  const checkpoint::SafetensorsFolder& files = *folder.files;
  if (same_bytes(files, name, parts)) return;
  constexpr std::size_t kNamed = 3;
  std::string names;
  for (std::size_t i = 0; i < std::min(parts.size(), kNamed); ++i) {
    names += cat(i == 0 ? "" : ", ", io::in_quotes(parts[i]));
  }
  if (parts.size() > kNamed) names += cat(" and ", parts.size() - kNamed, " more");
  problems.add({.file = files.file_of(*files.find(name)),
                .what = "two tensors are the same weight of the model, with other values",
                .expected = cat("those of ", names, " in ", files.file_of(*files.find(parts.front()))),
                .at = io::in_quotes(name),
                .hint = "the file without one of them"});
}

// Tensors of a folder that are none of the model's, or one of them a second time; `known` has the model's names.
void check_others(const ModelDescription& description, const WeightSources::Folder& folder,
                  const std::set<std::string>& known, const TensorAliases& aliases, Problems& problems) {
  const std::string head = description.head.output + ".weight", table = description.embedding.table + ".weight";
  for (const std::string& name : folder.files->names()) {
    const std::optional<std::string> named = folder.name_in_model(name);
    const std::string own = named.value_or(name);
    if (named && known.contains(own)) {
      const std::string read = folder.name_in_files(own).value_or(name);
      if (read != name) check_second(folder, name, {read}, problems);
      continue;
    }
    if (named && is_ignored(description, own)) continue;
    const checkpoint::TensorInfo* info = folder.files->find(name);
    if (description.head.tied && own == head && folder.files->find(folder.prefix + table) != nullptr) {
      const std::string tied_to = folder.prefix + table;
      if (same_bytes(*folder.files, name, {tied_to})) continue;
      const std::string &file = folder.files->file_of(*info),
                        &other = folder.files->file_of(*folder.files->find(tied_to));
      problems.add({.file = file,
                    .what = "the head differs from the embedding it is tied to",
                    .expected = file == other ? tied_to : cat(tied_to, " in ", other),
                    .at = name,
                    .hint = "tie_word_embeddings: false in config.json"});
      continue;
    }
    if (const std::vector<std::string> parts = second_name_of(folder, aliases, name); !parts.empty()) {
      check_second(folder, name, parts, problems);
      continue;
    }
    problems.add({.file = folder.files->file_of(*info),
                  .what = folder.adapter ? "a tensor is not part of adapter_config.json's adapter of this model"
                                         : "a tensor is not part of config.json's model",
                  .got = cat(info->type->name, " ", info->shape.text()),
                  .at = io::in_quotes(name)});
  }
}

// The prefix that a wrapper of a model has left in the name of every tensor: "module." of DistributedDataParallel,
// "_orig_mod." of torch.compile; "" without one.
std::string wrapper_prefix(const std::vector<std::string>& names) {
  std::string prefix;
  while (!names.empty()) {
    const std::string& first = names.front();
    const char* const found = first.find("module.", prefix.size()) == prefix.size()      ? "module."
                              : first.find("_orig_mod.", prefix.size()) == prefix.size() ? "_orig_mod."
                                                                                         : "";
    const std::string longer = prefix + found;
    const auto has = [&](const std::string& name) { return name.starts_with(longer); };
    if (*found == '\0' || !std::ranges::all_of(names, has)) break;
    prefix = longer;
  }
  return prefix;
}

}  // namespace

void check_weights(const Model& model, const WeightSources& sources, Problems& problems) {
  for (const WeightSources::Folder& folder : sources.folders()) {
    const std::string prefix = wrapper_prefix(folder.files->names());
    if (prefix.empty()) continue;
    problems.add({.file = folder_of(*folder.files),
                  .what = cat("every tensor's name begins with ", prefix, ", which a wrapper of the model has left"),
                  .at = folder.files->names().front(),
                  .hint = cat("saving the wrapped model itself, or renaming the tensors: ",
                              "save_file({n.removeprefix('", prefix, "'): t for n, t in load_file(f).items()}, f)")});
    return;
  }
  std::set<std::string> known;
  MissingExperts experts;
  const std::string folder_name = folder_of(*sources.folders().front().files);
  for (const HfTensor& tensor : hf_tensors(model)) {
    known.insert(tensor.name);
    const bool of_expert = is_of_expert(tensor.name);
    if (of_expert) ++experts.all;
    if (const WeightSources::Place place = sources.find(tensor.name); place.files != nullptr) {
      check_tensor(tensor, place, problems);
      continue;
    }
    const auto& params = model.flat(tensor.flat).params();
    if (params[static_cast<std::size_t>(tensor.param)].segments[static_cast<std::size_t>(tensor.segment)].may_be_absent)
      continue;
    if (of_expert) {
      if (experts.missing++ == 0) experts.first = tensor.name;
      continue;
    }
    problems.add({.file = folder_name,
                  .what = "a tensor of the model is missing",
                  .expected = tensor.file_shape.text(),
                  .got = "none",
                  .at = tensor.name,
                  .hint = tensor.name == model.description().head.output + ".weight"
                              ? "tie_word_embeddings: true in config.json, if the head is the embedding"
                              : ""});
  }
  experts.add_to(problems, folder_name);
  const TensorAliases aliases(model.description(), known);
  for (const WeightSources::Folder& folder : sources.folders()) {
    check_others(model.description(), folder, known, aliases, problems);
  }
}

}  // namespace hawser::models
