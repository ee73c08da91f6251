#include "base/philox.h"
#include "ops/cuda/kernel.cuh"
#include "ops/seed/init.h"

namespace hawser::ops::cuda {

namespace {

// RandomStream::normal with CUDA's logarithm and cosine.
__device__ double normal(const RandomStream& random, std::uint64_t element) {
  const PhiloxWords w = random.words(element);
  const double u = (static_cast<double>((static_cast<std::uint64_t>(w[1]) << 32 | w[0]) >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>((static_cast<std::uint64_t>(w[3]) << 32 | w[2]) >> 11) * 0x1p-53;
  return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

template <class T>
struct Draw {
  RandomStream random;
  T* y;
  std::uint64_t first;
  std::int64_t columns, row_stride;
  double mean, std;
  __device__ void operator()(std::int64_t, std::int64_t at) const {
    // No FMA contraction: each operation rounds once, as on the CPU.
    const double z = normal(random, first + static_cast<std::uint64_t>(at / columns * row_stride + at % columns));
    y[at] = from_float<T>(static_cast<float>(__dadd_rn(mean, __dmul_rn(std, z))));
  }
};

}  // namespace

void random_normal(const CudaNative& native, const RandomNormal& args) {
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    using T = decltype(tag);
    map<1>(native, 1, args.y.elements(),
           Draw<T>{RandomStream(args.seed, args.name), reinterpret_cast<T*>(args.y.raw()),
                   static_cast<std::uint64_t>(args.first_element),
                   args.row_stride > 0 ? args.y.size(1) : std::max<std::int64_t>(1, args.y.elements()), args.row_stride,
                   args.mean, args.std});
  });
}

}  // namespace hawser::ops::cuda
