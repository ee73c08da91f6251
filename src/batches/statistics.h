// Statistics of a token file: sequence lengths, the fill of packed sequences, and the share of labeled tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/training_options.h"
#include "batches/sequence.h"
#include "prepare/token_file.h"

namespace hawser::batches {

struct LengthBin {
  std::int64_t min = 0, max = 0;  // tokens, inclusive
  std::int64_t count = 0;
};

struct LengthStatistics {
  std::int64_t count = 0, tokens = 0;
  std::int64_t min = 0, median = 0, p90 = 0, p99 = 0, max = 0;
  double mean = 0.0;
  std::vector<LengthBin> bins;  // powers of two, from the shortest to the longest length
};

// Of the lengths of the file's sequences, whose tokens attend only to each other.
LengthStatistics length_statistics(const prepare::TokenFile& file);

// One line per bin, such as "  64 to   127  ######### 12.3%", for a terminal of `columns`.
std::string histogram(const LengthStatistics& statistics, int columns);

// The result of packed_sequences or chunked_sequences, counted without building them; packed_fill uses 4 bytes per
// piece. All zero if no document has two tokens or more.
struct FillStatistics {
  std::int64_t sequences = 0;  // of sequence_length tokens
  std::int64_t tokens = 0;     // in all sequences
  double fill = 0.0;           // tokens / (sequences * sequence_length)
};
FillStatistics packed_fill(const prepare::TokenFile& file, std::int64_t length, std::int64_t max_documents,
                           std::uint64_t seed, LongDocuments long_documents = LongDocuments::split);
FillStatistics chunked_fill(const prepare::TokenFile& file, std::int64_t length);
FillStatistics fill_of(const prepare::TokenFile& file, const PackingPlan& packing);  // one of the two

// Documents that do not fit in a sequence of `length`, and what `long_documents` does with them.
struct LongStatistics {
  std::int64_t count = 0;
  std::int64_t pieces = 0;           // split: of all of them
  std::int64_t tokens = 0;           // truncate, drop: left out
  std::int64_t learned = 0;          // of these, not masked
  std::int64_t without_learned = 0;  // truncate: documents whose beginning has no learned token
};
LongStatistics long_statistics(const prepare::TokenFile& file, std::int64_t length, LongDocuments long_documents);

// "3 of 40 documents are longer than 256 tokens and are split into 7 pieces, ..."; "" if there are none. `name`: the
// singular of the documents' name.
std::string describe(const LongStatistics& found, const prepare::TokenFile& file, std::int64_t length,
                     LongDocuments long_documents, const std::string& name = "document");

// Targets that are not masked (labels other than -100, including first tokens of sequences), and all tokens.
struct LearnedStatistics {
  std::int64_t learned = 0, tokens = 0;
};
LearnedStatistics learned_statistics(const prepare::TokenFile& file);

}  // namespace hawser::batches
