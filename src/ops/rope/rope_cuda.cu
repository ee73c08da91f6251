#include "ops/cuda/kernel.cuh"
#include "ops/rope/rope.h"

namespace hawser::ops::cuda {

namespace {

// The angle is reduced to [-pi/4, pi/4] in float64; sine and cosine are float32 series, as on the CPU.
__device__ __forceinline__ void sine_and_cosine(std::int32_t position, float frequency, float& sine, float& cosine) {
  const double angle = static_cast<double>(position) * static_cast<double>(frequency);
  const double whole = rint(angle * 0.63661977236758134308);
  const auto r = static_cast<float>(angle - whole * 1.57079632679489661923);
  const auto quadrant = static_cast<std::int32_t>(whole);
  const float s = r * r;
  const float a = r + r * s * (-1.6666667e-1f + s * (8.3333333e-3f + s * (-1.9841270e-4f + s * 2.7557319e-6f)));
  const float b =
      1.0f + s * (-0.5f + s * (4.1666667e-2f + s * (-1.3888889e-3f + s * (2.4801587e-5f - s * 2.7557319e-7f))));
  const bool odd = (quadrant & 1) != 0;
  sine = odd ? b : a;
  cosine = odd ? a : b;
  if ((quadrant & 2) != 0) sine = -sine;
  if (((quadrant + 1) & 2) != 0) cosine = -cosine;
}

constexpr int kTokens = 4;

// Memory traffic bounds the kernel: it reads and writes x once, in place (measured: docs/performance.md). But an angle
// takes a float64 product and reduction, and all heads of a token have the same angles. So one block handles kTokens
// tokens: it computes sines and cosines once, in shared memory, then rotates all heads.
// A thread rotates N pairs of each token at a time: those of two vectors that are `half` apart, or, interleaved, those
// inside 2 N consecutive elements. Its first vectors of all tokens are loaded to registers before the angles are
// computed, so that the float64 work overlaps with these loads. There are no sums: no order can change a bit.
template <class Act, int N, bool kInterleaved>
__global__ void __launch_bounds__(512)
    rope_kernel(Rows2<Act> x, const std::int32_t* positions, const float* frequencies, int head_dim, int half,
                float scale, float sign) {
  extern __shared__ float4 angles[];
  float* const cosines = reinterpret_cast<float*>(angles);  // [kTokens, half], followed by the sines
  float* const sines = cosines + kTokens * half;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTokens;
  const int tokens = begin + kTokens <= x.count ? kTokens : static_cast<int>(x.count - begin);
  const int in_head = half / N;
  const int pairs = static_cast<int>(x.columns / head_dim) * in_head;
  const auto place = [&](int token, int pair) {
    return x.row(begin + token) + static_cast<std::int64_t>(pair / in_head) * head_dim +
           pair % in_head * (kInterleaved ? 2 * N : N);
  };
  const int apart = kInterleaved ? N : half;
  Vec<Act, N> first[kTokens], second[kTokens];
  const auto fetch = [&](int pair) {
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      if (pair >= pairs || k >= tokens) continue;
      first[k] = load<N>(place(k, pair));
      second[k] = load<N>(place(k, pair) + apart);
    }
  };
  fetch(threadIdx.x);
  for (int i = threadIdx.x; i < tokens * half; i += blockDim.x) {
    float sine, cosine;
    sine_and_cosine(positions[begin + i / half], frequencies[i % half], sine, cosine);
    cosines[i] = scale * cosine;
    sines[i] = sign * scale * sine;
  }
  __syncthreads();
  for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    if (pair >= static_cast<int>(blockDim.x)) fetch(pair);
#pragma unroll
    for (int k = 0; k < kTokens; ++k) {
      if (k >= tokens) continue;
      const Vec<float, N> a = widen(first[k]), b = widen(second[k]);
      const Vec<float, N> c = load<N>(cosines + k * half + pair % in_head * N),
                          s = load<N>(sines + k * half + pair % in_head * N);
      Vec<float, N> left, right;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if constexpr (kInterleaved) {
          // Element j of both vectors, one after the other.
          const auto from = [&](int j) { return j < N ? a.v[j % N] : b.v[j % N]; };
          const auto to = [&](int j) -> float& { return j < N ? left.v[j % N] : right.v[j % N]; };
          const float even = from(2 * i), odd = from(2 * i + 1);
          to(2 * i) = even * c.v[i] - odd * s.v[i];
          to(2 * i + 1) = odd * c.v[i] + even * s.v[i];
        } else {
          left.v[i] = a.v[i] * c.v[i] - b.v[i] * s.v[i];
          right.v[i] = b.v[i] * c.v[i] + a.v[i] * s.v[i];
        }
      }
      store_float<N>(place(k, pair), left);
      store_float<N>(place(k, pair) + apart, right);
    }
  }
}

}  // namespace

void rope(const CudaNative& native, const Rope& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    constexpr int kWide = 16 / sizeof(Act);
    const auto x = rows2<Act>(args.x);
    const auto* positions = args.positions.data<std::int32_t>();
    const float* frequencies = args.frequencies.data<float>();
    const auto head_dim = static_cast<int>(args.x.size(2)), half = static_cast<int>(args.frequencies.size(0));
    const auto scale = static_cast<float>(args.scale);
    const float sign = args.inverse ? -1.0f : 1.0f;
    if (x.count == 0 || x.columns == 0 || half == 0) return;
    const auto launch = [&](auto kernel, int n) {
      const auto threads =
          static_cast<unsigned>(std::clamp<std::int64_t>(round_up(x.columns / head_dim * (half / n), 32), 32, 512));
      const std::size_t shared = 2 * sizeof(float) * kTokens * static_cast<std::size_t>(half);
      kernel<<<static_cast<unsigned>(ceil_div(x.count, kTokens)), threads, shared, stream_of(native)>>>(
          x, positions, frequencies, head_dim, half, scale, sign);
    };
    if (half % kWide == 0 && head_dim % kWide == 0 && aligned<kWide>({args.x})) {
      launch(args.interleaved ? rope_kernel<Act, kWide, true> : rope_kernel<Act, kWide, false>, kWide);
    } else {
      launch(args.interleaved ? rope_kernel<Act, 1, true> : rope_kernel<Act, 1, false>, 1);
    }
  });
}

}  // namespace hawser::ops::cuda
