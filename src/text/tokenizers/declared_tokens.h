// `DeclaredTokens`: what the files beside a tokenizer declare: tokenizer_config.json, special_tokens_map.json and
// added_tokens.json.
//
//   const DeclaredTokens declared = read_declared_tokens("model/tokenizer_config.json");
//   declared.texts()["eos_token"];  // "<|im_end|>"
//
// transformers reads a tokenizer.json, and converts a .model or tekken.json, then adds the declared tokens that the
// result lacks: `by_id`, `named` and `extra`, in this order.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizers/added_tokens.h"

namespace hawser::text {

// As transformers 5.24 reads them (tokenization_utils_base.py, PreTrainedTokenizerBase._from_pretrained): the keys of
// special_tokens_map.json override those of tokenizer_config.json. Both special_tokens_map.json and added_tokens.json
// are not read if tokenizer_config.json has `added_tokens_decoder`.
struct DeclaredTokens {
  // A key that ends with _token, or a name of `extra_special_tokens`.
  struct Named {
    std::string key;
    bool declared = true;             // false for one of the seven usual keys that no file has
    std::optional<AddedToken> token;  // none for null and other values than tokens
  };

  // `added_tokens_decoder` or added_tokens.json, in the order of the ids there. These place a token in the order; they
  // rename a piece of a .model (converted_tokenizer.h), and mean nothing else: a token of the vocabulary keeps its id
  // there, others get the next free one.
  std::vector<AddedToken> by_id;
  bool has_decoder = false;  // whether `added_tokens_decoder` is there
  std::vector<Named> named;  // the seven usual keys, from bos_token to mask_token, then the others
  // The list `extra_special_tokens`, or `additional_special_tokens` of tokenizer_config.json.
  std::optional<std::vector<AddedToken>> extra;
  // `additional_special_tokens` of special_tokens_map.json. It takes the place of `extra`, if that is none, but not
  // beside a .model: transformers then forgets it.
  std::vector<AddedToken> additional;

  std::optional<bool> add_bos_token, add_eos_token, add_prefix_space, legacy;  // none: no file has the key
  bool split_special_tokens = false;      // special tokens in a text are encoded as text
  std::optional<std::int32_t> extra_ids;  // number of T5's sentinels
  std::string tokenizer_class;            // "": none
  std::string eos_file;                   // the file that declares `eos_token`
  // Whether a file declares something that changes ids. A chat template, for example, does not.
  bool any = false;

  // The text of each named token.
  std::map<std::string, std::string> texts() const;
};

// Reads a tokenizer_config.json and the files beside it. Files that are missing declare nothing. Throws UserError for a
// file that is no JSON object or cannot be read.
DeclaredTokens read_declared_tokens(const std::string& config_file);

// The tokens that a tokenizer gets, in the order in which transformers adds them.
struct TokensToAdd {
  std::vector<AddedToken> by_id, named, extra;
  bool names_make_special = true;  // also added tokens of a tokenizer.json
  std::optional<AddedToken> eos;   // the declared end of text
  std::string eos_file;            // the file that declares it
  std::string before, after;       // tokens that a converted tokenizer puts around a text; "": none
  bool split_special_tokens = false;
};

// Tokens that a class of transformers has without a declaration: {"bos_token", "<s>"}.
using ClassTokens = std::vector<std::pair<std::string, std::string>>;

// The declared tokens and those of the class. `extra` are the tokens without a name.
TokensToAdd tokens_to_add(const DeclaredTokens& declared, const ClassTokens& of_class, std::vector<AddedToken> extra);
// Those for a tokenizer.json, which decides itself what it puts around a text and must have the end of text.
TokensToAdd tokens_to_add(const DeclaredTokens& declared);

}  // namespace hawser::text
