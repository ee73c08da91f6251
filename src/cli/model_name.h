// Models by name: ORG/NAME of the Hugging Face Hub, found in the hub's local cache. Nothing is downloaded.
//
// The rule for a model that a user names, on the command line or in a recipe:
//   1. A path that exists is that path; relative paths start at `folder`.
//   2. ORG/NAME[@REVISION] (base/hub_name.h) is the snapshot of that revision in the cache; without one, of main. The
//      cache is HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.
//   3. Any other text is a path; reading it reports that it does not exist.
// The snapshot's folder contains the commit, and all that a run stores names it: a later main changes no run.
//
// Each rank finds the model on its own host; run_on_ranks compares the commits. Internal to cli/.
#pragma once

#include <string>
#include <vector>

#include "config/recipe.h"

namespace hawser::cli {

// The path of the model that the user calls `text`, by the rule above. If the cache lacks a name, the path where its
// snapshot would be: reading it reports the command that downloads it (not_downloaded).
std::string find_model(const std::string& text, const std::string& folder = "");

// find_model for model.path of a recipe, and of overrides "KEY=VALUE". model.config and data.tokenizer, which usually
// are paths, are replaced only if the cache has the name.
void find_models(Recipe& recipe);
std::vector<std::string> with_models_found(std::vector<std::string> overrides);

// Warns, for a run that resumes, if the recipe's model is now another commit than when the run began.
void warn_of_other_commit(const Recipe& recipe);

}  // namespace hawser::cli
