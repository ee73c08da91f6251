// Attention on each kind of bf16 units that the CPU has, and on none.
#include "ops/attention/attention_bf16_cpu.h"
#include "ops/testing/attention_reference.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace attention_bf16_cases {

using namespace testing;

// Calls body for each kind of bf16 units of this CPU.
template <class Body>
void for_each_units(const Body& body) {
  const Bf16Units best = best_bf16_units();
  for (const Bf16Units units : {Bf16Units::none, Bf16Units::avx512_bf16, Bf16Units::amx}) {
    if (units > best) continue;
    SCOPED_TRACE(cat("bf16 units ", static_cast<int>(units)));
    set_bf16_units(units);
    body(units);
  }
  set_bf16_units(best);
}

Problem problem(const std::string& name, std::int64_t rows, std::int64_t hq, std::int64_t hkv, std::int64_t d,
                std::vector<Row> segments, bool causal = true, std::int64_t window = 0, std::int64_t pad = 0) {
  return {name, rows, rows, hq, hkv, d, std::move(segments), causal, window, DType::bf16, pad};
}

std::vector<Problem> problems() {
  std::vector<Problem> out{
      problem("two rows", 2, 1, 1, 8, {{0, 2, 0, 2, 0, 0}}),
      problem("one tile", 32, 2, 1, 32, {{0, 32, 0, 32, 0, 0}}),
      problem("one row more than a tile", 33, 2, 2, 64, {{0, 33, 0, 33, 0, 0}}, true, 0, 2),
      problem("several key blocks", 421, 3, 1, 64, {{0, 421, 0, 421, 0, 0}}),
      problem("a group of nine", 150, 9, 1, 32, {{0, 150, 0, 150, 0, 0}}, true, 0, 16),
      problem("odd head dim", 131, 2, 1, 33, {{0, 131, 0, 131, 0, 0}}, true, 0, 3),
      problem("head dim 80", 97, 2, 2, 80, {{0, 97, 0, 97, 0, 0}}),
      problem("head dim 128", 200, 2, 1, 128, {{0, 200, 0, 200, 0, 0}}),
      problem("head dim 256", 70, 1, 1, 256, {{0, 70, 0, 70, 0, 0}}),
      problem("ragged documents", 390, 4, 2, 64,
              {{0, 1, 0, 1, 0, 0},
               {1, 95, 1, 95, 0, 0},
               {96, 201, 96, 201, 0, 0},
               {297, 3, 297, 3, 0, 0},
               {300, 90, 300, 90, 0, 0}}),
      problem("window", 300, 2, 1, 64, {{0, 300, 0, 300, 0, 0}}, true, 37),
      problem("window without causal", 260, 2, 2, 48, {{0, 250, 0, 260, 40, 0}}, false, 25),
      problem("full", 230, 2, 1, 64, {{0, 230, 0, 230, 0, 0}}, false),
      problem("shared keys", 400, 3, 3, 32, {{0, 70, 10, 300, 0, 0}, {100, 50, 250, 150, 0, 0}}, false),
      problem("rows without keys", 64, 1, 1, 32, {{8, 10, 0, 0, 0, 0}, {40, 20, 5, 20, 0, 0}}),
  };
  Problem late = problem("queries behind their keys", 40, 2, 1, 64, {{0, 40, 0, 260, 220, 0}});
  late.tk = 260;
  out.push_back(late);
  Problem early = problem("queries before their keys", 100, 2, 1, 32, {{0, 100, 0, 80, 30, 60}});
  early.tk = 80;
  out.push_back(early);
  return out;
}

TEST(AttentionBf16, AgreesWithFloat64) {
  for (const Problem& p : problems()) {
    const Tensors x(p);
    Magnitudes terms;
    const Outputs expected = reference(p, x, nullptr, &terms);
    Outputs old;
    old.dq = random_values(static_cast<std::int64_t>(x.q.size()), 21, DType::bf16);
    old.dk = random_values(static_cast<std::int64_t>(x.k.size()), 22, DType::bf16);
    old.dv = random_values(static_cast<std::int64_t>(x.v.size()), 23, DType::bf16);
    for_each_units([&](Bf16Units units) {
      // attention_cases.cpp checks the kernels for float32 with bf16 operands.
      if (units == Bf16Units::none && best_bf16_units() != Bf16Units::none) return;
      check_case({cat("forward ", p.name),
                  [&](World& world) -> std::vector<Values> {
                    const AttentionCall args = forward_args(world, p, x);
                    attention_forward(world.stream(), args);
                    return {world.values(args.o), world.values(args.lse)};
                  },
                  {expected.o, expected.lse},
                  kBf16Tolerance,
                  {terms.o}});
      const auto backward = [&](const Outputs& before) {
        const auto sum = [&](const Values& a, const Values& b) { return b.empty() ? a : plus(a, b); };
        check_case({cat("backward ", p.name),
                    [&](World& world) -> std::vector<Values> {
                      const AttentionBackward args =
                          backward_args(world, p, x, expected, {.gradient = DType::bf16}, before);
                      attention_backward(world.stream(), args);
                      return {world.values(args.dq), world.values(args.dk), world.values(args.dv)};
                    },
                    {sum(expected.dq, before.dq), sum(expected.dk, before.dk), sum(expected.dv, before.dv)},
                    kBf16Tolerance,
                    {terms.dq, terms.dk, terms.dv}});
      };
      backward({});
      backward(old);
    });
  }
}

// log-sum-exp is float32 and not affected by the rounding of operands.
TEST(AttentionBf16, LogSumExpHasFloat32Accuracy) {
  const Problem p = problems()[3];
  const Tensors x(p);
  const Outputs expected = reference(p, x);
  for_each_units([&](Bf16Units) {
    World world(DeviceKind::cpu, 2);
    const AttentionCall args = forward_args(world, p, x);
    attention_forward(world.stream(), args);
    expect_close(world.values(args.lse), expected.lse, 4e-6, "lse");
  });
}

// Rows that are in no segment may be undefined.
TEST(AttentionBf16, DoesNotReadRowsOutsideTheSegments) {
  const Problem p = problem("gaps", 300, 2, 1, 64, {{10, 90, 10, 90, 0, 0}, {130, 120, 130, 120, 0, 0}});
  Tensors x(p);
  const Outputs expected = reference(p, x);
  for (std::int64_t t = 0; t < p.tq; ++t) {
    if ((t >= 10 && t < 100) || (t >= 130 && t < 250)) continue;
    for (Values* values : {&x.q, &x.k, &x.v, &x.d_o}) {
      const std::int64_t columns = static_cast<std::int64_t>(values->size()) / p.tq;
      std::fill_n(values->begin() + t * columns, columns, std::numeric_limits<double>::quiet_NaN());
    }
  }
  for_each_units([&](Bf16Units) {
    World world(DeviceKind::cpu, 2);
    const AttentionCall forward = forward_args(world, p, x);
    attention_forward(world.stream(), forward);
    expect_close(world.values(forward.o), expected.o, kBf16Tolerance, "o");
    const AttentionBackward backward = backward_args(world, p, x, expected, {.gradient = DType::bf16});
    attention_backward(world.stream(), backward);
    expect_close(world.values(backward.dq), expected.dq, kBf16Tolerance, "dq");
    expect_close(world.values(backward.dk), expected.dk, kBf16Tolerance, "dk");
    expect_close(world.values(backward.dv), expected.dv, kBf16Tolerance, "dv");
  });
}

TEST(AttentionBf16, ThreadsDoNotChangeTheOrderOfSums) {
  const Problem p = problem("long", 1200, 2, 1, 32, {{0, 1200, 0, 1200, 0, 0}});
  const Tensors x(p);
  Outputs given;
  given.o = random_values(static_cast<std::int64_t>(x.q.size()), 5);
  given.lse = Values(static_cast<std::size_t>(p.hq * p.tq), 6.0);
  for_each_units([&](Bf16Units) {
    std::vector<Values> results;
    for (const int threads : {1, 4}) {
      World world(DeviceKind::cpu, threads);
      const AttentionBackward args = backward_args(world, p, x, given, {.gradient = DType::bf16, .threads = threads});
      attention_backward(world.stream(), args);
      results.push_back(world.values(args.dq));
    }
    EXPECT_EQ(results[0], results[1]);
  });
}

TEST(AttentionBf16, UnitsAreUsedForBf16OperandsAndResults) {
  for_each_units([&](Bf16Units units) {
    const bool any = units != Bf16Units::none;
    EXPECT_EQ(bf16_units(), units);
    EXPECT_EQ(cpu::uses_bf16_units({DType::bf16, DType::bf16}, 0.1), any);
    EXPECT_FALSE(cpu::uses_bf16_units({DType::bf16, DType::f32}, 0.1));
    EXPECT_FALSE(cpu::uses_bf16_units({DType::f32, DType::f32}, 0.1));
    EXPECT_FALSE(cpu::uses_bf16_units({DType::bf16, DType::bf16}, 0.0));
    if (!any) return;
    set_vector_level(VectorLevel::avx2);
    EXPECT_EQ(bf16_units(), Bf16Units::none);
    set_vector_level(best_vector_level());
  });
}

}  // namespace attention_bf16_cases
}  // namespace hawser::ops
