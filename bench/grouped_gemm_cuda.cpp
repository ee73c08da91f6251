// Benchmark of GEMMs over groups of rows at the shapes of Mixtral-8x7B's experts (8 experts, top-2, 16,384 tokens),
// relative to cuBLASLt's dense GEMM of equal FLOPs.
//
//   ninja bench_grouped_gemm_cuda && ./bench_grouped_gemm_cuda [part of a line's name]
//
// Both run alternately with a cold cache; times are medians. The dense GEMM uses the algorithm chosen by measurement.
// Before it is timed, each grouped GEMM is compared with dense GEMMs of its groups: `error` is the largest difference
// relative to the largest value, of a few rows of each group.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cuda_bench.h"
#include "ops/copy/copy.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/grouped_gemm.h"
#include "ops/quantize/quantize.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::ops {
namespace {

constexpr std::int64_t kT = 16384, kC = 4096, kF = 14336, kTop = 2, kExperts = 8;
constexpr std::int64_t kRows = kTop * kT + kExperts * kGroupRows;  // space for padding of every group

struct Routing {
  const char* name;
  std::vector<double> parts;  // of the tokens, for each expert
};

// Ends of the groups: rounded up to kGroupRows.
std::vector<std::int32_t> offsets_of(const Routing& routing) {
  std::vector<std::int32_t> out{0};
  for (const double part : routing.parts) {
    const auto rows = static_cast<std::int64_t>(part * static_cast<double>(kTop * kT));
    out.push_back(out.back() + static_cast<std::int32_t>(ceil_div(rows, kGroupRows) * kGroupRows));
  }
  return out;
}

class Bench : public CudaBench {
 public:
  using CudaBench::CudaBench;

  // Random numbers, rounded with the scale that scale() has.
  TensorView normal_fp8(DType dtype, const Shape& shape) {
    const TensorView q = empty(dtype, shape), x = normal(DType::bf16, shape);
    quantize(stream(), {.x = x, .scale = scale(), .q = q});
    return q;
  }
  TensorView scale() {
    const TensorView view = empty(DType::f32, {1});
    fill(stream(), {.y = view, .value = 1.0 / 64});
    return view;
  }

  std::vector<float> row(const TensorView& view) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(view.bytes()));
    transfer(stream(), bytes.data(), view.raw(), view.bytes());
    stream().synchronize();
    std::vector<float> out;
    dispatch_float(view.dtype(), [&](auto tag) {
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(tag)) {
        decltype(tag) value;
        std::memcpy(&value, &bytes[at], sizeof(value));
        out.push_back(static_cast<float>(value));
      }
    });
    return out;
  }

  void line(const std::string& name, double flops, double error, const std::function<void()>& grouped,
            const Gemm& dense) {
    gemm_prepare(stream(), dense);
    std::vector<float> ours, theirs;
    for (int i = 0; i < 13; ++i) {
      const float one = cold(stream(), grouped), other = cold(stream(), [&] { gemm(stream(), dense); });
      if (i < 2) continue;
      ours.push_back(one);
      theirs.push_back(other);
    }
    const double ms = median(ours), dense_ms = median(theirs);
    std::printf("%-50s %8.3f ms %5.0f TFLOP/s   dense %8.3f ms %5.0f TFLOP/s   %.3f of dense   error %.1e\n",
                name.c_str(), ms, flops / ms * 1e-9, dense_ms, flops / dense_ms * 1e-9, dense_ms / ms, error);
    std::fflush(stdout);
  }
};

double difference(const std::vector<float>& got, const std::vector<float>& expected) {
  double largest = 1e-30, out = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    const double apart = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    out = std::isfinite(apart) ? std::max(out, apart) : INFINITY;
  }
  return out / largest;
}

TensorView matrix(const TensorView& view, std::int64_t group) {
  return view.rows(group, 1).reshape({view.size(1), view.size(2)});
}

// y = x W^T and dx = dy W.
void rows(Bench& b, const std::string& name, const Routing& routing, std::int64_t n, std::int64_t k, bool transpose_b) {
  if (!b.wanted(name)) return;
  const auto act = DType::bf16;
  const auto offsets = offsets_of(routing);
  const std::int64_t used = offsets.back();
  const Shape weights = transpose_b ? Shape{kExperts, n, k} : Shape{kExperts, k, n};
  const GroupedGemm args{.a = b.normal(act, {kRows, k}),
                         .b = b.normal(act, weights),
                         .c = b.empty(act, {kRows, n}),
                         .offsets = b.numbers(offsets, {kExperts + 1}),
                         .transpose_b = transpose_b};
  grouped_gemm(b.stream(), args);
  double error = 0;
  const TensorView part = b.empty(act, {kGroupRows, n});
  for (std::size_t g = 0; g < kExperts; ++g) {
    for (const std::int64_t at : {std::int64_t{offsets[g]}, offsets[g + 1] - kGroupRows}) {
      if (offsets[g] == offsets[g + 1]) continue;
      gemm(b.stream(), {.a = args.a.rows(at, kGroupRows),
                        .b = matrix(args.b, static_cast<std::int64_t>(g)),
                        .c = part,
                        .transpose_b = transpose_b});
      for (const std::int64_t r : {std::int64_t{0}, std::int64_t{77}, kGroupRows - 1}) {
        error = std::max(error, difference(b.row(args.c.rows(at + r, 1)), b.row(part.rows(r, 1))));
      }
    }
  }
  const double flops = 2.0 * static_cast<double>(used) * static_cast<double>(n) * static_cast<double>(k);
  b.line(name, flops, error, [&] { grouped_gemm(b.stream(), args); },
         {.a = args.a.rows(0, used), .b = matrix(args.b, 0), .c = args.c.rows(0, used), .transpose_b = transpose_b});
  b.clear();
}

// dW = dy^T x.
void weights(Bench& b, const std::string& name, const Routing& routing, std::int64_t m, std::int64_t n, DType out,
             bool accumulate) {
  if (!b.wanted(name)) return;
  const auto act = DType::bf16;
  const auto offsets = offsets_of(routing);
  const std::int64_t used = offsets.back();
  GroupedWeightGradient args{.a = b.normal(act, {kRows, m}),
                             .b = b.normal(act, {kRows, n}),
                             .c = b.empty(out, {kExperts, m, n}),
                             .offsets = b.numbers(offsets, {kExperts + 1})};
  grouped_weight_gradient(b.stream(), args);
  double error = 0;
  const TensorView part = b.normal(out, {m, n});
  for (std::size_t g = 0; g < kExperts; ++g) {
    const std::int64_t at = offsets[g], count = offsets[g + 1] - at;
    gemm(b.stream(), {.a = args.a.rows(at, count), .b = args.b.rows(at, count), .c = part, .transpose_a = true});
    const TensorView got = matrix(args.c, static_cast<std::int64_t>(g));
    for (const std::int64_t r : {std::int64_t{0}, std::int64_t{77}, m - 1}) {
      error = std::max(error, difference(b.row(got.rows(r, 1)), b.row(part.rows(r, 1))));
    }
  }
  args.accumulate = accumulate;
  const double flops = 2.0 * static_cast<double>(used) * static_cast<double>(m) * static_cast<double>(n);
  b.line(
      name, flops, error, [&] { grouped_weight_gradient(b.stream(), args); },
      {.a = args.a.rows(0, used), .b = args.b.rows(0, used), .c = part, .transpose_a = true, .accumulate = accumulate});
  b.clear();
}

// The same in FP8, where each operand has its K contiguous; the dense GEMMs have the same scales.
void rows_fp8(Bench& b, const std::string& name, const Routing& routing, std::int64_t n, std::int64_t k, DType a) {
  if (!b.wanted(name)) return;
  const auto offsets = offsets_of(routing);
  const std::int64_t used = offsets.back();
  const TensorView scale = b.scale();
  const GroupedGemm args{.a = b.normal_fp8(a, {kRows, k}),
                         .b = b.normal_fp8(DType::f8e4m3, {kExperts * n, k}).reshape({kExperts, n, k}),
                         .c = b.empty(DType::bf16, {kRows, n}),
                         .offsets = b.numbers(offsets, {kExperts + 1}),
                         .transpose_b = true,
                         .scale_a = scale,
                         .scale_b = scale};
  grouped_gemm(b.stream(), args);
  const auto dense = [&](std::int64_t at, std::int64_t count, std::int64_t group, const TensorView& c) {
    return Gemm{.a = args.a.rows(at, count),
                .b = matrix(args.b, group),
                .c = c,
                .transpose_b = true,
                .scale_a = scale,
                .scale_b = scale};
  };
  double error = 0;
  const TensorView part = b.empty(DType::bf16, {kGroupRows, n});
  for (std::size_t g = 0; g < kExperts; ++g) {
    if (offsets[g] == offsets[g + 1]) continue;
    const std::int64_t at = offsets[g + 1] - kGroupRows;
    gemm(b.stream(), dense(at, kGroupRows, static_cast<std::int64_t>(g), part));
    for (const std::int64_t r : {std::int64_t{0}, std::int64_t{77}, kGroupRows - 1}) {
      error = std::max(error, difference(b.row(args.c.rows(at + r, 1)), b.row(part.rows(r, 1))));
    }
  }
  const double flops = 2.0 * static_cast<double>(used) * static_cast<double>(n) * static_cast<double>(k);
  b.line(
      name, flops, error, [&] { grouped_gemm(b.stream(), args); }, dense(0, used, 0, args.c.rows(0, used)));
  b.clear();
}

void weights_fp8(Bench& b, const std::string& name, const Routing& routing, std::int64_t m, std::int64_t n, DType out,
                 bool accumulate) {
  if (!b.wanted(name)) return;
  const auto offsets = offsets_of(routing);
  const std::int64_t used = offsets.back();
  const TensorView scale = b.scale();
  GroupedWeightGradient args{.a = b.normal_fp8(DType::f8e5m2, {m, kRows}),
                             .b = b.normal_fp8(DType::f8e4m3, {n, kRows}),
                             .c = b.empty(out, {kExperts, m, n}),
                             .offsets = b.numbers(offsets, {kExperts + 1}),
                             .scale_a = scale,
                             .scale_b = scale};
  grouped_weight_gradient(b.stream(), args);
  const TensorView part = b.normal(out, {m, n});
  const auto dense = [&](std::int64_t at, std::int64_t count, bool adds) {
    return Gemm{.a = args.a.columns(at, count),
                .b = args.b.columns(at, count),
                .c = part,
                .transpose_b = true,
                .accumulate = adds,
                .scale_a = scale,
                .scale_b = scale};
  };
  double error = 0;
  for (std::size_t g = 0; g < kExperts; ++g) {
    if (offsets[g] == offsets[g + 1]) continue;
    gemm(b.stream(), dense(offsets[g], offsets[g + 1] - offsets[g], false));
    const TensorView got = matrix(args.c, static_cast<std::int64_t>(g));
    for (const std::int64_t r : {std::int64_t{0}, std::int64_t{77}, m - 1}) {
      error = std::max(error, difference(b.row(got.rows(r, 1)), b.row(part.rows(r, 1))));
    }
  }
  args.accumulate = accumulate;
  const double flops = 2.0 * static_cast<double>(used) * static_cast<double>(m) * static_cast<double>(n);
  b.line(
      name, flops, error, [&] { grouped_weight_gradient(b.stream(), args); }, dense(0, used, accumulate));
  b.clear();
}

void all(Bench& b) {
  const std::vector<Routing> routings{
      {"equal groups", std::vector<double>(kExperts, 1.0 / kExperts)},
      {"unequal groups", {0.30, 0.02, 0.20, 0.05, 0.10, 0.13, 0.0, 0.20}},
  };
  for (const Routing& routing : routings) {
    struct Linear {
      const char* name;
      std::int64_t out, in;
    };
    for (const Linear& l : {Linear{"gate+up", 2 * kF, kC}, {"down", kC, kF}}) {
      const auto name = [&](const char* form) { return cat(l.name, " ", form, ", ", routing.name); };
      rows(b, name("fprop"), routing, l.out, l.in, true);
      rows(b, name("dgrad"), routing, l.in, l.out, false);
      weights(b, name("wgrad to bfloat16"), routing, l.out, l.in, DType::bf16, false);
      weights(b, name("wgrad to float32"), routing, l.out, l.in, DType::f32, false);
      weights(b, name("wgrad, adding to float32"), routing, l.out, l.in, DType::f32, true);
      rows_fp8(b, name("FP8 fprop"), routing, l.out, l.in, DType::f8e4m3);
      rows_fp8(b, name("FP8 dgrad"), routing, l.in, l.out, DType::f8e5m2);
      weights_fp8(b, name("FP8 wgrad to bfloat16"), routing, l.out, l.in, DType::bf16, false);
      weights_fp8(b, name("FP8 wgrad, adding to float32"), routing, l.out, l.in, DType::f32, true);
    }
  }
}

}  // namespace
}  // namespace hawser::ops

int main(int argc, char** argv) {
  using namespace hawser;
  using namespace hawser::ops;
  try {
    Bench bench(argc > 1 ? argv[1] : "");
    std::printf("%s\n", cuda_info().name.c_str());
    all(bench);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
