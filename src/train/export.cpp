#include "train/export.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"
#include "checkpoint/root.h"
#include "checkpoint/storage/posix.h"
#include "data/prepare.h"
#include "models/families.h"
#include "models/weights.h"

namespace hawser::train {

namespace fs = std::filesystem;

CheckpointMetadata read_metadata(const checkpoint::Checkpoint& checkpoint) {
  const auto json = nlohmann::json::parse(checkpoint.metadata(), nullptr, /*allow_exceptions=*/false);
  const auto text = [&](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  CheckpointMetadata metadata{.step = checkpoint.step(), .config = text("config"), .tokenizer = text("tokenizer")};
  if (!checkpoint.attached().empty()) metadata.tokenizer = checkpoint.folder();
  if (metadata.config.empty()) {
    throw UserError({.file = checkpoint.folder(),
                     .what = "not a checkpoint of a run",
                     .expected = "a model's config in its meta",
                     .hint = "a checkpoint that hawser fit wrote"});
  }
  if (!json.contains("recipe")) return metadata;
  metadata.recipe = json["recipe"].dump();
  const auto precision = json["recipe"].value("/precision/compute"_json_pointer, nlohmann::json());
  if (precision == "bf16") metadata.stored = DType::bf16;
  return metadata;
}

std::optional<std::string> checkpoints_below(const std::string& path) {
  const std::string below = (fs::path(path) / "checkpoints").string();
  if (checkpoint::is_folder(below)) return below;
  if (!checkpoint::step_folders(path).empty()) return path;
  return std::nullopt;
}

bool looks_like_checkpoint(const std::string& path) {
  const auto has = [&path](const std::string& name) { return checkpoint::exists((fs::path(path) / name).string()); };
  // Every checkpoint has a file of rank 0.
  return has(checkpoint::kManifestName) || (!has("config.json") && has(checkpoint::rank_file(0)));
}

std::optional<Problem> other_folder(const std::string& path) {
  if (!checkpoint::exists((fs::path(path) / "recipe.json").string())) return data::prepared_folder(path);
  return Problem{.file = path,
                 .what = "no checkpoint yet",
                 .hint = "again after the run has saved; metrics.jsonl shows its progress"};
}

checkpoint::Checkpoint open_checkpoint(const std::string& path, Problems& skipped) {
  if (!checkpoint::exists(path)) {
    throw UserError({.file = path, .what = "no such folder", .expected = "a run's folder or a checkpoint"});
  }
  // A checkpoint without its manifest is rejected by Checkpoint::open.
  if (looks_like_checkpoint(path)) return checkpoint::Checkpoint::open(path);
  const auto root = checkpoints_below(path);
  if (!root) {
    if (const auto other = other_folder(path)) throw UserError(*other);
  }
  if (!root) throw UserError({.file = path, .what = "neither a run's folder nor a checkpoint"});
  auto newest = checkpoint::Checkpoint::latest(*root, skipped);
  if (!newest) {
    Problems problems = skipped;
    skipped = {};
    problems.add({.file = *root, .what = "no complete checkpoint"});
    throw UserError(problems.lines());
  }
  return std::move(*newest);
}

namespace {

// The files of the run's tokenizer from the checkpoint; an older checkpoint has only the path.
std::vector<checkpoint::Attachment> tokenizer_of(const checkpoint::Checkpoint& checkpoint,
                                                 const CheckpointMetadata& metadata) {
  std::vector<checkpoint::Attachment> files;
  for (const std::string& name : checkpoint.attached()) files.push_back({name, checkpoint.read_attached(name)});
  if (!files.empty() || metadata.tokenizer.empty()) return files;
  if (!checkpoint::exists(metadata.tokenizer)) {
    throw UserError({.file = metadata.tokenizer,
                     .what = "the run's tokenizer is missing, and this checkpoint has no copy of it",
                     .hint = "restoring it"});
  }
  return models::tokenizer_files(metadata.tokenizer);
}

}  // namespace

Exported export_checkpoint(checkpoint::Checkpoint& checkpoint, const std::string& output, ExportDType dtype) {
  const CheckpointMetadata metadata = read_metadata(checkpoint);
  const bool f16 = dtype == ExportDType::f16;
  DType stored = metadata.stored;
  if (dtype != ExportDType::of_run) stored = dtype == ExportDType::bf16 ? DType::bf16 : DType::f32;
  const std::string name = f16 ? "float16" : to_string(stored);
  Problems problems;
  models::ModelDescription description = models::describe_config(metadata.config, checkpoint.folder(), problems);
  std::vector<checkpoint::Attachment> tokenizer;
  try {
    tokenizer = tokenizer_of(checkpoint, metadata);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
  problems.throw_if_any();
  const models::Model model(std::move(description));
  models::export_folder(output, model, [&](const std::vector<NamedState>& wanted) { checkpoint.read(wanted); },
                        {.stored = stored,
                         .f16 = f16,
                         .config = models::config_json(model.description(), name, metadata.config),
                         .tokenizer = std::move(tokenizer)});
  return {
      .checkpoint = checkpoint.folder(), .step = checkpoint.step(), .parameters = model.parameters(), .dtype = name};
}

}  // namespace hawser::train
