// Settings that each trainer has under names of its own, which its convert() passes. Internal to config/convert/.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "config/convert/conversion.h"

namespace hawser::convert {

// model.path, with a revision of the Hub; or model.config, if the weights are random.
void convert_model(Conversion& c, std::string_view revision, std::string_view from_scratch);
void convert_tokenizer(Conversion& c, std::string_view tokenizer);
// memory.activation_checkpointing: full if one of the keys is on, none if one is off.
void convert_checkpointing(Conversion& c, std::initializer_list<std::string_view> keys);
// memory.activation_offload: true if the switch is on.
void convert_offload(Conversion& c, std::string_view key);
// Sharding and offload of a DeepSpeed file (zero_optimization), named by the key or written in its place. `otherwise`:
// why the key is not needed if there is no such file.
void convert_deepspeed(Conversion& c, std::string_view key, const std::string& otherwise);
// optimizer.groups: the learning rate of LoRA's B matrices, by the ratio to that of A.
void convert_lora_plus(Conversion& c, std::string_view ratio);

// data.max_documents: a sample is a sequence, because the switch `packing` is off.
void convert_unpacked(Conversion& c, std::string_view packing);

// The names of an adapter's keys; "" for those that do not exist.
struct AdapterKeys {
  std::string_view kind;
  bool trains = false;     // an adapter, not all weights
  bool four_bits = false;  // QLoRA
  std::string_view rank, alpha, dropout, targets, all_linears, modules_to_save, rslora, dora;
};
void convert_adapter(Conversion& c, const AdapterKeys& keys);

}  // namespace hawser::convert
