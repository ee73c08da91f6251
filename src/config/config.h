// Reads a recipe from YAML, checks it and writes it as text. All of it uses one schema table (schema.cpp).
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
#include "config/recipe.h"

namespace hawser {

// What the recipe is read for: decides which keys are required and whether the device must exist in this build.
enum class Purpose {
  train,    // a complete run: text, steps, output
  prepare,  // text to token files: text and their folder
  plan,     // a model and a sequence length; nothing is run
};

// Reads `path` and applies `overrides`: each is "KEY=VALUE" with a dotted key and a YAML value; later ones win. An
// empty value restores the default. Relative paths in an override start at the working directory, those in the file at
// the file's folder (Recipe::folder); ~ is the home folder in both.
// Throws UserError with all problems at once: unreadable file, broken YAML, unknown, repeated and missing keys, wrong
// types and ranges, values not supported yet, keys that contradict each other.
Recipe read_recipe(const std::string& path, const std::vector<std::string>& overrides,
                   Purpose purpose = Purpose::train);

// The same, but adds the problems: for a command with checks of its own, which reports all problems at once.
// Keys with a problem are in Recipe::rejected; of a list, the entries that are right are kept. Throws if there is no
// recipe to read: no file, broken YAML.
Recipe read_recipe(const std::string& path, const std::vector<std::string>& overrides, Purpose purpose,
                   Problems& problems);

// True if none of the keys is in Recipe::rejected: what depends on them can be checked.
bool accepted(const Recipe& recipe, const std::vector<std::string>& keys);

// For commands without a recipe file: applies the overrides to `base`. No key is required. `keep_relative`: relative
// paths stay relative, for a recipe in the working directory.
Recipe override_recipe(Recipe base, const std::vector<std::string>& overrides, bool keep_relative = false);
Recipe override_recipe(Recipe base, const std::vector<std::string>& overrides, bool keep_relative, Problems& problems);

// The checks below skip what depends on keys of Recipe::rejected.
//
// Checks that `world` ranks can form the recipe's mesh. hybrid_shard_degree is shard x context: 0 is the world, 1 none,
// else a multiple of the context degree that divides the world. A context degree above 1 with hybrid_shard_degree 1 is
// allowed: nothing is sharded, and gradients are reduced over context and replicas.
void check_mesh(const Recipe& recipe, int world, Problems& problems);

// check_mesh, and the batch: global_batch_size must be a multiple of (world / context) x micro_batch_size.
void check_layout(const Recipe& recipe, int world, Problems& problems);

// Checks that warm-up and decay are within train.steps; with train.epochs the steps are known once the data is read.
void check_warmup(const Recipe& recipe, Problems& problems);

// Checks train.early_stopping.metric: the name of one of the `sets`, or that of all, and that the run evaluates them.
void check_metric(const Recipe& recipe, const std::vector<std::string>& sets, Problems& problems);

// Checks that a list of memory.activation_checkpointing has one entry per block of the model.
void check_blocks(const Recipe& recipe, std::int64_t blocks, Problems& problems);

// Ranks to start if the user gives no number: run.ranks; else one per GPU on CUDA (`gpus`: those of this machine); else
// the larger of hybrid_shard_degree and context_parallel_degree.
int default_ranks(const Recipe& recipe, DeviceChoice device, int gpus = 0);

// "train.steps, line 12" (or ", --set"; the option alone if another one gave the value, "--memory"; the bare key if it
// was not given): the `at` of a Problem.
std::string key_place(const Recipe& recipe, std::string_view key);

// A Problem at a key, with its file and place: "--set" if an override gave it, else the recipe's file and line.
Problem problem_at(const Recipe& recipe, std::string_view key);

// Where the recipe names a file or a folder: the `at` of a problem of that file. "data.tokenizer, line 3 of r.yaml", or
// as key_place.
std::string origin_of(const Recipe& recipe, const std::string& key);

// The problems of files that the recipe names, with origin_of for those at a key or at an entry of its list,
// "data.train[0]". Those of `path` itself, or of the model there, without a place are at `key`.
Problems with_origins(const Recipe& recipe, const Problems& problems, const std::string& key = "",
                      const std::string& path = "");

// The keys of precision.fp8 that the recipe sets, with another value than the default, although it does not compute in
// FP8: "precision.fp8.margin, precision.fp8.layers". "": none.
std::string unused_fp8_keys(const Recipe& recipe);

// A warning about a learning rate at which training hardly ever works; empty if there is none.
std::string high_learning_rate(const Recipe& recipe);

// A path of the recipe as the process can open it: relative paths start at the recipe's folder; "" stays "".
std::string resolve_path(const Recipe& recipe, const std::string& path);

// memory.activation_checkpointing in the syntax of --set KEY=: "selective", "[20*gate_up,12*none]".
std::string checkpointing_text(const MemoryRecipe& memory);

// "[9,8,8,7]", "[4*8]" or "auto": as a recipe writes parallel.pipeline_partition.
std::string partition_text(const ParallelRecipe& parallel);

// docs/recipe.md: every key with its values, default and help.
std::string recipe_reference_markdown();

// Comments of a written recipe in addition to the keys' help; plain text, one or several lines.
struct RecipeNotes {
  std::string head;                        // at the top of the file
  std::map<std::string, std::string> why;  // by dotted key: the reason for its value
  bool chosen_only = false;                // leave out keys that have their default and no reason
};

// The recipe as YAML, every key with its help as a comment; keys without a value are commented out. Reading it back
// gives an equal recipe.
std::string commented_recipe(const Recipe& recipe, const RecipeNotes& notes = {});

// The recipe as JSON: every key, null if not set. Stored in the run folder. Reading it back gives an equal recipe (JSON
// is YAML).
std::string recipe_json(const Recipe& recipe);

// The keys of one section of such a text, "adapter"; all others, and those that it does not have (it may be of an
// earlier version), have their defaults. UserError for a value that this version rejects.
Recipe stored_section(const std::string& recipe_json, std::string_view section);

}  // namespace hawser
