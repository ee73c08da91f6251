// `has_turns`: whether token files have turns of conversations, which an exported model must end.
#pragma once

#include <optional>

#include "prepare/prepare.h"
#include "prepare/token_file.h"

namespace hawser::train {

// Looks for the template's end of turn (text/chat/turn_ends.h) in the ids: in all of a small file, in kPieces pieces of
// a large one. Without labels, a token that also ends texts shows nothing. If the template ends turns with no token, a
// file with labels counts as one of conversations. nullopt if `data` has no tokenizer or no template that can be read.
constexpr std::int64_t kPieces = 4096, kPieceTokens = std::int64_t{1} << 16;
std::optional<bool> has_turns(const prepare::TokenFile& file, const prepare::PrepareOptions& data);

}  // namespace hawser::train
