// `best_fit`: bin packing of document pieces into sequences.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/recipe.h"
#include "data/token_file.h"

namespace hawser::data {

// Best-fit decreasing: each piece, longest first, goes into the fullest bin that has space for it and fewer than
// `max_pieces` pieces, or into a new bin. Returns the bin of each piece; bins are numbered from 0 in order of opening.
// Pieces of equal length keep their order. Every length must be at most `capacity`. O(n log n).
std::vector<std::int32_t> best_fit(std::span<const std::int32_t> lengths, std::int64_t capacity,
                                   std::int64_t max_pieces);

// Lengths of the pieces that packed_sequences splits a file's sequences into, in file order.
std::vector<std::int32_t> piece_lengths(const TokenFile& file, std::int64_t length,
                                        LongDocuments long_documents = LongDocuments::split);

// Whether a document does not fit in a sequence of `length`: its last token is only a target.
inline bool is_long(std::int64_t tokens, std::int64_t length) {
  return tokens > length + 1;
}

// packed_sequences shuffles the pieces with this name of the random stream, and packs this number at a time.
inline constexpr const char* kPackingName = "data/packing";
inline constexpr std::size_t kPackingWindow = 65536;

}  // namespace hawser::data
