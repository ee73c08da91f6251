// Float64 reference of attention (tests only).
#pragma once

#include "ops/attention/attention.h"
#include "ops/testing/attention_float64.h"
#include "ops/testing/case_support.h"

namespace hawser::ops::testing {

// AttentionCall::dropout of a problem.
struct DropoutProblem {
  double probability = 0;
  PhiloxKey key = {};
  std::int64_t first_head = 0;
  std::int32_t step = 0;
  Values query_ids = {}, key_ids = {};  // {sequence, row} of each row

  // The formula of attention_dropout.h.
  double factor(std::int64_t row, std::int64_t key_row, std::int64_t head) const {
    const auto number = [](const Values& ids, std::int64_t at) {
      return static_cast<std::uint32_t>(ids[static_cast<std::size_t>(at)]);
    };
    const PhiloxWords of_head = philox({static_cast<std::uint32_t>(first_head + head), 0, 0, 0}, key);
    const std::uint32_t r = number(key_ids, 2 * key_row + 1);
    const PhiloxWords words =
        philox({r / 4, number(query_ids, 2 * row + 1), number(query_ids, 2 * row), static_cast<std::uint32_t>(step)},
               {of_head[0], of_head[1]});
    return words[r % 4] * 0x1p-32 < probability ? 0 : 1 / (1 - probability);
  }
};

struct Problem {
  std::string name;
  std::int64_t tq, tk, hq, hkv, d;
  std::vector<Row> segments;
  bool causal = true;
  std::int64_t window = 0;
  DType dtype = DType::f32;
  std::int64_t pad = 0;
  SegmentForm form = SegmentForm::any;
  std::int64_t uniform = 0;           // > 0: equal_diagonal_blocks of this many rows
  std::vector<StridedBlocks> places;  // or these
  std::vector<std::int32_t> host;     // host_segments, if host_known
  bool host_known = false;
  bool window_halves = false;
  double softcap = 0;
  Values slopes;  // float32 numbers
  DropoutProblem dropout;

  std::vector<StridedBlocks> blocks() const {
    return uniform > 0 ? std::vector{equal_diagonal_blocks(tq, uniform)} : places;
  }
  double scale() const { return 0.7 / std::sqrt(static_cast<double>(d)); }
  AttentionSpace space() const {
    AttentionSpace out{hq, hkv, d, segments, causal, window, scale(), softcap, slopes};
    if (dropout.probability > 0) {
      out.factor = [&](std::int64_t row, std::int64_t key, std::int64_t head) {
        return dropout.factor(row, key, head);
      };
    }
    return out;
  }
  Values table() const {
    Values out;
    for (const Row& row : segments) out.insert(out.end(), row.begin(), row.end());
    out.insert(out.end(), 6, -1.0);  // rows beyond segment_count are not read
    return out;
  }
  Shape table_shape() const { return {static_cast<std::int64_t>(segments.size()) + 1, 6}; }
};

struct Tensors {
  Values q, k, v, d_o;
  explicit Tensors(const Problem& p)
      : q(random_values(p.tq * p.hq * p.d, 11, p.dtype)),
        k(random_values(p.tk * p.hkv * p.d, 12, p.dtype)),
        v(random_values(p.tk * p.hkv * p.d, 13, p.dtype)),
        d_o(random_values(p.tq * p.hq * p.d, 14, p.dtype)) {}
};

struct Outputs {
  Values o, lse, dq, dk, dv;
};

// For each element of o, dq, dk and dv: the sum of the magnitudes of its terms. A relative error in all terms changes
// the element by at most that fraction of this sum.
struct Magnitudes {
  Values o, dq, dk, dv;
};

// The formulas of attention.h in float64. full: log-sum-exp and output passed to backward; null: those of this call.
inline Outputs reference(const Problem& p, const Tensors& x, const Outputs* full = nullptr,
                         Magnitudes* magnitudes = nullptr) {
  const AttentionSpace space = p.space();
  const Attended own = attend(space, x.q, x.k, x.v);
  Outputs out{own.o, own.lse, Values(x.q.size()), Values(x.k.size()), Values(x.v.size())};
  if (magnitudes != nullptr) *magnitudes = {Values(x.q.size()), out.dq, out.dk, out.dv};
  for_each_query(space, [&](std::int64_t t, const std::vector<std::int64_t>& keys) {
    for (std::int64_t h = 0; h < p.hq && !keys.empty(); ++h) {
      const std::size_t row = space.query_at(t, h), stat = static_cast<std::size_t>(h * p.tq + t);
      Values derivatives;
      const Values scores = scores_of(space, x.q, x.k, t, h, keys, &derivatives);
      const double lse = full != nullptr ? full->lse[stat] : own.lse[stat];
      const Values& o = full != nullptr ? full->o : own.o;
      const auto size = static_cast<std::size_t>(p.d);
      double delta = 0;
      for (std::size_t d = 0; d < size; ++d) delta += x.d_o[row + d] * o[row + d];
      for (std::size_t j = 0; j < keys.size(); ++j) {
        const std::size_t key = space.key_at(keys[j], h);
        const double weight = std::exp(scores[j] - lse), factor = space.factor ? space.factor(t, keys[j], h) : 1;
        double dp = 0;
        for (std::size_t d = 0; d < size; ++d) dp += x.d_o[row + d] * x.v[key + d];
        const double ds = weight * (factor * dp - delta) * derivatives[j] * p.scale();
        for (std::size_t d = 0; d < size; ++d) {
          out.dq[row + d] += ds * x.k[key + d];
          out.dk[key + d] += ds * x.q[row + d];
          out.dv[key + d] += factor * weight * x.d_o[row + d];
        }
        if (magnitudes == nullptr) continue;
        for (std::size_t d = 0; d < size; ++d) {
          magnitudes->o[row + d] += factor * std::exp(scores[j] - own.lse[stat]) * std::abs(x.v[key + d]);
          magnitudes->dq[row + d] += std::abs(ds * x.k[key + d]);
          magnitudes->dk[key + d] += std::abs(ds * x.q[row + d]);
          magnitudes->dv[key + d] += factor * weight * std::abs(x.d_o[row + d]);
        }
      }
    }
  });
  return out;
}

// Elements between the rows of the operands.
struct OperandPads {
  std::int64_t q = 0, k = 0, v = 0;
};

inline AttentionDropout dropout_args(World& world, const DropoutProblem& p) {
  if (p.probability == 0) return {};
  const auto ids = [&](const Values& values) {
    return world.in(DType::i32, {static_cast<std::int64_t>(values.size()) / 2, 2}, values);
  };
  return {.probability = p.probability,
          .key = p.key,
          .first_head = p.first_head,
          .step = world.in(DType::i32, {1}, {static_cast<double>(p.step)}),
          .query_ids = ids(p.query_ids),
          .key_ids = ids(p.key_ids)};
}

// What forward and backward of a problem share, with tensors created in `world`; without o, lse and workspace.
inline AttentionCall call_args(World& world, const Problem& p, const Tensors& x, const OperandPads& pads) {
  return {.q = world.in(p.dtype, {p.tq, p.hq, p.d}, x.q, pads.q),
          .k = world.in(p.dtype, {p.tk, p.hkv, p.d}, x.k, pads.k),
          .v = world.in(p.dtype, {p.tk, p.hkv, p.d}, x.v, pads.v),
          .segments = world.in(DType::i32, p.table_shape(), p.table()),
          .segment_count = world.in(DType::i32, {1}, {static_cast<double>(p.segments.size())}),
          .form = p.form,
          .blocks = p.blocks(),
          .host_segments = p.host_known ? &p.host : nullptr,
          .causal = p.causal,
          .window = p.window,
          .window_halves = p.window_halves,
          .scale = p.scale(),
          .softcap = p.softcap,
          .slopes = p.slopes.empty() ? TensorView() : world.in(DType::f32, {p.hq}, p.slopes),
          .dropout = dropout_args(world, p.dropout)};
}

// Arguments of a problem's forward call. threads: number that the workspace is sized for.
inline AttentionCall forward_args(World& world, const Problem& p, const Tensors& x, int threads = 2) {
  AttentionCall args = call_args(world, p, x, {p.pad, 2 * p.pad, 2 * p.pad});
  args.o = world.out(p.dtype, {p.tq, p.hq, p.d}, p.pad);
  args.lse = world.out(DType::f32, {p.hq, p.tq});
  args.workspace = world.workspace(attention_workspace(args, world.stream().target(), threads));
  return args;
}

struct BackwardOptions {
  DType gradient = DType::f32;
  DType o = DType::f32;
  bool deterministic = false;
  int threads = 2;
};

// Arguments of its backward call. old: existing gradients to accumulate into; empty for none.
inline AttentionBackward backward_args(World& world, const Problem& p, const Tensors& x, const Outputs& full,
                                       const BackwardOptions& options, const Outputs& old = {}) {
  const DType gradient = options.gradient;
  const Shape q_shape{p.tq, p.hq, p.d}, k_shape{p.tk, p.hkv, p.d};
  const bool add_q = !old.dq.empty(), add_kv = !old.dk.empty();
  AttentionBackward args{
      .call = call_args(world, p, x, {p.pad, p.pad, p.pad}),
      .d_o = world.in(p.dtype, q_shape, x.d_o, 2 * p.pad),
      .dq = add_q ? world.in_out(gradient, q_shape, old.dq, p.pad) : world.out(gradient, q_shape, p.pad),
      .dk = add_kv ? world.in_out(gradient, k_shape, old.dk, p.pad) : world.out(gradient, k_shape, p.pad),
      .dv = add_kv ? world.in_out(gradient, k_shape, old.dv, p.pad) : world.out(gradient, k_shape, p.pad),
      .accumulate_q = add_q,
      .accumulate_kv = add_kv,
      .deterministic = options.deterministic};
  args.call.o = world.in(options.o, q_shape, full.o);
  args.call.lse = world.in(DType::f32, {p.hq, p.tq}, full.lse);
  args.call.workspace = world.workspace(attention_workspace(args, world.stream().target(), options.threads));
  return args;
}

}  // namespace hawser::ops::testing
