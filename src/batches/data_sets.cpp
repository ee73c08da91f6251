#include "batches/data_sets.h"

#include <cmath>
#include <numeric>

#include "base/cat.h"
#include "base/error.h"

namespace hawser::batches {

std::shared_ptr<const Mixture> TrainingSequences::mixture(std::vector<Mixture::Shares> history,
                                                          std::uint64_t seed) const {
  if (shares.empty()) return nullptr;
  return std::make_shared<const Mixture>(sizes, std::move(history), seed);
}

std::shared_ptr<const Mixture> TrainingSequences::mixture(std::uint64_t seed) const {
  return mixture({{.from = 0, .of_sets = shares}}, seed);
}

TrainingSequences open_training(const std::shared_ptr<const prepare::TokenFile>& file, const PackingPlan& packing,
                                std::int64_t vocab_size, const std::vector<DataSetPlan>& sets,
                                const std::vector<std::int64_t>& first_documents) {
  TrainingSequences out;
  if (sets.size() < 2) {
    out.set = open_sequences(file, packing, vocab_size);
    out.sizes = {out.set->size()};
    out.epoch = sets.empty()
                    ? out.set->size()
                    : static_cast<std::int64_t>(std::llround(sets[0].repeat * static_cast<double>(out.set->size())));
    return out;
  }
  HAWSER_CHECK(first_documents.size() == sets.size(), first_documents.size(), " data sets in the file, ", sets.size(),
               " in the recipe");
  std::vector<std::shared_ptr<const SequenceSet>> opened;
  double epoch = 0, sum = 0, token_sum = 0;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const std::int64_t end = i + 1 < sets.size() ? first_documents[i + 1] : file->documents();
    const FileRange range{file->first_sequence(first_documents[i]), file->first_sequence(end)};
    if (range.begin == range.end) {
      throw UserError(Problem{.file = sets[i].name,
                              .what = "a data set without documents",
                              .at = cat("data.train[", i, "]"),
                              .hint = "no data.deduplicate, or no such entry, if an earlier one has its documents"});
    }
    try {
      opened.push_back(open_sequences(file, packing, vocab_size, range));
    } catch (const UserError& error) {
      throw UserError(Problem{.file = sets[i].name,
                              .what = cat("a data set without a sequence to train on: ", error.what()),
                              .at = cat("data.train[", i, "]")});
    }
    const auto size = static_cast<double>(opened.back()->size());
    const double tokens = static_cast<double>(opened.back()->tokens()) / size;  // of a sequence
    const double share = sets[i].weight ? *sets[i].weight / tokens : sets[i].repeat * size;
    out.sizes.push_back(opened.back()->size());
    out.shares.push_back(share);
    out.token_shares.push_back(share * tokens);
    sum += share;
    token_sum += share * tokens;
    epoch += sets[i].weight ? size : sets[i].repeat * size;
  }
  for (double& share : out.shares) share /= sum;
  for (double& share : out.token_shares) share /= token_sum;
  out.epoch = std::max<std::int64_t>(1, std::llround(epoch));
  out.set = joined_sequences(std::move(opened));
  return out;
}

}  // namespace hawser::batches
