#include "program/repetition.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "program/testing/soundness.h"
#include "program/testing/traces.h"

namespace hawser::program {
namespace repetition_test {

using testing::expect_sound;
using testing::Recorder;
using testing::StepTrace;

enum Which { kCompute, kGather };

// Steps of `micro_batches` with `layers`: forward of each layer saves a tensor that backward reads in the reverse
// order; weights are gathered on a second stream, two layers ahead.
struct Steps {
  int micro_batches = 40, layers = 3;
  // Bytes of what a layer saves, and of its weights.
  std::function<std::int64_t(int micro_batch, int layer)> saved = [](int, int) { return 4096; };
  std::function<std::int64_t(int layer)> weights = [](int) { return 10240; };
  int live_to_end = -1;  // what forward of this micro-batch's first layer saved is read after the last one
  int reads_older = -1;  // the first op of this micro-batch reads the result before the previous one
  bool waits = true;     // a gather waits until the weights before the previous ones are free
  int other_order = -1;  // this micro-batch has the backwards in forward order
};

class Program {
 public:
  explicit Program(const Steps& steps) : s_(steps), r_({"compute", "gather"}) {
    sum_ = r_.buffer("sum", "state", 512);
    r_.work(kCompute, "zero", {}, {sum_});
    for (int m = 0; m < s_.micro_batches; ++m) micro_batch(m);
    std::vector<int> reads{sum_};
    if (kept_ >= 0) reads.push_back(kept_);
    r_.work(kCompute, "update", reads, {sum_});
  }
  const Trace& trace() const { return r_.trace(); }
  const std::vector<Buffer>& buffers() const { return r_.buffers(); }
  Placement placement() const { return place(trace(), buffers()); }
  std::optional<ShortTrace> shorter() {
    order_ = std::make_unique<Order>(trace());
    lifetimes_ = std::make_unique<Lifetimes>(trace(), *order_, buffers());
    return ShortTrace::make(trace(), *lifetimes_, buffers());
  }

 private:
  int gather(int layer) {
    const int weights = r_.buffer("weights", "weights", s_.weights(layer));
    if (s_.waits && ends_.size() >= 2) r_.wait(kGather, ends_[ends_.size() - 2]);
    r_.work(kGather, "gather", {}, {weights});
    r_.after(kCompute, kGather);
    return weights;
  }
  void end_layer() { ends_.push_back(r_.record_event(kCompute)); }

  void micro_batch(int m) {
    std::vector<int> saved;
    for (int layer = 0; layer < s_.layers; ++layer) {
      const int weights = gather(layer), temp = r_.buffer("temp", "temp", 1000);
      saved.push_back(r_.buffer("saved", "saved", s_.saved(m, layer)));
      std::vector<int> reads{weights};
      if (layer == 0 && results_.size() >= 2)
        reads.push_back(results_[results_.size() - (m == s_.reads_older ? 2 : 1)]);
      r_.work(kCompute, "forward", reads, {saved.back(), temp});
      end_layer();
    }
    if (m == s_.live_to_end) kept_ = saved.front();
    for (int i = 0; i < s_.layers; ++i) {
      const int layer = m == s_.other_order ? i : s_.layers - 1 - i;
      const int weights = gather(layer);
      r_.work(kCompute, "backward", {weights, saved[static_cast<std::size_t>(layer)]}, {sum_});
      end_layer();
    }
    results_.push_back(r_.buffer("result", "temp", 3072));
    r_.work(kCompute, "result", {sum_}, {results_.back()});
  }

  Steps s_;
  Recorder r_;
  int sum_ = -1, kept_ = -1;
  std::vector<int> results_;  // of each micro-batch; the next one reads it
  std::vector<Event> ends_;
  std::unique_ptr<Order> order_;
  std::unique_ptr<Lifetimes> lifetimes_;
};

// The items of the short trace, as a share of all; 1 if there is none.
double share(Program& program) {
  const auto shorter = program.shorter();
  if (!shorter) return 1;
  return static_cast<double>(shorter->trace().items.size()) / static_cast<double>(program.trace().items.size());
}

// The bytes of few micro-batches are those of many.
std::int64_t bytes_of_few(Steps steps) {
  steps.micro_batches = 7;
  return Program(steps).placement().bytes;
}

TEST(Repetition, OfMicroBatchesIsPlacedOnce) {
  const Steps steps;
  Program program(steps);
  EXPECT_LT(share(program), 0.25);
  const Placement placement = program.placement();
  expect_sound(program.trace(), program.buffers(), placement);
  EXPECT_EQ(placement.bytes, bytes_of_few(steps));
}

TEST(Repetition, PeriodMayBeSeveralMicroBatches) {
  const Steps steps{.micro_batches = 60, .saved = [](int m, int layer) { return m % 3 == 0 ? 8192 : 2048 << layer; }};
  Program program(steps);
  EXPECT_LT(share(program), 0.5);
  const auto found = program.shorter();
  ASSERT_TRUE(found);
  expect_sound(program.trace(), program.buffers(), program.placement());
}

TEST(Repetition, LayersMayDiffer) {
  const Steps steps{.layers = 6,
                    .saved = [](int, int layer) { return layer % 2 == 0 ? 9000 : 700; },
                    .weights = [](int layer) { return layer == 4 ? 30000 : 5000; }};
  Program program(steps);
  EXPECT_LT(share(program), 0.25);
  const Placement placement = program.placement();
  expect_sound(program.trace(), program.buffers(), placement);
  EXPECT_EQ(placement.bytes, bytes_of_few(steps));
}

TEST(Repetition, FirstAndLastMicroBatchMayDiffer) {
  const Steps steps{.saved = [](int m, int) { return m == 0 ? 20000 : m == 39 ? 50000 : 4096; }};
  Program program(steps);
  EXPECT_LT(share(program), 0.3);
  const Placement placement = program.placement();
  expect_sound(program.trace(), program.buffers(), placement);
  EXPECT_GE(placement.bytes, 3 * 50000) << "what the last one saves is live at once";
}

// A micro-batch in the middle that saves more: what repeats is after it or before it.
TEST(Repetition, OneMicroBatchMayDiffer) {
  for (const int other : {3, 10, 20, 36}) {
    const Steps steps{.saved = [=](int m, int layer) { return m == other && layer == 1 ? 70000 : 4096; }};
    Program program(steps);
    const Placement placement = program.placement();
    expect_sound(program.trace(), program.buffers(), placement);
    EXPECT_GE(placement.bytes, 70000);
  }
}

TEST(Repetition, OneMicroBatchMayHaveAnotherOrder) {
  for (const int other : {0, 5, 19, 20, 33, 39}) {
    Program program({.other_order = other});
    expect_sound(program.trace(), program.buffers(), program.placement());
  }
}

// The accesses of every micro-batch look alike, but one's tensor stays live, or is read one micro-batch later: the
// offsets of the others do not fit there.
TEST(Repetition, LifetimesThatDifferAreFound) {
  for (const int other : {2, 5, 15, 20, 30, 38}) {
    Program kept({.live_to_end = other});
    expect_sound(kept.trace(), kept.buffers(), kept.placement());
    Program older({.reads_older = other});
    expect_sound(older.trace(), older.buffers(), older.placement());
  }
}

// Gathers that wait for nothing may run in any micro-batch: no two of them share bytes.
TEST(Repetition, AStreamMayRunAhead) {
  Program program({.micro_batches = 24, .waits = false});
  const Placement placement = program.placement();
  expect_sound(program.trace(), program.buffers(), placement);
  EXPECT_GE(placement.bytes, std::int64_t{24} * 6 * 10240);
}

TEST(Repetition, OffsetsThatDoNotFitAreRejected) {
  Program program({});
  const Placement placement = program.placement();
  const Order order(program.trace());
  const Lifetimes lifetimes(program.trace(), order, program.buffers());
  std::vector<int> used;
  for (int b = 0; b < static_cast<int>(program.buffers().size()); ++b) used.push_back(b);
  EXPECT_TRUE(shares_in_order(lifetimes, program.buffers(), placement.offsets, used));
  int rejected = 0;
  for (std::size_t b = 0; b < program.buffers().size(); ++b) {
    std::vector<std::int64_t> moved = placement.offsets;
    moved[b] = moved[0];  // where the sum is, which is live all the time
    rejected += shares_in_order(lifetimes, program.buffers(), moved, used) ? 0 : 1;
  }
  EXPECT_EQ(rejected, static_cast<int>(used.size()) - 1);
}

TEST(Repetition, ItemsKeepTheirIndices) {
  Program program({});
  const auto shorter = program.shorter();
  ASSERT_TRUE(shorter);
  const std::vector<TraceItem>& items = shorter->trace().items;
  EXPECT_EQ(shorter->item(0), 0);
  EXPECT_EQ(shorter->item(static_cast<int>(items.size()) - 1), static_cast<int>(program.trace().items.size()) - 1);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const TraceItem& item = program.trace().items[static_cast<std::size_t>(shorter->item(static_cast<int>(i)))];
    EXPECT_STREQ(items[i].record.name, item.record.name);
    EXPECT_EQ(items[i].kind, item.kind);
    EXPECT_LT(items[i].target, static_cast<int>(i));
  }
  const Placement placement = program.placement();
  const Placement estimate = place(program.trace(), program.buffers(), Placing::estimate);
  EXPECT_EQ(placement.live_bytes, estimate.live_bytes);
  EXPECT_GE(placement.peak_item, 0);
}

// Steps as step/ writes them: as tight as few micro-batches, and the same with every count.
TEST(Repetition, TrainingSteps) {
  for (const bool full : {false, true}) {
    const auto bytes_of = [&](int micro_batches) {
      StepTrace step({.layers = 3, .micro_batches = micro_batches, .full = full});
      const Recorder& r = step.recorder();
      const Placement placement = place(r.trace(), r.buffers());
      EXPECT_EQ(placement.live_bytes, place(r.trace(), r.buffers(), Placing::estimate).live_bytes);
      if (micro_batches == 17) expect_sound(r.trace(), r.buffers(), placement);
      return placement.bytes;
    };
    const std::int64_t few = bytes_of(6);
    for (const int micro_batches : {17, 18, 64}) EXPECT_LE(bytes_of(micro_batches), few) << micro_batches;
  }
}

// Parts of random traces, repeated: whatever place() makes of them is sound.
TEST(Repetition, RandomProgramsAreSound) {
  for (unsigned seed = 0; seed < 16; ++seed) {
    std::mt19937 random(seed);
    const int layers = testing::pick(random, 1, 5), cycle = testing::pick(random, 1, 4);
    std::vector<std::int64_t> sizes;
    for (int i = 0; i < 4 * layers; ++i) sizes.push_back(testing::pick(random, 1, 40000));
    const auto at = [=](int m, int layer) { return sizes[static_cast<std::size_t>(m % cycle * layers + layer)]; };
    Program program({.micro_batches = testing::pick(random, 8, 40),
                     .layers = layers,
                     .saved = at,
                     .weights = [=](int layer) { return at(0, layer) / 2 + 1; },
                     .live_to_end = testing::pick(random, -20, 40),
                     .reads_older = testing::pick(random, -20, 40),
                     .other_order = testing::pick(random, -20, 40)});
    expect_sound(program.trace(), program.buffers(), program.placement());
  }
}

}  // namespace repetition_test
}  // namespace hawser::program
