// `ConvertedTokenizer`: the tokenizer.json that transformers 5.24 makes of a SentencePiece .model or a tekken.json
// where the files beside it declare tokens or flags, and the tokens that it then adds.
//
//   .model with "tokenizer_class": "LlamaTokenizer", "legacy": false, "add_bos_token": true
//     -> BPE, a Metaspace that puts a mark before the first word only, "<s>" before a text
//
// The class decides what becomes of a .model. LlamaTokenizer, CodeLlamaTokenizer, GemmaTokenizer and T5Tokenizer have a
// pipeline of their own. All other classes get that of the generic class, TokenizersBackend, which follows the model's
// settings.
//
// Source: transformers 5.24, SentencePieceExtractor and SpmConverter.build_tokenizer_from_spm_proto
// (convert_slow_tokenizer.py), MistralConverter (integrations/mistral), and the classes.
#pragma once

#include <map>
#include <string>

#include "text/tokenizers/declared_tokens.h"
#include "text/tokenizers/json_reader.h"
#include "text/tokenizers/sentence_piece.h"

namespace hawser::text {

enum class TokenizerClass { generic, llama, code_llama, gemma, t5 };

// The class that AutoTokenizer of transformers takes: that of tokenizer_config.json, but the generic one for model
// types that have it, such as mistral. `folder` may have a config.json, or kTokenizerModelFile instead.
TokenizerClass tokenizer_class_of(const DeclaredTokens& declared, const std::string& folder);

// The named tokens that a chat template gets: the declared ones, and those that the class has without a declaration
// where `tokenizer`, a file, is converted.
std::map<std::string, std::string> named_tokens(const DeclaredTokens& declared, const std::string& tokenizer);

struct ConvertedTokenizer {
  Json file;  // a tokenizer.json
  TokensToAdd declared;
  std::string identity;  // what else of the declarations changes ids
};

ConvertedTokenizer convert_sentence_piece(const SentencePieceModel& model, const DeclaredTokens& declared,
                                          TokenizerClass as);
// `file`: the tokenizer.json of tekken_as_json.
ConvertedTokenizer convert_tekken(Json file, const DeclaredTokens& declared, TokenizerClass as);

}  // namespace hawser::text
