#include "evaluate/baseline.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "evaluate/bigram.h"

namespace hawser::evaluate {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 20;  // tokens

std::vector<std::int32_t> read(const prepare::TokenFile& file, std::int64_t from, std::int64_t count,
                               std::int64_t vocabulary) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  file.read(from, ids, vocabulary);
  return ids;
}

// Token ranges that are scored separately: (first token, count) of each.
std::vector<std::pair<std::int64_t, std::int64_t>> stretches(const prepare::TokenFile& file, bool across_documents) {
  if (across_documents) return {{0, file.tokens()}};
  std::vector<std::pair<std::int64_t, std::int64_t>> all;
  for (std::int64_t s = 0; s < file.sequences(); ++s) all.emplace_back(file.begin(s), file.length(s));
  return all;
}

}  // namespace

double bigram_loss(const prepare::TokenFile& train, const prepare::TokenFile& held_out, std::int64_t vocabulary,
                   bool across_documents) {
  WittenBell model(vocabulary);
  for (const auto& [from, count] : stretches(train, across_documents)) model.fit(read(train, from, count, vocabulary));
  WittenBell::Score score;
  for (const auto& [from, count] : stretches(held_out, across_documents)) {
    score += model.score(read(held_out, from, count, vocabulary));
  }
  return score.mean();
}

std::int64_t text_bytes(const prepare::TokenFile& file, const text::Tokenizer& tokenizer, bool across_documents) {
  std::int64_t bytes = 0;
  for (const auto& [begin, count] : stretches(file, across_documents)) {
    for (std::int64_t from = begin + 1; from < begin + count; from += kBlock) {
      const auto ids = read(file, from, std::min(kBlock, begin + count - from), 0);
      bytes += static_cast<std::int64_t>(tokenizer.decode_bytes(ids, true).size());
    }
  }
  return bytes;
}

}  // namespace hawser::evaluate
