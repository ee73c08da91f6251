// `read_description`: converts a Hugging Face config.json to a ModelDescription; `config_json`: the inverse. Each
// family has its own folder; families.cpp lists them. What families share is in decoder_keys.h, sizes.h, rope_keys.h,
// windows.h and expert_keys.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/model.h"
#include "models/tensor_names.h"
#include "tensor/dtype.h"

namespace hawser::models {

// Reads FOLDER/config.json, or the file itself, and dispatches on its model_type. Adds every problem that it finds, one
// line each, with the key. If it adds one, the returned description has no blocks and must not be used.
// `names`: the tensors that the description is for; it then has the names that they have, for instance without the
// prefix "model.". By default they are the names that transformers writes.
ModelDescription read_description(const std::string& folder_or_config_json, Problems& problems,
                                  const TensorNames* names = nullptr);

// As read_description, from the text of a config.json; `file` names it in messages.
ModelDescription describe_config(const std::string& text, const std::string& file, Problems& problems,
                                 const TensorNames* names = nullptr);

// As describe_config, without check_supported: reads what no layer computes yet.
ModelDescription describe_unchecked(const std::string& text, const std::string& file, Problems& problems,
                                    const TensorNames* names = nullptr);

// The model types of all families.
std::vector<std::string> model_types();

// The config.json in a folder, or the path itself if it is a file.
std::string config_path(const std::string& folder_or_config_json);

// Ids of special tokens in a config; the tokenizer has their texts. A generation_config.json in the same folder takes
// precedence, as in transformers. Adds problems like read_description.
struct SpecialTokens {
  std::optional<std::int64_t> begin;  // bos_token_id
  std::vector<std::int64_t> ends;     // eos_token_id, one or several: generation stops at any of them
  // Keys of generation_config.json with which transformers chooses other tokens, also if it does not sample.
  std::vector<std::string> not_applied = {};
};
SpecialTokens read_special_tokens(const std::string& folder_or_config_json, Problems& problems);

// Those of an adapter's folder: its generation_config.json, if it has one, takes the place of the model's.
void read_special_tokens_of_adapter(const std::string& folder, SpecialTokens& tokens, Problems& problems);

// As read_special_tokens, from the text of a config.json and the generation_config.json in `folder`, if there is one.
SpecialTokens describe_special_tokens(const std::string& config, const std::string& folder, Problems& problems);

// A warning, one line, if sequences of `length` tokens exceed the model's positions; otherwise "". Linear scaling
// multiplies the positions by its factor, yarn those of the original model; with llama3, max_position_embeddings
// already includes it.
std::string beyond_positions(const ModelDescription& description, std::int64_t length);

// The text of a config.json for an exported folder whose tensors are stored as `stored`; transformers 4 and 5 read it.
// `original` is the text of the config.json that the description was read from: all of it is kept except the stored
// dtype. If it is "", a complete config is written in the style of transformers 4.
// `stored` as a name: "float32", "bfloat16", "float16".
std::string config_json(const ModelDescription& description, const std::string& stored,
                        const std::string& original = "");
std::string config_json(const ModelDescription& description, DType stored, const std::string& original = "");

// The settings that make `now` compute something else than `before`, as config.json spells them: "rope_theta was
// 10000.0 and is 500000.0, ..."; "" if there are none. Compares what the engine reads, so the styles of transformers 4
// and 5 are equal. Ignores max_position_embeddings and initializer_range, which do not change a trained model's output.
std::string description_changes(const ModelDescription& before, const ModelDescription& now);

}  // namespace hawser::models
