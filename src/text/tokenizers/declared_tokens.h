// `DeclaredTokens`: the special and added tokens that the files beside a tokenizer.json declare.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizers/added_tokens.h"

namespace hawser::text {

// As transformers 5 reads them (tokenization_utils_base.py, PreTrainedTokenizerBase._from_pretrained): the keys of
// special_tokens_map.json override those of tokenizer_config.json, unless the latter has `added_tokens_decoder`; then
// the former is not read.
struct DeclaredTokens {
  std::map<std::string, std::string> named;  // "eos_token" -> its text; keys that end with _token
  // In the order in which transformers adds those that the tokenizer lacks: `added_tokens_decoder` (or
  // added_tokens.json) by id, the named ones but that of the end, those of `extra_special_tokens` with names, the
  // others of it (or of `additional_special_tokens`). Their `id` means nothing: a token of the vocabulary keeps its id
  // there, others get the next free one. That of padding is reserved.
  std::vector<AddedToken> added;
  std::optional<AddedToken> eos;
  std::string file;  // the file that declares `eos`
};

// Reads a tokenizer_config.json, and special_tokens_map.json and added_tokens.json beside it. Files that are missing
// declare nothing. Throws UserError for a file that is no JSON object or cannot be read.
DeclaredTokens read_declared_tokens(const std::string& config_file);

}  // namespace hawser::text
