// Each group is one or more GEMMs of gemm_cpu.h. oneDNN compiles a kernel for each shape, and the rows of a group can
// be any multiple of kGroupRows: blocks of rows have one of a few sizes.
#include "ops/gemm/grouped_gemm_cpu.h"

#include <algorithm>

#include "ops/cpu/parallel.h"
#include "ops/gemm/gemm_cpu.h"

namespace hawser::ops::cpu {

namespace {

constexpr std::int64_t kMaxBlock = 8 * kGroupRows;

const std::byte* at(const TensorView& view, std::int64_t row) {
  return view.raw() + row * view.stride(0) * size_of(view.dtype());
}

constexpr float kNoScale = 1;

// Of a group: a scale of one element is that of all groups. FP8 always has one, so that its workspace does not depend
// on whether it is given.
const float* scale_of(const TensorView& scale, DType dtype, std::int64_t group) {
  if (!is_fp8(dtype)) return nullptr;
  if (scale.empty()) return &kNoScale;
  return reinterpret_cast<const float*>(scale.raw()) + (scale.elements() == 1 ? 0 : group);
}

// The GEMM of `rows` rows from `row` of group `group`.
GemmProblem block_problem(const GroupedGemm& args, std::int64_t group, std::int64_t row, std::int64_t rows) {
  return {.m = rows,
          .n = args.c.size(1),
          .k = args.a.size(1),
          .a = at(args.a, row),
          .b = at(args.b, group),
          .c = const_cast<std::byte*>(at(args.c, row)),
          .scale_a = scale_of(args.scale_a, args.a.dtype(), 0),
          .scale_b = scale_of(args.scale_b, args.b.dtype(), group),
          .lda = args.a.stride(0),
          .ldb = args.b.stride(1),
          .ldc = args.c.stride(0),
          .in_a = args.a.dtype(),
          .in_b = args.b.dtype(),
          .out = args.c.dtype(),
          .transpose_b = args.transpose_b,
          .accumulate = args.accumulate};
}

// Of FP8, A^T and B^T are stored.
bool transposed(const GroupedWeightGradient& args) {
  return is_fp8(args.a.dtype());
}
std::int64_t gradient_rows(const GroupedWeightGradient& args) {
  return args.a.size(transposed(args) ? 1 : 0);
}

// A part of a group's sum: C += A^T B over `rows` rows from `row`, or C = A^T B for the first part.
GemmProblem block_problem(const GroupedWeightGradient& args, std::int64_t row, std::int64_t rows, void* c,
                          bool accumulate) {
  const auto from = [&](const TensorView& view) {
    return transposed(args) ? view.raw() + row * size_of(view.dtype()) : at(view, row);
  };
  return {.m = args.c.size(1),
          .n = args.c.size(2),
          .k = rows,
          .a = from(args.a),
          .b = from(args.b),
          .c = c,
          .lda = args.a.stride(0),
          .ldb = args.b.stride(0),
          .ldc = args.c.size(2),
          .in_a = args.a.dtype(),
          .in_b = args.b.dtype(),
          .out = DType::f32,
          .transpose_a = !transposed(args),
          .transpose_b = transposed(args),
          .accumulate = accumulate};
}

// The float32 sums of one group, of which C is the rounded or scaled value.
std::int64_t sums_bytes(const GroupedWeightGradient& args) {
  if (args.c.dtype() == DType::f32 && !transposed(args)) return 0;
  return round_up(args.c.size(1) * args.c.size(2) * size_of(DType::f32), 64);
}

template <class Problem>
std::int64_t largest_workspace(std::int64_t rows, const Problem& problem) {
  std::int64_t bytes = 0;
  for (std::int64_t block = kGroupRows; block <= std::min(kMaxBlock, rows); block += kGroupRows) {
    for (const bool accumulate : {false, true}) bytes = std::max(bytes, problem_workspace(problem(block, accumulate)));
  }
  return bytes;
}

// Calls body(group, begin, end) for each group after the offsets are checked.
template <class Body>
void for_each_group(const char* op, const TensorView& offsets, std::int64_t rows, const Body& body) {
  const auto* const at = offsets.data<std::int32_t>();
  const std::int64_t groups = offsets.size(0) - 1;
  HAWSER_CHECK(at[0] == 0, op, ": group 0 begins at row ", at[0]);
  for (std::int64_t g = 0; g < groups; ++g) {
    HAWSER_CHECK(at[g + 1] >= at[g] && at[g + 1] % kGroupRows == 0 && at[g + 1] <= rows, op, ": group ", g,
                 " has rows [", at[g], ", ", at[g + 1], ") of ", rows);
  }
  for (std::int64_t g = 0; g < groups; ++g) body(g, at[g], at[g + 1]);
}

template <class Body>
void for_each_block(std::int64_t begin, std::int64_t end, const Body& body) {
  for (std::int64_t row = begin; row < end; row += kMaxBlock) body(row, std::min(kMaxBlock, end - row));
}

// C (+)= scales * sums
void put_sums(const float* sums, const GroupedWeightGradient& args, std::int64_t group) {
  const TensorView& c = args.c;
  const bool accumulate = args.accumulate;
  const std::int64_t count = c.size(1) * c.size(2);
  const float factor = transposed(args)
                           ? *scale_of(args.scale_a, args.a.dtype(), 0) * *scale_of(args.scale_b, args.b.dtype(), group)
                           : 1.0f;
  dispatch_float(c.dtype(), [&](auto tag) {
    auto* const to = c.data<decltype(tag)>() + group * count;
    parallel_pieces(count, 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<decltype(tag)>(factor * sums[i] + (accumulate ? static_cast<float>(to[i]) : 0.0f));
      }
    });
  });
}

}  // namespace

std::int64_t grouped_workspace(const GroupedGemm& args) {
  return largest_workspace(args.a.size(0), [&](std::int64_t rows, bool) { return block_problem(args, 0, 0, rows); });
}

std::int64_t grouped_workspace(const GroupedWeightGradient& args) {
  return sums_bytes(args) + largest_workspace(gradient_rows(args), [&](std::int64_t rows, bool accumulate) {
           return block_problem(args, 0, rows, nullptr, accumulate);
         });
}

void grouped_gemm(const GroupedGemm& args) {
  for_each_group("grouped_gemm", args.offsets, args.a.size(0), [&](auto group, auto begin, auto end) {
    for_each_block(begin, end, [&](std::int64_t row, std::int64_t rows) {
      multiply(block_problem(args, group, row, rows), args.workspace.raw(),
               args.workspace.empty() ? 0 : args.workspace.bytes());
    });
  });
}

void grouped_weight_gradient(const GroupedWeightGradient& args) {
  const std::int64_t bytes = args.workspace.empty() ? 0 : args.workspace.bytes(), own = sums_bytes(args);
  const std::int64_t group_elements = args.c.size(1) * args.c.size(2);
  for_each_group("grouped_weight_gradient", args.offsets, gradient_rows(args), [&](auto group, auto begin, auto end) {
    auto* const sums = own > 0 ? reinterpret_cast<float*>(args.workspace.raw())
                               : args.c.template data<float>() + group * group_elements;
    bool accumulate = own == 0 && args.accumulate;
    if (begin == end && !accumulate) {
      if (own > 0 && args.accumulate) return;
      std::fill_n(sums, group_elements, 0.0f);
    }
    for_each_block(begin, end, [&](std::int64_t row, std::int64_t rows) {
      multiply(block_problem(args, row, rows, sums, accumulate), args.workspace.raw() + own, bytes - own);
      accumulate = true;
    });
    if (own > 0) put_sums(sums, args, group);
  });
}

}  // namespace hawser::ops::cpu
