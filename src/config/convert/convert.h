// `convert_recipe`: a recipe from the YAML of axolotl or LLaMA-Factory.
//
//   micro_batch_size: 2             train.micro_batch_size: 2
//   gradient_accumulation_steps: 4  train.global_batch_size: 64      (2 x 4 x 8 ranks)
//   flash_attention: true           dropped: attention is always fused
//
// Every key of the file is either converted or in Converted::dropped, with a reason.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"

namespace hawser {

enum class OtherTrainer { axolotl, llama_factory };

std::string display_name(OtherTrainer trainer);  // "axolotl", "LLaMA-Factory"

struct ConvertOptions {
  std::string file;
  std::optional<OtherTrainer> from;  // by default it is recognized by the keys of the file
  std::optional<int> ranks;          // by default those that the degrees of the file need, or 1
  // Relative paths of both programs start at the working directory, those of a recipe at its folder. They stay relative
  // in a recipe that is written to the working directory, and become absolute in any other.
  bool keep_relative = true;
};

enum class WhyDropped {
  not_needed,   // nothing in Hawser depends on it
  automatic,    // Hawser does it without a key
  unsupported,  // Hawser cannot do it; the reason says what happens or works instead
  unknown,      // the other trainer has no such key
};

std::string label_of(WhyDropped why);  // "not needed", "automatic", "not supported", "unknown"

struct DroppedKeys {
  WhyDropped why = WhyDropped::not_needed;
  std::string reason;
  std::vector<std::string> keys;  // in the order of the file
};

struct Converted {
  OtherTrainer from = OtherTrainer::axolotl;
  Recipe recipe;
  RecipeNotes notes;                   // the reason of a value is the key that it comes from
  std::vector<std::string> mapped;     // keys of the file that the recipe has
  std::vector<DroppedKeys> dropped;    // one entry for each reason
  std::vector<std::string> remarks;    // what else the user must know
  std::vector<std::string> downloads;  // commands that download the data
};

// Reads the file and converts it. Adds a problem for each wrong value, and for a kind of training that Hawser does not
// have: preferences, rewards, images, adapters other than LoRA. UserError if there is nothing to convert: no file,
// broken YAML, a file of neither program.
Converted convert_recipe(const ConvertOptions& options, Problems& problems);

// The dropped keys as comment lines, for the end of the recipe; "" if there are none.
std::string dropped_comment(const Converted& converted, const std::string& file);

}  // namespace hawser
