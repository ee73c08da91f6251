// Every collective against a serial reference, on the group of all ranks, over comm/mpi (in comm_nccl_test over
// comm/nccl).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ranks.h"

namespace hawser::comm {
namespace {

using ranks::value;

// Sizes at boundaries: empty, one element, odd, around the chunk and the gather limit, several chunks.
const std::vector<std::int64_t> kSizes = {0, 1, 3, 255, 4097, 16384, 16385, 262144, 262145, 700001};

constexpr DeviceKind kKind = ranks::kGpus ? DeviceKind::cuda : DeviceKind::cpu;

class Collectives : public testing::TestWithParam<DType> {
 protected:
  Group& group() { return ranks::flat_mesh().data(); }
  int size() { return group().size(); }
  int index() { return group().index(); }
  // Buffers of reductions are size() times as large, and all ranks share two cores: with many ranks, skip the largest.
  std::vector<std::int64_t> sizes() {
    auto out = kSizes;
    if (size() > 4 && !ranks::kGpus) out.pop_back();
    return out;
  }

  // Storage cannot be empty; for n = 0 this returns an empty view.
  TensorView make(Device& where, DType dtype, std::int64_t n) {
    kept_.emplace_back(where, dtype, Shape{std::max<std::int64_t>(n, 1)});
    return kept_.back().view().rows(0, n);
  }
  TensorView make(DType dtype, std::int64_t n) { return make(ranks::device(), dtype, n); }
  void copy(const TensorView& to, const TensorView& from) {
    transfer(*stream_, to.raw(), from.raw(), from.bytes());
    stream_->synchronize();
  }
  // made_of: a buffer on the device with at(k) as element k. seen: a copy of a buffer on the host.
  template <class At>
  TensorView made_of(DType dtype, std::int64_t n, const At& at) {
    const TensorView host = make(*host_, dtype, n), out = make(dtype, n);
    for (std::int64_t k = 0; k < n; ++k) put(host, k, at(k));
    copy(out, host);
    return out;
  }
  TensorView filled(DType dtype, std::int64_t n, std::uint64_t site) {
    return made_of(dtype, n, [&](std::int64_t k) { return value(site, index(), k); });
  }
  TensorView seen(const TensorView& view) {
    if (!ranks::kGpus) return view;
    const TensorView host = make(*host_, view.dtype(), view.elements());
    copy(host, view);
    return host;
  }
  static void put(const TensorView& view, std::int64_t k, float x) {
    if (view.dtype() == DType::f32) {
      view.data<float>()[k] = x;
    } else {
      view.data<Bf16>()[k] = Bf16(x);
    }
  }
  static float get(const TensorView& view, std::int64_t k) {
    return view.dtype() == DType::f32 ? view.data<float>()[k] : static_cast<float>(view.data<Bf16>()[k]);
  }
  static float rounded(DType dtype, float x) { return dtype == DType::f32 ? x : static_cast<float>(Bf16(x)); }
  // The sum that the contract specifies: members in order, float32, not rounded yet.
  float sum(DType reduce_dtype, std::uint64_t site, std::int64_t k) {
    float total = rounded(reduce_dtype, value(site, 0, k));
    for (int m = 1; m < size(); ++m) total += rounded(reduce_dtype, value(site, m, k));
    return total;
  }
  // Reports one failure with a count instead of one per element.
  template <class Expected>
  void expect_all(const TensorView& result, const Expected& expected, const std::string& what) {
    const TensorView view = seen(result);
    std::int64_t wrong = 0, first = -1;
    for (std::int64_t k = 0; k < view.elements(); ++k) {
      if (get(view, k) != expected(k) && wrong++ == 0) first = k;
    }
    EXPECT_EQ(wrong, 0) << what << " n " << view.elements() << ": first at " << first << ": " << get(view, first)
                        << " for " << expected(first);
  }
  TensorView workspace(std::int64_t bytes) { return make(DType::u8, bytes); }

  std::unique_ptr<Device> host_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = ranks::device().make_stream("test");
  std::vector<Storage> kept_;
};

TEST_P(Collectives, AllGather) {
  const DType dtype = GetParam();
  for (const std::int64_t n : sizes()) {
    for (const bool in_place : {false, true}) {
      const TensorView recv = make(dtype, n * size());
      TensorView send = filled(dtype, n, 1);
      if (in_place) {
        copy(recv.rows(index() * n, n), send);
        send = recv.rows(index() * n, n);
      }
      group().all_gather(*stream_, send, recv);
      stream_->synchronize();
      expect_all(
          recv, [&](std::int64_t k) { return rounded(dtype, value(1, static_cast<int>(k / n), k % n)); },
          in_place ? "in place" : "apart");
    }
  }
}

// Every mesh has groups of its own, and one process may make many meshes.
TEST_P(Collectives, OfTheLastOfManyMeshes) {
  if (ranks::kGpus) GTEST_SKIP() << "each group would be a communicator of NCCL";
  std::unique_ptr<Mesh> last;
  for (int i = 0; i < 800; ++i) last = ranks::make_mesh(ranks::world(), ranks::device(), {.shard = size()}, 60.0);
  const DType dtype = GetParam();
  const TensorView send = filled(dtype, 3, 1), recv = make(dtype, 3 * size());
  last->shard_gather().all_gather(*stream_, send, recv);
  stream_->synchronize();
  expect_all(
      recv, [&](std::int64_t k) { return rounded(dtype, value(1, static_cast<int>(k / 3), k % 3)); }, "last mesh");
}

// All members exchange at once: a ring of sends would wait for itself.
TEST_P(Collectives, ExchangesAroundARing) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks or more";
  const DType dtype = GetParam();
  for (const std::int64_t n : sizes()) {
    const TensorView send = filled(dtype, n, 1), recv = make(dtype, n);
    for (int step = 1; step < size(); ++step) {
      const int to = (index() + step) % size(), from = (index() + size() - step) % size();
      group().exchange(*stream_, send, to, recv, from);
      stream_->synchronize();
      expect_all(
          recv, [&](std::int64_t k) { return rounded(dtype, value(1, from, k)); }, cat("step ", step));
    }
  }
}

// Counted with the sends and receives of the same members.
TEST_P(Collectives, ExchangesMatchSendsAndReceives) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks or more";
  const DType dtype = GetParam();
  const int n = 5;
  const TensorView first = filled(dtype, n, 1), second = filled(dtype, n, 2);
  const TensorView got_first = make(dtype, n), got_second = make(dtype, n);
  if (index() == 0) {
    group().exchange(*stream_, first, 1, got_first, 1);
    group().send(*stream_, second, 1);
    group().receive(*stream_, got_second, 1);
  } else if (index() == 1) {
    group().receive(*stream_, got_first, 0);
    group().send(*stream_, first, 0);
    group().exchange(*stream_, second, 0, got_second, 0);
  }
  stream_->synchronize();
  if (index() > 1) return;
  const int other = 1 - index();
  expect_all(
      got_first, [&](std::int64_t k) { return rounded(dtype, value(1, other, k)); }, "first");
  expect_all(
      got_second, [&](std::int64_t k) { return rounded(dtype, value(2, other, k)); }, "second");
}

TEST_P(Collectives, ReduceScatter) {
  const DType reduce_dtype = GetParam();
  for (const std::int64_t n : sizes()) {
    for (const DType out : {DType::f32, reduce_dtype}) {
      for (const bool accumulate : {false, true}) {
        const TensorView send = filled(reduce_dtype, n * size(), 2);
        const TensorView recv = made_of(out, n, [](std::int64_t) { return 0.75f; });
        group().reduce_scatter(*stream_, send, recv, accumulate,
                               workspace(reduce_scatter_workspace(n, reduce_dtype, size(), kKind)));
        stream_->synchronize();
        const auto expected = [&](std::int64_t k) {
          const float total = sum(reduce_dtype, 2, index() * n + k);
          return rounded(out, accumulate ? 0.75f + total : total);
        };
        expect_all(recv, expected, accumulate ? "added" : "written");
        expect_all(
            send, [&](std::int64_t k) { return rounded(reduce_dtype, value(2, index(), k)); }, "send is kept");
      }
    }
  }
}

TEST_P(Collectives, ReduceScatterInPlace) {
  const DType reduce_dtype = GetParam();
  for (const std::int64_t n : {std::int64_t{5}, std::int64_t{600000}}) {
    const TensorView send = filled(reduce_dtype, n * size(), 3);
    const TensorView recv = send.rows(index() * n, n);
    group().reduce_scatter(*stream_, send, recv, false,
                           workspace(reduce_scatter_workspace(n, reduce_dtype, size(), kKind)));
    stream_->synchronize();
    expect_all(
        recv, [&](std::int64_t k) { return rounded(reduce_dtype, sum(reduce_dtype, 3, index() * n + k)); }, "in place");
  }
}

TEST_P(Collectives, AllReduce) {
  const DType dtype = GetParam();
  for (const std::int64_t n : sizes()) {
    const TensorView scratch = workspace(all_reduce_workspace(n, dtype, size(), kKind));
    const TensorView sums = filled(dtype, n, 4), largest = filled(dtype, n, 5);
    group().all_reduce(*stream_, sums, Reduction::sum, scratch);
    group().all_reduce(*stream_, largest, Reduction::max, scratch);
    stream_->synchronize();
    expect_all(
        sums, [&](std::int64_t k) { return rounded(dtype, sum(dtype, 4, k)); }, "sum");
    const auto max = [&](std::int64_t k) {
      float out = rounded(dtype, value(5, 0, k));
      for (int m = 1; m < size(); ++m) out = std::max(out, rounded(dtype, value(5, m, k)));
      return out;
    };
    expect_all(largest, max, "max");
  }
}

TEST_P(Collectives, AllToAll) {
  const DType dtype = GetParam();
  for (const std::int64_t n : sizes()) {
    const TensorView send = filled(dtype, n * size(), 6), recv = make(dtype, n * size());
    group().all_to_all(*stream_, send, recv);
    stream_->synchronize();
    const auto expected = [&](std::int64_t k) {
      return rounded(dtype, value(6, static_cast<int>(k / n), index() * n + k % n));
    };
    expect_all(recv, expected, "transposed");
  }
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  const DType dtype = GetParam();
  for (int root = 0; root < size(); ++root) {
    for (const std::int64_t n : {0, 1, 100001}) {
      const TensorView data = filled(dtype, n, 7);
      group().broadcast(*stream_, data, root);
      stream_->synchronize();
      expect_all(
          data, [&](std::int64_t k) { return rounded(dtype, value(7, root, k)); }, "broadcast");
    }
  }
}

// Every rank sends to the right and receives from the left, on two streams: on one stream all would wait for ever. On
// GPUs neighbours alternate (comm/group.h).
TEST_P(Collectives, SendAndReceiveInARing) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks or more";
  const DType dtype = GetParam();
  const auto other = ranks::device().make_stream("other");
  const int right = (index() + 1) % size(), left = (index() + size() - 1) % size();
  std::vector<TensorView> received;
  for (const std::int64_t n : {1, 1000, 500000, 7}) {
    received.push_back(make(dtype, n));
    const TensorView data = filled(dtype, n, 8);
    const bool receive_first = ranks::kGpus && index() % 2 == 1;
    if (receive_first) group().receive(*other, received.back(), left);
    group().send(*stream_, data, right);
    if (!receive_first) group().receive(*other, received.back(), left);
  }
  stream_->synchronize();
  other->synchronize();
  for (const TensorView& data : received) {
    expect_all(
        data, [&](std::int64_t k) { return rounded(dtype, value(8, left, k)); }, "received");
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Collectives, testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return to_string(dtype.param); });

class AnyDtype : public Collectives {};

TEST_P(AnyDtype, DtypesAreSentUnchanged) {
  const DType dtype = GetParam();
  const std::int64_t n = 1001;
  const TensorView mine = make(*host_, dtype, n), send = make(dtype, n), recv = make(dtype, n * size());
  const auto byte = [&](int member, std::int64_t k) { return static_cast<std::byte>((k * 7 + member * 13) & 0xff); };
  for (std::int64_t k = 0; k < mine.bytes(); ++k) mine.raw()[k] = byte(index(), k);
  copy(send, mine);
  group().all_gather(*stream_, send, recv);
  stream_->synchronize();
  const TensorView all = seen(recv);
  std::int64_t wrong = 0;
  for (std::int64_t k = 0; k < all.bytes(); ++k) {
    wrong += all.raw()[k] != byte(static_cast<int>(k / send.bytes()), k % send.bytes());
  }
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Bytes, AnyDtype, testing::Values(DType::i32, DType::i64, DType::u8),
                         [](const auto& dtype) { return to_string(dtype.param); });

}  // namespace
}  // namespace hawser::comm
