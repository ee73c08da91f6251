// Synthetic documents, and how evenly context parallelism distributes them.
#include "profile/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "batches/micro_batch.h"
#include "batches/ring_turns.h"
#include "plan/run_plan.h"

namespace hawser::profile {
namespace synthetic_test {

using Kind = DocumentMix::Kind;

TEST(Synthetic, ReadsMixes) {
  EXPECT_EQ(parse_documents("mean=8192").kind, Kind::mean);
  EXPECT_EQ(parse_documents("mean=8192").length, 8192);
  EXPECT_EQ(parse_documents("long=100000").kind, Kind::long_one);
  EXPECT_EQ(parse_documents("long=100000").text(), "long=100000");
  for (const char* text : {"", "mean", "mean=", "mean=0", "mean=-3", "mean=8k", "median=7", "long= 7"}) {
    EXPECT_THROW(parse_documents(text), UserError) << text;
  }
}

TEST(Synthetic, DocumentsFillTheSequence) {
  const std::int64_t length = 131072;
  for (const char* text : {"mean=8192", "mean=1024", "long=100000", "long=131072", "mean=1"}) {
    const DocumentMix mix = parse_documents(text);
    for (const std::int64_t max : {2, 7, 2048}) {
      for (int index = 0; index < 20; ++index) {
        const auto lengths = document_lengths(mix, length, max, index);
        EXPECT_LE(static_cast<std::int64_t>(lengths.size()), max);
        EXPECT_EQ(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}), length) << text;
        EXPECT_GT(*std::min_element(lengths.begin(), lengths.end()), 0) << text;
        EXPECT_EQ(lengths, document_lengths(mix, length, max, index));
        if (mix.kind == Kind::long_one) {
          EXPECT_GE(std::count(lengths.begin(), lengths.end(), mix.length), 1) << text;
        }
      }
    }
  }
  EXPECT_EQ(document_lengths({}, 100, 1, 0), (std::vector<std::int32_t>{100}));
  EXPECT_THROW(document_lengths(parse_documents("long=101"), 100, 8, 0), UserError);
  double documents = 0;
  for (int index = 0; index < 50; ++index) {
    documents += static_cast<double>(document_lengths(parse_documents("mean=1024"), length, 2048, index).size()) / 50;
  }
  EXPECT_NEAR(documents, 129, 5);
}

// One sequence of 131,072 tokens over four ranks, with a recipe's default chunks.
TEST(Synthetic, PackedDocumentsAreBalanced) {
  for (const char* text : {"mean=8192", "mean=1024", "long=100000"}) {
    const DocumentMix mix = parse_documents(text);
    Recipe recipe;
    recipe.data.sequence_length = 131072;
    set_packing(recipe, mix);
    const batches::BatchShape shape{batches::batch_sizes(plan::packing_of(recipe.data), 1, 4)};
    double worst = 0, sum = 0;
    constexpr int kBatches = 100;
    for (int index = 0; index < kBatches; ++index) {
      batches::Sequence sequence;
      sequence.document_lengths = document_lengths(mix, shape.sequence_length, shape.max_documents, index);
      sequence.ids.assign(static_cast<std::size_t>(shape.sequence_length), 0);
      sequence.labels = sequence.positions = sequence.ids;
      const batches::MicroBatch batch = batches::make_micro_batch({&sequence, 1}, shape, 0);
      worst = std::max(worst, batch.imbalance);
      sum += batch.imbalance;
      double pairs = 0;
      for (const double n : sequence.document_lengths) pairs += n * (n + 1) / 2;
      EXPECT_DOUBLE_EQ(batch.pairs, pairs);
    }
    EXPECT_LE(sum / kBatches, 1.1) << text << ": mean";
    EXPECT_LE(worst, 1.1) << text << ": worst";
    std::printf("%s: imbalance %.4f on average, %.4f at most\n", text, sum / kBatches, worst);
  }
}

// A zig-zag is balanced in each turn, packed documents as a whole only.
TEST(Synthetic, TurnsOfARingAreBalancedWithoutPacking) {
  for (const int ring : {2, 4, 8}) {
    for (const char* text : {"", "mean=8192", "mean=1024", "long=100000"}) {
      const DocumentMix mix = *text == '\0' ? DocumentMix() : parse_documents(text);
      Recipe recipe;
      recipe.data.sequence_length = 131072;
      set_packing(recipe, mix);
      const batches::BatchShape shape{batches::batch_sizes(plan::packing_of(recipe.data), 1, ring)};
      constexpr int kBatches = 10;
      double mean = 0;
      for (int index = 0; index < kBatches; ++index) {
        const auto lengths = document_lengths(mix, shape.sequence_length, shape.max_documents, index);
        mean += batches::imbalance_of_turns(shape, lengths) / kBatches;
      }
      EXPECT_LE(mean, *text == '\0' ? 1.0001 : 1 + 0.2 * (ring - 1)) << text << " over " << ring;
      std::printf("ring of %d, %s: %.3f of the mean\n", ring, *text == '\0' ? "one document" : text, mean);
    }
  }
}

}  // namespace synthetic_test
}  // namespace hawser::profile
