#include "ops/gemm/gemm.h"

#include "ops/gemm/gemm_cpu.h"
#include "ops/gemm/gemm_cuda.h"

namespace hawser::ops {

namespace {

struct Sizes {
  std::int64_t m, n, k;
};

Sizes check(const Gemm& args) {
  HAWSER_CHECK(args.a.rank() == 2 && args.b.rank() == 2 && args.c.rank() == 2, "gemm: a ", args.a.shape().text(),
               ", b ", args.b.shape().text(), ", c ", args.c.shape().text(), " are not all matrices");
  const Sizes s{args.c.size(0), args.c.size(1), args.a.size(args.transpose_a ? 0 : 1)};
  const Shape a = args.transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k};
  const Shape b = args.transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n};
  HAWSER_CHECK(args.a.shape() == a && args.b.shape() == b, "gemm: a ", args.a.shape().text(),
               args.transpose_a ? " transposed" : "", " times b ", args.b.shape().text(),
               args.transpose_b ? " transposed" : "", " does not give c ", args.c.shape().text());
  return s;
}

GemmProblem problem(const Gemm& args) {
  const Sizes s = check(args);
  return {.m = s.m,
          .n = s.n,
          .k = s.k,
          .a = args.a.raw(),
          .b = args.b.raw(),
          .c = args.c.raw(),
          .bias = args.bias.raw(),
          .scale_a = reinterpret_cast<const float*>(args.scale_a.raw()),
          .scale_b = reinterpret_cast<const float*>(args.scale_b.raw()),
          .lda = args.a.stride(0),
          .ldb = args.b.stride(0),
          .ldc = args.c.stride(0),
          .in_a = args.a.dtype(),
          .in_b = args.b.dtype(),
          .out = args.c.dtype(),
          .bias_dtype = args.bias.dtype(),
          .transpose_a = args.transpose_a,
          .transpose_b = args.transpose_b,
          .accumulate = args.accumulate,
          .scaling_a = args.scaling_a,
          .scaling_b = args.scaling_b};
}

void check_scale(const char* name, const TensorView& scale, ScaleKind kind, const TensorView& matrix) {
  HAWSER_CHECK(!scale.empty() || kind == ScaleKind::one, "gemm: no ", name, ", but ", to_string(kind));
  if (scale.empty()) return;
  expect("gemm", name, scale, {DType::f32}, scale_shape(kind, matrix.size(0), matrix.size(1)));
}

// cuBLASLt's limits. The dtypes of the plan are those of the run: it rejects on meta what the GPU would.
void check_cuda(const GemmProblem& p) {
  HAWSER_CHECK(supports_dtypes_cuda(p), "gemm: ", to_string(p.in_a), " times ", to_string(p.in_b),
               " has no backend for cuda");
  HAWSER_CHECK(!p.scaled() || p.fp8(), "gemm: a scale of ", to_string(p.in_a), " has no backend for cuda");
  HAWSER_CHECK(supports_scales_cuda(p), "gemm: FP8 with ", to_string(p.scaling_a), " times ", to_string(p.scaling_b),
               " has no backend for cuda");
  HAWSER_CHECK(!p.scales_blocks() || p.m % 8 == 0, "gemm: FP8 with scales of blocks and ", p.m,
               " rows, which must be a multiple of 8");
  HAWSER_CHECK(!p.fp8() || (p.transpose_b && !p.transpose_a), "gemm: FP8 with rows of A and of B along K only");
  HAWSER_CHECK(!p.fp8() || (p.k % 16 == 0 && p.lda % 16 == 0 && p.ldb % 16 == 0 && p.n % 8 == 0), "gemm: FP8 [", p.m,
               ", ", p.k, "] times [", p.k, ", ", p.n, "], rows ", p.lda, " and ", p.ldb,
               " apart: K and the rows must be multiples of 16, N of 8");
  for (const float* const scale : {p.scale_a, p.scale_b}) {
    HAWSER_CHECK(reinterpret_cast<std::uintptr_t>(scale) % 16 == 0,
                 "gemm: a scale of FP8 that is not aligned to 16 bytes");
  }
}

}  // namespace

void gemm(Stream& stream, const Gemm& args) {
  const GemmProblem p = problem(args);
  const auto inputs = {DType::f32, DType::bf16, DType::f8e4m3, DType::f8e5m2};
  expect("gemm", "a", args.a, inputs, args.a.shape(), Rows::padded);
  expect("gemm", "b", args.b, inputs, args.b.shape(), Rows::padded);
  expect("gemm", "c", args.c, {DType::f32, DType::bf16}, args.c.shape(), Rows::padded);
  if (!args.bias.empty()) expect("gemm", "bias", args.bias, {DType::f32, DType::bf16}, {p.n});
  check_scale("scale_a", args.scale_a, args.scaling_a, args.a);
  check_scale("scale_b", args.scale_b, args.scaling_b, args.b);
  if (stream.target() == DeviceKind::cuda) check_cuda(p);
  for (const TensorView& view : {args.a, args.b, args.bias, args.scale_a, args.scale_b}) {
    expect_apart("gemm", args.c, view);
  }
  expect_workspace("gemm", args.workspace, gemm_workspace(args, stream.target()));
  const OpKind kind = !p.fp8() ? OpKind::gemm : p.scales_blocks() ? OpKind::gemm_fp8_block : OpKind::gemm_fp8;
  run(stream, {"gemm", kind},
      {args.a, args.b, args.bias, args.scale_a, args.scale_b, args.accumulate ? args.c : TensorView()},
      {args.c, args.workspace}, 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k),
      GemmCall{.problem = p,
               .workspace = args.workspace.raw(),
               .workspace_bytes = args.workspace.empty() ? 0 : args.workspace.bytes()},
      HAWSER_BACKENDS(gemm));
}

std::int64_t gemm_workspace(const Gemm& args, DeviceKind target) {
  return target == DeviceKind::cuda ? 0 : cpu::problem_workspace(problem(args));
}

#ifdef HAWSER_CUDA

void gemm_prepare(Stream& stream, const Gemm& args) {
  if (stream.kind() == DeviceKind::cuda) cuda::prepare(*stream.native(), problem(args));
}

std::string gemm_choices(Stream& stream) {
  return stream.kind() == DeviceKind::cuda ? cuda::choices(*stream.native()) : std::string();
}

std::int64_t gemm_take_choices(Stream& stream, const std::string& text, bool keep) {
  return stream.kind() == DeviceKind::cuda ? cuda::take_choices(*stream.native(), text, keep) : 0;
}

#else

void gemm_prepare(Stream&, const Gemm&) {}
std::string gemm_choices(Stream&) {
  return {};
}
std::int64_t gemm_take_choices(Stream&, const std::string&, bool) {
  return 0;
}

#endif

void bias_gradient(Stream& stream, const BiasGradient& args) {
  constexpr auto kOp = "bias_gradient";
  HAWSER_CHECK(args.dy.rank() == 2, kOp, ": dy must be a matrix");
  expect(kOp, "dy", args.dy, {DType::f32, DType::bf16}, args.dy.shape(), Rows::padded);
  expect(kOp, "db", args.db, {DType::f32, DType::bf16}, {args.dy.size(1)});
  expect_apart(kOp, args.dy, args.db);
  if (!args.scale.empty()) {
    expect(kOp, "scale", args.scale, {DType::f32}, {1});
    expect_apart(kOp, args.scale, args.db);
  }
  run(stream, {kOp, OpKind::elementwise}, {args.dy, args.scale, args.accumulate ? args.db : TensorView()}, {args.db},
      static_cast<double>(args.dy.elements()), args, HAWSER_BACKENDS(bias_gradient));
}

}  // namespace hawser::ops
