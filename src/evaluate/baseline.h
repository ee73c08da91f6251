// Bigram baseline and text size of a token file, which `hawser eval` prints with the loss.
//
// `across_documents`: the file is one running text, and every token but the first is predicted. Otherwise each document
// (a sequence of the file) is separate, and every token but the first of each is predicted.
#pragma once

#include <cstdint>

#include "prepare/token_file.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::evaluate {

// Loss on `held_out`, in nats per token, of a Witten-Bell bigram model (evaluate/bigram.h) fitted on `train`. Holds the
// longer of the two files in memory, 4 bytes per token. UserError for ids outside the vocabulary.
double bigram_loss(const prepare::TokenFile& train, const prepare::TokenFile& held_out, std::int64_t vocabulary,
                   bool across_documents);

// Bytes of text of all predicted tokens; special tokens count 0.
std::int64_t text_bytes(const prepare::TokenFile& file, const text::Tokenizer& tokenizer, bool across_documents);

}  // namespace hawser::evaluate
