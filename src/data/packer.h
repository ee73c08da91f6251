// Which pieces of which documents go into one sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/token_file.h"

namespace hawser::data {

// Best fit, longest first: each piece goes into the fullest bin that still has room for it and holds fewer than
// `max_pieces`, or into a new one. Returns the bin of each piece; bins are numbered from 0 in order of opening. Pieces
// of one length keep their order. O(n log n). Every length is at most `capacity`.
std::vector<std::int32_t> best_fit(std::span<const std::int32_t> lengths, std::int64_t capacity,
                                   std::int64_t max_pieces);

// What packed_sequences cuts a file's sequences into: the lengths of the pieces, in order of the file.
std::vector<std::int32_t> piece_lengths(const TokenFile& file, std::int64_t length);

// How it goes through them: shuffled under this name, so many at a time.
inline constexpr const char* kPackingName = "data/packing";
inline constexpr std::size_t kPackingWindow = 65536;

}  // namespace hawser::data
