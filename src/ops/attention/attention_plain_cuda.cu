// Fallback attention kernels for calls that cuDNN does not support: any dtypes, masks and lengths, head dims up to 256.
// They need memory of one number per row and head.
// One warp handles one row of a head: a query row in forward_kernel and dq_kernel, a key row in dkv_kernel. The row is
// in shared memory, its sums are in registers, kMaxColumns a lane. The warp takes 32 keys (or queries) at a time: each
// lane computes the score of one of them, then all lanes add the 32 weighted rows, each lane to every 32nd column.
// The kernels are written for correctness. They use no tensor cores, and no rows are shared between warps: they reach
// about a thousandth of cuDNN's rates (measured: docs/performance.md). A warp adds all terms of its sums, in order of
// the rows; dkv_kernel passes over all segments and query heads. So there are no atomics, and repeated calls have equal
// bits.
// Limits: kMaxDim columns of a head, since the sums are in registers; 65,535 heads, which blockIdx.y counts.
#include "ops/attention/attention_kernels_cuda.h"
#include "ops/attention/attention_scores.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMaxColumns = 8;  // per lane: head dims up to 256
constexpr std::int64_t kMaxDim = 32 * kMaxColumns;

// Loads a row of a warp to shared memory, as float32.
template <class T>
__device__ __forceinline__ void fetch(float* to, const T* from, std::int64_t d) {
  for (std::int64_t c = threadIdx.x; c < d; c += 32) to[c] = to_float(from[c]);
}

template <class T>
__device__ __forceinline__ float dot(const float* a, const T* b, std::int64_t d) {
  float sum = 0;
  for (std::int64_t c = 0; c < d; ++c) sum += a[c] * to_float(b[c]);
  return sum;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// sums[k] += weight of lane n * rows[n, lane + 32 k], n in [0, many).
template <class T>
__device__ __forceinline__ void add_rows(float (&sums)[kMaxColumns], float weight, const T* rows, std::int64_t stride,
                                         int many, std::int64_t d) {
  for (int n = 0; n < many; ++n) {
    const float w = __shfl_sync(0xffffffffu, weight, n);
#pragma unroll
    for (int k = 0; k < kMaxColumns; ++k) {
      const std::int64_t c = threadIdx.x + 32 * k;
      if (c < d) sums[k] += w * to_float(rows[n * stride + c]);
    }
  }
}

template <class T>
__device__ __forceinline__ void put(T* to, const float (&sums)[kMaxColumns], float factor, bool accumulate,
                                    std::int64_t d) {
#pragma unroll
  for (int k = 0; k < kMaxColumns; ++k) {
    const std::int64_t c = threadIdx.x + 32 * k;
    if (c < d) to[c] = from_float<T>(factor * sums[k] + (accumulate ? to_float(to[c]) : 0.0f));
  }
}

// blockDim (32, kWarps); one warp per row, blockIdx.y is the head.
__device__ __forceinline__ std::int64_t my_row() {
  return static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.y;
}
dim3 grid_of(std::int64_t rows, std::int64_t heads) {
  HAWSER_CHECK(heads < 65536, "attention: ", heads, " heads; at most 65535 are supported");
  return {static_cast<unsigned>(ceil_div(rows, kWarps)), static_cast<unsigned>(heads)};
}
const dim3 kBlock(32, kWarps);

template <class Act, class Out>
struct Forward {
  Rows2<const Act> q, k, v;
  Rows2<Out> o;
  float* lse;
  std::int64_t lse_row;
  const std::int32_t* query_segment;
  Mask mask;
  std::int64_t group, d;
  Scores scores;
  Dropping dropping;
};

template <class Act, class Out>
__global__ void __launch_bounds__(32 * kWarps) forward_kernel(Forward<Act, Out> a) {
  __shared__ float shared[kWarps][kMaxDim];
  const std::int64_t t = my_row(), h = blockIdx.y, g = h / a.group;
  if (t >= a.q.count) return;
  float* const q = shared[threadIdx.y];
  fetch(q, a.q.row(t) + h * a.d, a.d);
  __syncwarp();
  const PhiloxKey key = a.dropping.of_head(h);
  float sums[kMaxColumns] = {}, maximum = -INFINITY, total = 0;
  if (const std::int32_t index = a.query_segment[t]; index >= 0) {
    const std::int32_t* const s = a.mask.segments + static_cast<std::int64_t>(index) * kSegmentFields;
    const Range keys = a.mask.keys(s, t - s[0]);
    for (std::int64_t j = keys.begin; j < keys.end; j += 32) {
      const int many = static_cast<int>(keys.end - j < 32 ? keys.end - j : 32);
      const std::int64_t row = s[2] + j;
      float score = -INFINITY;
      if (static_cast<int>(threadIdx.x) < many) {
        score =
            a.scores.of(dot(q, a.k.row(row + threadIdx.x) + g * a.d, a.d), h, distance_of(s, t - s[0], j + threadIdx.x))
                .score();
      }
      const float higher = fmaxf(maximum, warp_max(score));
      const float shrink = expf(maximum - higher);
      float p = expf(score - higher);
      maximum = higher;
      total = total * shrink + warp_sum(p);
      if (static_cast<int>(threadIdx.x) < many) p *= a.dropping.of(key, t, row + threadIdx.x);
#pragma unroll
      for (float& sum : sums) sum *= shrink;
      add_rows(sums, p, a.v.row(row) + g * a.d, a.v.stride, many, a.d);
    }
  }
  put(a.o.row(t) + h * a.d, sums, total > 0 ? 1.0f / total : 0.0f, false, a.d);
  if (threadIdx.x == 0) a.lse[h * a.lse_row + t] = total > 0 ? maximum + logf(total) : -INFINITY;
}

template <class Act>
struct Backward {
  Rows2<const Act> q, k, v, d_o;
  const float* lse;
  std::int64_t lse_row;
  const float* delta;
  const std::int32_t* query_segment;
  Mask mask;
  std::int64_t group, d;
  Scores scores;
  Dropping dropping;
};

template <class Act, class Out>
__global__ void __launch_bounds__(32 * kWarps)
    delta_kernel(Rows2<const Act> d_o, Rows2<const Out> o, std::int64_t d, float* delta) {
  const std::int64_t t = my_row(), h = blockIdx.y;
  if (t >= o.count) return;
  float sum = 0;
  for (std::int64_t c = threadIdx.x; c < d; c += 32) {
    sum += to_float(o.row(t)[h * d + c]) * to_float(d_o.row(t)[h * d + c]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x == 0) delta[h * o.count + t] = sum;
}

template <class Act, class Out>
__global__ void __launch_bounds__(32 * kWarps) dq_kernel(Backward<Act> a, Rows2<Out> dq, bool accumulate) {
  __shared__ float shared[kWarps][2][kMaxDim];
  const std::int64_t t = my_row(), h = blockIdx.y, g = h / a.group;
  if (t >= a.q.count) return;
  float *const q = shared[threadIdx.y][0], *const d_o = shared[threadIdx.y][1];
  fetch(q, a.q.row(t) + h * a.d, a.d);
  fetch(d_o, a.d_o.row(t) + h * a.d, a.d);
  __syncwarp();
  const PhiloxKey key = a.dropping.of_head(h);
  float sums[kMaxColumns] = {};
  const float lse = a.lse[h * a.lse_row + t], delta = a.delta[h * a.q.count + t];
  if (const std::int32_t index = a.query_segment[t]; index >= 0 && lse > -INFINITY) {
    const std::int32_t* const s = a.mask.segments + static_cast<std::int64_t>(index) * kSegmentFields;
    const Range keys = a.mask.keys(s, t - s[0]);
    for (std::int64_t j = keys.begin; j < keys.end; j += 32) {
      const int many = static_cast<int>(keys.end - j < 32 ? keys.end - j : 32);
      const std::int64_t row = s[2] + j;
      float ds = 0;
      if (static_cast<int>(threadIdx.x) < many) {
        const Scores::Of score = a.scores.of(dot(q, a.k.row(row + threadIdx.x) + g * a.d, a.d), h,
                                             distance_of(s, t - s[0], j + threadIdx.x));
        const float p = expf(score.less(lse));
        const float dp = a.dropping.of(key, t, row + threadIdx.x) * dot(d_o, a.v.row(row + threadIdx.x) + g * a.d, a.d);
        ds = p * (dp - delta) * score.slope;
      }
      add_rows(sums, ds, a.k.row(row) + g * a.d, a.k.stride, many, a.d);
    }
  }
  put(dq.row(t) + h * a.d, sums, a.scores.scale, accumulate, a.d);
}

// One warp per key row of a key-value head: all segments and all query heads of the group, in order.
template <class Act, class Key, class Value>
__global__ void __launch_bounds__(32 * kWarps)
    dkv_kernel(Backward<Act> a, Rows2<Key> dk, Rows2<Value> dv, bool accumulate) {
  __shared__ float shared[kWarps][2][kMaxDim];
  const std::int64_t row = my_row(), g = blockIdx.y;
  if (row >= a.k.count) return;
  float *const k = shared[threadIdx.y][0], *const v = shared[threadIdx.y][1];
  fetch(k, a.k.row(row) + g * a.d, a.d);
  fetch(v, a.v.row(row) + g * a.d, a.d);
  __syncwarp();
  float k_sums[kMaxColumns] = {}, v_sums[kMaxColumns] = {};
  const std::int64_t segments = *a.mask.count <= a.mask.rows ? *a.mask.count : 0;  // otherwise reported by make_tables
  for (std::int64_t n = 0; n < segments; ++n) {
    const std::int32_t* const s = a.mask.segments + n * kSegmentFields;
    if (s[0] < 0 || s[1] < 0 || static_cast<std::int64_t>(s[0]) + s[1] > a.q.count) continue;
    if (row < s[2] || row >= static_cast<std::int64_t>(s[2]) + s[3]) continue;
    const Range queries = a.mask.queries(s, row - s[2]);
    for (std::int64_t h = g * a.group; h < (g + 1) * a.group; ++h) {
      const float *const lse = a.lse + h * a.lse_row, *const delta = a.delta + h * a.q.count;
      const PhiloxKey key = a.dropping.of_head(h);
      for (std::int64_t i = queries.begin; i < queries.end; i += 32) {
        const int many = static_cast<int>(queries.end - i < 32 ? queries.end - i : 32);
        const std::int64_t first = s[0] + i, t = first + threadIdx.x;
        float p = 0, ds = 0;
        if (static_cast<int>(threadIdx.x) < many && lse[t] > -INFINITY) {
          const Scores::Of score =
              a.scores.of(dot(k, a.q.row(t) + h * a.d, a.d), h, distance_of(s, i + threadIdx.x, row - s[2]));
          p = expf(score.less(lse[t]));
          const float factor = a.dropping.of(key, t, row);
          ds = p * (factor * dot(v, a.d_o.row(t) + h * a.d, a.d) - delta[t]) * score.slope;
          p *= factor;
        }
        add_rows(k_sums, ds, a.q.row(first) + h * a.d, a.q.stride, many, a.d);
        add_rows(v_sums, p, a.d_o.row(first) + h * a.d, a.d_o.stride, many, a.d);
      }
    }
  }
  put(dk.row(row) + g * a.d, k_sums, a.scores.scale, accumulate, a.d);
  put(dv.row(row) + g * a.d, v_sums, 1.0f, accumulate, a.d);
}

}  // namespace

void plain_forward(const CudaNative& native, const AttentionCall& args, const std::int32_t* query_segment) {
  const AttentionDims n = dims_of(args);
  dispatch_device_float(args.q.dtype(), [&](auto act) {
    dispatch_device_float(args.o.dtype(), [&](auto out) {
      using Act = decltype(act);
      using Out = decltype(out);
      const Forward<Act, Out> a{
          reading<Act>(args.q), reading<Act>(args.k), reading<Act>(args.v), rows2<Out>(args.o), args.lse.data<float>(),
          args.lse.stride(0),   query_segment,        mask_of(args),        n.group(),          n.d,
          scores_of(args),      dropping_of(args)};
      forward_kernel<<<grid_of(n.tq, n.hq), kBlock, 0, stream_of(native)>>>(a);
    });
  });
}

void attention_delta(const CudaNative& native, const AttentionBackward& args, float* delta) {
  const AttentionDims n = dims_of(args.call);
  if (n.tq == 0) return;
  dispatch_device_float(args.d_o.dtype(), [&](auto act) {
    dispatch_device_float(args.call.o.dtype(), [&](auto out) {
      delta_kernel<<<grid_of(n.tq, n.hq), kBlock, 0, stream_of(native)>>>(
          reading<decltype(act)>(args.d_o), reading<decltype(out)>(args.call.o), n.d, delta);
    });
  });
}

void plain_backward(const CudaNative& native, const AttentionBackward& args, const std::int32_t* query_segment,
                    const float* delta) {
  const AttentionDims n = dims_of(args.call);
  const auto stream = stream_of(native);
  dispatch_device_float(args.call.q.dtype(), [&](auto act) {
    using Act = decltype(act);
    const Backward<Act> a{reading<Act>(args.call.q),
                          reading<Act>(args.call.k),
                          reading<Act>(args.call.v),
                          reading<Act>(args.d_o),
                          args.call.lse.data<float>(),
                          args.call.lse.stride(0),
                          delta,
                          query_segment,
                          mask_of(args.call),
                          n.group(),
                          n.d,
                          scores_of(args.call),
                          dropping_of(args.call)};
    if (n.tq > 0) {
      dispatch_device_float(args.dq.dtype(), [&](auto out) {
        dq_kernel<<<grid_of(n.tq, n.hq), kBlock, 0, stream>>>(a, rows2<decltype(out)>(args.dq), args.accumulate_q);
      });
    }
    if (n.tk == 0) return;
    dispatch_device_float(args.dk.dtype(), [&](auto key) {
      dispatch_device_float(args.dv.dtype(), [&](auto value) {
        dkv_kernel<<<grid_of(n.tk, n.hkv), kBlock, 0, stream>>>(a, rows2<decltype(key)>(args.dk),
                                                                rows2<decltype(value)>(args.dv), args.accumulate_kv);
      });
    });
  });
}

}  // namespace hawser::ops::cuda
