// What a token file costs a model that knows only pairs, and how much text it stands for: the measures beside the loss
// of `hawser eval` on token files.
//
// Both take the file as the model does: `across_documents`, as one running text, in which every token but the first is
// predicted; else document by document (a sequence of the file), every token but the first of each.
#pragma once

#include <cstdint>

#include "data/token_file.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::train {

// The loss on `held_out`, in nats a token, of a Witten-Bell bigram model (report/bigram.h) fitted on `train`. Holds the
// longer of the two in memory, 4 bytes a token. UserError for ids outside the vocabulary.
double bigram_loss(const data::TokenFile& train, const data::TokenFile& held_out, std::int64_t vocabulary,
                   bool across_documents);

// Bytes of the text of all predicted tokens; special ones stand for none.
std::int64_t text_bytes(const data::TokenFile& file, const data::Tokenizer& tokenizer, bool across_documents);

}  // namespace hawser::train
