#include "text/tokenizers/unigram.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/utf8.h"

namespace hawser::text {
namespace {

// Best segmentation up to a position in the text.
template <class Sum>
struct Best {
  Sum score = 0;
  std::int32_t id = -1;
  std::int64_t start = -1;  // -1: not reached
};

constexpr float kFarFromZero = 100000;

}  // namespace

void Unigram::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  float32_sums ? encode_as<float>(text, ids) : encode_as<double>(text, ids);
}

template <class Sum>
void Unigram::encode_as(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<Best<Sum>> best(text.size() + 1);
  std::size_t farthest = 0;
  const auto suggestion = [&](std::size_t end, std::size_t start, std::int32_t id, Sum score) {
    const Sum sum = score + best[start].score;
    Best<Sum>& there = best[end];
    if (there.start < 0 || sum > there.score) there = {sum, id, static_cast<std::int64_t>(start)};
    farthest = std::max(farthest, end);
  };
  for (std::size_t at = 0; at < text.size();) {
    if (std::is_same_v<Sum, float> && std::abs(best[at].score) > kFarFromZero) {
      const Sum score = best[at].score;
      for (std::size_t i = at; i <= farthest; ++i) {
        if (i == at || best[i].start >= 0) best[i].score -= score;
      }
    }
    const std::size_t width = std::min<std::size_t>(utf8_step(text.substr(at)).bytes, text.size() - at);
    bool single = false;
    std::uint32_t node = Trie::kRoot;
    for (std::size_t i = at; i < text.size() && tokens.go(node, static_cast<unsigned char>(text[i])); ++i) {
      const std::int32_t id = tokens.value(node);
      if (id == Trie::kNone) continue;
      suggestion(i + 1, at, id, static_cast<Sum>(scores[id]));
      single |= i + 1 - at == width;
    }
    if (!single) suggestion(at + width, at, -1, static_cast<Sum>(unknown_score));
    at += width;
  }
  // Backtracks from the end; joins runs of unknown characters.
  std::vector<std::pair<std::size_t, std::int32_t>> path;  // start of a token, and its id
  for (std::size_t end = text.size(); end > 0; end = static_cast<std::size_t>(best[end].start)) {
    const bool is_unknown = best[end].id < 0 || best[end].id == unknown;
    const std::int32_t id = is_unknown ? -1 : best[end].id;
    const auto start = static_cast<std::size_t>(best[end].start);
    if (is_unknown && fuse_unknown && !path.empty() && path.back().second < 0) {
      path.back().first = start;
    } else {
      path.emplace_back(start, id);
    }
  }
  for (std::size_t i = path.size(); i-- > 0;) {
    const std::size_t end = i > 0 ? path[i - 1].first : text.size();
    if (path[i].second >= 0) {
      ids.push_back(path[i].second);
    } else {
      put_unknown(text.substr(path[i].first, end - path[i].first), ids);
    }
  }
}

void Unigram::put_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
  // The text is itself a token, such as the name of the unknown token.
  std::uint32_t node = Trie::kRoot;
  if (tokens.go(node, text) && tokens.value(node) != Trie::kNone) {
    ids.push_back(tokens.value(node));
    return;
  }
  const bool all_bytes =
      std::all_of(text.begin(), text.end(), [&](char c) { return byte_ids[static_cast<unsigned char>(c)] >= 0; });
  if (all_bytes) {
    for (const char c : text) ids.push_back(byte_ids[static_cast<unsigned char>(c)]);
  } else if (unknown) {
    ids.push_back(*unknown);
  }
}

}  // namespace hawser::text
