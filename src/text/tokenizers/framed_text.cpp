#include "text/tokenizers/framed_text.h"

#include <algorithm>

namespace hawser::text {

MissingFrame missing_frame(const TextFrame& frame, const std::vector<std::int32_t>& ids) {
  const auto& [before, after] = frame;
  const bool begun = ids.size() >= before.size() && std::equal(before.begin(), before.end(), ids.begin());
  const bool ended = ids.size() >= after.size() && std::equal(after.rbegin(), after.rend(), ids.rbegin());
  MissingFrame missing;
  if (!begun) missing.before = before;
  if (!ended) missing.after = after;
  return missing;
}

std::vector<std::int32_t> encode_framed(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::int32_t> ids;
  tokenizer.encode(text, ids, false);
  const MissingFrame missing = missing_frame(tokenizer.frame(), ids);
  ids.insert(ids.begin(), missing.before.begin(), missing.before.end());
  ids.insert(ids.end(), missing.after.begin(), missing.after.end());
  return ids;
}

}  // namespace hawser::text
