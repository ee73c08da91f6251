#include "engine/find_checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"
#include "checkpoint/root.h"
#include "io/files.h"
#include "io/json.h"
#include "prepare/prepare.h"

namespace hawser::engine {

namespace fs = std::filesystem;

CheckpointMetadata read_metadata(const checkpoint::Checkpoint& checkpoint) {
  const auto json = io::json_or_null(checkpoint.metadata());
  const auto text = [&](const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  CheckpointMetadata metadata{.step = checkpoint.step(),
                              .config = text("config"),
                              .base_model = text("base_model"),
                              .base = text("base"),
                              .tokenizer = text("tokenizer")};
  if (!checkpoint.attached().empty()) metadata.tokenizer = checkpoint.folder();
  if (metadata.config.empty()) {
    throw UserError({.file = checkpoint.folder(),
                     .what = "not a checkpoint of a run",
                     .expected = "a model's config in its meta",
                     .hint = "a checkpoint that hawser fit wrote"});
  }
  if (const auto turns = json.find("conversations"); turns != json.end() && turns->is_boolean()) {
    metadata.conversations = turns->get<bool>();
  }
  if (!json.contains("recipe")) return metadata;
  metadata.recipe = json["recipe"].dump();
  const auto precision = json["recipe"].value("/precision/compute"_json_pointer, nlohmann::json());
  if (precision == "bf16") metadata.stored = DType::bf16;
  return metadata;
}

std::optional<std::string> checkpoints_below(const std::string& path) {
  const std::string below = (fs::path(path) / "checkpoints").string();
  if (io::is_folder(below)) return below;
  if (!checkpoint::step_folders(path).empty()) return path;
  return std::nullopt;
}

bool looks_like_checkpoint(const std::string& path) {
  const auto has = [&path](const std::string& name) { return io::exists((fs::path(path) / name).string()); };
  // Every checkpoint has a file of rank 0.
  return has(checkpoint::kManifestName) || (!has("config.json") && has(checkpoint::rank_file(0)));
}

std::optional<Problem> other_folder(const std::string& path) {
  if (!io::exists((fs::path(path) / "recipe.json").string())) return prepare::prepared_folder(path);
  return Problem{.file = path,
                 .what = "no checkpoint yet",
                 .hint = "again after the run has saved; metrics.jsonl shows its progress"};
}

checkpoint::Checkpoint open_checkpoint(const std::string& path, Problems& skipped) {
  if (!io::exists(path)) {
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

}  // namespace hawser::engine
