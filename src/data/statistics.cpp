#include "data/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

#include "base/cat.h"
#include "base/units.h"
#include "data/packer.h"
#include "data/sampler.h"

namespace hawser::data {

LengthStatistics length_statistics(const TokenFile& file) {
  LengthStatistics out{.count = file.sequences(), .tokens = file.tokens()};
  if (out.count == 0) return out;
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(out.count));
  for (std::int64_t i = 0; i < out.count; ++i) lengths[i] = static_cast<std::int32_t>(file.length(i));
  std::sort(lengths.begin(), lengths.end());
  const auto at = [&](double share) {  // quantile of the sorted lengths
    return lengths[static_cast<std::size_t>(std::ceil(share * static_cast<double>(out.count))) - 1];
  };
  out.min = lengths.front();
  out.median = at(0.5);
  out.p90 = at(0.9);
  out.p99 = at(0.99);
  out.max = lengths.back();
  out.mean = static_cast<double>(out.tokens) / static_cast<double>(out.count);
  for (const std::int32_t length : lengths) {
    if (out.bins.empty() || length > out.bins.back().max) {
      const auto power = std::bit_floor(static_cast<std::uint32_t>(std::max(1, length)));
      // Adds empty bins in between.
      while (!out.bins.empty() && 2 * out.bins.back().min < power) {
        const std::int64_t min = 2 * std::max<std::int64_t>(1, out.bins.back().min);
        out.bins.push_back({min, 2 * min - 1, 0});
      }
      out.bins.push_back({power, 2 * std::int64_t{power} - 1, 0});
    }
    ++out.bins.back().count;
  }
  return out;
}

std::string histogram(const LengthStatistics& statistics, int columns) {
  std::int64_t max = 1;
  std::size_t digits = 1;
  for (const LengthBin& bin : statistics.bins) {
    max = std::max(max, bin.count);
    digits = std::max(digits, std::to_string(bin.max).size());
  }
  const auto padded = [&](std::int64_t number) {
    const std::string text = std::to_string(number);
    return std::string(digits - std::min(digits, text.size()), ' ') + text;
  };
  std::string out;
  for (const LengthBin& bin : statistics.bins) {
    const std::string head = cat("  ", padded(bin.min), " to ", padded(bin.max), "  ");
    char share[16];
    std::snprintf(
        share, sizeof share, " %.1f%%",
        100.0 * static_cast<double>(bin.count) / static_cast<double>(std::max<std::int64_t>(1, statistics.count)));
    const auto space = std::max<std::int64_t>(10, columns - static_cast<std::int64_t>(head.size()) - 8);
    auto bar = bin.count * space / max;
    if (bin.count > 0) bar = std::max<std::int64_t>(1, bar);
    out += head + std::string(static_cast<std::size_t>(bar), '#') + share + "\n";
  }
  return out;
}

FillStatistics packed_fill(const TokenFile& file, std::int64_t length, std::int64_t max_documents, std::uint64_t seed) {
  FillStatistics out;
  const std::vector<std::int32_t> pieces = piece_lengths(file, length);
  if (pieces.empty()) return out;
  const Shuffle shuffle(seed, kPackingName, static_cast<std::int64_t>(pieces.size()));
  for (std::size_t from = 0; from < pieces.size(); from += kPackingWindow) {
    std::vector<std::int32_t> window(std::min(kPackingWindow, pieces.size() - from));
    for (std::size_t i = 0; i < window.size(); ++i) {
      window[i] = pieces[shuffle.at(static_cast<std::int64_t>(from + i))];
      out.tokens += window[i];
    }
    const auto bins = best_fit(window, length, max_documents);
    out.sequences += 1 + *std::max_element(bins.begin(), bins.end());
  }
  if (out.sequences > 0) out.fill = static_cast<double>(out.tokens) / static_cast<double>(out.sequences * length);
  return out;
}

FillStatistics chunked_fill(const TokenFile& file, std::int64_t length) {
  FillStatistics out{.sequences = ceil_div(std::max<std::int64_t>(0, file.tokens() - 1), length),
                     .tokens = file.tokens()};
  // If the last token would begin a sequence, it is only a target.
  out.tokens = std::min(out.tokens, out.sequences * length);
  if (out.sequences > 0) out.fill = static_cast<double>(out.tokens) / static_cast<double>(out.sequences * length);
  return out;
}

LearnedStatistics learned_statistics(const TokenFile& file) {
  LearnedStatistics out{.learned = file.tokens(), .tokens = file.tokens()};
  if (!file.has_labels()) return out;
  std::vector<std::int32_t> block(std::size_t{1} << 16);
  for (std::int64_t from = 0; from < file.tokens(); from += static_cast<std::int64_t>(block.size())) {
    const auto count = std::min<std::int64_t>(static_cast<std::int64_t>(block.size()), file.tokens() - from);
    file.read_labels(from, std::span(block).first(count));
    out.learned -= std::count(block.begin(), block.begin() + count, kIgnoredLabel);
  }
  return out;
}

}  // namespace hawser::data
