#include "engine/open_model.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"
#include "checkpoint/root.h"
#include "engine/find_checkpoint.h"
#include "io/files.h"
#include "io/json.h"
#include "models/weights.h"
#include "text/chat/chat_template.h"

namespace hawser::engine {

namespace {

// Null if the description has problems.
std::unique_ptr<models::Model> make_model(models::ModelDescription description, const ModelChanges& changes,
                                          std::size_t before, Problems& problems) {
  if (problems.size() == before && changes.describe) changes.describe(description, problems);
  if (problems.size() != before) return nullptr;
  return std::make_unique<models::Model>(std::move(description), changes.spec_of);
}

}  // namespace

OpenModel open_model(const std::string& path, bool random_weights, Problems& problems, const ModelChanges& changes) {
  OpenModel open;
  Problems of_weights;  // shown after those of the config
  std::optional<models::TensorNames> names;
  if (!random_weights && io::exists(path)) {
    open.weights = checkpoint::SafetensorsFolder::open(path, of_weights);
    if (open.weights) names.emplace(open.weights->names());
  }
  const std::size_t before = problems.size();
  models::ModelDescription description = models::read_description(path, problems, names ? &*names : nullptr);
  open.model = make_model(std::move(description), changes, before, problems);
  problems.add(of_weights);
  if (open.weights && open.model) models::check_weights(*open.model, *open.weights, problems);
  return open;
}

std::string frozen_identity(const OpenModel& open) {
  if (!open.model || !open.weights) return "";
  const bool frozen =
      std::ranges::any_of(open.model->flats(), [](const nn::Flat& flat) { return !flat.spec().trainable; });
  if (!frozen) return "";
  return checkpoint::checksum_text(open.weights->identity());
}

models::ModelDescription describe_checkpoint(const checkpoint::Checkpoint& checkpoint, const std::string& config,
                                             Problems& problems) {
  std::vector<std::string> names;
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) names.push_back(tensor.name);
  const models::TensorNames of(std::move(names));
  return models::describe_config(config, checkpoint.folder(), problems, &of);
}

namespace {

// The tokenizer in a folder, or the path itself if it is a file; "" if there is none.
std::string tokenizer_file(const std::string& path) {
  if (path.empty()) return "";
  if (io::is_folder(path)) return text::tokenizer_in(path);
  return io::exists(path) ? path : "";
}

// The tokenizer and its settings are read from the checkpoint by path: checks that the files are unchanged.
void check_attached(const checkpoint::Checkpoint& checkpoint, Problems& problems) {
  Problems corrupt;
  checkpoint.verify_attached(corrupt);
  if (corrupt.empty()) return;
  const std::string before = checkpoint::complete_before(checkpoint.folder());
  for (Problem problem : corrupt.all()) {
    problem.hint = before;
    problems.add(std::move(problem));
  }
}

}  // namespace

OpenModel open_trained_model(const std::string& path, Problems& problems, const ModelChangesOf& changes_of) {
  const bool is_model = io::exists((std::filesystem::path(path) / "config.json").string());
  if (!looks_like_checkpoint(path) && (is_model || !checkpoints_below(path))) {
    if (const auto other = is_model ? std::nullopt : other_folder(path)) {
      problems.add(*other);
      return {};
    }
    OpenModel open = open_model(path, false, problems, changes_of ? changes_of("") : ModelChanges());
    open.tokenizer = tokenizer_file(path);
    if (open.model) open.special = models::read_special_tokens(path, problems);
    return open;
  }
  OpenModel open;
  try {
    open.checkpoint = open_checkpoint(path, open.skipped);
    check_attached(*open.checkpoint, problems);
    const CheckpointMetadata metadata = read_metadata(*open.checkpoint);
    open.recipe = metadata.recipe;
    open.tokenizer = tokenizer_file(metadata.tokenizer);
    const std::size_t before = problems.size();
    models::ModelDescription description = describe_checkpoint(*open.checkpoint, metadata.config, problems);
    const ModelChanges changes = changes_of ? changes_of(open.recipe) : ModelChanges();
    open.model = make_model(std::move(description), changes, before, problems);
    open.special = models::describe_special_tokens(metadata.config, open.checkpoint->folder(), problems);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  return open;
}

std::unique_ptr<text::Tokenizer> tokenizer_of_model(const std::string& model_folder) {
  const std::string path = tokenizer_file(model_folder);
  return path.empty() ? nullptr : text::load_tokenizer(path);
}

std::string stored_chat_template(const std::string& recipe) {
  const auto stored = io::json_or_null(recipe);
  if (!stored.is_object()) return "";
  const auto name = stored.value(nlohmann::json::json_pointer("/data/chat_template"), nlohmann::json());
  return name.is_string() && text::chat::is_named(name.get<std::string>()) ? name.get<std::string>() : "";
}

}  // namespace hawser::engine
