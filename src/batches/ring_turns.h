// `imbalance_of_turns`: how much longer ring attention takes because every turn waits for the rank with the most work.
//
// Example: two ranks, two turns. Rank 0 has 6 pairs with its own keys and 2 with those of rank 1, rank 1 has 4 and 4.
// Both have 8, but the turns take as long as 6 + 4 = 10 pairs: 1.25.
#pragma once

#include "batches/micro_batch.h"

namespace hawser::batches {

// The sum over the turns of the most query-key pairs of a rank, over the mean of the ranks' pairs in all turns: of one
// sequence of these documents, under a causal mask. 1 without a ring. At most the number of turns.
double imbalance_of_turns(const BatchShape& shape, const std::vector<std::int32_t>& document_lengths);

}  // namespace hawser::batches
