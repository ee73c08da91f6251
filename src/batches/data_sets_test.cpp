#include "batches/data_sets.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "base/testing/temporary_folder.h"

namespace hawser::batches {
namespace data_sets_test {

using Ids = std::vector<std::int32_t>;

// Documents of two data sets: those of the first have ids from 0 to 49 in documents of 10, those of the second ids from
// 1000 on in documents of 7.
std::shared_ptr<const prepare::TokenFile> two_sets(const TemporaryFolder& folder, int first, int second) {
  prepare::TokenFileWriter writer(folder.path("train"), 100000);
  for (int d = 0; d < first + second; ++d) {
    Ids ids(d < first ? 10 : 7);
    std::iota(ids.begin(), ids.end(), d < first ? d % 5 * 10 : 1000 + d * 7);
    writer.add_sequence(ids, {});
    writer.end_document();
  }
  writer.finish();
  return std::make_shared<const prepare::TokenFile>(folder.path("train"));
}

// The share of the first set's tokens in the first sequences of a run.
double share_of_first(const TrainingSequences& training, std::int64_t sequences) {
  const auto mixture = training.mixture(11);
  std::int64_t first = 0, all = 0;
  for (std::int64_t n = 0; n < sequences; ++n) {
    for (const std::int32_t id : training.set->get(mixture->at(n)).ids) {
      first += id < 1000;
      ++all;
    }
  }
  return static_cast<double>(first) / static_cast<double>(all);
}

TEST(DataSets, WeightsAreSharesOfTheTokens) {
  const TemporaryFolder folder;
  const auto file = two_sets(folder, 40, 3000);
  for (const PackingPlan& packing :
       {PackingPlan{.pack = Packing::documents, .sequence_length = 32, .max_documents = 8, .seed = 3},
        PackingPlan{.pack = Packing::chunks, .sequence_length = 32}}) {
    for (const double weight : {0.1, 0.35, 0.9}) {
      const std::vector<DataSetPlan> sets{{.name = "a", .weight = weight * 20},
                                          {.name = "b", .weight = (1 - weight) * 20}};
      const TrainingSequences training = open_training(file, packing, 0, sets, {0, 40});
      EXPECT_NEAR(share_of_first(training, 1000), weight, 0.01);
      EXPECT_EQ(training.epoch, training.set->size());
      // No sequence has tokens of both sets.
      for (std::int64_t i = 0; i < training.set->size(); ++i) {
        const Sequence sequence = training.set->get(i);
        for (const std::int32_t id : sequence.ids) EXPECT_EQ(id < 1000, i < training.sizes[0]);
        EXPECT_EQ(sequence.targets(), training.set->targets(i));
      }
    }
  }
}

TEST(DataSets, RepeatsAreTimesInAnEpoch) {
  const TemporaryFolder folder;
  const auto file = two_sets(folder, 40, 400);
  const PackingPlan packing{.pack = Packing::documents, .sequence_length = 32, .max_documents = 8, .seed = 3};
  const std::vector<DataSetPlan> sets{{.name = "a", .repeat = 3}, {.name = "b", .repeat = 0.5}};
  const TrainingSequences training = open_training(file, packing, 0, sets, {0, 40});
  const std::int64_t a = training.sizes[0], b = training.sizes[1];
  EXPECT_EQ(training.epoch, 3 * a + (b + 1) / 2);
  const std::vector<std::int64_t> counts = training.mixture(11)->counts(training.epoch);
  EXPECT_NEAR(static_cast<double>(counts[0]), static_cast<double>(3 * a), 1.0);
  EXPECT_NEAR(static_cast<double>(counts[1]), 0.5 * static_cast<double>(b), 1.0);
}

TEST(DataSets, OneSetIsAsWithoutSets) {
  const TemporaryFolder folder;
  const auto file = two_sets(folder, 10, 10);
  const PackingPlan packing{.pack = Packing::documents, .sequence_length = 32, .max_documents = 8, .seed = 3};
  const TrainingSequences plain = open_training(file, packing, 0, {}, {});
  const TrainingSequences one = open_training(file, packing, 0, {{.name = "a", .weight = 0.3}}, {0});
  EXPECT_EQ(plain.mixture(1), nullptr);
  EXPECT_EQ(one.mixture(1), nullptr);
  EXPECT_EQ(plain.epoch, one.epoch);
  EXPECT_EQ(plain.epoch, plain.set->size());
}

TEST(DataSets, ASetWithoutSequencesIsNamed) {
  const TemporaryFolder folder;
  const PackingPlan packing{.pack = Packing::documents, .sequence_length = 32, .max_documents = 8, .seed = 3};
  const auto error_of = [&](const std::shared_ptr<const prepare::TokenFile>& file, std::int64_t first) -> std::string {
    try {
      open_training(file, packing, 0, {{.name = "a"}, {.name = "b.jsonl"}}, {0, first});
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error_of(two_sets(folder, 10, 0), 10),
            "b.jsonl: a data set without documents at data.train[1]; try no data.deduplicate, or no such entry, if an "
            "earlier one has its documents");
  prepare::TokenFileWriter writer(folder.path("short"), 100);
  for (const std::vector<std::int32_t>& ids : {std::vector<std::int32_t>{1, 2, 3}, std::vector<std::int32_t>{4}}) {
    writer.add_sequence(ids);
    writer.end_document();
  }
  writer.finish();
  const std::string no_sequence = error_of(std::make_shared<const prepare::TokenFile>(folder.path("short")), 1);
  EXPECT_NE(no_sequence.find("b.jsonl: a data set without a sequence to train on"), std::string::npos) << no_sequence;
  EXPECT_NE(no_sequence.find("data.train[1]"), std::string::npos) << no_sequence;
}

}  // namespace data_sets_test
}  // namespace hawser::batches
