#include "evaluate/bigram.h"

#include <cmath>

#include "base/error.h"

namespace hawser::evaluate {
namespace {

std::uint64_t pair_key(std::int32_t context, std::int32_t token) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(context)) << 32 | static_cast<std::uint32_t>(token);
}

}  // namespace

WittenBell::WittenBell(std::int64_t vocabulary) : vocabulary_(vocabulary) {
  HAWSER_CHECK(vocabulary > 0, "a vocabulary of ", vocabulary);
  const auto size = static_cast<std::size_t>(vocabulary);
  counts_.resize(size);
  contexts_.resize(size);
  followers_.resize(size);
}

std::size_t WittenBell::place(std::int32_t token) const {
  HAWSER_CHECK(token >= 0 && token < vocabulary_, "id ", token, " in a vocabulary of ", vocabulary_);
  return static_cast<std::size_t>(token);
}

void WittenBell::fit(std::span<const std::int32_t> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (counts_[place(ids[i])]++ == 0) ++types_;
    ++tokens_;
    if (i == 0) continue;
    ++contexts_[place(ids[i - 1])];
    if (pairs_[pair_key(ids[i - 1], ids[i])]++ == 0) ++followers_[place(ids[i - 1])];
  }
}

double WittenBell::probability(std::int32_t token) const {
  const double uniform = 1.0 / static_cast<double>(vocabulary_);
  const double count = static_cast<double>(counts_[place(token)]), types = static_cast<double>(types_);
  if (tokens_ == 0) return uniform;
  return (count + types * uniform) / (static_cast<double>(tokens_) + types);
}

double WittenBell::probability(std::int32_t context, std::int32_t token) const {
  const double lower = probability(token);
  const double seen = static_cast<double>(contexts_[place(context)]);
  if (seen == 0) return lower;
  const auto pair = pairs_.find(pair_key(context, token));
  const double count = pair == pairs_.end() ? 0.0 : static_cast<double>(pair->second);
  const double followers = static_cast<double>(followers_[place(context)]);
  return (count + followers * lower) / (seen + followers);
}

WittenBell::Score WittenBell::score(std::span<const std::int32_t> ids) const {
  Score score;
  for (std::size_t i = 1; i < ids.size(); ++i) score.nats -= std::log(probability(ids[i - 1], ids[i]));
  score.tokens = ids.empty() ? 0 : static_cast<std::int64_t>(ids.size()) - 1;
  return score;
}

}  // namespace hawser::evaluate
