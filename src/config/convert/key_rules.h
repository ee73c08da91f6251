// The keys of axolotl and LLaMA-Factory, as tables: what each becomes. Internal to config/convert/.
//
//   sets("data.sequence_length", "sequence_len"),
//   joins("train.global_batch_size", "gradient_accumulation_steps batch_size"),
//   automatic("attention is always fused", "flash_attention sdp_attention"),
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "config/convert/convert.h"

namespace hawser::convert {

class Conversion;
struct Given;

enum class Becomes {
  key,   // `target` is a key of the recipe that takes the value
  part,  // `target` is a key of the recipe that is computed from several of theirs
  dropped,
};

struct Rule {
  Becomes becomes = Becomes::dropped;
  WhyDropped why = WhyDropped::not_needed;
  std::string_view target;  // a key of the recipe, or the reason
  // Separated by spaces: "lr", "model_config.rope_scaling", or "wandb_*" for all that begin so. Exact names come first.
  std::string_view names;
};

// A key of the recipe takes the value as it is.
constexpr Rule sets(std::string_view ours, std::string_view theirs) {
  return {.becomes = Becomes::key, .target = ours, .names = theirs};
}
// A key of the recipe is computed from it and from other keys, by the code of the trainer.
constexpr Rule joins(std::string_view ours, std::string_view theirs) {
  return {.becomes = Becomes::part, .target = ours, .names = theirs};
}
constexpr Rule not_needed(std::string_view reason, std::string_view theirs) {
  return {.why = WhyDropped::not_needed, .target = reason, .names = theirs};
}
constexpr Rule automatic(std::string_view reason, std::string_view theirs) {
  return {.why = WhyDropped::automatic, .target = reason, .names = theirs};
}
// A value that is off, such as false or none, is dropped as not needed.
constexpr Rule unsupported(std::string_view reason, std::string_view theirs) {
  return {.why = WhyDropped::unsupported, .target = reason, .names = theirs};
}

// A key that asks for a kind of training that Hawser does not have: the file is not converted. A value that is off,
// such as false or none, never stops.
struct Stop {
  std::string_view name;         // of a key, or of a map
  std::string_view except = "";  // values that Hawser trains, separated by spaces
  std::string_view expected;
  std::string_view hint = "";
};

// What a trainer calls the settings that all have, and its defaults where they differ from Hawser's.
struct TrainerKeys {
  std::string_view model, micro_batch, epochs, steps, schedule, optimizer, sequence_length, validation_size;
  int micro_batch_default = 1;
  const char* epochs_default = "1";
  const char* learning_rate_default = nullptr;  // null: the key is required
  const char* schedule_default = "cosine";
  const char* warmup_ratio_default = nullptr;  // null: no warmup
  const char* weight_decay_default = "0";
  const char* sequence_length_default = "512";
  const char* save_steps_default = nullptr;  // null: by time, as in Hawser
  const char* output_default = "";
};

struct Trainer {
  OtherTrainer id = OtherTrainer::axolotl;
  TrainerKeys keys;
  std::span<const Rule> rules;
  std::span<const Rule> data_rules;  // of the entries of `data_lists`
  std::span<const std::string_view> data_lists;
  std::span<const Stop> stops;
  // Converts what has a form of its own: data sets, precision, adapter.
  void (*convert)(Conversion&) = nullptr;

  const Rule* find(std::string_view name) const;
  const Rule* find_of_data(std::string_view name) const;
  // Whether a map is converted key by key: a rule has a name "MAP.KEY".
  bool is_section(std::string_view name) const;
};

const Trainer& axolotl();
const Trainer& llama_factory();
const Trainer& llama_factory_v1();  // the second generation of its files: `model`, and maps of settings

}  // namespace hawser::convert
