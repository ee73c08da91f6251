// Sequences that a benchmark makes up: random ids, in one document or in packed ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "data/sequence.h"

namespace hawser::train {

// How the documents of a sequence are drawn. Lengths around a mean are exponential, at least one token: many short,
// some long. `long_one` is one document of `length` tokens at a random place among documents around a mean of 1,024.
// The last document of a sequence ends with it.
struct DocumentMix {
  enum class Kind { one, mean, long_one };
  Kind kind = Kind::one;  // one: the whole sequence is a document
  std::int64_t length = 0;

  std::string text() const;  // as parse reads it; "one" else
};
constexpr std::int64_t kSmallDocuments = 1024;

// "mean=8192" or "long=100000"; UserError for anything else.
DocumentMix parse_documents(const std::string& text);

// Of sequence `index`, repeatable; at most `most` documents. long_one: UserError where it is longer than the sequence.
std::vector<std::int32_t> document_lengths(const DocumentMix& mix, std::int64_t sequence_length, std::int64_t max,
                                           std::int64_t index);

// Makes the recipe pack as the mix wants, with room for its documents.
void set_packing(Recipe& recipe, const DocumentMix& mix);

// `count` sequences of `length` tokens; sequence i depends on i alone. Every row has a target.
std::shared_ptr<const data::SequenceSet> synthetic_sequences(const DocumentMix& mix, std::int64_t count,
                                                             std::int64_t length, std::int64_t max_documents,
                                                             std::int64_t vocabulary);

}  // namespace hawser::train
