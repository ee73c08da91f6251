#include "ops/adamw_8bit/adamw_8bit.h"
#include "ops/adamw_8bit/code_book.h"
#include "ops/update/store_weight.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = static_cast<int>(kStateBlock);

__constant__ DynamicMap signed_codes = kSignedDynamicMap;
__constant__ DynamicMap unsigned_codes = kUnsignedDynamicMap;

struct Update8bit {
  const float* gradient;
  std::uint8_t *first, *second;
  float *first_absmax, *second_absmax;
  const UpdateStep* step;
  const std::int32_t* skip;  // null: never
  std::int64_t count;
};

// The largest magnitude of the block, or NaN if there is one: as integers, magnitudes are in the order of floats, and
// NaN is above them.
__device__ __forceinline__ float block_absmax(float value, unsigned* shared) {
  unsigned bits = __float_as_uint(value) & 0x7fffffffu;
  bits = __reduce_max_sync(0xffffffffu, bits);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = bits;
  __syncthreads();
  bits = 0;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) bits = max(bits, shared[warp]);
  return __uint_as_float(bits);
}

// A thread block has a block of states, and a thread an element. Memory traffic is 2 + 8 bytes an element with float32
// weights besides the weight's own; the search in the code books, eight dependent reads of shared memory for each
// moment, limits it.
template <class Weight, class Compute>
__global__ void __launch_bounds__(kThreads) adamw_8bit_kernel(Update8bit u, StoreWeight<Weight, Compute> to) {
  __shared__ float books[2][256];
  __shared__ unsigned maxima[2][kThreads / 32];
  if (u.skip != nullptr && *u.skip != 0) return;
  books[0][threadIdx.x] = signed_codes[threadIdx.x];
  books[1][threadIdx.x] = unsigned_codes[threadIdx.x];
  __syncthreads();
  const std::int64_t block = blockIdx.x, at = block * kThreads + threadIdx.x;
  const bool in = at < u.count;
  const float first_absmax = u.first_absmax[block], second_absmax = u.second_absmax[block];
  float w = 0, m = 0, v = 0;
  if (in) {
    w = to.load(at);
    m = books[0][u.first[at]] * first_absmax;
    v = books[1][u.second[at]] * second_absmax;
    advance<UpdateRule::adamw, false>(*u.step, u.gradient[at], w, m, v, [](float x) { return sqrtf(x); });
    to.store(at, w);
  }
  const float m_max = block_absmax(m, maxima[0]), v_max = block_absmax(v, maxima[1]);
  if (in) {
    u.first[at] = nearest_code(books[0], m_max == 0 ? 0.0f : m / m_max);
    u.second[at] = nearest_code(books[1], v_max == 0 ? 0.0f : v / v_max);
  }
  if (threadIdx.x == 0) u.first_absmax[block] = m_max, u.second_absmax[block] = v_max;
}

}  // namespace

void adamw_8bit(const CudaNative& native, const AdamW8bit& args) {
  if (args.weight.size(0) == 0) return;
  auto* const step = Scratch(native).take<UpdateStep>(1);
  update_step_kernel<<<1, 1, 0, stream_of(native)>>>(data_or_null<const float>(args.hyper),
                                                     data_or_null<const float>(args.coefficient), step,
                                                     {.beta1 = args.beta1,
                                                      .beta2 = args.beta2,
                                                      .epsilon = args.epsilon,
                                                      .momentum = 0,
                                                      .weight_decay = args.weight_decay});
  const Update8bit update{.gradient = data_or_null<const float>(args.gradient),
                          .first = data_or_null<std::uint8_t>(args.exp_avg),
                          .second = data_or_null<std::uint8_t>(args.exp_avg_sq),
                          .first_absmax = data_or_null<float>(args.exp_avg_absmax),
                          .second_absmax = data_or_null<float>(args.exp_avg_sq_absmax),
                          .step = step,
                          .skip = data_or_null<const std::int32_t>(args.skip),
                          .count = args.weight.size(0)};
  const auto blocks = static_cast<unsigned>(args.exp_avg_absmax.size(0));
  with_stored_weight(
      args, [&](const auto& to) { adamw_8bit_kernel<<<blocks, kThreads, 0, stream_of(native)>>>(update, to); });
}

}  // namespace hawser::ops::cuda
