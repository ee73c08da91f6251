// Checks of attention calls against the float64 reference, on every device (tests only).
#pragma once

#include "ops/testing/attention_reference.h"

namespace hawser::ops::testing {

inline void check_forward(const Problem& p) {
  const Tensors x(p);
  const Outputs expected = reference(p, x);
  check_case({cat("attention_forward ", p.name),
              [&](World& world) -> std::vector<Values> {
                const AttentionCall args = forward_args(world, p, x);
                attention_forward(world.stream(), args);
                return {world.values(args.o), world.values(args.lse)};
              },
              {expected.o, expected.lse},
              p.dtype == DType::bf16 ? kBf16Tolerance : 4e-6});
}

inline void check_backward(const Problem& p, DType gradient, bool accumulate) {
  const Tensors x(p);
  Magnitudes terms;
  const Outputs expected = reference(p, x, nullptr, &terms);
  Outputs old;
  if (accumulate) {
    old.dq = random_values(static_cast<std::int64_t>(x.q.size()), 21, gradient);
    old.dk = random_values(static_cast<std::int64_t>(x.k.size()), 22, gradient);
    old.dv = random_values(static_cast<std::int64_t>(x.v.size()), 23, gradient);
  }
  const auto sum = [&](const Values& a, const Values& b) { return accumulate ? plus(a, b) : a; };
  check_case({cat("attention_backward ", p.name),
              [&](World& world) -> std::vector<Values> {
                const AttentionBackward args = backward_args(world, p, x, expected, {.gradient = gradient}, old);
                attention_backward(world.stream(), args);
                return {world.values(args.dq), world.values(args.dk), world.values(args.dv)};
              },
              {sum(expected.dq, old.dq), sum(expected.dk, old.dk), sum(expected.dv, old.dv)},
              gradient == DType::bf16 ? kBf16Tolerance : 1e-5,
              p.dtype == DType::bf16 ? std::vector{terms.dq, terms.dk, terms.dv} : std::vector<Values>()});
}

// Merges the call into an earlier result with its own rows, some of which see no key. o and lse are columns of wider
// matrices.
inline void check_accumulate(const Problem& p, DType o_dtype, double tolerance) {
  const Tensors x(p);
  // Of the call's own result, which a GPU rounds once more before it merges it.
  Magnitudes terms;
  const Outputs call = reference(p, x, nullptr, &terms);
  Values rounded(x.q.size());
  Values o = random_values(static_cast<std::int64_t>(x.q.size()), 31, o_dtype), lse = random_values(p.hq * p.tq, 32);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  for (std::int64_t t = 0; t < p.tq; t += 3) {
    for (std::int64_t h = 0; h < p.hq; ++h) {
      lse[static_cast<std::size_t>(h * p.tq + t)] = kNone;
      std::fill_n(o.begin() + (t * p.hq + h) * p.d, p.d, 0.0);
    }
  }
  Values sum = o, sum_lse = lse;
  for (std::int64_t t = 0; t < p.tq; ++t) {
    for (std::int64_t h = 0; h < p.hq; ++h) {
      const auto at = static_cast<std::size_t>(h * p.tq + t);
      const double max = std::max(lse[at], call.lse[at]);
      if (max == kNone) continue;
      sum_lse[at] = max + std::log(std::exp(lse[at] - max) + std::exp(call.lse[at] - max));
      for (std::int64_t i = 0; i < p.d; ++i) {
        const auto e = static_cast<std::size_t>((t * p.hq + h) * p.d + i);
        const double share = std::exp(call.lse[at] - sum_lse[at]);
        sum[e] = std::exp(lse[at] - sum_lse[at]) * o[e] + share * call.o[e];
        rounded[e] = share * (terms.o[e] + std::abs(call.o[e]));
      }
    }
  }
  check_case({cat("attention_forward, accumulated ", p.name, " ", to_string(o_dtype)),
              [&](World& world) -> std::vector<Values> {
                AttentionCall args = call_args(world, p, x, {});
                args.accumulate = true;
                args.o = world.in_out(o_dtype, {p.tq, p.hq, p.d}, o, 8);
                args.lse = world.in_out(DType::f32, {p.hq, p.tq}, lse, 4);
                args.workspace = world.workspace(attention_workspace(args, world.stream().target(), 2));
                attention_forward(world.stream(), args);
                return {world.values(args.o), world.values(args.lse)};
              },
              {sum, sum_lse},
              tolerance,
              p.dtype == DType::bf16 ? std::vector<Values>{rounded} : std::vector<Values>()});
}

}  // namespace hawser::ops::testing
