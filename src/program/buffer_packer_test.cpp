#include "program/buffer_packer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>

#include "program/testing/traces.h"

namespace hawser::program {
namespace buffer_packer_test {

// Most buffers are live until the end: more than a packer remembers places for.
std::unique_ptr<testing::Recorder> crowded_trace(unsigned seed, int buffers) {
  std::mt19937 random(seed);
  auto out = std::make_unique<testing::Recorder>(std::vector<std::string>{"stream"});
  std::vector<int> last;
  for (int b = 0; b < buffers; ++b) {
    out->work(0, "work", {}, {out->buffer("buffer", "temp", testing::pick(random, 1, 5000))});
    if (testing::pick(random, 0, 4) > 0) last.push_back(b);
  }
  out->work(0, "work", last, {});
  return out;
}

// What a packer has kept of an earlier order saves time and changes neither offsets nor its count of work.
TEST(Packer, KeptResultsChangeNothing) {
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
  int kept = 0, stopped = 0;
  for (unsigned seed = 0; seed < 16; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const int count = seed % 3 == 0 ? 400 : 60;
    const auto recorder = seed % 4 == 3 ? crowded_trace(seed, 250) : testing::random_trace(seed, 3, 5 * count, count);
    const Trace& trace = recorder->trace();
    const Order order(trace);
    const Lifetimes lifetimes(trace, order, recorder->buffers());
    std::vector<Buffer> buffers = recorder->buffers();
    // Few sizes, so that buffers reuse each other's places.
    for (Buffer& buffer : buffers) buffer.bytes = std::int64_t{256} << (buffer.bytes % (seed % 4 == 1 ? 5 : 2));
    std::vector<int> by_size;
    for (int b = 0; b < static_cast<int>(buffers.size()); ++b) {
      if (lifetimes.used(b)) by_size.push_back(b);
    }
    Packer packer(trace, order, lifetimes, buffers, by_size);
    std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) {
      return buffers[static_cast<std::size_t>(a)].bytes > buffers[static_cast<std::size_t>(b)].bytes;
    });
    std::int64_t best = kNoLimit;
    for (int round = 0; round < 60; ++round) {
      std::vector<int> changed = by_size;
      const std::size_t a = below(changed.size()), b = a + below(changed.size() - a);
      const auto begin = changed.begin() + static_cast<std::ptrdiff_t>(a),
                 end = changed.begin() + static_cast<std::ptrdiff_t>(b);
      if (round % 4 == 1) std::reverse(begin, end);
      if (round % 4 == 2) std::rotate(begin, begin + (end - begin) / 2, end);
      if (round % 4 == 3) std::swap(changed[a], changed[below(changed.size())]);
      const bool reuse = below(4) != 0;
      const std::int64_t limit = below(3) == 0 ? kNoLimit : best;
      Packer fresh(trace, order, lifetimes, buffers, by_size);
      const std::size_t before = packer.work();
      const std::int64_t units = packer.put_down(changed, reuse, limit);
      ASSERT_EQ(units, fresh.put_down(changed, reuse, limit)) << seed << " " << round;
      ASSERT_EQ(packer.work() - before, fresh.work());
      for (const int buffer : changed) ASSERT_EQ(packer.offset(buffer), fresh.offset(buffer)) << seed << " " << round;
      stopped += units > limit;
      if (units > limit || (units > best && below(2) == 0)) continue;
      packer.keep();
      ++kept;
      by_size = changed;
      best = std::min(best, units);
    }
  }
  EXPECT_GT(kept, 200);
  EXPECT_GT(stopped, 50);
}

}  // namespace buffer_packer_test
}  // namespace hawser::program
