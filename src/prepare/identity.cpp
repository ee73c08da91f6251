#include "prepare/identity.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/philox.h"

namespace hawser::prepare {
namespace {

// Up to kWhole tokens all are hashed; above, kBlocks evenly spaced blocks and the last one, which bounds the cost.
constexpr std::int64_t kWhole = std::int64_t{4} << 20, kBlockTokens = std::int64_t{1} << 14, kBlocks = 256;

template <class Number>
std::uint64_t add(std::uint64_t hash, const std::vector<Number>& numbers) {
  return fnv1a({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)}, hash);
}

}  // namespace

DataIdentity identity_of(const TokenFile& file) {
  DataIdentity identity{.documents = file.documents(), .sequences = file.sequences(), .tokens = file.tokens()};
  std::uint64_t hash = fnv1a("token file");
  std::vector<std::int64_t> bounds;
  for (std::int64_t s = 0; s < file.sequences(); ++s) {
    bounds.push_back(file.begin(s));
    if (bounds.size() < static_cast<std::size_t>(kBlockTokens) && s + 1 < file.sequences()) continue;
    hash = add(hash, bounds);
    bounds.clear();
  }
  const auto add_tokens = [&](std::int64_t from) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kBlockTokens, file.tokens() - from)));
    file.read(from, ids);
    hash = add(hash, ids);
    if (!file.has_labels()) return;
    file.read_labels(from, ids);
    hash = add(hash, ids);
  };
  if (file.tokens() <= kWhole) {
    for (std::int64_t from = 0; from < file.tokens(); from += kBlockTokens) add_tokens(from);
  } else {
    for (std::int64_t b = 0; b < kBlocks; ++b) add_tokens((file.tokens() - kBlockTokens) / (kBlocks - 1) * b);
    add_tokens(file.tokens() - kBlockTokens);
  }
  identity.fingerprint = hash;
  return identity;
}

std::string to_json(const DataIdentity& identity) {
  char fingerprint[17];
  std::snprintf(fingerprint, sizeof fingerprint, "%016llx", static_cast<unsigned long long>(identity.fingerprint));
  return nlohmann::ordered_json{{"documents", identity.documents},
                                {"sequences", identity.sequences},
                                {"tokens", identity.tokens},
                                {"fingerprint", fingerprint}}
      .dump();
}

}  // namespace hawser::prepare
