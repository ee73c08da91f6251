// `TrainingSequences`: the sequences of a run's training file, which may have several data sets, and their shares.
//
//   data.train: [{path: books, weight: 0.8}, {path: chats, weight: 0.2}]    four fifths of the tokens are from books
//   data.train: [{path: books}, {path: chats, repeat: 3}]                   an epoch has chats three times
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batches/mixture.h"
#include "batches/sequence.h"
#include "prepare/token_file.h"

namespace hawser::batches {

struct DataSetPlan {
  std::string name;              // for messages: its first path
  std::optional<double> weight;  // share of the tokens, relative to the other sets'; of all sets or of none
  double repeat = 1;             // without weights: times that an epoch has it
};

struct TrainingSequences {
  std::shared_ptr<const SequenceSet> set;  // the sets behind each other
  std::vector<std::int64_t> sizes;         // sequences of each
  std::vector<double> shares;              // of the sequences; empty: there is one set, in sequence_at's order
  std::int64_t epoch = 0;                  // sequences of the run that count as one pass over the data
  std::vector<double> token_shares;        // shares, of the tokens

  // Null if there is one set.
  std::shared_ptr<const Mixture> mixture(std::vector<Mixture::Shares> history, std::uint64_t seed) const;
  std::shared_ptr<const Mixture> mixture(std::uint64_t seed) const;
};

// `first_documents`: the file's first document of each set. With weights, an epoch has as many sequences as all sets;
// small sets are read several times in it. UserError for a set without sequences.
TrainingSequences open_training(const std::shared_ptr<const prepare::TokenFile>& file, const PackingPlan& packing,
                                std::int64_t vocab_size, const std::vector<DataSetPlan>& sets,
                                const std::vector<std::int64_t>& first_documents);

}  // namespace hawser::batches
