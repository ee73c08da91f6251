// Helpers shared by several commands. Internal to cli/.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "config/config.h"

namespace hawser::cli {

// The recipe with --set, --ranks, --memory and --device applied, and the paths of models that it names.
Recipe read_recipe_for(const std::string& path, const CommonOptions& common, Purpose purpose);

// The same, but adds the problems of the recipe: for a command that reports its own with them (config.h).
Recipe read_recipe_for(const std::string& path, const CommonOptions& common, Purpose purpose, Problems& problems);

// The same for a command without a recipe file. `runs`: the command uses the device, which this build must support.
// `keep_relative`: of override_recipe.
Recipe recipe_without_file(Recipe base, const CommonOptions& common, bool runs = true, bool keep_relative = false);
Recipe recipe_without_file(Recipe base, const CommonOptions& common, bool runs, bool keep_relative, Problems& problems);

// A problem for each key of --set that the command does not use: not one of `used`, which are keys or, with a dot at
// the end, sections. `options` names the option to use instead of a key. Unknown keys are not among them.
Problems unused_keys(const CommonOptions& common, const std::string& command, const std::vector<std::string>& used,
                     const std::map<std::string, std::string>& options = {});

// A problem if --set asks a command that does not train for FP8, whose scales come from training.
Problems fp8_trains_only(const Recipe& recipe);

// The world size: the launcher's if one started this process (--ranks must agree), else `wanted`.
int world_size(const CommonOptions& common, int wanted);

// True if the ranks must be started: more than one, and no launcher did.
bool must_launch(int world);

}  // namespace hawser::cli
