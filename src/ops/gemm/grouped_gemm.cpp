#include "ops/gemm/grouped_gemm.h"

#include "ops/gemm/grouped_gemm_cpu.h"
#include "tensor/fp8.h"

namespace hawser::ops {

namespace {

// Groups of a call: offsets has one element more.
std::int64_t check_offsets(const char* op, const TensorView& offsets, std::int64_t groups) {
  expect(op, "offsets", offsets, {DType::i32}, {groups + 1});
  return groups;
}

template <class Args>
void check_apart(const char* op, const Args& args) {
  for (const TensorView& view : {args.a, args.b, args.offsets, args.scale_a, args.scale_b, args.workspace}) {
    expect_apart(op, args.c, view);
  }
  for (const TensorView& view : {args.a, args.b, args.offsets, args.scale_a, args.scale_b}) {
    expect_apart(op, args.workspace, view);
  }
}

// The dtypes of A and B, and their scales. True if they are FP8.
template <class Args>
bool check_dtypes(const char* op, const Args& args, std::int64_t groups) {
  const DType a = args.a.dtype(), b = args.b.dtype();
  const bool fp8 = is_fp8(a);
  constexpr bool kGradient = std::is_same_v<Args, GroupedWeightGradient>;
  HAWSER_CHECK(fp8 ? b == DType::f8e4m3 && (!kGradient || a == DType::f8e5m2) : a == b, op, ": ", to_string(a),
               " times ", to_string(b));
  HAWSER_CHECK(fp8 || (args.scale_a.empty() && args.scale_b.empty()), op, ": a scale of ", to_string(a));
  if (!args.scale_a.empty()) expect(op, "scale_a", args.scale_a, {DType::f32}, {1});
  if (!args.scale_b.empty()) {
    expect(op, "scale_b", args.scale_b, {DType::f32}, {args.scale_b.elements() == 1 ? 1 : groups});
  }
  return fp8;
}

// What the tensor cores need, checked on meta, too. ldb: of B as a matrix.
template <class Args>
void check_cuda(const char* op, const Args& args, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t ldb) {
  const auto aligned = [](const TensorView& view, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(view.raw()) % 16 == 0 && stride * size_of(view.dtype()) % 16 == 0;
  };
  const std::int64_t lda = args.a.stride(0), ldc = args.c.stride(args.c.rank() - 2);
  HAWSER_CHECK(m > 0 && n > 0 && k > 0 && aligned(args.a, lda) && aligned(args.b, ldb) && aligned(args.c, ldc), op,
               ": FP8 [", m, ", ", k, "] times [", k, ", ", n, "], rows ", lda, ", ", ldb, " and ", ldc,
               " elements apart: rows must start at multiples of 16 bytes, and no dim may be 0");
}

}  // namespace

void grouped_gemm(Stream& stream, const GroupedGemm& args) {
  constexpr auto kOp = "grouped_gemm";
  HAWSER_CHECK(args.a.rank() == 2 && args.b.rank() == 3 && args.c.rank() == 2, kOp, ": a ", args.a.shape().text(),
               ", b ", args.b.shape().text(), ", c ", args.c.shape().text());
  const std::int64_t rows = args.a.size(0), k = args.a.size(1), n = args.c.size(1);
  const std::int64_t groups = check_offsets(kOp, args.offsets, args.b.size(0));
  expect(kOp, "a", args.a, {DType::f32, DType::bf16, DType::f8e4m3, DType::f8e5m2}, {rows, k}, Rows::padded);
  const bool fp8 = check_dtypes(kOp, args, groups);
  HAWSER_CHECK(!fp8 || args.transpose_b, kOp, ": FP8 without transpose_b");
  expect(kOp, "b", args.b, {args.b.dtype()}, args.transpose_b ? Shape{groups, n, k} : Shape{groups, k, n});
  expect(kOp, "c", args.c, {DType::f32, DType::bf16}, {rows, n}, Rows::padded);
  if (fp8 && rows > 0 && stream.target() == DeviceKind::cuda) check_cuda(kOp, args, rows, n, k, args.b.stride(1));
  expect_workspace(kOp, args.workspace, grouped_gemm_workspace(args, stream.target()));
  check_apart(kOp, args);
  run(stream, {kOp, fp8 ? OpKind::gemm_fp8 : OpKind::gemm},
      {args.a, args.b, args.offsets, args.scale_a, args.scale_b, args.accumulate ? args.c : TensorView()},
      {args.c, args.workspace}, args.flops, args, HAWSER_BACKENDS(grouped_gemm));
}

void grouped_weight_gradient(Stream& stream, const GroupedWeightGradient& args) {
  constexpr auto kOp = "grouped_weight_gradient";
  HAWSER_CHECK(args.a.rank() == 2 && args.b.rank() == 2 && args.c.rank() == 3, kOp, ": a ", args.a.shape().text(),
               ", b ", args.b.shape().text(), ", c ", args.c.shape().text());
  const std::int64_t groups = check_offsets(kOp, args.offsets, args.c.size(0));
  const bool fp8 = check_dtypes(kOp, args, groups);
  const std::int64_t m = args.c.size(1), n = args.c.size(2), rows = args.a.size(fp8 ? 1 : 0);
  const auto operand = [&](std::int64_t columns) { return fp8 ? Shape{columns, rows} : Shape{rows, columns}; };
  expect(kOp, "a", args.a, {DType::f32, DType::bf16, DType::f8e4m3, DType::f8e5m2}, operand(m), Rows::padded);
  expect(kOp, "b", args.b, {args.b.dtype()}, operand(n), Rows::padded);
  expect(kOp, "c", args.c, {DType::f32, DType::bf16}, {groups, m, n});
  if (fp8 && stream.target() == DeviceKind::cuda) check_cuda(kOp, args, m, n, rows, args.b.stride(0));
  expect_workspace(kOp, args.workspace, grouped_gemm_workspace(args, stream.target()));
  check_apart(kOp, args);
  run(stream, {kOp, fp8 ? OpKind::gemm_fp8 : OpKind::gemm},
      {args.a, args.b, args.offsets, args.scale_a, args.scale_b, args.accumulate ? args.c : TensorView()},
      {args.c, args.workspace}, args.flops, args, HAWSER_BACKENDS(grouped_weight_gradient));
}

std::int64_t grouped_gemm_workspace(const GroupedGemm& args, DeviceKind target) {
  return target == DeviceKind::cuda ? 0 : cpu::grouped_workspace(args);
}

std::int64_t grouped_gemm_workspace(const GroupedWeightGradient& args, DeviceKind target) {
  return target == DeviceKind::cuda ? 0 : cpu::grouped_workspace(args);
}

}  // namespace hawser::ops
