// `turn_ends`: the special tokens that end an assistant's turn in a chat template.
#pragma once

#include <cstdint>
#include <vector>

#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::text::chat {

// The tokens that mark turns (Tokenizer::marks_turns) and follow a message of the assistant without text between them,
// as before a turn of the user as at the conversation's end:
//   ...hello<|im_end|>\n                                   <|im_end|>
//   ...hello<|END_RESPONSE|><|END_OF_TURN_TOKEN|>          both, in this order
//   ...hello<|end|>\n<|endoftext|>                         <|end|>
// The last of them is the end of turn, at which a text generator stops. If there is none, the result is the template's
// eos_token, if the message is followed by it and the tokenizer has it as one token; otherwise it is empty.
std::vector<std::int32_t> turn_ends(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace hawser::text::chat
