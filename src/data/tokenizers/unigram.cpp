#include "data/tokenizers/unigram.h"

#include <algorithm>

#include "data/utf8.h"

namespace hawser::data {
namespace {

constexpr double kUnknownPenalty = 10;

// The best way to reach a place in the text.
template <class Sum>
struct Best {
  Sum score = 0;
  std::int32_t id = -1;
  std::int64_t start = -1;  // -1: not reached
};

}  // namespace

void Unigram::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  sums == Sums::float64 ? encode_as<double>(text, ids) : encode_as<float>(text, ids);
}

template <class Sum>
void Unigram::encode_as(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<Best<Sum>> best(text.size() + 1);
  const Sum unknown_score = static_cast<Sum>(static_cast<Sum>(least) - static_cast<Sum>(kUnknownPenalty));
  const auto offer = [&](std::size_t end, std::size_t start, std::int32_t id, auto score) {
    const auto sum = score + best[start].score;
    Best<Sum>& there = best[end];
    if (there.start >= 0 && !(sum > there.score)) return;
    there = {static_cast<Sum>(sum), id, static_cast<std::int64_t>(start)};
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t width = std::min<std::size_t>(utf8_step(text.substr(at)).bytes, text.size() - at);
    bool single = false;
    std::uint32_t node = Trie::kRoot;
    for (std::size_t i = at; i < text.size() && tokens.go(node, static_cast<unsigned char>(text[i])); ++i) {
      const std::int32_t id = tokens.value(node);
      if (id == Trie::kNone) continue;
      const std::size_t length = i + 1 - at;
      if constexpr (std::is_same_v<Sum, float>) {
        // SentencePiece adds in float64 and keeps float32.
        const bool preferred = !always.empty() && always[id];
        offer(i + 1, at, id,
              preferred ? static_cast<float>(length) * static_cast<float>(greatest) - 0.1
                        : static_cast<double>(static_cast<float>(scores[id])));
      } else {
        offer(i + 1, at, id, scores[id]);
      }
      single |= length == width;
    }
    if (!single) offer(at + width, at, -1, unknown_score);
    at += width;
  }
  // From the end back to the start; runs of unknown characters join.
  std::vector<std::pair<std::size_t, std::int32_t>> path;  // where a token starts, and its id
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
  // The unknown token's own name, written in the text; SentencePiece keeps it out of the tokens.
  std::uint32_t node = Trie::kRoot;
  if (sums == Sums::float64 && tokens.go(node, text) && tokens.value(node) != Trie::kNone) {
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

}  // namespace hawser::data
