// Helper kernels around cuDNN attention: segment tables, layouts of log-sum-exps, rows without a segment, gradient
// sums, and attention_combine.
#include "ops/attention/attention.h"
#include "ops/attention/attention_kernels_cuda.h"
#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

namespace {

struct RowStrides {
  std::int64_t of[kOffsetTables];
};

struct SegmentRow {
  std::int32_t q_begin, q_count, k_begin, k_count, q_position, k_position;
};

// True if rows [begin, begin + count) are within `rows`; otherwise writes a report.
__device__ __forceinline__ bool is_inside(CudaFault* fault, std::int64_t s, std::int32_t begin, std::int32_t count,
                                          std::int64_t rows) {
  return in_range(fault, CudaFault::segment_rows, begin, s, rows + 1) &&
         in_range(fault, CudaFault::segment_rows, count, s, rows - begin + 1);
}

// One block per row of the table. Whatever the table contains, the values that later kernels read are within the
// tensors.
__global__ void __launch_bounds__(1024)
    tables_kernel(const std::int32_t* table, const std::int32_t* count, std::int64_t query_rows, std::int64_t key_rows,
                  TablePointers out, RowStrides rows, CudaFault* fault) {
  const std::int64_t s = blockIdx.x, n = gridDim.x;
  SegmentRow segment{};
  if (in_range(fault, CudaFault::segment_count, *count, 0, n + 1) && s < *count) {
    const std::int32_t* const row = table + s * kSegmentFields;
    segment = {row[0], row[1], row[2], row[3], row[4], row[5]};
    const bool sound = is_inside(fault, s, segment.q_begin, segment.q_count, query_rows) &&
                       is_inside(fault, s, segment.k_begin, segment.k_count, key_rows);
    if (!sound || segment.q_count == 0 || segment.k_count == 0) segment = {};
  }
  for (std::int64_t i = threadIdx.x; i < segment.q_count; i += blockDim.x) {
    out.query_segment[segment.q_begin + i] = static_cast<std::int32_t>(s);
  }
  for (std::int64_t i = threadIdx.x; i < segment.k_count; i += blockDim.x) out.key_covered[segment.k_begin + i] = 1;
  if (out.offsets == nullptr || threadIdx.x >= kOffsetTables) return;
  const int t = threadIdx.x;
  if (t == 0) {
    out.query_length[s] = segment.q_count;
    out.key_length[s] = segment.k_count;
  }
  const bool keys = t == kOffsetK || t == kOffsetV || t == kOffsetDkv;
  std::int64_t* const offsets = out.offsets + t * (n + 1);
  const std::int64_t begin = keys ? segment.k_begin : segment.q_begin,
                     length = keys ? segment.k_count : segment.q_count;
  offsets[s] = begin * rows.of[t];
  if (s == n - 1) offsets[n] = (begin + length) * rows.of[t];
}

// Prefix sums of key_length, by one warp, 32 segments at a time. key_length is the output of tables_kernel: it is zero
// for missing and invalid segments, whose own values could move the gradients of later segments out of bounds.
__global__ void __launch_bounds__(32)
    key_gradient_offsets_kernel(const std::int32_t* key_length, std::int64_t first, std::int64_t many, std::int64_t row,
                                std::int64_t* offsets) {
  const int lane = threadIdx.x;
  std::int64_t before = 0;
  for (std::int64_t s = first; s < first + many; s += 32) {
    const std::int64_t rows = s + lane < first + many ? key_length[s + lane] : 0;
    std::int64_t sum = rows;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const std::int64_t other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (s + lane < first + many) offsets[s + lane] = (before + sum - rows) * row;
    before += __shfl_sync(0xffffffffu, sum, 31);
    if (s + 32 >= first + many && lane == 0) offsets[first + many] = before * row;
  }
}

// row_of: the call's row of row r of an order. place: its position in cuDNN's log-sum-exps.
__device__ __forceinline__ std::int64_t row_of(const StatsOrder& order, std::int64_t r) {
  const StridedBlocks& b = order.blocks;
  return b.count == 0 ? r : b.q_begin + r / b.q_rows * b.q_step + r % b.q_rows;
}
__device__ __forceinline__ std::int64_t place(const StatsOrder& order, std::int64_t head, std::int64_t r) {
  const std::int64_t group = head / order.heads, h = head % order.heads, rows = order.blocks.q_rows;
  const std::int64_t at =
      order.blocks.count == 0 ? r * order.heads + h : (r / rows * order.heads + h) * rows + r % rows;
  return group * order.group + order.base + at;
}
std::int64_t rows_of(const StatsOrder& order, std::int64_t all) {
  return order.blocks.count == 0 ? all : order.blocks.count * order.blocks.q_rows;
}

struct StatsToLse {
  const float* stats;
  StatsOrder order;
  const std::int32_t* query_segment;
  float* lse;
  std::int64_t lse_row;
  __device__ void operator()(std::int64_t h, std::int64_t r) const {
    const std::int64_t t = row_of(order, r);
    const bool covered = query_segment[t] >= 0;
    lse[h * lse_row + t] = covered ? stats[place(order, h, r)] : -INFINITY;
  }
};

struct LseToStats {
  const float* lse;
  StatsOrder order;
  const std::int32_t* query_segment;
  float* stats;
  std::int64_t lse_row;
  // A row without a segment gets probabilities of zero, and so no gradient, in case cuDNN reads it.
  __device__ void operator()(std::int64_t h, std::int64_t r) const {
    const std::int64_t t = row_of(order, r);
    const bool covered = query_segment[t] >= 0;
    stats[place(order, h, r)] = covered ? lse[h * lse_row + t] : 1e30f;
  }
};

struct ClearLse {
  const std::int32_t* query_segment;
  float* lse;
  std::int64_t lse_row;
  __device__ void operator()(std::int64_t h, std::int64_t t) const {
    if (query_segment[t] < 0) lse[h * lse_row + t] = -INFINITY;
  }
};

// One warp per row: most rows are covered and cost one load.
template <class T>
__global__ void __launch_bounds__(256) clear_rows_kernel(Rows2<T> y, const std::int32_t* covered, std::int32_t least) {
  const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (t >= y.count || covered[t] >= least) return;
  for (std::int64_t c = threadIdx.x % 32; c < y.columns; c += 32) y.row(t)[c] = from_float<T>(0.0f);
}

constexpr int kWide = 8;  // cuDNN's rows are multiples of 16 bytes

template <class T>
__device__ __forceinline__ void add_to(T* to, const Vec<float, kWide>& more) {
  Vec<float, kWide> sum = load_float<kWide>(to);
#pragma unroll
  for (int i = 0; i < kWide; ++i) sum.v[i] += more.v[i];
  store_float<kWide>(to, sum);
}

struct PackRows {
  Rows2<Bf> x;
  Bf* to;
  __device__ void operator()(std::int64_t t, std::int64_t c) const {
    store_float<kWide>(to + t * x.columns + c, load_float<kWide>(x.row(t) + c));
  }
};

// The row of a dense buffer that holds row t of the tensor; -1 for none.
__device__ __forceinline__ std::int64_t within(const RowPlaces& places, std::int64_t t) {
  const std::int64_t from = t - places.begin;
  if (from < 0) return -1;
  const std::int64_t block = places.count == 1 ? 0 : from / places.step, row = from - block * places.step;
  return block < places.count && row < places.rows ? block * places.rows + row : -1;
}

template <class T>
struct ClearOutside {
  Rows2<T> y;
  RowPlaces places;
  __device__ void operator()(std::int64_t t, std::int64_t c) const {
    if (within(places, t) < 0) store_float<kWide>(y.row(t) + c, Vec<float, kWide>{});
  }
};

template <class T>
struct AddPartial {
  Rows2<T> y;
  const Bf* partial;
  RowPlaces places;
  const std::int32_t* covered;
  std::int32_t least;
  bool accumulate;
  __device__ void operator()(std::int64_t t, std::int64_t c) const {
    const std::int64_t from = covered[t] >= least ? within(places, t) : -1;
    Vec<float, kWide> more{};
    if (from >= 0) more = load_float<kWide>(partial + from * y.columns + c);
    if (!accumulate) {
      store_float<kWide>(y.row(t) + c, more);
    } else if (from >= 0) {
      add_to(y.row(t) + c, more);
    }
  }
};

template <class T>
struct AddKeyGradients {
  Rows2<T> y;
  const Bf* partial;
  const std::int32_t* table;
  const std::int32_t* key_length;
  const std::int64_t* offsets;
  std::int64_t first, many;
  bool accumulate;
  __device__ void operator()(std::int64_t t, std::int64_t c) const {
    Vec<float, kWide> sum{};
    bool any = false;
    for (std::int64_t s = first; s < first + many; ++s) {
      const std::int64_t from = t - table[s * kSegmentFields + 2];
      if (from < 0 || from >= key_length[s]) continue;
      const Vec<float, kWide> more = load_float<kWide>(partial + offsets[s] + from * y.columns + c);
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum.v[i] += more.v[i];
      any = true;
    }
    if (!accumulate) {
      store_float<kWide>(y.row(t) + c, sum);
    } else if (any) {
      add_to(y.row(t) + c, sum);
    }
  }
};

}  // namespace

void make_tables(const CudaNative& native, const TensorView& segments, const TensorView& count, std::int64_t query_rows,
                 std::int64_t key_rows, const TablePointers& tables, const std::int64_t (&rows)[kOffsetTables]) {
  const auto stream = stream_of(native);
  HAWSER_CUDA_CHECK(cudaMemsetAsync(tables.query_segment, 0xff, static_cast<std::size_t>(4 * query_rows), stream));
  HAWSER_CUDA_CHECK(cudaMemsetAsync(tables.key_covered, 0, static_cast<std::size_t>(4 * key_rows), stream));
  RowStrides strides{};
  std::copy(std::begin(rows), std::end(rows), strides.of);
  if (segments.size(0) == 0) return;
  tables_kernel<<<static_cast<unsigned>(segments.size(0)), 1024, 0, stream>>>(
      segments.data<std::int32_t>(), count.data<std::int32_t>(), query_rows, key_rows, tables, strides, native.fault);
}

void key_gradient_offsets(const CudaNative& native, const TensorView& segments, const TablePointers& tables,
                          std::int64_t first, std::int64_t count, std::int64_t row) {
  std::int64_t* const offsets = tables.offsets + kOffsetDkv * (segments.size(0) + 1);
  key_gradient_offsets_kernel<<<1, 32, 0, stream_of(native)>>>(tables.key_length, first, count, row, offsets);
}

void stats_to_lse(const CudaNative& native, const float* stats, const StatsOrder& order,
                  const std::int32_t* query_segment, const TensorView& lse) {
  map<1>(native, lse.size(0), rows_of(order, lse.size(1)),
         StatsToLse{stats, order, query_segment, lse.data<float>(), lse.stride(0)});
}

void lse_to_stats(const CudaNative& native, const TensorView& lse, const StatsOrder& order,
                  const std::int32_t* query_segment, float* stats) {
  map<1>(native, lse.size(0), rows_of(order, lse.size(1)),
         LseToStats{lse.data<float>(), order, query_segment, stats, lse.stride(0)});
}

void clear_lse(const CudaNative& native, const std::int32_t* query_segment, const TensorView& lse) {
  map<1>(native, lse.size(0), lse.size(1), ClearLse{query_segment, lse.data<float>(), lse.stride(0)});
}

void clear_rows(const CudaNative& native, const TensorView& y, const std::int32_t* covered, std::int32_t least) {
  if (y.size(0) == 0) return;
  dispatch_device_float(y.dtype(), [&](auto tag) {
    const auto rows = rows2<decltype(tag)>(y);
    clear_rows_kernel<<<static_cast<unsigned>(ceil_div(rows.count, 8)), 256, 0, stream_of(native)>>>(rows, covered,
                                                                                                     least);
  });
}

void clear(const CudaNative& native, const TensorView& y) {
  const std::int64_t bytes = size_of(y.dtype());
  if (y.elements() == 0) return;
  HAWSER_CUDA_CHECK(cudaMemset2DAsync(y.raw(), static_cast<std::size_t>(y.stride(0) * bytes), 0,
                                      static_cast<std::size_t>(y.size(1) * y.size(2) * bytes),
                                      static_cast<std::size_t>(y.size(0)), stream_of(native)));
}

void pack_rows(const CudaNative& native, const TensorView& x, void* to) {
  const auto rows = rows2<Bf>(x);
  map<kWide>(native, rows.count, rows.columns, PackRows{rows, static_cast<Bf*>(to)});
}

void clear_outside(const CudaNative& native, const TensorView& y, const RowPlaces& places) {
  dispatch_device_float(y.dtype(), [&](auto tag) {
    const auto rows = rows2<decltype(tag)>(y);
    map<kWide>(native, rows.count, rows.columns, ClearOutside<decltype(tag)>{rows, places});
  });
}

void add_partial(const CudaNative& native, const void* partial, const RowPlaces& places, const std::int32_t* covered,
                 std::int32_t least, bool accumulate, const TensorView& y) {
  dispatch_device_float(y.dtype(), [&](auto tag) {
    const auto rows = rows2<decltype(tag)>(y);
    map<kWide>(native, rows.count, rows.columns,
               AddPartial<decltype(tag)>{rows, static_cast<const Bf*>(partial), places, covered, least, accumulate});
  });
}

void add_key_gradients(const CudaNative& native, const void* partial, const TensorView& segments,
                       const TablePointers& tables, std::int64_t first, std::int64_t count, bool accumulate,
                       const TensorView& y) {
  const std::int64_t* const offsets = tables.offsets + kOffsetDkv * (segments.size(0) + 1);
  dispatch_device_float(y.dtype(), [&](auto tag) {
    const auto rows = rows2<decltype(tag)>(y);
    map<kWide>(native, rows.count, rows.columns,
               AddKeyGradients<decltype(tag)>{rows, static_cast<const Bf*>(partial), segments.data<std::int32_t>(),
                                              tables.key_length, offsets, first, count, accumulate});
  });
}

namespace {

// One warp per (row, head).
template <class A, class B, int N>
__global__ void __launch_bounds__(256)
    combine_kernel(Rows2<A> o_a, float* lse_a, std::int64_t row_a, Rows2<const B> o_b, const float* lse_b,
                   std::int64_t row_b, std::int64_t heads, std::int64_t d, bool skip) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const std::int64_t t = warp / heads, h = warp % heads;
  if (t >= o_a.count) return;
  const int lane = threadIdx.x % 32;
  const float la = lse_a[h * row_a + t], lb = lse_b[h * row_b + t];
  if (skip && lb == -INFINITY) return;
  const float maximum = fmaxf(la, lb);
  if (maximum == -INFINITY) return;  // neither sees a key: o_a is zero already
  // The larger term is exp(0): nothing overflows, and log1p keeps a small second term.
  const float lse = maximum + log1pf(expf(fminf(la, lb) - maximum));
  const float wa = expf(la - lse), wb = expf(lb - lse);
  A* const a = o_a.row(t) + h * d;
  const B* const b = o_b.row(t) + h * d;
  for (std::int64_t c = lane * N; c < d; c += 32 * N) {
    Vec<float, N> x = load_float<N>(a + c);
    const Vec<float, N> y = load_float<N>(b + c);
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] = wa * x.v[i] + wb * y.v[i];
    store_float<N>(a + c, x);
  }
  __syncwarp();
  if (lane == 0) lse_a[h * row_a + t] = lse;
}

}  // namespace

void combine(const CudaNative& native, const AttentionCombine& args, bool skip) {
  const std::int64_t heads = args.o_a.size(1), d = args.o_a.size(2);
  const std::int64_t blocks = ceil_div(args.o_a.size(0) * heads, 8);
  if (blocks == 0 || d == 0) return;
  HAWSER_CHECK(blocks < (std::int64_t{1} << 31), "a grid of ", blocks, " blocks");
  constexpr int kWide = 4;
  const bool wide = d % kWide == 0 && aligned<kWide>({args.o_a, args.o_b});
  dispatch_device_float(args.o_a.dtype(), [&](auto a_tag) {
    dispatch_device_float(args.o_b.dtype(), [&](auto b_tag) {
      using A = decltype(a_tag);
      using B = decltype(b_tag);
      const auto b = rows2<B>(args.o_b);
      const Rows2<const B> from{b.data, b.count, b.columns, b.stride};
      const auto launch = [&](auto kernel) {
        kernel<<<static_cast<unsigned>(blocks), 256, 0, stream_of(native)>>>(
            rows2<A>(args.o_a), args.lse_a.data<float>(), args.lse_a.stride(0), from, args.lse_b.data<float>(),
            args.lse_b.stride(0), heads, d, skip);
      };
      if (wide) {
        launch(combine_kernel<A, B, kWide>);
      } else {
        launch(combine_kernel<A, B, 1>);
      }
    });
  });
}

void attention_combine(const CudaNative& native, const AttentionCombine& args) {
  combine(native, args, /*skip=*/false);
}

}  // namespace hawser::ops::cuda
