// `best_fit`: bin packing of document pieces into sequences.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/training_options.h"
#include "prepare/token_file.h"

namespace hawser::batches {

// Best-fit decreasing: each piece, longest first, goes into the fullest bin that has space for it and fewer than
// `max_pieces` pieces, or into a new bin. Returns the bin of each piece; bins are numbered from 0 in order of opening.
// Pieces of equal length keep their order. Every length must be at most `capacity`. O(n log n).
std::vector<std::int32_t> best_fit(std::span<const std::int32_t> lengths, std::int64_t capacity,
                                   std::int64_t max_pieces);

// Lengths of the pieces that packed_sequences splits a file's sequences into, in file order.
std::vector<std::int32_t> piece_lengths(const prepare::TokenFile& file, std::int64_t length,
                                        LongDocuments long_documents = LongDocuments::split);

// Whether a document does not fit in a sequence of `length`: its last token is only a target.
inline bool is_long(std::int64_t tokens, std::int64_t length) {
  return tokens > length + 1;
}

// Calls use(begin, tokens of the piece) for each piece of a document of `tokens` tokens, in order.
template <class Use>
void each_piece_of(std::int64_t tokens, std::int64_t length, LongDocuments long_documents, Use use) {
  const bool whole = long_documents == LongDocuments::split || !is_long(tokens, length);
  if (!whole && long_documents == LongDocuments::drop) return;
  // A document's last token is only a target, so it is never a piece of its own.
  for (std::int64_t at = 0; at + 1 < tokens; at += length) {
    use(at, static_cast<std::int32_t>(tokens - at < length ? tokens - at : length));
    if (!whole) break;
  }
}

// The problem of data of which `long_documents: drop` leaves nothing.
Problem all_dropped(const std::string& file, const std::string& at);

// packed_sequences shuffles the pieces with this name of the random stream, and packs this number at a time.
inline constexpr const char* kPackingName = "data/packing";
inline constexpr std::size_t kPackingWindow = 65536;

}  // namespace hawser::batches
