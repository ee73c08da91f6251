// Grouped GEMMs of bf16 operands.
#include "ops/gemm/grouped_kernel.cuh"

namespace hawser::ops::cuda {

void multiply_on_tensor_cores(const CudaNative& native, const GroupedProblem& p) {
  using cutlass::layout::ColumnMajor;
  using cutlass::layout::RowMajor;
  using In = cutlass::bfloat16_t;
  dispatch_float_as<float, cutlass::bfloat16_t>(p.out, [&](auto out) {
    using Out = decltype(out);
    if (!p.by_rows) return run_groups<false, In, In, Out, ColumnMajor, RowMajor>(native, p);
    if (p.transpose_b) return run_groups<true, In, In, Out, RowMajor, ColumnMajor>(native, p);
    run_groups<true, In, In, Out, RowMajor, RowMajor>(native, p);
  });
}

}  // namespace hawser::ops::cuda
