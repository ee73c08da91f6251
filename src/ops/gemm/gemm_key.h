// `GemmKey`: what the choice of a GEMM's algorithm depends on (ops/gemm/gemm_cuda.cpp), and its text in a stored
// choice.
//
// The text is 13 integers: m n k lda ldb ldc dtype-of-a dtype-of-c bias transpose_a transpose_b accumulate aligned.
// A GEMM with two dtypes or with scales has "mixed" and 3 integers before them: dtype-of-b, form of scale_a, form of
// scale_b. So a line without "mixed", as earlier versions write, is a GEMM whose B has A's dtype, without scales; and
// earlier versions skip the lines that have it.
#pragma once

#include <array>
#include <istream>
#include <optional>
#include <string>

#include "ops/gemm/gemm_problem.h"

namespace hawser::ops {

struct GemmKey {
  static constexpr int kFields = 13;

  std::array<std::int64_t, kFields> fields{};
  std::int64_t in_b = 0;                  // DType
  std::int64_t scale_a = 0, scale_b = 0;  // 0: none, otherwise 1 + ScaleKind

  std::int64_t in_a() const { return fields[6]; }
  auto operator<=>(const GemmKey&) const = default;
};

// `aligned`: a, b and c start at multiples of 16 bytes.
GemmKey gemm_key(const GemmProblem& problem, bool aligned);
std::string to_text(const GemmKey& key);  // without a blank at the end
// The shapes and dtypes of a key and the kinds of its scales, with null pointers, those of scales, too; none if it is
// no key of a GEMM that can be, with scales only of FP8.
std::optional<GemmProblem> problem_of(const GemmKey& key);
// Reads what to_text() and earlier versions write. Sets the stream's failbit if it is no key.
std::istream& read_key(std::istream& in, GemmKey& key);

}  // namespace hawser::ops
