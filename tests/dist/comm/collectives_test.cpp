// Every collective against a serial reference, on the group of all ranks, over comm/mpi (in comm_nccl_test over
// comm/nccl).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "ranks.h"

namespace hawser::comm {
namespace collectives_test {

using ranks::value;

// Sizes at boundaries: empty, one element, odd, around the chunk and the gather limit, several chunks.
const std::vector<std::int64_t> kSizes = {0, 1, 3, 255, 4097, 16384, 16385, 262144, 262145, 700001};

constexpr DeviceKind kKind = ranks::kGpus ? DeviceKind::cuda : DeviceKind::cpu;

class Collectives : public ::testing::TestWithParam<DType> {
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

// Rows of a few counted slots for each member, between poisoned ones: `rows(from, to, g)` of them are sent.
class CountedRowsTest : public Collectives {
 protected:
  static constexpr int kGroups = 2, kColumns = 24;
  using Rows = std::function<std::int32_t(int from, int to, int g)>;
  using Slots = std::vector<std::int32_t>;
  enum Poison : int { kSendPoison = 0x7f, kRecvPoison = 0x5a };
  // Where slots are: each at a multiple of the bound, one after another, or the other way around with a row between.
  enum class Places { apart, packed, reversed };

  TensorView values_of(const Slots& slots) {
    const auto count = static_cast<std::int64_t>(slots.size());
    const TensorView host = make(*host_, DType::i32, count), out = make(DType::i32, count);
    std::ranges::copy(slots, host.data<std::int32_t>());
    copy(out, host);
    return out;
  }
  TensorView poisoned(DType dtype, std::int64_t n, Poison poison) {
    const TensorView host = make(*host_, dtype, n), out = make(dtype, n);
    std::memset(host.raw(), poison, static_cast<std::size_t>(host.bytes()));
    copy(out, host);
    return out;
  }
  Slots slots_of(const std::function<std::int32_t(int member, int g)>& of) {
    Slots out;
    for (int i = 0; i < size() * kGroups; ++i) out.push_back(of(i / kGroups, i % kGroups));
    return out;
  }
  static Slots offsets_of(const Slots& counts, std::int64_t bound, Places places) {
    Slots out(counts.size());
    std::int32_t next = 0;
    for (std::size_t k = 0; k < counts.size(); ++k) {
      const std::size_t i = places == Places::reversed ? counts.size() - 1 - k : k;
      out[i] = places == Places::apart ? static_cast<std::int32_t>(k) * static_cast<std::int32_t>(bound) : next;
      next += counts[i] + (places == Places::reversed ? 1 : 0);
    }
    return out;
  }
  // The most rows that a member has, as all members allocate them.
  std::int64_t rows_of(const std::function<Slots(int member)>& counts, std::int64_t bound, Places places) {
    std::int64_t rows = 1;
    for (int m = 0; m < size(); ++m) {
      const Slots of = counts(m), offsets = offsets_of(of, bound, places);
      for (std::size_t i = 0; i < of.size(); ++i) rows = std::max<std::int64_t>(rows, offsets[i] + of[i]);
    }
    return rows;
  }

  void expect_exchange(std::int64_t bound, const Rows& rows, const std::string& what) {
    for (const auto& [from, to] : {std::pair(Places::apart, Places::apart),
                                   {Places::packed, Places::reversed},
                                   {Places::reversed, Places::packed}}) {
      expect_exchange(bound, rows, from, to,
                      cat(what, ", places ", static_cast<int>(from), " to ", static_cast<int>(to)));
    }
  }

  void expect_exchange(std::int64_t bound, const Rows& rows, Places from_places, Places to_places,
                       const std::string& what) {
    const DType dtype = GetParam();
    const auto sent_by = [&](int m) { return slots_of([&](int to, int g) { return rows(m, to, g); }); };
    const auto received_by = [&](int m) { return slots_of([&](int from, int g) { return rows(from, m, g); }); };
    const Slots sent = sent_by(index()), received = received_by(index());
    const Slots from_at = offsets_of(sent, bound, from_places), to_at = offsets_of(received, bound, to_places);
    const std::int64_t from_rows = rows_of(sent_by, bound, from_places),
                       to_rows = rows_of(received_by, bound, to_places);
    const TensorView host = seen(poisoned(dtype, from_rows * kColumns, kSendPoison)),
                     send = make(dtype, from_rows * kColumns), recv = poisoned(dtype, to_rows * kColumns, kRecvPoison);
    for (std::size_t slot = 0; slot < sent.size(); ++slot) {
      for (std::int64_t k = 0; k < sent[slot] * std::int64_t{kColumns}; ++k) {
        put(host, from_at[slot] * std::int64_t{kColumns} + k, value(slot, index(), k));
      }
    }
    copy(send, host);
    const CountedRows from{send.reshape({from_rows, kColumns}), values_of(sent), values_of(from_at)};
    const CountedRows to{recv.reshape({to_rows, kColumns}), values_of(received), values_of(to_at)};
    group().all_to_all_v(*stream_, from, to, bound, workspace(all_to_all_v_workspace(from, bound, size(), kKind)));
    stream_->synchronize();
    std::vector<float> expected(static_cast<std::size_t>(to_rows * kColumns),
                                get(seen(poisoned(dtype, 1, kRecvPoison)), 0));
    for (std::size_t slot = 0; slot < received.size(); ++slot) {
      const int other = static_cast<int>(slot) / kGroups, g = static_cast<int>(slot) % kGroups;
      for (std::int64_t k = 0; k < received[slot] * std::int64_t{kColumns}; ++k) {
        expected[static_cast<std::size_t>(to_at[slot] * std::int64_t{kColumns} + k)] =
            rounded(dtype, value(static_cast<std::uint64_t>(index() * kGroups + g), other, k));
      }
    }
    expect_all(
        recv, [&](std::int64_t k) { return expected[static_cast<std::size_t>(k)]; }, what);
  }
};

TEST_P(CountedRowsTest, CountedRowsAreExchangedAndNoOthers) {
  const int n = size();
  for (const std::int64_t bound : {1, 7, 1000}) {
    const auto max = static_cast<std::int32_t>(bound);
    expect_exchange(
        bound, [&](int from, int to, int g) { return (from * 5 + to * 3 + g * 2 + 1) % (max + 1); }, "some");
    expect_exchange(
        bound, [&](int, int, int) { return max; }, "all of the bound");
    expect_exchange(
        bound, [](int, int, int) { return 0; }, "none");
    expect_exchange(
        bound, [&](int, int to, int) { return to == n - 1 ? 0 : max; }, "none to the last");
    expect_exchange(
        bound, [&](int from, int, int) { return from == 0 ? 0 : max; }, "none from the first");
    expect_exchange(
        bound, [&](int, int to, int g) { return to == n - 1 && g == 1 ? max : 0; }, "all to the last");
  }
}

TEST_P(CountedRowsTest, CountsAreReadWhenTheStreamRuns) {
  const DType dtype = GetParam();
  const TensorView send = filled(dtype, size() * 8, 9), recv = poisoned(dtype, size() * 8, kRecvPoison);
  const TensorView counts = make(DType::i32, size());
  const TensorView later = make(DType::i32, size());
  const TensorView host = make(*host_, DType::i32, size());
  for (int m = 0; m < size(); ++m) host.data<std::int32_t>()[m] = 4;
  copy(later, host);
  for (int m = 0; m < size(); ++m) host.data<std::int32_t>()[m] = 1;
  copy(counts, host);
  transfer(*stream_, counts.raw(), later.raw(), later.bytes());
  const Shape shape{size() * 4, 2};
  const TensorView offsets = values_of(offsets_of(Slots(static_cast<std::size_t>(size())), 4, Places::apart));
  const CountedRows from{send.reshape(shape), counts, offsets};
  group().all_to_all_v(*stream_, from, {recv.reshape(shape), counts, offsets}, 4,
                       workspace(all_to_all_v_workspace(from, 4, size(), kKind)));
  stream_->synchronize();
  expect_all(
      recv, [&](std::int64_t k) { return rounded(dtype, value(9, static_cast<int>(k / 8), index() * 8 + k % 8)); },
      "later");
}

TEST_P(CountedRowsTest, SlotsOutsideTheirBoundsThrow) {
  if (ranks::kGpus || size() > 1) GTEST_SKIP() << "other members would wait";
  const TensorView rows = filled(GetParam(), 8, 1).reshape({4, 2}), recv = make(GetParam(), 8).reshape({4, 2});
  const auto exchange = [&](std::int32_t count, std::int32_t offset, std::int64_t bound) {
    const auto device = make_cpu_device();
    const auto stream = device->make_stream("counted");
    const TensorView counts = values_of({count}), offsets = values_of({offset});
    group().all_to_all_v(*stream, {rows, counts, offsets}, {recv, counts, offsets}, bound, {});
    stream->synchronize();
  };
  EXPECT_NO_THROW(exchange(4, 0, 4));
  EXPECT_THROW(exchange(4, 0, 3), InternalError);
  EXPECT_THROW(exchange(-1, 0, 4), InternalError);
  EXPECT_THROW(exchange(2, 3, 4), InternalError);
  EXPECT_THROW(exchange(2, -1, 4), InternalError);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CountedRowsTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& dtype) { return to_string(dtype.param); });

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

INSTANTIATE_TEST_SUITE_P(Dtypes, Collectives, ::testing::Values(DType::f32, DType::bf16),
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

INSTANTIATE_TEST_SUITE_P(Bytes, AnyDtype, ::testing::Values(DType::i32, DType::i64, DType::u8),
                         [](const auto& dtype) { return to_string(dtype.param); });

}  // namespace collectives_test
}  // namespace hawser::comm
