#include "train/baseline.h"

#include <algorithm>
#include <vector>

#include "report/bigram.h"

namespace hawser::train {
namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 20;  // tokens

std::vector<std::int32_t> read(const data::TokenFile& file, std::int64_t from, std::int64_t count,
                               std::int64_t vocabulary) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  file.read(from, ids, vocabulary);
  return ids;
}

}  // namespace

double bigram_loss(const data::TokenFile& train, const data::TokenFile& held_out, std::int64_t vocabulary) {
  report::WittenBell model(vocabulary);
  model.fit(read(train, 0, train.tokens(), vocabulary));
  return model.score(read(held_out, 0, held_out.tokens(), vocabulary)).mean();
}

std::int64_t text_bytes(const data::TokenFile& file, const data::Tokenizer& tokenizer) {
  std::int64_t bytes = 0;
  for (std::int64_t from = 1; from < file.tokens(); from += kBlock) {
    const auto ids = read(file, from, std::min(kBlock, file.tokens() - from), 0);
    bytes += static_cast<std::int64_t>(tokenizer.decode_bytes(ids, true).size());
  }
  return bytes;
}

}  // namespace hawser::train
