// Helpers shared by several commands. Internal to cli/.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "config/config.h"
#include "plan/target.h"

namespace hawser::cli {

// The recipe with --set, --ranks, --memory, --host-memory and --device applied, and the paths of models that it names. The problems of
// the command line (CommonOptions::problems) are among those thrown or added, and the keys of its wrong values are in
// Recipe::rejected.
Recipe read_recipe_for(const std::string& path, const CommonOptions& common, Purpose purpose);

// The same, but adds the problems of the recipe: for a command that reports its own with them (config.h).
Recipe read_recipe_for(const std::string& path, const CommonOptions& common, Purpose purpose, Problems& problems);

// The same for a command without a recipe file. `runs`: the command uses the device, which this build must support.
// `keep_relative`: of override_recipe.
Recipe recipe_without_file(Recipe base, const CommonOptions& common, bool runs = true, bool keep_relative = false);
Recipe recipe_without_file(Recipe base, const CommonOptions& common, bool runs, bool keep_relative, Problems& problems);

// Removes the keys of --set that the command does not use, whatever their values are: not those of `used`, which are
// keys or, with a dot at the end, sections. Returns a problem for each. `options` names the option to use instead of a
// key. Unknown keys are not among them.
Problems take_unused_keys(CommonOptions& common, const std::string& command, const std::vector<std::string>& used,
                          const std::map<std::string, std::string>& options = {});

// Runs `work`, and adds its mistakes of the user to the problems.
void collect(Problems& problems, const std::function<void()>& work);

// Whether a recipe is written to the working directory, so that its paths may stay relative: to the folder of `output`,
// or, if that is "", to the file that standard output is redirected to. The destination of a pipe is unknown.
bool written_here(const std::string& output);

// A problem if `output` exists and --force is not given; "" is standard output.
void check_not_overwritten(const std::string& output, bool force, Problems& problems);

// A problem if --set asks a command that does not train for FP8, whose scales come from training.
Problems trains_only(const Recipe& recipe);

// A problem if --device or --set asks for another kind of device than that of the target, which a plan is for. The
// device of the recipe's file is that of its runs: a plan for another target is what --target is for.
void check_target_device(const Recipe& recipe, const plan::Target& target, Problems& problems);

// The world size: the launcher's if one started this process (--ranks must agree), else `wanted`.
int world_size(const CommonOptions& common, int wanted);

// True if the ranks must be started: more than one, and no launcher did.
bool must_launch(int world);

}  // namespace hawser::cli
