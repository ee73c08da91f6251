// A recipe from YAML, checked, and back to text. All comes from one schema table (schema.cpp).
//
//   Recipe recipe = read_recipe("recipe.yaml", {"train.steps=10"});
//   Problems problems;
//   check_layout(recipe, 4, problems);
//   problems.throw_if_any();
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/recipe.h"

namespace hawser {

// What the recipe is read for; it decides which keys must be there and whether the device must be one this build has.
enum class Purpose {
  train,    // all of a run: text, steps, output
  prepare,  // text to token files: text and where they go
  plan,     // a model, a sequence length; nothing is run
};

// Reads `path` and lays `overrides` over it: each "KEY=VALUE", the key dotted, the value read as YAML, a later one
// winning. An empty value goes back to the default. A relative path in an override starts at the working directory,
// one in the file at the file's folder (Recipe::folder); ~ is the home folder in both.
// Throws UserError with every problem at once: unreadable file, broken YAML, unknown, repeated and missing keys, wrong
// types and ranges, values not supported yet, keys that contradict each other.
Recipe read_recipe(const std::string& path, const std::vector<std::string>& overrides,
                   Purpose purpose = Purpose::train);

// The same for commands without a recipe file: `base` with the overrides laid over it. No key is required.
Recipe override_recipe(Recipe base, const std::vector<std::string>& overrides);

// Can `world` ranks be laid out as the recipe says? hybrid_shard_degree is shard x context: 0 is the world, 1 none,
// else a multiple of the context degree that divides the world. A context degree above 1 with hybrid_shard_degree 1 is
// allowed: nothing is sharded, gradients are summed over context and replicas.
void check_mesh(const Recipe& recipe, int world, Problems& problems);

// The mesh, and the batch on it: global_batch_size is a multiple of (world / context) x micro_batch_size.
void check_layout(const Recipe& recipe, int world, Problems& problems);

// A list of memory.activation_checkpointing has one entry for each block of the model.
void check_blocks(const Recipe& recipe, std::int64_t blocks, Problems& problems);

// Ranks to start when nobody said: run.ranks; else one a GPU on CUDA (`gpus`: those of this machine); else the
// product of the degrees, where a hybrid_shard_degree of 0 asks for no more than the others do.
int default_ranks(const Recipe& recipe, DeviceChoice device, int gpus = 0);

// "train.steps, line 12" (or ", --set"; or the bare key when it was not given): the `at` of a Problem.
std::string key_place(const Recipe& recipe, std::string_view key);

// A path of the recipe as the process can open it: relative ones start at the recipe's folder; "" stays "".
std::string resolve_path(const Recipe& recipe, const std::string& path);

// memory.activation_checkpointing as it is typed after KEY=: "selective", "[20*gate_up,12*none]".
std::string checkpointing_text(const MemoryRecipe& memory);

// docs/recipe.md: every key with its values, default and help.
std::string recipe_reference_markdown();

// What a written recipe says beside its keys' help; each text is plain, of one line or several.
struct RecipeNotes {
  std::string head;                        // at the top
  std::map<std::string, std::string> why;  // by dotted key: why it has its value
};

// The recipe as YAML, every key with its help as a comment; a key without a value is commented out. Reads back equal.
std::string commented_recipe(const Recipe& recipe, const RecipeNotes& notes = {});

// The recipe as JSON, every key, null where nothing is set; kept in the run folder. Reads back equal (JSON is YAML).
std::string recipe_json(const Recipe& recipe);

}  // namespace hawser
