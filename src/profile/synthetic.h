// Synthetic sequences for benchmarks: random ids, as one document or as packed documents.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batches/sequence.h"
#include "config/recipe.h"

namespace hawser::profile {

// Distribution of the documents in a sequence. Lengths with a given mean are exponentially distributed and at least one
// token. `long_one`: one document of `length` tokens at a random position among documents with a mean of 1,024 tokens.
// The end of the sequence cuts its last document.
struct DocumentMix {
  enum class Kind { one, mean, long_one };
  Kind kind = Kind::one;  // one: the sequence is one document
  std::int64_t length = 0;

  std::string text() const;  // the syntax of parse_documents; "one" for Kind::one
};
constexpr std::int64_t kSmallDocuments = 1024;

// "mean=8192" or "long=100000"; UserError for anything else.
DocumentMix parse_documents(const std::string& text);

// Document lengths of sequence `index`: deterministic, at most `max` documents. UserError if long_one, or the mean, is
// longer than the sequence: no document is, and the steps would not be those of the mix that was asked for.
std::vector<std::int32_t> document_lengths(const DocumentMix& mix, std::int64_t sequence_length, std::int64_t max,
                                           std::int64_t index);

// Sets the recipe's packing and maximum number of documents for the mix.
void set_packing(Recipe& recipe, const DocumentMix& mix);

// `count` sequences of `length` tokens; sequence i depends only on i. Every row has a target.
std::shared_ptr<const batches::SequenceSet> synthetic_sequences(const DocumentMix& mix, std::int64_t count,
                                                                std::int64_t length, std::int64_t max_documents,
                                                                std::int64_t vocabulary);

}  // namespace hawser::profile
