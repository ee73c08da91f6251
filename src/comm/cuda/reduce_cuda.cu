#include <cuda_runtime.h>

#include <algorithm>

#include "comm/cuda/reduce_cuda.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/vector.cuh"
#include "tensor/dtype_dispatch.h"

namespace hawser::comm {

namespace {

using cuda::Bf;
using cuda::load_float;
using cuda::store_float;
using cuda::Vec;
constexpr int kThreads = 512;
constexpr int kBlocksEach = 2;  // per SM: enough loads in progress to reach full memory bandwidth

template <Reduction reduction>
__device__ __forceinline__ float combine(float a, float b) {
  if constexpr (reduction == Reduction::sum) return a + b;
  return (b > a || b != b) ? b : a;  // keeps a NaN of either side
}

// Each thread combines N elements of all members at a time, in the members' order.
template <class Sent, class Out, Reduction reduction, int N>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(MemberRuns runs, std::int64_t vectors, Out* out, bool accumulate) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += step) {
    const auto load = [&](int m) {
      const std::byte* base =
          m == runs.index ? runs.own : runs.others + (runs.own_place || m < runs.index ? m : m - 1) * runs.stride;
      return load_float<N>(reinterpret_cast<const Sent*>(base) + i * N);
    };
    Vec<float, N> sum = load(0);
#pragma unroll 4
    for (int m = 1; m < runs.count; ++m) {
      const Vec<float, N> next = load(m);
#pragma unroll
      for (int k = 0; k < N; ++k) sum.v[k] = combine<reduction>(sum.v[k], next.v[k]);
    }
    if (accumulate) {
      const Vec<float, N> before = load_float<N>(out + i * N);
#pragma unroll
      for (int k = 0; k < N; ++k) sum.v[k] += before.v[k];
    }
    store_float<N>(out + i * N, sum);
  }
}

template <class Sent, class Out, Reduction reduction, int N>
void enqueue(cudaStream_t stream, int sm_count, const MemberRuns& runs, std::int64_t vectors, Out* out,
             bool accumulate) {
  const std::int64_t blocks =
      std::min<std::int64_t>((vectors + kThreads - 1) / kThreads, std::int64_t{sm_count} * kBlocksEach);
  reduce_kernel<Sent, Out, reduction, N>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(runs, vectors, out, accumulate);
  HAWSER_CUDA_CHECK(cudaPeekAtLastError());
}

template <class Sent, class Out, Reduction reduction>
void reduce_all(cudaStream_t stream, int sm_count, MemberRuns runs, std::int64_t n, std::byte* out, bool accumulate) {
  constexpr int kWide = 16 / sizeof(Sent);
  const auto aligned = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  auto* to = reinterpret_cast<Out*>(out);
  const std::int64_t wide =
      aligned(runs.own) && aligned(runs.others) && runs.stride % 16 == 0 && aligned(out) ? n / kWide : 0;
  if (wide > 0) enqueue<Sent, Out, reduction, kWide>(stream, sm_count, runs, wide, to, accumulate);
  const std::int64_t done = wide * kWide;
  if (done == n) return;
  runs.own += done * static_cast<std::int64_t>(sizeof(Sent));
  if (runs.others != nullptr) runs.others += done * static_cast<std::int64_t>(sizeof(Sent));
  enqueue<Sent, Out, reduction, 1>(stream, sm_count, runs, n - done, to + done, accumulate);
}

template <Reduction reduction>
void dispatch(cudaStream_t stream, int sm_count, const MemberRuns& runs, DType reduce_dtype, std::int64_t n,
              std::byte* out, DType out_dtype, bool accumulate) {
  dispatch_float_as<float, Bf>(reduce_dtype, [&](auto sent) {
    dispatch_float_as<float, Bf>(out_dtype, [&](auto to) {
      using Sent = decltype(sent);
      using Out = decltype(to);
      if constexpr (std::is_same_v<Out, float> || std::is_same_v<Out, Sent>) {
        reduce_all<Sent, Out, reduction>(stream, sm_count, runs, n, out, accumulate);
      } else {
        HAWSER_CHECK(false, to_string(reduce_dtype), " reduced into ", to_string(out_dtype));
      }
    });
  });
}

}  // namespace

void reduce_members_cuda(void* stream, int sm_count, const MemberRuns& runs, DType reduce_dtype, Reduction reduction,
                         std::int64_t n, std::byte* out, DType out_dtype, bool accumulate) {
  if (n == 0) return;
  auto* on = static_cast<cudaStream_t>(stream);
  if (reduction == Reduction::sum) {
    dispatch<Reduction::sum>(on, sm_count, runs, reduce_dtype, n, out, out_dtype, accumulate);
  } else {
    dispatch<Reduction::max>(on, sm_count, runs, reduce_dtype, n, out, out_dtype, accumulate);
  }
}

}  // namespace hawser::comm
