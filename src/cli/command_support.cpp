#include "cli/command_support.h"

#include <algorithm>
#include <filesystem>

#include "base/build.h"
#include "base/error.h"
#include "cli/model_name.h"
#include "config/choices.h"
#include "io/files.h"
#include "launch/launcher_environment.h"

namespace hawser::cli {
namespace {

namespace fs = std::filesystem;

void lay_over(Recipe& recipe, const CommonOptions& common, bool runs, Problems& problems) {
  const std::pair<const char*, const char*> keys[] = {{"--ranks", "run.ranks"},
                                                      {"--memory", "memory.capacity"},
                                                      {"--host-memory", "memory.host_capacity"},
                                                      {"--device", "run.device"}};
  for (const auto& [option, key] : keys) {
    if (common.rejected.contains(option)) recipe.rejected.insert(key);
  }
  if (common.ranks > 0) {
    recipe.run.ranks = common.ranks;
    recipe.rejected.erase("run.ranks");
  }
  if (common.memory) {
    recipe.memory.capacity = common.memory;
    recipe.places["memory.capacity"] = "--memory";
  }
  if (common.host_memory) {
    recipe.memory.host_capacity = common.host_memory;
    recipe.places["memory.host_capacity"] = "--host-memory";
  }
  if (common.device) {
    recipe.run.device = *common.device;
    recipe.places["run.device"] = "--device";
    recipe.rejected.erase("run.device");
  }
  if (!build().cuda && runs && common.device == DeviceChoice::cuda) {
    problems.add({.what = "this binary was built without CUDA",
                  .expected = "auto or cpu",
                  .got = "cuda",
                  .at = "--device",
                  .hint = "--device cpu"});
    recipe.run.device = DeviceChoice::automatic;
    recipe.rejected.insert("run.device");
  }
}

}  // namespace

Recipe read_recipe_for(const std::string& path, const CommonOptions& common, Purpose purpose) {
  Problems problems;
  Recipe recipe = read_recipe_for(path, common, purpose, problems);
  problems.throw_if_any();
  return recipe;
}

Recipe read_recipe_for(const std::string& path, const CommonOptions& common, Purpose purpose, Problems& problems) {
  problems.add(common.problems);
  Recipe recipe;
  try {
    recipe = read_recipe(path, with_models_found(common.overrides), purpose, problems);
  } catch (const UserError& error) {  // there is no recipe, but there may be other mistakes
    problems.add_lines(error.what());
    override_recipe({}, with_models_found(common.overrides), /*keep_relative=*/false, problems);
    problems.throw_if_any();
  }
  find_models(recipe, common, purpose == Purpose::train ? hub::Parts::all : hub::Parts::configuration);
  lay_over(recipe, common, purpose != Purpose::plan, problems);
  return recipe;
}

Recipe recipe_without_file(Recipe base, const CommonOptions& common, bool runs, bool keep_relative) {
  Problems problems;
  Recipe recipe = recipe_without_file(std::move(base), common, runs, keep_relative, problems);
  problems.throw_if_any();
  return recipe;
}

Recipe recipe_without_file(Recipe base, const CommonOptions& common, bool runs, bool keep_relative,
                           Problems& problems) {
  problems.add(common.problems);
  Recipe recipe = override_recipe(std::move(base), with_models_found(common.overrides), keep_relative, problems);
  lay_over(recipe, common, runs, problems);
  return recipe;
}

Problems take_unused_keys(CommonOptions& common, const std::string& command, const std::vector<std::string>& used,
                          const std::map<std::string, std::string>& options) {
  Problems out;
  const auto keys = key_choices();
  std::erase_if(common.overrides, [&](const std::string& text) {
    const std::string key = text.substr(0, text.find('='));
    const bool is_used = std::ranges::any_of(
        used, [&](const std::string& one) { return one.ends_with('.') ? key.starts_with(one) : key == one; });
    if (is_used || std::ranges::find(keys, key, &KeyChoices::name) == keys.end()) return false;
    const auto instead = options.find(key);
    out.add({.file = "--set",
             .what = command + " does not use this key",
             .at = key,
             .hint = instead != options.end() ? instead->second : "hawser " + command + " --help"});
    return true;
  });
  return out;
}

void collect(Problems& problems, const std::function<void()>& work) {
  try {
    work();
  } catch (const UserError& error) {
    problems.add_lines(error.what());
  }
}

bool written_here(const std::string& output) {
  std::error_code ignored;
  const fs::path home = fs::path(output).parent_path();
  if (!output.empty()) return home.empty() || fs::equivalent(home, ".", ignored);
  if (!io::is_file("/proc/self/fd/1")) return false;
  return fs::equivalent(fs::read_symlink("/proc/self/fd/1", ignored).parent_path(), ".", ignored);
}

void check_not_overwritten(const std::string& output, bool force, Problems& problems) {
  if (output.empty() || force || !io::exists(output)) return;
  problems.add({.file = output, .what = "already exists", .hint = "another --output, or --force to overwrite it"});
}

Problems trains_only(const Recipe& recipe) {
  Problems out;
  if (recipe.precision.compute == ComputePrecision::fp8) {
    out.add({.file = "--set",
             .what = "only training computes in FP8",
             .expected = "auto, float32 or bf16",
             .got = "fp8",
             .at = "precision.compute"});
  }
  if (recipe.adapter.base == AdapterBase::fp8) {
    out.add({.file = "--set",
             .what = "only training reads a base in FP8",
             .expected = "auto, bf16 or nf4",
             .got = "fp8",
             .at = "adapter.base"});
  }
  return out;
}

void check_target_device(const Recipe& recipe, const plan::Target& target, Problems& problems) {
  const auto place = recipe.places.find("run.device");
  if (place == recipe.places.end() || !accepted(recipe, {"run.device"})) return;
  const bool option = place->second == "--device";
  if (!option && place->second != "--set") return;
  const DeviceChoice device = recipe.run.device;
  if (device == DeviceChoice::automatic || (device == DeviceChoice::cuda) == target.cuda) return;
  problems.add({.file = option ? "" : "--set",
                .what = "the target has another kind of device",
                .expected = target.cuda ? "auto or cuda" : "auto or cpu",
                .got = target.cuda ? "cpu" : "cuda",
                .at = option ? "--device" : "run.device",
                .hint = target.cuda ? "--target cpu" : "--target h200"});
}

int world_size(const CommonOptions& common, int wanted) {
  if (!under_launcher()) return wanted;
  const int started = launched_as().ranks;
  if (common.ranks > 0 && common.ranks != started)
    throw UserError(Problem{.what = "the launcher started a different number of ranks",
                            .expected = cat(common.ranks),
                            .got = cat(started),
                            .at = "--ranks",
                            .hint = cat("--ranks ", started)});
  return started;
}

bool must_launch(int world) {
  return world > 1 && !under_launcher();
}

}  // namespace hawser::cli
