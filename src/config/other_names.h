// What to write for the keys of other trainers: axolotl, Hugging Face's Trainer and TRL, torchtune, torchtitan,
// DeepSpeed, LLaMA-Factory and Megatron-LM. Spelling alone would suggest `optimizer.beta1` for `optimizer.lr`.
//
// Internal to config/.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hawser {

struct OtherNames {
  std::string_view hint;   // a key, perhaps with a remark in brackets, or what to do without one; follows "try "
  std::string_view names;  // separated by spaces: "lr", "optimizer.lr" (only there) or "lora.*" (all of a section)
};
std::span<const OtherNames> other_names();

// The hint for a key of another trainer, such as "optimizer.lr", "num_train_epochs" or "micro-batch-size"; "" for any
// other name.
std::string hint_for_other_name(std::string_view name);

}  // namespace hawser
