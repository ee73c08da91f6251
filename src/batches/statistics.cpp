#include "batches/statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

#include "base/cat.h"
#include "base/text.h"
#include "base/units.h"
#include "batches/sequence_order.h"
#include "batches/sequence_packer.h"

namespace hawser::batches {

LengthStatistics length_statistics(const prepare::TokenFile& file) {
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

FillStatistics packed_fill(const prepare::TokenFile& file, std::int64_t length, std::int64_t max_documents,
                           std::uint64_t seed, LongDocuments long_documents) {
  FillStatistics out;
  const std::vector<std::int32_t> pieces = piece_lengths(file, length, long_documents);
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

FillStatistics chunked_fill(const prepare::TokenFile& file, std::int64_t length) {
  FillStatistics out{.sequences = ceil_div(std::max<std::int64_t>(0, file.tokens() - 1), length),
                     .tokens = file.tokens()};
  // If the last token would begin a sequence, it is only a target.
  out.tokens = std::min(out.tokens, out.sequences * length);
  if (out.sequences > 0) out.fill = static_cast<double>(out.tokens) / static_cast<double>(out.sequences * length);
  return out;
}

namespace {

// Tokens of [begin, end) that are not masked.
std::int64_t learned_between(const prepare::TokenFile& file, std::int64_t begin, std::int64_t end) {
  if (!file.has_labels()) return end - begin;
  std::int64_t learned = 0;
  std::vector<std::int32_t> block(std::size_t{1} << 16);
  for (std::int64_t from = begin; from < end; from += static_cast<std::int64_t>(block.size())) {
    const auto count = std::min<std::int64_t>(static_cast<std::int64_t>(block.size()), end - from);
    file.read_labels(from, std::span(block).first(count));
    learned += count - std::count(block.begin(), block.begin() + count, prepare::kIgnoredLabel);
    file.release_labels(from, count);
  }
  return learned;
}

}  // namespace

LongStatistics long_statistics(const prepare::TokenFile& file, std::int64_t length, LongDocuments long_documents) {
  LongStatistics out;
  for (std::int64_t i = 0; i < file.sequences(); ++i) {
    if (!is_long(file.length(i), length)) continue;
    ++out.count;
    const std::int64_t begin = file.begin(i), end = begin + file.length(i);
    if (long_documents == LongDocuments::split) {
      out.pieces += ceil_div(file.length(i) - 1, length);  // the last token is never a piece of its own
      continue;
    }
    // The first piece predicts the token after it.
    const std::int64_t from = long_documents == LongDocuments::drop ? begin : begin + length + 1;
    out.tokens += end - from;
    out.learned += learned_between(file, from, end);
    const bool truncated = long_documents == LongDocuments::truncate;
    out.without_learned += truncated && learned_between(file, begin + 1, from) == 0;
  }
  return out;
}

std::string describe(const LongStatistics& found, const prepare::TokenFile& file, std::int64_t length,
                     LongDocuments long_documents, const std::string& name) {
  if (found.count == 0) return "";
  char share[16];
  std::snprintf(share, sizeof share, "%.1f%%",
                100.0 * static_cast<double>(found.tokens) / static_cast<double>(file.tokens()));
  const bool one = found.count == 1;
  std::string text = cat(found.count, " of ", plural(file.sequences(), name), one ? " is" : " are", " longer than ",
                         length, " tokens and ", one ? "is " : "are ");
  if (long_documents == LongDocuments::split) {
    return text + cat("split into ", found.pieces, " pieces, which do not attend to each other");
  }
  text += long_documents == LongDocuments::drop ? "dropped" : "truncated";
  text += cat(": ", plural(found.tokens, "token"), " (", share, ") left out");
  if (file.has_labels()) text += cat(", ", found.learned, " of them learned");
  if (found.without_learned > 0) text += cat("; ", found.without_learned, " begin without a learned token");
  return text;
}

LearnedStatistics learned_statistics(const prepare::TokenFile& file) {
  return {.learned = learned_between(file, 0, file.tokens()), .tokens = file.tokens()};
}

FillStatistics fill_of(const prepare::TokenFile& file, const PackingPlan& packing) {
  if (packing.pack == Packing::chunks) return chunked_fill(file, packing.sequence_length);
  return packed_fill(file, packing.sequence_length, packing.max_documents, packing.seed, packing.long_documents);
}

}  // namespace hawser::batches
