#include "ops/gemm/grouped_gemm.h"

#include "ops/gemm/grouped_gemm_cpu.h"

namespace hawser::ops {

namespace {

// Groups of a call: offsets has one element more.
std::int64_t check_offsets(const char* op, const TensorView& offsets, std::int64_t groups) {
  expect(op, "offsets", offsets, {DType::i32}, {groups + 1});
  return groups;
}

void check_apart(const char* op, const TensorView& c, const TensorView& a, const TensorView& b,
                 const TensorView& offsets, const TensorView& workspace) {
  for (const TensorView& view : {a, b, offsets, workspace}) expect_apart(op, c, view);
  for (const TensorView& view : {a, b, offsets}) expect_apart(op, workspace, view);
}

}  // namespace

void grouped_gemm(Stream& stream, const GroupedGemm& args) {
  constexpr auto kOp = "grouped_gemm";
  HAWSER_CHECK(args.a.rank() == 2 && args.b.rank() == 3 && args.c.rank() == 2, kOp, ": a ", args.a.shape().text(),
               ", b ", args.b.shape().text(), ", c ", args.c.shape().text());
  const std::int64_t rows = args.a.size(0), k = args.a.size(1), n = args.c.size(1);
  const std::int64_t groups = check_offsets(kOp, args.offsets, args.b.size(0));
  expect(kOp, "a", args.a, {DType::f32, DType::bf16}, {rows, k}, Rows::padded);
  expect(kOp, "b", args.b, {args.a.dtype()}, args.transpose_b ? Shape{groups, n, k} : Shape{groups, k, n});
  expect(kOp, "c", args.c, {DType::f32, DType::bf16}, {rows, n}, Rows::padded);
  expect_workspace(kOp, args.workspace, grouped_gemm_workspace(args, stream.target()));
  check_apart(kOp, args.c, args.a, args.b, args.offsets, args.workspace);
  run(stream, {kOp, OpKind::gemm}, {args.a, args.b, args.offsets, args.accumulate ? args.c : TensorView()},
      {args.c, args.workspace}, args.flops, args, HAWSER_BACKENDS(grouped_gemm));
}

void grouped_weight_gradient(Stream& stream, const GroupedWeightGradient& args) {
  constexpr auto kOp = "grouped_weight_gradient";
  HAWSER_CHECK(args.a.rank() == 2 && args.b.rank() == 2 && args.c.rank() == 3, kOp, ": a ", args.a.shape().text(),
               ", b ", args.b.shape().text(), ", c ", args.c.shape().text());
  const std::int64_t rows = args.a.size(0), m = args.a.size(1), n = args.b.size(1);
  const std::int64_t groups = check_offsets(kOp, args.offsets, args.c.size(0));
  expect(kOp, "a", args.a, {DType::f32, DType::bf16}, {rows, m}, Rows::padded);
  expect(kOp, "b", args.b, {args.a.dtype()}, {rows, n}, Rows::padded);
  expect(kOp, "c", args.c, {DType::f32, DType::bf16}, {groups, m, n});
  expect_workspace(kOp, args.workspace, grouped_gemm_workspace(args, stream.target()));
  check_apart(kOp, args.c, args.a, args.b, args.offsets, args.workspace);
  run(stream, {kOp, OpKind::gemm}, {args.a, args.b, args.offsets, args.accumulate ? args.c : TensorView()},
      {args.c, args.workspace}, args.flops, args, HAWSER_BACKENDS(grouped_weight_gradient));
}

std::int64_t grouped_gemm_workspace(const GroupedGemm& args, DeviceKind target) {
  return target == DeviceKind::cuda ? 0 : cpu::grouped_workspace(args);
}

std::int64_t grouped_gemm_workspace(const GroupedWeightGradient& args, DeviceKind target) {
  return target == DeviceKind::cuda ? 0 : cpu::grouped_workspace(args);
}

}  // namespace hawser::ops
