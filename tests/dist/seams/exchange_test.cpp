// TokenExchange over two ranks with four experts, and TensorReduce.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "seams.h"
#include "support/tensor_parallel.h"

namespace hawser::testing {
namespace {

using nn::LayerContext;
using nn::testing::get;
using nn::testing::normals;
using nn::testing::TestContext;

constexpr std::int64_t kExperts = 4, kLocal = 2, kRanks = 2;

// Sends rows in rounds of kCapacity per peer. The number of rounds suffices even if all rows go to one peer, whatever
// the counts on the device are; the host does not read them.
class RoundsExchange : public nn::TokenExchange {
 public:
  explicit RoundsExchange(std::int64_t capacity) : capacity_(capacity) {}

  Dispatched dispatch(LayerContext& ctx, const TensorView& tokens, const TensorView& counts) override {
    ctx.exchange_after_compute();
    Stream& stream = ctx.exchange();
    incoming_ = ctx.temp(DType::i32, {kRanks * kLocal});  // [peer][local expert]
    pair().all_to_all(stream, counts, incoming_);
    const TensorView out = ctx.temp(tokens.dtype(), {kRanks * tokens.size(0), tokens.size(1)});
    const TensorView local = ctx.temp(DType::i32, {kLocal});
    stream.launch({.name = "sum_counts", .kind = OpKind::host, .accesses = {reads(incoming_), writes(local)}},
                  [incoming = incoming_, local] {
                    for (std::int64_t e = 0; e < kLocal; ++e) {
                      local.data<std::int32_t>()[e] =
                          incoming.data<std::int32_t>()[e] + incoming.data<std::int32_t>()[kLocal + e];
                    }
                  });
    exchange(ctx, tokens, counts, out, /*back=*/false);
    ctx.compute_after_exchange();
    return {out, local};
  }

  TensorView combine(LayerContext& ctx, const TensorView& expert_output, const TensorView& counts) override {
    ctx.exchange_after_compute();
    const TensorView out = ctx.temp(expert_output.dtype(), {expert_output.size(0) / kRanks, expert_output.size(1)});
    exchange(ctx, out, counts, expert_output, /*back=*/true);
    ctx.compute_after_exchange();
    return out;
  }

 private:
  // The index in this rank's `tokens`, grouped by expert, of the i-th row that it exchanges with peer p.
  static std::int64_t own_row(const TensorView& counts, std::int64_t peer, std::int64_t i) {
    const auto* count = counts.data<std::int32_t>();
    const auto begin = std::accumulate(count, count + peer * kLocal, std::int64_t{0});
    const auto size = std::accumulate(count + peer * kLocal, count + (peer + 1) * kLocal, std::int64_t{0});
    return i < size ? begin + i : -1;
  }
  // The index in the rows of this rank's experts, grouped by expert and then by peer, of the i-th row exchanged with
  // peer p.
  static std::int64_t expert_row(const TensorView& incoming, std::int64_t peer, std::int64_t i) {
    const auto* count = incoming.data<std::int32_t>();
    std::int64_t begin = 0;
    for (std::int64_t e = 0; e < kLocal; ++e) {
      for (std::int64_t p = 0; p < kRanks; ++p) {
        const std::int64_t size = count[p * kLocal + e];
        if (p == peer) {
          if (i < size) return begin + i;
          i -= size;
        }
        begin += size;
      }
    }
    return -1;
  }

  void exchange(LayerContext& ctx, const TensorView& own, const TensorView& counts, const TensorView& experts,
                bool back) {
    const std::int64_t rounds = ceil_div(own.size(0), capacity_);
    const Shape shape{kRanks * capacity_, own.size(1)};
    const TensorView send = ctx.temp(own.dtype(), shape), received = ctx.temp(own.dtype(), shape);
    const TensorView from = back ? experts : own, to = back ? own : experts, incoming = incoming_;
    const auto row = [=](bool own_side, std::int64_t peer, std::int64_t i) {
      return own_side ? own_row(counts, peer, i) : expert_row(incoming, peer, i);
    };
    for (std::int64_t round = 0; round < rounds; ++round) {
      const auto each = [=, capacity = capacity_](bool own_side, const auto& move) {
        for (std::int64_t peer = 0; peer < kRanks; ++peer) {
          for (std::int64_t i = 0; i < capacity; ++i) {
            const std::int64_t at = row(own_side, peer, round * capacity + i);
            if (at >= 0) move(at, peer * capacity + i);
          }
        }
      };
      const std::size_t bytes = static_cast<std::size_t>(own.size(1) * size_of(own.dtype()));
      ctx.exchange().launch({.name = "pack",
                             .kind = OpKind::copy,
                             .accesses = {reads(from), reads(counts), reads(incoming), writes(send)}},
                            [=] {
                              std::memset(send.raw(), 0, static_cast<std::size_t>(send.bytes()));
                              each(!back, [&](std::int64_t a, std::int64_t b) {
                                std::memcpy(send.rows(b, 1).raw(), from.rows(a, 1).raw(), bytes);
                              });
                            });
      pair().all_to_all(ctx.exchange(), send, received);
      ctx.exchange().launch({.name = "unpack",
                             .kind = OpKind::copy,
                             .accesses = {reads(received), reads(counts), reads(incoming), writes(to)}},
                            [=] {
                              each(back, [&](std::int64_t a, std::int64_t b) {
                                std::memcpy(to.rows(a, 1).raw(), received.rows(b, 1).raw(), bytes);
                              });
                            });
    }
  }

  std::int64_t capacity_;
  TensorView incoming_;  // counts received in the last dispatch
};

// Rows of a rank. Every rank can compute them for all ranks.
std::vector<double> rows_for(int rank, std::int64_t rows) {
  return normals("rows of " + std::to_string(rank), rows * 3);
}

void expect_there_and_back(std::int64_t rows, std::int64_t capacity, const std::vector<std::vector<double>>& counts) {
  const auto device = make_cpu_device({.random_delay_s = 0.0005});
  TestContext ctx(*device, DType::f32);
  const int rank = pair().index();
  const auto seam = std::make_shared<RoundsExchange>(capacity);
  ctx.seams_.tokens = seam;
  const TensorView mine = ctx.make(DType::f32, {rows, 3}, rows_for(rank, rows));
  const TensorView count = ctx.make(DType::i32, {kExperts}, counts[static_cast<std::size_t>(rank)]);
  const auto there = ctx.seams().tokens->dispatch(ctx, mine, count);
  // Each expert computes something different: expert e multiplies by e + 1.
  const TensorView done = there.tokens, local = there.counts;
  ctx.compute().launch({.name = "experts", .kind = OpKind::host}, [=] {
    std::int64_t row = 0;
    for (std::int64_t e = 0; e < kLocal; ++e) {
      for (std::int32_t i = 0; i < local.data<std::int32_t>()[e]; ++i, ++row) {
        for (int c = 0; c < 3; ++c) done.data<float>()[row * 3 + c] *= static_cast<float>(rank * kLocal + e + 1);
      }
    }
  });
  const TensorView home = ctx.seams().tokens->combine(ctx, done, count);
  ctx.finish();

  // No row is dropped: the rows of an expert are those of rank 0, then those of rank 1.
  std::vector<double> expected;
  for (std::int64_t e = rank * kLocal; e < (rank + 1) * kLocal; ++e) {
    for (std::size_t r = 0; r < 2; ++r) {
      const auto at = static_cast<std::size_t>(e);
      const auto begin = static_cast<std::size_t>(std::accumulate(counts[r].begin(), counts[r].begin() + e, 0.0));
      const auto all = rows_for(static_cast<int>(r), rows);
      for (const double value : rows_of(all, 3, range(begin, begin + static_cast<std::size_t>(counts[r][at])))) {
        expected.push_back(static_cast<float>(value) * static_cast<float>(e + 1));
      }
    }
  }
  std::vector<double> arrived = get(done);
  ASSERT_GE(arrived.size(), expected.size());
  arrived.resize(expected.size());
  EXPECT_EQ(arrived, expected);

  // Each row returns to its position.
  std::vector<double> returned = rows_for(rank, rows);
  std::size_t row = 0;
  for (std::size_t e = 0; e < kExperts; ++e) {
    const auto count = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)][e]);
    for (std::size_t i = 0; i < count; ++i, ++row) {
      for (std::size_t c = 0; c < 3; ++c) returned[row * 3 + c] *= static_cast<double>(e + 1);
    }
  }
  EXPECT_LT(nn::testing::distance(get(home), returned), 1e-6);
}

TEST(TokenExchange, KeepsAllRowsAndReturnsThem) {
  expect_there_and_back(20, 5, {{5, 5, 5, 5}, {5, 5, 5, 5}});
  expect_there_and_back(20, 3, {{1, 9, 0, 10}, {7, 0, 12, 1}});
  expect_there_and_back(20, 3, {{20, 0, 0, 0}, {20, 0, 0, 0}});  // all to one expert
  expect_there_and_back(20, 6, {{0, 0, 0, 20}, {0, 20, 0, 0}});  // all to the other rank
  expect_there_and_back(7, 100, {{2, 2, 1, 2}, {0, 0, 0, 7}});   // one round
}

TEST(TensorReduce, SumAndMaximum) {
  const auto device = make_cpu_device();
  TestContext ctx(*device, DType::f32);
  ctx.seams_.tensor_reduce = std::make_shared<TensorSums>(pair());
  const std::vector<double> values[] = {{1.5, -2.0, 3.0}, {0.25, -1.0, 3.5}};
  const auto& mine = values[static_cast<std::size_t>(pair().index())];
  const TensorView sum = ctx.make(DType::f32, {3}, mine), max = ctx.make(DType::f32, {3}, mine);
  ctx.seams().tensor_reduce->sum(ctx, sum);
  ctx.seams().tensor_reduce->maximum(ctx, max);
  ctx.finish();
  EXPECT_EQ(get(sum), (std::vector<double>{1.75, -3.0, 6.5}));
  EXPECT_EQ(get(max), (std::vector<double>{1.5, -1.0, 3.5}));
}

}  // namespace
}  // namespace hawser::testing
