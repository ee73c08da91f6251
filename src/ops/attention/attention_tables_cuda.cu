// What surrounds cuDNN's attention: tables, orders of log-sum-exps, rows that no segment covers, sums of gradients, and
// the combination of parts.
#include "ops/attention/attention_cuda.h"
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

// A block for each row of the table. Trapping stops the context: a table is made by the host's own code, and attention
// over rows that are not there must not go on.
__global__ void __launch_bounds__(1024)
    tables_kernel(const std::int32_t* table, const std::int32_t* count, std::int64_t query_rows, std::int64_t key_rows,
                  TablePointers out, RowStrides rows) {
  const std::int64_t s = blockIdx.x, n = gridDim.x;
  if (*count < 0 || *count > n) __trap();
  SegmentRow segment{};
  if (s < *count) {
    const std::int32_t* const row = table + s * kSegmentFields;
    segment = {row[0], row[1], row[2], row[3], row[4], row[5]};
    if (segment.q_begin < 0 || segment.q_count < 0 || segment.q_begin + segment.q_count > query_rows ||
        segment.k_begin < 0 || segment.k_count < 0 || segment.k_begin + segment.k_count > key_rows) {
      __trap();
    }
    if (segment.q_count == 0 || segment.k_count == 0) segment = {};
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

// Where the log-sum-exp of (head, row) lies in cuDNN's order.
__device__ __forceinline__ std::int64_t place(const StatsOrder& order, std::int64_t head, std::int64_t row) {
  const std::int64_t group = head / order.heads, h = head % order.heads;
  const std::int64_t at = order.entry == 0 ? row * order.heads + h
                                           : (row / order.entry * order.heads + h) * order.entry + row % order.entry;
  return group * order.group + at;
}

struct StatsToLse {
  const float* stats;
  StatsOrder order;
  const std::int32_t* query_segment;
  float* lse;
  std::int64_t rows;
  __device__ void operator()(std::int64_t h, std::int64_t t) const {
    const bool covered = query_segment[t] >= 0;
    lse[h * rows + t] = covered ? stats[place(order, h, t)] : -INFINITY;
  }
};

struct LseToStats {
  const float* lse;
  StatsOrder order;
  const std::int32_t* query_segment;
  float* stats;
  std::int64_t rows;
  // A row of no segment gets probabilities of zero, and with them no gradient, should cuDNN look at it.
  __device__ void operator()(std::int64_t h, std::int64_t t) const {
    const bool covered = query_segment[t] >= 0;
    stats[place(order, h, t)] = covered ? lse[h * rows + t] : 1e30f;
  }
};

// A warp for each row: most rows are covered, and cost a look.
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

template <class T>
struct AddPartial {
  Rows2<T> y;
  const Bf* partial;
  const std::int32_t* covered;
  std::int32_t least;
  bool accumulate;
  __device__ void operator()(std::int64_t t, std::int64_t c) const {
    const bool counts = covered == nullptr || covered[t] >= least;
    Vec<float, kWide> more{};
    if (counts) more = load_float<kWide>(partial + t * y.columns + c);
    if (!accumulate) {
      store_float<kWide>(y.row(t) + c, more);
    } else if (counts) {
      add_to(y.row(t) + c, more);
    }
  }
};

template <class T>
struct AddPartialOf {
  Rows2<T> y;
  const Bf* partial;
  const std::int32_t* row;  // of the table
  const std::int32_t* count;
  std::int64_t segment;
  bool keys;
  __device__ void operator()(std::int64_t t, std::int64_t c) const {
    if (segment >= *count || row[1] == 0 || row[3] == 0) return;
    const std::int64_t begin = keys ? row[2] : row[0], length = keys ? row[3] : row[1];
    if (t >= begin && t < begin + length) add_to(y.row(t) + c, load_float<kWide>(partial + t * y.columns + c));
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
      segments.data<std::int32_t>(), count.data<std::int32_t>(), query_rows, key_rows, tables, strides);
}

void stats_to_lse(const CudaNative& native, const float* stats, const StatsOrder& order,
                  const std::int32_t* query_segment, const TensorView& lse) {
  const std::int64_t rows = lse.size(1);
  map<1>(native, lse.size(0), rows, StatsToLse{stats, order, query_segment, lse.data<float>(), rows});
}

void lse_to_stats(const CudaNative& native, const TensorView& lse, const StatsOrder& order,
                  const std::int32_t* query_segment, float* stats) {
  const std::int64_t rows = lse.size(1);
  map<1>(native, lse.size(0), rows, LseToStats{lse.data<float>(), order, query_segment, stats, rows});
}

void clear_rows(const CudaNative& native, const TensorView& y, const std::int32_t* covered, std::int32_t least) {
  if (y.size(0) == 0) return;
  with_float(y.dtype(), [&](auto tag) {
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

void add_partial(const CudaNative& native, const void* partial, const std::int32_t* covered, std::int32_t least,
                 bool accumulate, const TensorView& y) {
  with_float(y.dtype(), [&](auto tag) {
    const auto rows = rows2<decltype(tag)>(y);
    map<kWide>(native, rows.count, rows.columns,
               AddPartial<decltype(tag)>{rows, static_cast<const Bf*>(partial), covered, least, accumulate});
  });
}

void add_partial_of(const CudaNative& native, const void* partial, const TensorView& segments, const TensorView& count,
                    std::int64_t segment, bool keys, const TensorView& y) {
  const std::int32_t* const row = segments.data<std::int32_t>() + segment * kSegmentFields;
  with_float(y.dtype(), [&](auto tag) {
    const auto rows = rows2<decltype(tag)>(y);
    map<kWide>(native, rows.count, rows.columns,
               AddPartialOf<decltype(tag)>{rows, static_cast<const Bf*>(partial), row, count.data<std::int32_t>(),
                                           segment, keys});
  });
}

namespace {

// A warp for each (row, head).
template <class A, class B, int N>
__global__ void __launch_bounds__(256) combine_kernel(Rows2<A> o_a, float* lse_a, Rows2<const B> o_b,
                                                      const float* lse_b, std::int64_t heads, std::int64_t d) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const std::int64_t t = warp / heads, h = warp % heads;
  if (t >= o_a.count) return;
  const int lane = threadIdx.x % 32;
  const float la = lse_a[h * o_a.count + t], lb = lse_b[h * o_a.count + t];
  const float most = fmaxf(la, lb);
  if (most == -INFINITY) return;  // neither sees a key: o_a is zero already
  // The larger counts as exp(0): no term overflows, and the sum's logarithm keeps its small part.
  const float lse = most + log1pf(expf(fminf(la, lb) - most));
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
  if (lane == 0) lse_a[h * o_a.count + t] = lse;
}

}  // namespace

void attention_combine(const CudaNative& native, const AttentionCombine& args) {
  const std::int64_t heads = args.o_a.size(1), d = args.o_a.size(2);
  const std::int64_t blocks = ceil_div(args.o_a.size(0) * heads, 8);
  if (blocks == 0 || d == 0) return;
  HAWSER_CHECK(blocks < (std::int64_t{1} << 31), "a grid of ", blocks, " blocks");
  constexpr int kWide = 4;
  const bool wide = d % kWide == 0 && aligned<kWide>({args.o_a, args.o_b});
  with_float(args.o_a.dtype(), [&](auto a_tag) {
    with_float(args.o_b.dtype(), [&](auto b_tag) {
      using A = decltype(a_tag);
      using B = decltype(b_tag);
      const auto b = rows2<B>(args.o_b);
      const Rows2<const B> from{b.data, b.count, b.columns, b.stride};
      const auto launch = [&](auto kernel) {
        kernel<<<static_cast<unsigned>(blocks), 256, 0, stream_of(native)>>>(
            rows2<A>(args.o_a), args.lse_a.data<float>(), from, args.lse_b.data<float>(), heads, d);
      };
      if (wide) {
        launch(combine_kernel<A, B, kWide>);
      } else {
        launch(combine_kernel<A, B, 1>);
      }
    });
  });
}

}  // namespace hawser::ops::cuda
