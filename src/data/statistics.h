// What a token file's lengths are like, and how full its sequences become.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace hawser::data {

struct LengthBin {
  std::int64_t min = 0, max = 0;  // tokens, both included
  std::int64_t count = 0;
};

struct LengthStatistics {
  std::int64_t count = 0, tokens = 0;
  std::int64_t min = 0, median = 0, p90 = 0, p99 = 0, max = 0;
  double mean = 0.0;
  std::vector<LengthBin> bins;  // powers of two, from the shortest to the longest
};

// Of the file's sequences: the lengths of documents that see themselves only.
LengthStatistics length_statistics(const TokenFile& file);

// A line a bin, "  64 to   127  ######### 12.3%", as wide as `columns`.
std::string histogram(const LengthStatistics& statistics, int columns);

// What packed_sequences and chunked_sequences make of a file, counted without making it; 4 bytes a document.
struct FillStatistics {
  std::int64_t sequences = 0;  // of sequence_length tokens
  std::int64_t tokens = 0;     // in them
  double fill = 0.0;           // tokens / (sequences * sequence_length)
};
FillStatistics packed_fill(const TokenFile& file, std::int64_t length, std::int64_t max_documents, std::uint64_t seed);
FillStatistics chunked_fill(const TokenFile& file, std::int64_t length);

// Targets that are not masked (labels other than -100, first tokens of sequences included), and all tokens.
struct LearnedStatistics {
  std::int64_t learned = 0, tokens = 0;
};
LearnedStatistics learned_statistics(const TokenFile& file);

}  // namespace hawser::data
