// Attention of bf16 operands on tensor cores, for calls that cuDNN does not support: any mask, soft cap, slopes, dropout,
// head dims up to 256 that are multiples of 8.
//
// A block of four warps has 64 rows of one side in shared memory, 16 for each warp: queries in forward_kernel and
// dq_kernel, keys in dkv_kernel. It passes over the rows of the other side that they see, kOther at a time. Scores stay
// in registers, and so do the sums; probabilities go to the next product as its first operand, without shared memory
// (FlashAttention-2, arXiv 2307.08691). Tiles without a visible pair are skipped.
// The kernels reach about a tenth of cuDNN's rates (measured: docs/performance.md): their addresses and masks take more
// time than the products.
// A block adds all terms of its sums, in order of the rows; dkv_kernel passes over all segments and query heads. So there
// are no atomics, and repeated calls have equal bits. The price is that scores are computed twice in backward, and three
// times if D > 128, where dk and dv take a pass each, since their sums do not fit the registers together.
// Shared memory: at most 96 KiB, so that GPUs of every compute capability from 8.0 on run them.
#include <cuda_pipeline.h>

#include "ops/attention/attention_kernels_cuda.h"
#include "ops/attention/attention_scores.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kOwn = 16 * kWarps;  // rows of a block
template <int D>
constexpr int kOther = D > 128 ? 32 : 64;  // rows of a tile of the other side
constexpr float kLog2E = 1.4426950408889634f;

// ---- tiles in shared memory ----

// The 16-byte chunks of a row are exchanged by the row's number, so that 8 rows of one chunk use all banks.
template <int D>
__device__ __forceinline__ Bf* chunk_of(Bf* tile, int row, int chunk) {
  return tile + row * D + (chunk ^ (row & 7)) * 8;
}

// Starts copies of rows [first, first + kRows) of a head to a tile. Rows outside [begin, end) and columns from d on are 0.
template <int D, int kRows>
__device__ __forceinline__ void fetch_rows(Bf* tile, const Bf* head, std::int64_t stride, std::int64_t first,
                                           std::int64_t begin, std::int64_t end, int d) {
  constexpr int kChunks = D / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    Bf* const to = chunk_of<D>(tile, row, chunk);
    const std::int64_t at = first + row;
    if (at >= begin && at < end && chunk * 8 < d) {
      __pipeline_memcpy_async(to, head + at * stride + chunk * 8, 16);
    } else {
      *reinterpret_cast<uint4*>(to) = uint4{};
    }
  }
}

// ---- products ----

struct Matrices {
  std::uint32_t r[4];
};

__device__ __forceinline__ Matrices load_matrices(const Bf* at) {
  Matrices m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.r[0]), "=r"(m.r[1]), "=r"(m.r[2]), "=r"(m.r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at))));
  return m;
}
__device__ __forceinline__ Matrices load_transposed(const Bf* at) {
  Matrices m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m.r[0]), "=r"(m.r[1]), "=r"(m.r[2]), "=r"(m.r[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at))));
  return m;
}

// c [16, 8] += a [16, 16] b [16, 8]. A lane has rows lane / 4 (c[0], c[1]) and lane / 4 + 8 (c[2], c[3]) of c, and
// columns lane % 4 * 2 and the next.
__device__ __forceinline__ void multiply_add(float (&c)[4], const Matrices& a, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b0), "r"(b1));
}

// The numbers of a warp's 16 rows: N of the other side's rows, or D columns.
template <int N>
struct Block {
  float c[N / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < N / 8; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0;
  }
};

// out = own other^T, of the warp's 16 rows of `own` and all rows of `other`.
template <int D, int N>
__device__ __forceinline__ void dot_rows(Block<N>& out, Bf* own, Bf* other) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  out.clear();
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    const Matrices a = load_matrices(chunk_of<D>(own, warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      const Matrices b = load_matrices(chunk_of<D>(other, n * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      multiply_add(out.c[2 * n], a, b.r[0], b.r[1]);
      multiply_add(out.c[2 * n + 1], a, b.r[2], b.r[3]);
    }
  }
}

__device__ __forceinline__ std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  std::uint32_t out;
  memcpy(&out, &both, 4);
  return out;
}

// sums += weights rows, with weights [16, N] rounded to bf16 and rows [N, D].
template <int D, int N>
__device__ __forceinline__ void add_weighted(Block<D>& sums, const Block<N>& weights, Bf* rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < N / 16; ++k) {
    const float(&w)[4] = weights.c[2 * k];
    const float(&v)[4] = weights.c[2 * k + 1];
    const Matrices a{{pack(w[0], w[1]), pack(w[2], w[3]), pack(v[0], v[1]), pack(v[2], v[3])}};
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      const Matrices b = load_transposed(chunk_of<D>(rows, k * 16 + lane % 16, 2 * n + lane / 16));
      multiply_add(sums.c[2 * n], a, b.r[0], b.r[1]);
      multiply_add(sums.c[2 * n + 1], a, b.r[2], b.r[3]);
    }
  }
}

// 2^x, of the hardware.
__device__ __forceinline__ float power_of_two(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

// to[column] = factor * sums (+ to[column]) for the columns of one row, half 0 or 1 of the lane's two.
template <int D, class T>
__device__ __forceinline__ void put_row(T* to, const Block<D>& sums, int half, float factor, bool accumulate, int d) {
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int column = n * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e;
      if (column >= d) continue;
      const float value = factor * sums.c[n][2 * half + e];
      to[column] = from_float<T>(value + (accumulate ? to_float(to[column]) : 0.0f));
    }
  }
}

// ---- rows of queries ----

// What forward_kernel and dq_kernel know of a query row of a lane.
struct QueryRow {
  std::int64_t t;          // row of q
  int begin = 0, end = 0;  // keys that it sees, in their segment
  int at = 0, shift = 0;   // of it, in the segment; its distance to key j is at + shift - j
};

// Calls body(segment, first row, last row) for each segment with rows in [from, to); rows are in it together.
template <class Body>
__device__ __forceinline__ void for_segments(const Mask& mask, const std::int32_t* query_segment, std::int64_t from,
                                             std::int64_t to, const Body& body) {
  for (std::int64_t t = from; t < to;) {
    const std::int32_t index = query_segment[t];
    if (index < 0) {
      ++t;
      continue;
    }
    const std::int32_t* const s = mask.segments + static_cast<std::int64_t>(index) * kSegmentFields;
    const std::int64_t end = min(to, static_cast<std::int64_t>(s[0]) + s[1]);
    body(s, t, end - 1);
    t = end;
  }
}

// The part of `row` in a segment's rows [first, last]; it sees no key of it otherwise.
__device__ __forceinline__ void enter_segment(QueryRow& row, const Mask& mask, const std::int32_t* s,
                                              std::int64_t first, std::int64_t last) {
  row.begin = row.end = 0;
  if (row.t < first || row.t > last) return;
  row.at = static_cast<int>(row.t - s[0]);
  row.shift = s[4] - s[5];
  const Range keys = mask.keys(s, row.at);
  row.begin = static_cast<int>(keys.begin);
  row.end = static_cast<int>(keys.end);
}

template <class Out>
struct Forward {
  Rows2<const Bf> q, k, v;
  Rows2<Out> o;
  float* lse;
  std::int64_t lse_row;
  const std::int32_t* query_segment;
  Mask mask;
  std::int64_t group;
  int d;
  Scores scores;
  Dropping dropping;
};

template <int D, class Out>
__global__ void __launch_bounds__(kThreads) forward_kernel(Forward<Out> a) {
  constexpr int N = kOther<D>;
  extern __shared__ uint4 memory[];
  Bf* const q = reinterpret_cast<Bf*>(memory);
  Bf *const k = q + kOwn * D, *const v = k + N * D;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // Later rows see more keys: their blocks begin first.
  const std::int64_t begin = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kOwn,
                     end = min(begin + kOwn, a.q.count), h = blockIdx.y, g = h / a.group;
  fetch_rows<D, kOwn>(q, a.q.data + h * a.d, a.q.stride, begin, begin, end, a.d);
  QueryRow rows[2];
  float maximum[2] = {-INFINITY, -INFINITY}, total[2] = {};
#pragma unroll
  for (int r = 0; r < 2; ++r) rows[r].t = begin + warp * 16 + lane / 4 + 8 * r;
  const PhiloxKey key = a.dropping.of_head(h);
  Block<D> sums;
  sums.clear();
  for_segments(a.mask, a.query_segment, begin, end, [&](const std::int32_t* s, std::int64_t first, std::int64_t last) {
#pragma unroll
    for (int r = 0; r < 2; ++r) enter_segment(rows[r], a.mask, s, first, last);
    const std::int64_t from = a.mask.keys(s, first - s[0]).begin, to = a.mask.keys(s, last - s[0]).end;
    for (std::int64_t j = from; j < to; j += N) {
      __syncthreads();  // all warps are done with the tiles before
      fetch_rows<D, N>(k, a.k.data + g * a.d, a.k.stride, s[2] + j, s[2] + j, s[2] + to, a.d);
      __pipeline_commit();
      fetch_rows<D, N>(v, a.v.data + g * a.d, a.v.stride, s[2] + j, s[2] + j, s[2] + to, a.d);
      __pipeline_commit();
      __pipeline_wait_prior(1);
      __syncthreads();
      Block<N> p;
      dot_rows<D>(p, q, k);
      float higher[2] = {maximum[0], maximum[1]};
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = e / 2, at = static_cast<int>(j) + n * 8 + lane % 4 * 2 + e % 2;
          p.c[n][e] = at >= rows[r].begin && at < rows[r].end
                          ? a.scores.of(p.c[n][e], h, rows[r].at + rows[r].shift - at).score()
                          : -INFINITY;
          higher[r] = fmaxf(higher[r], p.c[n][e]);
        }
      }
      float base[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        higher[r] = fmaxf(higher[r], __shfl_xor_sync(0xffffffffu, higher[r], 1));
        higher[r] = fmaxf(higher[r], __shfl_xor_sync(0xffffffffu, higher[r], 2));
        base[r] = higher[r] == -INFINITY ? 0 : higher[r] * kLog2E;
        const float shrink = power_of_two(fmaf(maximum[r], kLog2E, -base[r]));
        maximum[r] = higher[r];
        total[r] *= shrink;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
          sums.c[n][2 * r] *= shrink;
          sums.c[n][2 * r + 1] *= shrink;
        }
      }
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          p.c[n][e] = power_of_two(fmaf(p.c[n][e], kLog2E, -base[e / 2]));
          total[e / 2] += p.c[n][e];
        }
      }
      if (a.dropping.below > 0) {
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (p.c[n][e] == 0) continue;  // not visible, maybe not a row
            p.c[n][e] *= a.dropping.of(key, rows[e / 2].t, s[2] + j + n * 8 + lane % 4 * 2 + e % 2);
          }
        }
      }
      __pipeline_wait_prior(0);
      __syncthreads();
      add_weighted(sums, p, v);
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
    total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
    if (rows[r].t >= end) continue;
    put_row(a.o.row(rows[r].t) + h * a.d, sums, r, total[r] > 0 ? 1.0f / total[r] : 0.0f, false, a.d);
    if (lane % 4 == 0) {
      a.lse[h * a.lse_row + rows[r].t] = total[r] > 0 ? maximum[r] + logf(total[r]) : -INFINITY;
    }
  }
}

struct Backward {
  Rows2<const Bf> q, k, v, d_o;
  const float* lse;
  std::int64_t lse_row;
  const float* delta;  // [Hq, Tq]
  const std::int32_t* query_segment;
  Mask mask;
  std::int64_t group;
  int d;
  Scores scores;
  Dropping dropping;

  // From a dot product of q and k: f P, and, in place of the one of d_o and v in `dp`, dS. t, row: of q and of k.
  __device__ __forceinline__ float probability(float dot, float& dp, float of_lse, float of_delta, std::int64_t h,
                                               int distance, PhiloxKey key, std::int64_t t, std::int64_t row) const {
    const Scores::Of score = scores.of(dot, h, distance);
    const float p = power_of_two(score.less(of_lse) * kLog2E);
    const float factor = dropping.below > 0 ? dropping.of(key, t, row) : 1.0f;
    dp = p * (factor * dp - of_delta) * score.slope;
    return p * factor;
  }
};

template <int D, class Out>
__global__ void __launch_bounds__(kThreads) dq_kernel(Backward a, Rows2<Out> dq, bool accumulate) {
  constexpr int N = kOther<D>;
  extern __shared__ uint4 memory[];
  Bf* const q = reinterpret_cast<Bf*>(memory);
  Bf *const d_o = q + kOwn * D, *const k = d_o + kOwn * D, *const v = k + N * D;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t begin = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kOwn,
                     end = min(begin + kOwn, a.q.count), h = blockIdx.y, g = h / a.group;
  fetch_rows<D, kOwn>(q, a.q.data + h * a.d, a.q.stride, begin, begin, end, a.d);
  fetch_rows<D, kOwn>(d_o, a.d_o.data + h * a.d, a.d_o.stride, begin, begin, end, a.d);
  QueryRow rows[2];
  float lse[2], delta[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    rows[r].t = begin + warp * 16 + lane / 4 + 8 * r;
    lse[r] = rows[r].t < end ? a.lse[h * a.lse_row + rows[r].t] : -INFINITY;
    delta[r] = rows[r].t < end ? a.delta[h * a.q.count + rows[r].t] : 0;
  }
  const PhiloxKey key = a.dropping.of_head(h);
  Block<D> sums;
  sums.clear();
  for_segments(a.mask, a.query_segment, begin, end, [&](const std::int32_t* s, std::int64_t first, std::int64_t last) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      enter_segment(rows[r], a.mask, s, first, last);
      if (lse[r] == -INFINITY) rows[r].begin = rows[r].end = 0;
    }
    const std::int64_t from = a.mask.keys(s, first - s[0]).begin, to = a.mask.keys(s, last - s[0]).end;
    for (std::int64_t j = from; j < to; j += N) {
      __syncthreads();  // all warps are done with the tiles before
      fetch_rows<D, N>(k, a.k.data + g * a.d, a.k.stride, s[2] + j, s[2] + j, s[2] + to, a.d);
      __pipeline_commit();
      fetch_rows<D, N>(v, a.v.data + g * a.d, a.v.stride, s[2] + j, s[2] + j, s[2] + to, a.d);
      __pipeline_commit();
      __pipeline_wait_prior(1);
      __syncthreads();
      Block<N> p, ds;
      dot_rows<D>(p, q, k);
      __pipeline_wait_prior(0);
      __syncthreads();
      dot_rows<D>(ds, d_o, v);
#pragma unroll
      for (int n = 0; n < N / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = e / 2, at = static_cast<int>(j) + n * 8 + lane % 4 * 2 + e % 2;
          if (at >= rows[r].begin && at < rows[r].end) {
            a.probability(p.c[n][e], ds.c[n][e], lse[r], delta[r], h, rows[r].at + rows[r].shift - at, key, rows[r].t,
                          s[2] + at);
          } else {
            ds.c[n][e] = 0;
          }
        }
      }
      add_weighted(sums, ds, k);
    }
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (rows[r].t < end) put_row(dq.row(rows[r].t) + h * a.d, sums, r, a.scores.scale, accumulate, a.d);
  }
}

// dk if kKeys, dv if kValues, of 64 key rows of a key-value head.
template <int D, bool kKeys, bool kValues, class Key, class Value>
__global__ void __launch_bounds__(kThreads) dkv_kernel(Backward a, Rows2<Key> dk, Rows2<Value> dv, bool accumulate) {
  constexpr int N = kOther<D>;
  extern __shared__ uint4 memory[];
  Bf* const k = reinterpret_cast<Bf*>(memory);
  Bf *const v = k + kOwn * D, *const q = v + kOwn * D, *const d_o = q + N * D;
  __shared__ float lse[N], delta[N];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kOwn, end = min(begin + kOwn, a.k.count),
                     g = blockIdx.y;
  Block<kKeys ? D : 8> k_sums;
  Block<kValues ? D : 8> v_sums;
  k_sums.clear();
  v_sums.clear();
  bool loaded = false;
  const std::int64_t segments = *a.mask.count <= a.mask.rows ? *a.mask.count : 0;  // otherwise reported by make_tables
  for (std::int64_t m = 0; m < segments; ++m) {
    const std::int32_t* const s = a.mask.segments + m * kSegmentFields;
    if (s[0] < 0 || s[1] <= 0 || static_cast<std::int64_t>(s[0]) + s[1] > a.q.count) continue;
    // The segment's keys in this block.
    const std::int64_t first = max(begin, static_cast<std::int64_t>(s[2])) - s[2],
                       last = min(end, static_cast<std::int64_t>(s[2]) + s[3]) - s[2] - 1;
    if (first > last) continue;
    const std::int64_t from = a.mask.queries(s, first).begin, to = a.mask.queries(s, last).end;
    if (from >= to) continue;
    if (!loaded) {
      fetch_rows<D, kOwn>(k, a.k.data + g * a.d, a.k.stride, begin, begin, end, a.d);
      fetch_rows<D, kOwn>(v, a.v.data + g * a.d, a.v.stride, begin, begin, end, a.d);
      loaded = true;
    }
    std::int64_t at[2];  // the lane's keys in the segment
    int visible[2][2];   // the queries that see them
    int shift[2];        // the distance of query i to the key is i + shift
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      at[r] = begin + warp * 16 + lane / 4 + 8 * r - s[2];
      visible[r][0] = visible[r][1] = 0;
      shift[r] = static_cast<int>(s[4] - s[5] - at[r]);
      if (at[r] < first || at[r] > last) continue;
      const Range queries = a.mask.queries(s, at[r]);
      visible[r][0] = static_cast<int>(queries.begin);
      visible[r][1] = static_cast<int>(queries.end);
    }
    for (std::int64_t h = g * a.group; h < (g + 1) * a.group; ++h) {
      const PhiloxKey key = a.dropping.of_head(h);
      for (std::int64_t i = from; i < to; i += N) {
        __syncthreads();  // all warps are done with the tiles before
        fetch_rows<D, N>(q, a.q.data + h * a.d, a.q.stride, s[0] + i, s[0] + i, s[0] + to, a.d);
        __pipeline_commit();
        fetch_rows<D, N>(d_o, a.d_o.data + h * a.d, a.d_o.stride, s[0] + i, s[0] + i, s[0] + to, a.d);
        __pipeline_commit();
        if (threadIdx.x < N) {
          const std::int64_t row = i + threadIdx.x;
          lse[threadIdx.x] = row < to ? a.lse[h * a.lse_row + s[0] + row] : -INFINITY;
          delta[threadIdx.x] = row < to ? a.delta[h * a.q.count + s[0] + row] : 0;
        }
        __pipeline_wait_prior(1);
        __syncthreads();
        Block<N> p, ds;
        dot_rows<D>(p, k, q);
        __pipeline_wait_prior(0);
        __syncthreads();
        if constexpr (kKeys) {
          dot_rows<D>(ds, v, d_o);
        } else {
          ds.clear();
        }
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int r = e / 2, column = n * 8 + lane % 4 * 2 + e % 2, query = static_cast<int>(i) + column;
            if (query >= visible[r][0] && query < visible[r][1] && lse[column] > -INFINITY) {
              p.c[n][e] = a.probability(p.c[n][e], ds.c[n][e], lse[column], delta[column], h, query + shift[r], key,
                                        s[0] + query, s[2] + at[r]);
            } else {
              p.c[n][e] = ds.c[n][e] = 0;
            }
          }
        }
        if constexpr (kKeys) add_weighted(k_sums, ds, q);
        if constexpr (kValues) add_weighted(v_sums, p, d_o);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int64_t row = begin + warp * 16 + lane / 4 + 8 * r;
    if (row >= end) continue;
    if constexpr (kKeys) put_row(dk.row(row) + g * a.d, k_sums, r, a.scores.scale, accumulate, a.d);
    if constexpr (kValues) put_row(dv.row(row) + g * a.d, v_sums, r, 1.0f, accumulate, a.d);
  }
}

// ---- launches ----

template <class Body>
void dispatch_head_dim(std::int64_t d, const Body& body) {
  if (d <= 64) return body(std::integral_constant<int, 64>());
  if (d <= 128) return body(std::integral_constant<int, 128>());
  body(std::integral_constant<int, 256>());
}

dim3 grid_of(std::int64_t rows, std::int64_t heads) {
  HAWSER_CHECK(heads < 65536, "attention: ", heads, " heads; at most 65535 are supported");
  return {static_cast<unsigned>(ceil_div(rows, kOwn)), static_cast<unsigned>(heads)};
}

// own, other: tiles of each side.
template <int D, class Kernel, class... Args>
void launch(const CudaNative& native, Kernel kernel, dim3 grid, int own, int other, Args... args) {
  const std::int64_t bytes = std::int64_t{2} * D * (own * kOwn + other * kOther<D>);
  allow_shared_memory(native, kernel, bytes);
  kernel<<<grid, kThreads, static_cast<std::size_t>(bytes), stream_of(native)>>>(args...);
}

}  // namespace

void tiled_forward(const CudaNative& native, const AttentionCall& args, const std::int32_t* query_segment) {
  const AttentionDims n = dims_of(args);
  if (n.tq == 0) return;
  dispatch_device_float(args.o.dtype(), [&](auto out) {
    using Out = decltype(out);
    const Forward<Out> a{reading<Bf>(args.q),   reading<Bf>(args.k),    reading<Bf>(args.v),
                         rows2<Out>(args.o),    args.lse.data<float>(), args.lse.stride(0),
                         query_segment,         mask_of(args),          n.group(),
                         static_cast<int>(n.d), scores_of(args),        dropping_of(args)};
    dispatch_head_dim(n.d,
                      [&](auto d) { launch<d()>(native, forward_kernel<d(), Out>, grid_of(n.tq, n.hq), 1, 2, a); });
  });
}

void tiled_backward(const CudaNative& native, const AttentionBackward& args, const std::int32_t* query_segment,
                    const float* delta) {
  const AttentionDims n = dims_of(args.call);
  const Backward a{reading<Bf>(args.call.q),
                   reading<Bf>(args.call.k),
                   reading<Bf>(args.call.v),
                   reading<Bf>(args.d_o),
                   args.call.lse.data<float>(),
                   args.call.lse.stride(0),
                   delta,
                   query_segment,
                   mask_of(args.call),
                   n.group(),
                   static_cast<int>(n.d),
                   scores_of(args.call),
                   dropping_of(args.call)};
  dispatch_head_dim(n.d, [&](auto head) {
    constexpr int D = head();
    if (n.tq > 0) {
      dispatch_device_float(args.dq.dtype(), [&](auto out) {
        launch<D>(native, dq_kernel<D, decltype(out)>, grid_of(n.tq, n.hq), 2, 2, a, rows2<decltype(out)>(args.dq),
                  args.accumulate_q);
      });
    }
    if (n.tk == 0) return;
    dispatch_device_float(args.dk.dtype(), [&](auto key) {
      dispatch_device_float(args.dv.dtype(), [&](auto value) {
        using Key = decltype(key);
        using Value = decltype(value);
        const auto run = [&](auto kernel) {
          launch<D>(native, kernel, grid_of(n.tk, n.hkv), 2, 2, a, rows2<Key>(args.dk), rows2<Value>(args.dv),
                    args.accumulate_kv);
        };
        if constexpr (D <= 128) {
          run(dkv_kernel<D, true, true, Key, Value>);
        } else {
          run(dkv_kernel<D, true, false, Key, Value>);
          run(dkv_kernel<D, false, true, Key, Value>);
        }
      });
    });
  });
}

}  // namespace hawser::ops::cuda
