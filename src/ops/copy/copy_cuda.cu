#include <cstring>

#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"
#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

namespace {

// A view as rows of words, for kernels that only move data.
template <class Word>
Rows2<Word> words_of(const TensorView& view, const Extent& extent) {
  const std::int64_t ratio = static_cast<std::int64_t>(sizeof(Word)) / size_of(view.dtype());
  const std::int64_t stride = extent.rows > 1 ? view.stride(0) : extent.columns;
  return {reinterpret_cast<Word*>(view.raw()), extent.rows, extent.columns / ratio, stride / ratio};
}

template <class T>
Rows2<T> rows_as(const TensorView& view, const Extent& extent) {
  return {reinterpret_cast<T*>(view.raw()), extent.rows, extent.columns, extent.rows > 1 ? view.stride(0) : 0};
}

template <class Word>
struct Move {
  Rows2<const Word> x;
  Rows2<Word> y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const { y.row(row)[at] = x.row(row)[at]; }
};

template <class Word>
struct Set {
  Rows2<Word> y;
  Word value;
  __device__ void operator()(std::int64_t row, std::int64_t at) const { y.row(row)[at] = value; }
};

template <class X, class Y, int N>
struct Convert {
  Rows2<X> x;
  Rows2<Y> y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    store_float<N>(y.row(row) + at, load_float<N>(x.row(row) + at));
  }
};

template <class A, class B, class Y, int N>
struct Sum {
  Rows2<A> a;
  Rows2<B> b;
  Rows2<Y> y;
  __device__ void operator()(std::int64_t row, std::int64_t at) const {
    const Vec<A, N> packed_a = load<N>(a.row(row) + at);
    const Vec<B, N> packed_b = load<N>(b.row(row) + at);
    Vec<float, N> out = widen(packed_a);
    const Vec<float, N> other = widen(packed_b);
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] += other.v[i];
    store_float<N>(y.row(row) + at, out);
  }
};

template <class Word>
void move(const CudaNative& native, const TensorView& x, const TensorView& y, const Extent& extent) {
  const auto from = words_of<Word>(x, extent), to = words_of<Word>(y, extent);
  map<1>(native, from.count, from.columns, Move<Word>{{from.data, from.count, from.columns, from.stride}, to});
}

template <class Word>
void set(const CudaNative& native, const TensorView& y, const Extent& extent, Word value) {
  if constexpr (sizeof(Word) < 16) {
    constexpr int kEach = 16 / sizeof(Word);
    if (aligned_as<kEach>(extent, {y})) {
      uint4 four;
      for (int i = 0; i < kEach; ++i) std::memcpy(reinterpret_cast<Word*>(&four) + i, &value, sizeof(value));
      map<1>(native, extent.rows, extent.columns / kEach, Set<uint4>{words_of<uint4>(y, extent), four});
      return;
    }
  }
  map<1>(native, extent.rows, extent.columns, Set<Word>{rows_as<Word>(y, extent), value});
}

template <class Word>
struct Gather {
  Rows2<const Word> x;
  Rows2<Word> y;
  const std::int32_t* index;
  CudaFault* fault;
  struct Loaded {
    Word word;
    bool good;
  };
  __device__ Loaded load(std::int64_t row, std::int64_t at) const {
    const std::int32_t from = index[row];
    if (!in_range(fault, CudaFault::gather_rows, from, row, x.count)) return {.good = false};
    return {x.row(from)[at], true};
  }
  __device__ void store(std::int64_t row, std::int64_t at, const Loaded& loaded) const {
    if (loaded.good) y.row(row)[at] = loaded.word;
  }
};

template <class X, class Y, int N>
struct Scatter {
  Rows2<X> x;
  Rows2<Y> y;
  const std::int32_t* index;
  CudaFault* fault;
  bool accumulate;
  struct Loaded {
    Vec<X, N> value;
    Vec<Y, N> old;
    Y* to;
  };
  __device__ Loaded load(std::int64_t row, std::int64_t at) const {
    const std::int32_t to = index[row];
    Loaded out;
    const bool goes = to != kNoRow && in_range(fault, CudaFault::scatter_rows, to, row, y.count);
    out.to = goes ? y.row(to) + at : nullptr;
    out.value = cuda::load<N>(x.row(row) + at);
    if (accumulate && out.to != nullptr) out.old = cuda::load<N>(out.to);
    return out;
  }
  __device__ void store(std::int64_t, std::int64_t, const Loaded& loaded) const {
    if (loaded.to == nullptr) return;
    Vec<float, N> value = widen(loaded.value);
    if (accumulate) {
      const Vec<float, N> old = widen(loaded.old);
#pragma unroll
      for (int i = 0; i < N; ++i) value.v[i] += old.v[i];
    }
    store_float<N>(loaded.to, value);
  }
};

}  // namespace

void copy(const CudaNative& native, const Copy& args) {
  const Extent extent = extent_of({args.x, args.y});
  const std::int64_t element = size_of(args.x.dtype());
  bool wide = extent.columns * element % 16 == 0;
  for (const TensorView& view : {args.x, args.y}) {
    wide = wide && reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0 &&
           (extent.rows <= 1 || view.stride(0) * element % 16 == 0);
  }
  if (wide) return move<uint4>(native, args.x, args.y, extent);
  switch (element) {
    case 8:
      return move<std::uint64_t>(native, args.x, args.y, extent);
    case 4:
      return move<std::uint32_t>(native, args.x, args.y, extent);
    case 2:
      return move<std::uint16_t>(native, args.x, args.y, extent);
    default:
      return move<std::uint8_t>(native, args.x, args.y, extent);
  }
}

void cast(const CudaNative& native, const Cast& args) {
  if (args.x.dtype() == args.y.dtype()) {
    if (args.x.raw() != args.y.raw()) copy(native, {.x = args.x, .y = args.y});
    return;
  }
  const Extent extent = extent_of({args.x, args.y});
  dispatch_device_float(args.x.dtype(), [&](auto x_tag) {
    using X = decltype(x_tag);
    using Y = std::conditional_t<std::is_same_v<X, Bf>, float, Bf>;
    const auto x = rows_as<X>(args.x, extent);
    const auto y = rows_as<Y>(args.y, extent);
    if (aligned_as<8>(extent, {args.x, args.y})) {
      map<4>(native, extent.rows, extent.columns, Convert<X, Y, 4>{x, y});
    } else {
      map<1>(native, extent.rows, extent.columns, Convert<X, Y, 1>{x, y});
    }
  });
}

void fill(const CudaNative& native, const Fill& args) {
  const Extent extent = extent_of({args.y});
  if (args.value == 0 && (extent.rows == 1 || size_of(args.y.dtype()) == 1)) {
    HAWSER_CUDA_CHECK(cudaMemsetAsync(args.y.raw(), 0, static_cast<std::size_t>(args.y.bytes()), stream_of(native)));
    return;
  }
  switch (args.y.dtype()) {
    case DType::f32:
      return set(native, args.y, extent, static_cast<float>(args.value));
    case DType::bf16:
      return set(native, args.y, extent, Bf16(static_cast<float>(args.value)).bits);
    case DType::i32:
      return set(native, args.y, extent, static_cast<std::int32_t>(args.value));
    case DType::i64:
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::nf4:
    case DType::nf4_double:
      break;
  }
  HAWSER_CHECK(false, "fill: y is ", args.y.text());
}

void add(const CudaNative& native, const Add& args) {
  const Extent extent = extent_of({args.y, args.a, args.b});
  dispatch_device_float(args.a.dtype(), [&](auto a_tag) {
    dispatch_device_float(args.b.dtype(), [&](auto b_tag) {
      dispatch_device_float(args.y.dtype(), [&](auto y_tag) {
        using A = decltype(a_tag);
        using B = decltype(b_tag);
        using Y = decltype(y_tag);
        const auto a = rows_as<A>(args.a, extent);
        const auto b = rows_as<B>(args.b, extent);
        const auto y = rows_as<Y>(args.y, extent);
        if (aligned_as<8>(extent, {args.y, args.a, args.b})) {
          constexpr int kWide = 16 / std::max({sizeof(A), sizeof(B), sizeof(Y)});
          map<kWide>(native, extent.rows, extent.columns, Sum<A, B, Y, kWide>{a, b, y});
        } else {
          map<1>(native, extent.rows, extent.columns, Sum<A, B, Y, 1>{a, b, y});
        }
      });
    });
  });
}

namespace {

template <class Word>
void gather(const CudaNative& native, const GatherRows& args) {
  const std::int64_t element = size_of(args.x.dtype()), ratio = static_cast<std::int64_t>(sizeof(Word)) / element;
  const std::int64_t columns = args.x.size(1) / ratio;
  map_rows<1, 2>(
      native, args.index.size(0), columns,
      Gather<Word>{{reinterpret_cast<const Word*>(args.x.raw()), args.x.size(0), columns, args.x.stride(0) / ratio},
                   {reinterpret_cast<Word*>(args.y.raw()), args.y.size(0), columns, args.y.stride(0) / ratio},
                   args.index.data<std::int32_t>(),
                   native.fault});
}

}  // namespace

void gather_rows(const CudaNative& native, const GatherRows& args) {
  const bool bf16 = by_float(args.x.dtype(), false, true);
  if (bf16 ? aligned<8>({args.x, args.y}) : aligned<4>({args.x, args.y})) return gather<uint4>(native, args);
  if (bf16) return gather<std::uint16_t>(native, args);
  gather<std::uint32_t>(native, args);
}

void scatter_rows(const CudaNative& native, const ScatterRows& args) {
  dispatch_device_float(args.x.dtype(), [&](auto x_tag) {
    dispatch_device_float(args.y.dtype(), [&](auto y_tag) {
      using X = decltype(x_tag);
      using Y = decltype(y_tag);
      const auto x = rows2<X>(args.x);
      const auto y = rows2<Y>(args.y);
      const auto* index = args.index.data<std::int32_t>();
      if (aligned<8>({args.x, args.y})) {
        constexpr int kWide = 16 / std::max(sizeof(X), sizeof(Y));
        map_rows<kWide, 2>(native, x.count, x.columns,
                           Scatter<X, Y, kWide>{x, y, index, native.fault, args.accumulate});
      } else {
        map_rows<1, 2>(native, x.count, x.columns, Scatter<X, Y, 1>{x, y, index, native.fault, args.accumulate});
      }
    });
  });
}

}  // namespace hawser::ops::cuda
