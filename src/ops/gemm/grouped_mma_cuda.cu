// Grouped GEMMs of bf16 operands, on any tensor cores.
#include "ops/gemm/grouped_mma_kernel.cuh"

namespace hawser::ops::cuda {

void multiply_with_mma(const CudaNative& native, const GroupedProblem& p) {
  using cutlass::layout::ColumnMajor;
  using cutlass::layout::RowMajor;
  using In = cutlass::bfloat16_t;
  if (!p.by_rows) {
    return dispatch_float_as<float, In>(
        p.out, [&](auto out) { run_groups_with_mma<false, In, In, decltype(out), ColumnMajor, RowMajor>(native, p); });
  }
  if (p.transpose_b) return run_groups_with_mma<true, In, In, In, RowMajor, ColumnMajor>(native, p);
  run_groups_with_mma<true, In, In, In, RowMajor, RowMajor>(native, p);
}

}  // namespace hawser::ops::cuda
