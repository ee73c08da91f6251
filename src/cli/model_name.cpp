#include "cli/model_name.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/environment.h"
#include "base/hub_name.h"
#include "base/paths.h"
#include "cli/exit.h"
#include "config/config.h"
#include "io/bounded_file.h"
#include "io/files.h"
#include "io/json.h"
#include "launch/launcher_environment.h"

namespace hawser::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxRefBytes = 4096, kMaxRecipeBytes = 1 << 20;

std::string hub_cache() {
  const auto below = [](const std::string& folder, const char* rest) {
    return absolute_path(with_home(folder) + rest);
  };
  if (const auto cache = environment_variable("HF_HUB_CACHE"); !cache.empty()) return below(cache, "");
  if (const auto home = environment_variable("HF_HOME"); !home.empty()) return below(home, "/hub");
  const auto caches = environment_variable("XDG_CACHE_HOME");
  return below(caches.empty() ? "~/.cache" : caches, "/huggingface/hub");
}

// The commit of a branch or tag; the revision itself if the cache has no such reference.
std::string commit_of(const fs::path& model, const std::string& revision) {
  const fs::path reference = model / "refs" / revision;
  if (!io::is_file(reference.string())) return revision;
  std::string commit = io::read_bounded(reference.string(), kMaxRefBytes);
  commit.erase(commit.find_last_not_of(" \t\r\n") + 1);
  return commit;
}

}  // namespace

std::string find_model(const std::string& text, const std::string& folder) {
  const auto name = parse_hub_name(text);
  if (!name || text.ends_with(".json") || io::exists((fs::path(folder) / text).string())) return text;
  const fs::path model = fs::path(hub_cache()) / hub_folder(*name);
  if (!io::exists(model.string())) {
    // ORG is a folder here: the name is a mistyped path.
    const bool is_path = io::exists((fs::path(folder) / text.substr(0, text.find('/'))).string());
    return is_path ? text : name->revision.empty() ? model.string() : (model / "snapshots" / name->revision).string();
  }
  const fs::path snapshot = model / "snapshots" / commit_of(model, name->revision.empty() ? "main" : name->revision);
  // Once in a run: the local launcher prints it for its ranks.
  if (launched_as().rank == 0 && !launched_locally() && io::exists(snapshot.string())) {
    print("", cat("model ", name->text(), ": ", snapshot.string()));
  }
  return snapshot.string();
}

namespace {

std::string find_for_key(const std::string& key, const std::string& value, const std::string& folder) {
  const std::string found = find_model(value, folder);
  if (found == value || key == "model.path") return found;
  if (!io::exists(found)) return value;
  return key == "model.config" ? (fs::path(found) / "config.json").string() : found;
}

}  // namespace

void find_models(Recipe& recipe) {
  recipe.model.path = find_for_key("model.path", recipe.model.path, recipe.folder);
  recipe.model.config = find_for_key("model.config", recipe.model.config, recipe.folder);
  recipe.data.tokenizer = find_for_key("data.tokenizer", recipe.data.tokenizer, recipe.folder);
}

void warn_of_other_commit(const Recipe& recipe) {
  const auto now = hub_name_of(recipe.model.path);
  const std::string file = (fs::path(resolve_path(recipe, recipe.output)) / "recipe.json").string();
  if (!now || !io::exists(file)) return;
  const auto stored = io::json_or_null(io::read_text(file, kMaxRecipeBytes));
  const auto path = stored.is_object() ? stored.value("/model/path"_json_pointer, nlohmann::json()) : nlohmann::json();
  const auto before = path.is_string() ? hub_name_of(path.get<std::string>()) : std::nullopt;
  if (!before || before->model != now->model || before->revision == now->revision) return;
  print("warning: ",
        cat("the run began with ", before->text(), ", and the recipe's model is now commit ", now->revision,
            "; weights continue from the checkpoint, tokenizer and config are the new ones"));
}

std::vector<std::string> with_models_found(std::vector<std::string> overrides) {
  for (std::string& text : overrides) {
    for (const std::string key : {"model.path", "model.config", "data.tokenizer"}) {
      if (text.starts_with(key + "=")) text = key + "=" + find_for_key(key, text.substr(key.size() + 1), "");
    }
  }
  return overrides;
}

}  // namespace hawser::cli
