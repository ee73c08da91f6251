// Grouped GEMMs of FP8 operands: both have their K contiguous.
#include "ops/gemm/grouped_kernel.cuh"

namespace hawser::ops::cuda {

void multiply_fp8_on_hopper(const CudaNative& native, const GroupedProblem& p) {
  using cutlass::layout::ColumnMajor;
  using cutlass::layout::RowMajor;
  using E4M3 = cutlass::float_e4m3_t;
  using E5M2 = cutlass::float_e5m2_t;
  dispatch_float_as<float, cutlass::bfloat16_t>(p.out, [&](auto out) {
    using Out = decltype(out);
    if (!p.by_rows) return run_groups<false, E5M2, E4M3, Out, RowMajor, ColumnMajor>(native, p);
    if (p.in == DType::f8e5m2) return run_groups<true, E5M2, E4M3, Out, RowMajor, ColumnMajor>(native, p);
    run_groups<true, E4M3, E4M3, Out, RowMajor, ColumnMajor>(native, p);
  });
}

}  // namespace hawser::ops::cuda
