// From a Hugging Face config.json to a description of the model, and back. Each family has a folder of its own; this is
// the list of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/model.h"
#include "tensor/dtype.h"

namespace hawser::models {

// Reads FOLDER/config.json, or the file itself, and dispatches on its model_type. Adds every problem it finds, each one
// line that names the key; where it added one, what it returns is not to be used (it has no blocks).
ModelDescription read_description(const std::string& folder_or_config_json, Problems& problems);

// The same from the text of a config.json; `file` names it in messages.
ModelDescription describe_config(const std::string& text, const std::string& file, Problems& problems);

// The config.json in a folder, or the path itself where it is a file.
std::string config_path(const std::string& folder_or_config_json);

// Tokens that a config names; ids only, for their texts see the tokenizer. generation_config.json beside it wins, as in
// transformers. Adds problems like read_description.
struct SpecialTokens {
  std::optional<std::int64_t> begin;  // bos_token_id
  std::vector<std::int64_t> ends;     // eos_token_id, one or several: generation stops at any of them
};
SpecialTokens read_special_tokens(const std::string& folder_or_config_json, Problems& problems);

// The same from the text of a config.json and the generation_config.json in `folder`, where there is one.
SpecialTokens describe_special_tokens(const std::string& config, const std::string& folder, Problems& problems);

// One line for a person when sequences of `length` tokens reach beyond the positions that the model was made for; ""
// when they do not. Linear scaling stretches them by its factor; llama3's is counted in max_position_embeddings
// already.
std::string beyond_positions(const ModelDescription& description, std::int64_t length);

// The text of a config.json for an exported folder whose tensors are stored as `stored`; transformers 4 and 5 read it.
// With `original`, the text of the config.json that the description was read from, all of that is kept and only the
// stored type is changed. Without it (""), a complete one is written in the style of transformers 4.
std::string config_json(const ModelDescription& description, DType stored, const std::string& original = "");

}  // namespace hawser::models
