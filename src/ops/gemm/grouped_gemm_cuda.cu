#include <limits>

#include "ops/gemm/grouped_cuda.cuh"
#include "tensor/fp8.h"

namespace hawser::ops::cuda {

namespace {

// One thread for each element of C: float32 operands, or C of grouped_gemm, bf16 rows that start at other addresses
// than multiples of 16 bytes, empty sums. blockIdx.z: the group of grouped_weight_gradient.
template <class In, class Out>
__global__ void __launch_bounds__(128) simple_groups_kernel(GroupedProblem p, CudaFault* fault) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x;
  const bool report = threadIdx.x == 0 && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
  for (std::int64_t g = 0; g <= p.groups; ++g) {
    if (!check_offset(fault, p.offsets[g], g > 0 ? p.offsets[g - 1] : 0, g, p.rows, report)) return;
  }
  if (column >= p.n) return;
  const auto* const a = static_cast<const In*>(p.a);
  const auto put = [&](Out& c, float sum) { c = from_float<Out>(p.accumulate ? to_float(c) + sum : sum); };
  if (p.by_rows) {
    std::int64_t group = 0;
    for (std::int64_t row = blockIdx.y; row < p.offsets[p.groups]; row += gridDim.y) {
      while (row >= p.offsets[group + 1]) ++group;
      const auto* const b = static_cast<const In*>(p.b) + group * p.k * p.n;
      float sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k) {
        sum += to_float(a[row * p.lda + k]) * to_float(b[p.transpose_b ? column * p.ldb + k : k * p.ldb + column]);
      }
      put(static_cast<Out*>(p.c)[row * p.ldc + column], sum);
    }
  } else {
    const auto* const b = static_cast<const In*>(p.b);
    for (std::int64_t group = blockIdx.z; group < p.groups; group += gridDim.z) {
      for (std::int64_t m = blockIdx.y; m < p.m; m += gridDim.y) {
        float sum = 0;
        for (std::int64_t row = p.offsets[group]; row < p.offsets[group + 1]; ++row) {
          sum += to_float(a[row * p.lda + m]) * to_float(b[row * p.ldb + column]);
        }
        put(static_cast<Out*>(p.c)[(group * p.m + m) * p.ldc + column], sum);
      }
    }
  }
}

void multiply_simply(const CudaNative& native, const GroupedProblem& p) {
  const auto blocks = [](std::int64_t count) {
    return static_cast<unsigned>(std::clamp<std::int64_t>(count, 1, 65535));
  };
  const dim3 grid(static_cast<unsigned>(std::max<std::int64_t>(1, ceil_div(p.n, 128))), blocks(p.m),
                  p.by_rows ? 1 : blocks(p.groups));
  dispatch_device_float(p.in, [&](auto in) {
    dispatch_device_float(p.out, [&](auto out) {
      simple_groups_kernel<decltype(in), decltype(out)><<<grid, 128, 0, stream_of(native)>>>(p, native.fault);
    });
  });
}

bool rows_aligned(const void* data, std::int64_t stride, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride * size_of(dtype) % 16 == 0;
}

void multiply(const CudaNative& native, const GroupedProblem& p) {
  if (p.groups == 0) return;
  for (const std::int64_t size : {p.m, p.n, p.k, p.rows, p.groups}) {
    HAWSER_CHECK(size <= std::numeric_limits<std::int32_t>::max(), "grouped_gemm: a dim of ", size);
  }
  const bool hopper = native.limits.capability == 90;
  if (is_fp8(p.in)) {
    if (p.m > 0) hopper ? multiply_fp8_on_hopper(native, p) : multiply_fp8_with_mma(native, p);
    return;
  }
  const bool tensor_cores = p.in == DType::bf16 && (p.out == DType::bf16 || !p.by_rows) && p.m > 0 && p.n > 0 &&
                            p.k > 0 && rows_aligned(p.a, p.lda, p.in) && rows_aligned(p.b, p.ldb, p.in) &&
                            rows_aligned(p.c, p.ldc, p.out);
  if (tensor_cores && hopper) return multiply_on_hopper(native, p);
  const bool whole = p.n % 8 == 0 && (p.by_rows ? p.k : p.m) % 8 == 0;
  tensor_cores&& whole ? multiply_with_mma(native, p) : multiply_simply(native, p);
}

const float* floats(const TensorView& scale) {
  return scale.empty() ? nullptr : scale.data<float>();
}

}  // namespace

void grouped_gemm(const CudaNative& native, const GroupedGemm& args) {
  multiply(native, {.m = args.c.size(0),
                    .n = args.c.size(1),
                    .k = args.a.size(1),
                    .groups = args.b.size(0),
                    .rows = args.a.size(0),
                    .a = args.a.raw(),
                    .b = args.b.raw(),
                    .c = args.c.raw(),
                    .lda = args.a.stride(0),
                    .ldb = args.b.stride(1),
                    .ldc = args.c.stride(0),
                    .offsets = args.offsets.data<std::int32_t>(),
                    .scale_a = floats(args.scale_a),
                    .scale_b = floats(args.scale_b),
                    .scale_b_each = args.scale_b.elements() > 1,
                    .in = args.a.dtype(),
                    .out = args.c.dtype(),
                    .by_rows = true,
                    .transpose_b = args.transpose_b,
                    .accumulate = args.accumulate});
}

void grouped_weight_gradient(const CudaNative& native, const GroupedWeightGradient& args) {
  const std::int64_t rows = args.a.size(is_fp8(args.a.dtype()) ? 1 : 0);
  multiply(native, {.m = args.c.size(1),
                    .n = args.c.size(2),
                    .k = rows,
                    .groups = args.c.size(0),
                    .rows = rows,
                    .a = args.a.raw(),
                    .b = args.b.raw(),
                    .c = args.c.raw(),
                    .lda = args.a.stride(0),
                    .ldb = args.b.stride(0),
                    .ldc = args.c.stride(1),
                    .offsets = args.offsets.data<std::int32_t>(),
                    .scale_a = floats(args.scale_a),
                    .scale_b = floats(args.scale_b),
                    .scale_b_each = args.scale_b.elements() > 1,
                    .in = args.a.dtype(),
                    .out = args.c.dtype(),
                    .by_rows = false,
                    .accumulate = args.accumulate});
}

}  // namespace hawser::ops::cuda
