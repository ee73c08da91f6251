#include "ops/gemm/gemm_key.h"

namespace hawser::ops {

namespace {

constexpr auto kMixed = "mixed";

std::int64_t form_of(const float* scale, ScaleKind kind) {
  return scale == nullptr ? 0 : 1 + static_cast<std::int64_t>(kind);
}
ScaleKind kind_of(std::int64_t form) {
  return form == 0 ? ScaleKind::one : static_cast<ScaleKind>(form - 1);
}

}  // namespace

GemmKey gemm_key(const GemmProblem& p, bool aligned) {
  const std::int64_t bias = p.bias == nullptr ? 0 : 1 + static_cast<std::int64_t>(p.bias_dtype);
  return {.fields = {p.m, p.n, p.k, p.lda, p.ldb, p.ldc, static_cast<std::int64_t>(p.in_a),
                     static_cast<std::int64_t>(p.out), bias, p.transpose_a, p.transpose_b, p.accumulate, aligned},
          .in_b = static_cast<std::int64_t>(p.in_b),
          .scale_a = form_of(p.scale_a, p.scaling_a),
          .scale_b = form_of(p.scale_b, p.scaling_b)};
}

std::optional<GemmProblem> problem_of(const GemmKey& key) {
  const auto& [m, n, k, lda, ldb, ldc, in_a, out, bias, transpose_a, transpose_b, accumulate, aligned] = key.fields;
  constexpr auto kFloat = static_cast<std::int64_t>(DType::f32), kBf16 = static_cast<std::int64_t>(DType::bf16);
  const auto number = [&](std::int64_t dtype) { return dtype == kFloat || dtype == kBf16; };
  const auto fp8 = [](std::int64_t dtype) {
    return dtype == static_cast<std::int64_t>(DType::f8e4m3) || dtype == static_cast<std::int64_t>(DType::f8e5m2);
  };
  const auto flag = [](std::int64_t value) { return value == 0 || value == 1; };
  const bool of_fp8 = fp8(in_a) && fp8(key.in_b);
  if (!of_fp8 && (!number(in_a) || !number(key.in_b) || key.scale_a != 0 || key.scale_b != 0)) return std::nullopt;
  constexpr auto kForms = 1 + static_cast<std::int64_t>(ScaleKind::block128);
  for (const std::int64_t form : {key.scale_a, key.scale_b}) {
    if (form < 0 || form > kForms) return std::nullopt;
  }
  if (!number(out)) return std::nullopt;
  if (bias != 0 && !number(bias - 1)) return std::nullopt;
  if (!flag(transpose_a) || !flag(transpose_b) || !flag(accumulate) || !flag(aligned)) return std::nullopt;
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  for (const std::int64_t size : {m, n, k, lda, ldb, ldc}) {
    if (size <= 0 || size > kMost) return std::nullopt;
  }
  return GemmProblem{.m = m,
                     .n = n,
                     .k = k,
                     .lda = lda,
                     .ldb = ldb,
                     .ldc = ldc,
                     .in_a = static_cast<DType>(in_a),
                     .in_b = static_cast<DType>(key.in_b),
                     .out = static_cast<DType>(out),
                     .bias_dtype = bias == 0 ? DType::f32 : static_cast<DType>(bias - 1),
                     .transpose_a = transpose_a == 1,
                     .transpose_b = transpose_b == 1,
                     .accumulate = accumulate == 1,
                     .scaling_a = kind_of(key.scale_a),
                     .scaling_b = kind_of(key.scale_b)};
}

std::string to_text(const GemmKey& key) {
  std::string out;
  if (key.in_b != key.in_a() || key.scale_a != 0 || key.scale_b != 0) {
    out = cat(kMixed, ' ', key.in_b, ' ', key.scale_a, ' ', key.scale_b, ' ');
  }
  for (int i = 0; i < GemmKey::kFields; ++i) out += cat(i > 0 ? " " : "", key.fields[static_cast<std::size_t>(i)]);
  return out;
}

std::istream& read_key(std::istream& in, GemmKey& key) {
  key = {};
  const bool mixed = (in >> std::ws).peek() == kMixed[0];
  if (mixed) {
    std::string word;
    in >> word >> key.in_b >> key.scale_a >> key.scale_b;
    if (word != kMixed) in.setstate(std::ios::failbit);
  }
  for (std::int64_t& field : key.fields) in >> field;
  if (!mixed) key.in_b = key.in_a();
  return in;
}

}  // namespace hawser::ops
