// Synthetic documents, and how evenly context parallelism distributes them.
#include "profile/synthetic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "batches/micro_batch.h"
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

// Query-key pairs of a rank of the ring by turn: in turn t it has the keys of the rank t before it.
std::vector<double> pairs_by_turn(const batches::MicroBatch& batch, int rank, int ring) {
  std::vector<double> out(static_cast<std::size_t>(ring), 0);
  for (const batches::Segment& s : batch.diagonal) out[0] += static_cast<double>(s.q_count) * (s.q_count + 1) / 2;
  for (int source = 0; source < ring; ++source) {
    const batches::WindowSegments& segments = batch.by_source[0][static_cast<std::size_t>(source)];
    double& turn = out[static_cast<std::size_t>((rank - source + ring) % ring)];
    for (const auto* list : {&segments.complete, &segments.band}) {
      for (const batches::Segment& s : *list) turn += static_cast<double>(s.q_count) * s.k_count;
    }
  }
  return out;
}

// The time of a ring over the mean work of its ranks, if each turn waits for the rank with the most work.
double imbalance_of_turns(const batches::BatchShape& shape, const DocumentMix& mix, int index) {
  batches::Sequence sequence;
  sequence.document_lengths = document_lengths(mix, shape.sequence_length, shape.max_documents, index);
  sequence.ids.assign(static_cast<std::size_t>(shape.sequence_length), 0);
  sequence.labels = sequence.positions = sequence.ids;
  std::vector<double> most(static_cast<std::size_t>(shape.ring()), 0);
  double sum = 0;
  for (int rank = 0; rank < shape.ring(); ++rank) {
    const auto turns = pairs_by_turn(batches::make_micro_batch({&sequence, 1}, shape, rank), rank, shape.ring());
    for (std::size_t t = 0; t < most.size(); ++t) most[t] = std::max(most[t], turns[t]), sum += turns[t];
  }
  return std::accumulate(most.begin(), most.end(), 0.0) / (sum / shape.ring());
}

// A zig-zag is balanced in each turn. Packed documents are balanced as a whole, but not in each turn, which
// plan/forecast.cpp estimates.
TEST(Synthetic, TurnsOfARingAreBalancedWithoutPacking) {
  for (const int ring : {2, 4, 8}) {
    for (const char* text : {"", "mean=8192", "mean=1024", "long=100000"}) {
      const DocumentMix mix = *text == '\0' ? DocumentMix() : parse_documents(text);
      Recipe recipe;
      recipe.data.sequence_length = 131072;
      set_packing(recipe, mix);
      batches::BatchShape shape{batches::batch_sizes(plan::packing_of(recipe.data), 1, ring)};
      shape.source_segments = true;
      constexpr int kBatches = 10;
      double mean = 0;
      for (int index = 0; index < kBatches; ++index) mean += imbalance_of_turns(shape, mix, index) / kBatches;
      EXPECT_LE(mean, *text == '\0' ? 1.0001 : 1 + 0.2 * (ring - 1)) << text << " over " << ring;
      std::printf("ring of %d, %s: %.3f of the mean\n", ring, *text == '\0' ? "one document" : text, mean);
    }
  }
}

}  // namespace synthetic_test
}  // namespace hawser::profile
