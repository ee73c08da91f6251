#include "comm/reduce.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::comm {

namespace {

// Computed in blocks through a buffer that fits the L1 cache; the constant trip count lets the compiler vectorise. The
// sum is memory-bound, so the baseline vector unit is enough.
constexpr std::int64_t kBlock = 1024;

template <class T>
float load(T value) {
  return static_cast<float>(value);
}

template <Reduction reduction>
float combine(float a, float b) {
  if constexpr (reduction == Reduction::sum) return a + b;
  return (b > a || b != b) ? b : a;  // keeps a NaN of either side
}

template <class Sent, class Out, Reduction reduction>
void reduce_block(std::span<const std::byte* const> members, std::int64_t begin, std::int64_t n, Out* out,
                  bool accumulate) {
  float sum[kBlock];
  const auto member = [&](std::size_t m) { return reinterpret_cast<const Sent*>(members[m]) + begin; };
  const auto fold = [&](std::int64_t count) {
    const Sent* first = member(0);
    for (std::int64_t k = 0; k < count; ++k) sum[k] = load(first[k]);
    for (std::size_t m = 1; m < members.size(); ++m) {
      const Sent* next = member(m);
      for (std::int64_t k = 0; k < count; ++k) sum[k] = combine<reduction>(sum[k], load(next[k]));
    }
    if (accumulate) {
      for (std::int64_t k = 0; k < count; ++k) out[begin + k] = static_cast<Out>(load(out[begin + k]) + sum[k]);
    } else {
      for (std::int64_t k = 0; k < count; ++k) out[begin + k] = static_cast<Out>(sum[k]);
    }
  };
  if (n == kBlock) {
    fold(kBlock);
  } else {
    fold(n);
  }
}

template <class Sent, class Out, Reduction reduction>
void reduce_all(std::span<const std::byte* const> members, std::int64_t n, std::byte* out, bool accumulate) {
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    reduce_block<Sent, Out, reduction>(members, begin, std::min(kBlock, n - begin), reinterpret_cast<Out*>(out),
                                       accumulate);
  }
}

template <Reduction reduction>
void dispatch(std::span<const std::byte* const> members, DType reduce_dtype, std::int64_t n, std::byte* out,
              DType out_dtype, bool accumulate) {
  dispatch_float(reduce_dtype, [&](auto sent) {
    dispatch_float(out_dtype, [&](auto to) {
      using Sent = decltype(sent);
      using Out = decltype(to);
      if constexpr (std::is_same_v<Out, float> || std::is_same_v<Out, Sent>) {
        reduce_all<Sent, Out, reduction>(members, n, out, accumulate);
      } else {
        HAWSER_CHECK(false, to_string(reduce_dtype), " reduced into ", to_string(out_dtype));
      }
    });
  });
}

}  // namespace

void reduce_members(std::span<const std::byte* const> members, DType reduce_dtype, Reduction reduction, std::int64_t n,
                    std::byte* out, DType out_dtype, bool accumulate) {
  if (reduction == Reduction::sum) {
    dispatch<Reduction::sum>(members, reduce_dtype, n, out, out_dtype, accumulate);
  } else {
    dispatch<Reduction::max>(members, reduce_dtype, n, out, out_dtype, accumulate);
  }
}

}  // namespace hawser::comm
