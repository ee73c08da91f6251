#include "train/turns.h"

#include <algorithm>
#include <vector>

#include "base/units.h"
#include "text/chat/turn_ends.h"

namespace hawser::train {
namespace {

bool has_token(const prepare::TokenFile& file, std::int32_t token) {
  const std::int64_t pieces = std::clamp<std::int64_t>(ceil_div(file.tokens(), kPieceTokens), 1, kPieces);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t begin = file.tokens() / pieces * i;
    const std::int64_t end = i + 1 < pieces ? file.tokens() / pieces * (i + 1) : file.tokens();
    ids.resize(static_cast<std::size_t>(std::min(end - begin, kPieceTokens)));
    file.read(begin, ids);
    if (std::ranges::find(ids, token) != ids.end()) return true;
  }
  return false;
}

}  // namespace

std::optional<bool> has_turns(const prepare::TokenFile& file, const prepare::PrepareOptions& data) {
  if (data.tokenizer.empty()) return std::nullopt;
  try {
    Problems unusable;
    const auto chat_template =
        text::chat::open_chat_template(data.chat_template, data.tokenizer, data.folder, "", unusable);
    if (chat_template == nullptr) return std::nullopt;
    const auto tokenizer = text::load_tokenizer(data.tokenizer);
    const std::vector<std::int32_t> ends = text::chat::turn_ends(*chat_template, *tokenizer);
    if (ends.empty()) return file.has_labels();
    if (!file.has_labels() && tokenizer->eos() == ends.back()) return false;
    return has_token(file, ends.back());
  } catch (const UserError&) {
    return std::nullopt;  // prepared files do not need the tokenizer
  }
}

}  // namespace hawser::train
