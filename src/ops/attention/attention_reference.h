// Float64 reference of attention (tests only).
#pragma once

#include <array>

#include "ops/attention/attention.h"
#include "ops/case_support.h"

namespace hawser::ops::testing {

using Row = std::array<std::int64_t, 6>;  // a row of the segment table

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

  std::vector<StridedBlocks> blocks() const {
    return uniform > 0 ? std::vector{equal_diagonal_blocks(tq, uniform)} : places;
  }
  double scale() const { return 0.7 / std::sqrt(static_cast<double>(d)); }
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

// Calls body(query row, key rows that it sees).
template <class Body>
void for_each_pair(const Problem& p, const Body& body) {
  for (const Row& s : p.segments) {
    for (std::int64_t i = 0; i < s[1]; ++i) {
      std::vector<std::int64_t> keys;
      for (std::int64_t j = 0; j < s[3]; ++j) {
        const std::int64_t at = s[4] + i, key = s[5] + j;
        if ((!p.causal || key <= at) && (p.window == 0 || key > at - p.window)) keys.push_back(s[2] + j);
      }
      body(s[0] + i, keys);
    }
  }
}

// The formulas of attention.h in float64. full: log-sum-exp and output passed to backward; null: those of this call.
inline Outputs reference(const Problem& p, const Tensors& x, const Outputs* full = nullptr,
                         Magnitudes* magnitudes = nullptr) {
  const std::int64_t group = p.hq / p.hkv;
  Outputs out;
  out.o.assign(x.q.size(), 0.0);
  out.dq.assign(x.q.size(), 0.0);
  out.dk.assign(x.k.size(), 0.0);
  out.dv.assign(x.v.size(), 0.0);
  if (magnitudes != nullptr) *magnitudes = {out.o, out.dq, out.dk, out.dv};
  out.lse.assign(static_cast<std::size_t>(p.hq * p.tq), -std::numeric_limits<double>::infinity());
  for_each_pair(p, [&](std::int64_t t, const std::vector<std::int64_t>& keys) {
    if (keys.empty()) return;
    for (std::int64_t h = 0; h < p.hq; ++h) {
      const double* q = &x.q[static_cast<std::size_t>((t * p.hq + h) * p.d)];
      const double* d_o = &x.d_o[static_cast<std::size_t>((t * p.hq + h) * p.d)];
      double* o = &out.o[static_cast<std::size_t>((t * p.hq + h) * p.d)];
      double* dq = &out.dq[static_cast<std::size_t>((t * p.hq + h) * p.d)];
      const auto kv = [&](std::int64_t key) { return static_cast<std::size_t>((key * p.hkv + h / group) * p.d); };
      Values scores;
      for (const std::int64_t key : keys) {
        double s = 0;
        for (std::int64_t d = 0; d < p.d; ++d) s += q[d] * x.k[kv(key) + d];
        scores.push_back(s * p.scale());
      }
      const double max = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (const double s : scores) sum += std::exp(s - max);
      double& own_lse = out.lse[static_cast<std::size_t>(h * p.tq + t)];
      own_lse = max + std::log(sum);
      for (std::size_t j = 0; j < keys.size(); ++j) {
        for (std::int64_t d = 0; d < p.d; ++d) o[d] += std::exp(scores[j] - own_lse) * x.v[kv(keys[j]) + d];
      }
      const double lse = full != nullptr ? full->lse[static_cast<std::size_t>(h * p.tq + t)] : own_lse;
      const double* full_o = full != nullptr ? &full->o[static_cast<std::size_t>((t * p.hq + h) * p.d)] : o;
      double delta = 0;
      for (std::int64_t d = 0; d < p.d; ++d) delta += d_o[d] * full_o[d];
      for (std::size_t j = 0; j < keys.size(); ++j) {
        const double weight = std::exp(scores[j] - lse);
        double dp = 0;
        for (std::int64_t d = 0; d < p.d; ++d) dp += d_o[d] * x.v[kv(keys[j]) + d];
        const double ds = weight * (dp - delta) * p.scale();
        for (std::int64_t d = 0; d < p.d; ++d) {
          dq[d] += ds * x.k[kv(keys[j]) + d];
          out.dk[kv(keys[j]) + d] += ds * q[d];
          out.dv[kv(keys[j]) + d] += weight * d_o[d];
        }
        if (magnitudes == nullptr) continue;
        const auto row = static_cast<std::size_t>((t * p.hq + h) * p.d);
        for (std::int64_t d = 0; d < p.d; ++d) {
          magnitudes->o[row + d] += std::exp(scores[j] - own_lse) * std::abs(x.v[kv(keys[j]) + d]);
          magnitudes->dq[row + d] += std::abs(ds * x.k[kv(keys[j]) + d]);
          magnitudes->dk[kv(keys[j]) + d] += std::abs(ds * q[d]);
          magnitudes->dv[kv(keys[j]) + d] += weight * std::abs(d_o[d]);
        }
      }
    }
  });
  return out;
}

// Arguments of a problem's forward call, with tensors created in `world`. threads: number that the workspace is sized
// for.
inline AttentionForward forward_args(World& world, const Problem& p, const Tensors& x, int threads = 2) {
  AttentionForward args{.q = world.in(p.dtype, {p.tq, p.hq, p.d}, x.q, p.pad),
                        .k = world.in(p.dtype, {p.tk, p.hkv, p.d}, x.k, 2 * p.pad),
                        .v = world.in(p.dtype, {p.tk, p.hkv, p.d}, x.v, 2 * p.pad),
                        .segments = world.in(DType::i32, p.table_shape(), p.table()),
                        .segment_count = world.in(DType::i32, {1}, {static_cast<double>(p.segments.size())}),
                        .form = p.form,
                        .blocks = p.blocks(),
                        .host_segments = p.host_known ? &p.host : nullptr,
                        .causal = p.causal,
                        .window = p.window,
                        .scale = p.scale(),
                        .o = world.out(p.dtype, {p.tq, p.hq, p.d}, p.pad),
                        .lse = world.out(DType::f32, {p.hq, p.tq})};
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
      .q = world.in(p.dtype, q_shape, x.q, p.pad),
      .k = world.in(p.dtype, k_shape, x.k, p.pad),
      .v = world.in(p.dtype, k_shape, x.v, p.pad),
      .o = world.in(options.o, q_shape, full.o),
      .d_o = world.in(p.dtype, q_shape, x.d_o, 2 * p.pad),
      .lse = world.in(DType::f32, {p.hq, p.tq}, full.lse),
      .segments = world.in(DType::i32, p.table_shape(), p.table()),
      .segment_count = world.in(DType::i32, {1}, {static_cast<double>(p.segments.size())}),
      .form = p.form,
      .blocks = p.blocks(),
      .host_segments = p.host_known ? &p.host : nullptr,
      .causal = p.causal,
      .window = p.window,
      .scale = p.scale(),
      .dq = add_q ? world.in_out(gradient, q_shape, old.dq, p.pad) : world.out(gradient, q_shape, p.pad),
      .dk = add_kv ? world.in_out(gradient, k_shape, old.dk, p.pad) : world.out(gradient, k_shape, p.pad),
      .dv = add_kv ? world.in_out(gradient, k_shape, old.dv, p.pad) : world.out(gradient, k_shape, p.pad),
      .accumulate_q = add_q,
      .accumulate_kv = add_kv,
      .deterministic = options.deterministic};
  args.workspace = world.workspace(attention_workspace(args, world.stream().target(), options.threads));
  return args;
}

}  // namespace hawser::ops::testing
