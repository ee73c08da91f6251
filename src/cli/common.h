// What several commands do before their bodies. Internal to cli/.
#pragma once

#include <string>

#include "cli/commands.h"
#include "config/config.h"

namespace hawser::cli {

// The recipe with --set, --ranks, --memory and --device laid over it.
Recipe read_recipe_for(const std::string& path, const CommonOptions& common, Purpose purpose);

// The same for a command without a recipe file. `runs`: it will use the device, which this build must have.
Recipe recipe_without_file(Recipe base, const CommonOptions& common, bool runs = true);

// The size of the world the command runs in: the launcher's where one started us (--ranks must agree), else `wanted`.
int world_size(const CommonOptions& common, int wanted);

// True when the ranks have to be started: more than one, and no launcher did it.
bool must_launch(int world);

// A body that has not landed.
[[noreturn]] void not_in_this_build(const std::string& command);

}  // namespace hawser::cli
