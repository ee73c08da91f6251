#include "ops/gemm/gemm_key.h"

namespace hawser::ops {

namespace {

constexpr auto kMixed = "mixed";

}  // namespace

GemmKey gemm_key(const GemmProblem& p, bool aligned) {
  const std::int64_t bias = p.bias == nullptr ? 0 : 1 + static_cast<std::int64_t>(p.bias_dtype);
  return {.fields = {p.m, p.n, p.k, p.lda, p.ldb, p.ldc, static_cast<std::int64_t>(p.in_a),
                     static_cast<std::int64_t>(p.out), bias, p.transpose_a, p.transpose_b, p.accumulate, aligned},
          .in_b = static_cast<std::int64_t>(p.in_b),
          .scale_a = p.scale_a == nullptr ? 0 : 1,
          .scale_b = p.scale_b == nullptr ? 0 : 1};
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
