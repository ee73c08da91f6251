#include "cli/model_name.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "base/hub_name.h"
#include "cli/exit.h"
#include "cli/pull_progress.h"
#include "config/config.h"
#include "hub/hub_settings.h"
#include "io/files.h"
#include "io/json.h"
#include "launch/launcher_environment.h"

namespace hawser::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxRecipeBytes = 1 << 20;

// Where the cache has, or would have, the snapshot of a name.
std::string place_of(const HubName& name) {
  const hub::Repo repo{.name = name};
  const hub::RepoCache cache(hub::cache_folder(), repo);
  if (!io::exists(cache.folder()) && name.revision.empty()) return cache.folder();
  return cache.snapshot(cache.commit_of(repo.revision()));
}

// The name that the text is, and nothing here has.
std::optional<HubName> name_of(const std::string& text, const std::string& folder) {
  const auto name = parse_hub_name(text);
  if (!name || text.ends_with(".json") || io::exists((fs::path(folder) / text).string())) return {};
  // If ORG is a folder here, a name that the cache lacks is a mistyped path.
  const bool is_path = io::exists((fs::path(folder) / text.substr(0, text.find('/'))).string());
  if (is_path && !io::exists(hub::RepoCache(hub::cache_folder(), {.name = *name}).folder())) return {};
  return name;
}

// The error of a pull for a name that may have been meant as a path.
std::string of_path_or_name(const HubName& name, std::string error) {
  const std::string before = name.text() + ": ";
  for (const char* what : {"no such model", "the Hub cannot be reached"}) {
    if (error.starts_with(before + what)) error.insert(before.size(), "no such folder, and ");
  }
  return error;
}

// Pulls what the cache lacks of a model, unless the user wants no requests. Who reads the model reports an error.
void pull_missing(const HubName& name, const CommonOptions& common, hub::Parts parts) {
  const auto complete = [&] { return hub::has_parts(place_of(name), parts); };
  // Ranks of the local launcher find what it has pulled.
  if (complete() || common.offline || hub::is_offline() || launched_locally()) return;
  try {
    const hub::Repo repo{.name = name};
    const hub::Settings settings = hub::read_settings();
    bool said = launched_as().rank != 0;
    const io::File lock = hub::RepoCache(settings.cache, repo).lock("pull", [&] {
      if (!said) print("", cat("another process pulls ", name.text(), ": waiting for it"));
      said = true;
    });
    if (complete()) return;
    pull_and_show({.settings = settings, .repo = repo, .parts = parts});
  } catch (const UserError& error) {
    const std::string path = place_of(name);
    if (io::exists(path)) {
      print("warning: ", error.what());
    } else {
      set_not_downloaded(path, of_path_or_name(name, error.what()));
    }
  }
}

// Once in a run: the local launcher prints it for its ranks.
void say(const HubName& name, const std::string& snapshot) {
  if (launched_as().rank != 0 || launched_locally() || !io::exists(snapshot)) return;
  print("", cat("model ", name.text(), ": ", snapshot));
}

// Without a pull.
std::string in_cache(const std::string& text, const std::string& folder) {
  const auto name = name_of(text, folder);
  if (!name) return text;
  const std::string place = place_of(*name);
  say(*name, place);
  return place;
}

}  // namespace

std::string find_model(const std::string& text, const CommonOptions& common, hub::Parts parts) {
  if (const auto name = name_of(text, "")) pull_missing(*name, common, parts);
  return in_cache(text, "");
}

namespace {

std::string find_for_key(const std::string& key, const std::string& value, const std::string& folder) {
  const std::string found = in_cache(value, folder);
  if (found == value || key == "model.path") return found;
  if (!io::exists(found)) return value;
  return key == "model.config" ? (fs::path(found) / "config.json").string() : found;
}

}  // namespace

void find_models(Recipe& recipe, const CommonOptions& common, hub::Parts parts) {
  auto name = name_of(recipe.model.path, recipe.folder);
  // with_models_found has replaced a name by a path of the cache.
  if (!name && recipe.model.path.starts_with(hub::cache_folder() + "/")) name = hub_name_of(recipe.model.path);
  if (name) {
    const bool by_name = recipe.model.path == name->text();
    pull_missing(*name, common, parts);
    if (!by_name) recipe.model.path = place_of(*name);
  }
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
