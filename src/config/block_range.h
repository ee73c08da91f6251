// `BlockRange`: an entry of precision.fp8.layers, "all", "5" or "2-29".
#pragma once

#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

namespace hawser {

// Transformer blocks, both ends included.
struct BlockRange {
  int first = 0, last = 0;

  static constexpr int kAll = std::numeric_limits<int>::max();
  bool all() const { return last == kAll; }
};

// nullopt: neither "all", nor a number from 0, nor two of them in ascending order.
inline std::optional<BlockRange> block_range_of(std::string_view entry) {
  if (entry == "all") return BlockRange{0, BlockRange::kAll};
  const auto number = [](std::string_view text) -> std::optional<int> {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool all = !text.empty() && error == std::errc() && end == text.data() + text.size();
    return all && value >= 0 && value < BlockRange::kAll ? std::optional(value) : std::nullopt;
  };
  const std::size_t dash = entry.find('-');
  const std::optional<int> first = number(entry.substr(0, dash)),
                           last = dash == entry.npos ? first : number(entry.substr(dash + 1));
  if (!first || !last || *last < *first) return std::nullopt;
  return BlockRange{*first, *last};
}

}  // namespace hawser
