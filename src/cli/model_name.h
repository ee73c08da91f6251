// Models by name: ORG/NAME of the Hugging Face Hub, found in the hub's local cache, and pulled into it first if it
// lacks what a command needs (hub/pull.h).
//
// The rule for a model that a user names, on the command line or in a recipe:
//   1. A path that exists is that path; relative paths start at `folder`.
//   2. ORG/NAME[@REVISION] (base/hub_name.h) is the snapshot of that revision in the cache; without one, of main. The
//      cache is that of hub/hub_settings.h. Nothing is pulled with --offline or HF_HUB_OFFLINE, or if ORG is a folder
//      here.
//   3. Any other text is a path; reading it reports that it does not exist.
// The snapshot's folder contains the commit, and all that a run stores names it: a later main changes no run.
//
// A command pulls before it starts ranks. Under another launcher, each host pulls into its cache, or all into a shared
// one: the first rank that takes the lock of the model pulls, and the others wait for it. run_on_ranks compares the
// commits. Internal to cli/.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.h"
#include "config/recipe.h"
#include "hub/cache.h"

namespace hawser::cli {

// The path of the model that the user calls `text`, by the rule above; `parts`: what the command reads of it. If the
// cache lacks a name, the path where its snapshot would be: reading it reports why, or the command that downloads it
// (not_downloaded).
std::string find_model(const std::string& text, const CommonOptions& common, hub::Parts parts);

// find_model for model.path of a recipe. model.config and data.tokenizer, which usually are paths, are replaced only if
// the cache has the name.
void find_models(Recipe& recipe, const CommonOptions& common, hub::Parts parts);

// The same for overrides "KEY=VALUE". Nothing is pulled: find_models does it for the recipe that they are part of.
std::vector<std::string> with_models_found(std::vector<std::string> overrides);

// Warns, for a run that resumes, if the recipe's model is now another commit than when the run began.
void warn_of_other_commit(const Recipe& recipe);

}  // namespace hawser::cli
