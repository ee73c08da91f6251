// Reference implementation of the blocks in float64, and derivatives by finite differences.
// Matrices are row-major vectors. Shapes: T rows, C width, H query heads, K key-value heads, D head dim, F inner width.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include "base/error.h"
#include "nn/blocks/attention_layer.h"
#include "nn/blocks/mlp_layer.h"
#include "nn/blocks/moe_layer.h"
#include "nn/testing/context.h"
#include "ops/testing/attention_float64.h"

namespace hawser::nn::testing {

using Vector = std::vector<double>;

//   y [T, N] = x [T, K] w^T + b     w [N, K]; b may be empty
inline Vector linear(const Vector& x, const Vector& w, const Vector& b, std::size_t k) {
  HAWSER_CHECK(k > 0, "no columns");
  const std::size_t rows = x.size() / k, n = w.size() / k;
  Vector y(rows * n);
  for (std::size_t t = 0; t < rows; ++t) {
    for (std::size_t j = 0; j < n; ++j) {
      double sum = b.empty() ? 0.0 : b[j];
      for (std::size_t i = 0; i < k; ++i) sum += x[t * k + i] * w[j * k + i];
      y[t * n + j] = sum;
    }
  }
  return y;
}

inline Vector rms_norm(const Vector& x, const Vector& w, double epsilon, bool unit_offset = false) {
  const std::size_t c = w.size();
  Vector y(x.size());
  for (std::size_t t = 0; t < x.size() / c; ++t) {
    double squares = 0;
    for (std::size_t i = 0; i < c; ++i) squares += x[t * c + i] * x[t * c + i];
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(c) + epsilon);
    for (std::size_t i = 0; i < c; ++i) y[t * c + i] = x[t * c + i] * rstd * (unit_offset ? 1.0 + w[i] : w[i]);
  }
  return y;
}

inline Vector rms_norm(const Vector& x, const Vector& w, const NormConfig& config) {
  return rms_norm(x, w, config.epsilon, config.unit_offset);
}

inline Vector layer_norm(const Vector& x, const Vector& w, const Vector& b, double epsilon) {
  const std::size_t c = w.size();
  Vector y(x.size());
  for (std::size_t t = 0; t < x.size() / c; ++t) {
    double mean = 0, squares = 0;
    for (std::size_t i = 0; i < c; ++i) mean += x[t * c + i] / static_cast<double>(c);
    for (std::size_t i = 0; i < c; ++i) squares += (x[t * c + i] - mean) * (x[t * c + i] - mean);
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(c) + epsilon);
    for (std::size_t i = 0; i < c; ++i) y[t * c + i] = (x[t * c + i] - mean) * rstd * w[i] + (b.empty() ? 0.0 : b[i]);
  }
  return y;
}

// residual + f, with NormPlace::sandwich residual + norm(f), with NormPlace::post norm(residual + f).
inline Vector add_residual(const Vector& residual, Vector f, NormPlace place, const NormConfig& config,
                           const Vector& post_norm, const Vector& norm) {
  if (place == NormPlace::sandwich) f = rms_norm(f, post_norm, config);
  for (std::size_t i = 0; i < f.size(); ++i) f[i] += residual[i];
  return place == NormPlace::post ? rms_norm(f, norm, config) : f;
}

// How RoPE rotates the heads: R dims of LayerContext::frequencies, and LayerContext::interleaved.
struct RotatedDims {
  std::optional<std::int64_t> count = {};  // of each head, the first ones, in place of all
  bool interleaved = false;
};

// What the first Linear of a layer reads.
template <class Config>
Vector layer_input(const Config& config, const Vector& x, const Vector& norm) {
  return config.norm_place == NormPlace::post ? x : rms_norm(x, norm, config.norm_config);
}

// Random numbers of a layer's test: row t is row kFirstRow + t of this sequence.
constexpr std::int64_t kDropoutSequence = 3, kFirstRow = 6, kDropoutStep = 9;

// The factor of a probability with AttentionConfig::dropout, for TestContext's keys: the formula of
// ops/attention/attention_dropout.h.
inline double dropout_factor(const AttentionConfig& config, std::int64_t row, std::int64_t key, std::int64_t head) {
  const PhiloxKey site = {static_cast<std::uint32_t>(Site::attention_probabilities), 0};
  const PhiloxWords of_head = philox({static_cast<std::uint32_t>(config.heads_slice.begin + head), 0, 0, 0}, site);
  const auto r = static_cast<std::uint32_t>(kFirstRow + key);
  const PhiloxWords words = philox({r / 4, static_cast<std::uint32_t>(kFirstRow + row), kDropoutSequence, kDropoutStep},
                                   {of_head[0], of_head[1]});
  return words[r % 4] * 0x1p-32 < config.dropout ? 0 : 1 / (1 - config.dropout);
}

// With AttentionConfig::dropout in training.
inline Vector attention_block(const AttentionConfig& config, const Documents& documents, const Vector& x,
                              const std::vector<Vector>& w, const RotatedDims& rotated = {}) {
  const auto heads = static_cast<std::size_t>(config.heads), kv = static_cast<std::size_t>(config.kv_heads);
  const auto d = static_cast<std::size_t>(config.head_dim), c = static_cast<std::size_t>(config.width);
  const std::size_t rows = x.size() / c, wide = (heads + 2 * kv) * d;
  const auto positions = documents.positions();
  const std::size_t next = config.qkv_bias ? 4 : 3;
  const std::size_t half = static_cast<std::size_t>(rotated.count.value_or(config.head_dim)) / 2;
  Vector qkv = linear(layer_input(config, x, w[0]), w[1], config.qkv_bias ? w[3] : Vector(), c);
  for (std::size_t t = 0; config.qk_norm && t < rows; ++t) {
    const std::size_t index = next + (config.output_bias ? 1 : 0);
    for (std::size_t h = 0; h < heads + kv; ++h) {
      const auto head = qkv.begin() + static_cast<std::ptrdiff_t>(t * wide + h * d);
      const Vector normed = rms_norm(Vector(head, head + static_cast<std::ptrdiff_t>(d)),
                                     w[h < heads ? index : index + 1], *config.qk_norm);
      std::copy(normed.begin(), normed.end(), head);
    }
  }
  for (std::size_t t = 0; config.rope && t < rows; ++t) {
    for (std::size_t h = 0; h < heads + kv; ++h) {
      for (std::size_t i = 0; i < half; ++i) {
        // The float32 frequency that the layer uses.
        const auto frequency = static_cast<double>(
            static_cast<float>(std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half))));
        const double angle = static_cast<double>(positions[t]) * frequency;
        double* const head = &qkv[t * wide + h * d];
        double &a = head[rotated.interleaved ? 2 * i : i], &b = head[rotated.interleaved ? 2 * i + 1 : i + half];
        const double x0 = a, x1 = b;
        a = config.rope_scale * (x0 * std::cos(angle) - x1 * std::sin(angle));
        b = config.rope_scale * (x1 * std::cos(angle) + x0 * std::sin(angle));
      }
    }
  }
  Vector q, k, v;
  for (std::size_t t = 0; t < rows; ++t) {
    const auto row = qkv.begin() + static_cast<std::ptrdiff_t>(t * wide);
    const auto k_row = row + static_cast<std::ptrdiff_t>(heads * d),
               v_row = k_row + static_cast<std::ptrdiff_t>(kv * d);
    q.insert(q.end(), row, k_row);
    k.insert(k.end(), k_row, v_row);
    v.insert(v.end(), v_row, row + static_cast<std::ptrdiff_t>(wide));
  }
  ops::testing::AttentionSpace space{.query_heads = config.heads,
                                     .kv_heads = config.kv_heads,
                                     .head_dim = config.head_dim,
                                     .causal = config.causal,
                                     .window = config.window,
                                     .scale = config.score_scale(),
                                     .softcap = config.softcap.value_or(0)};
  if (config.alibi) {
    for (const float slope : config.alibi_slopes()) space.slopes.push_back(slope);
  }
  if (config.dropout > 0) {
    space.factor = [&](std::int64_t row, std::int64_t key, std::int64_t head) {
      return dropout_factor(config, row, key, head);
    };
  }
  std::int64_t begin = 0;
  for (const std::int64_t length : documents.lengths) {
    space.segments.push_back({begin, length, begin, length, 0, 0});
    begin += length;
  }
  const Vector o = ops::testing::attend(space, q, k, v).o;
  const Vector y = linear(o, w[2], config.output_bias ? w[next] : Vector(), heads * d);
  return add_residual(x, y, config.norm_place, config.norm_config, w.back(), w[0]);
}

inline double gelu_tanh(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

inline Vector mlp_block(const MlpConfig& config, const Vector& x, const std::vector<Vector>& w) {
  const auto f = static_cast<std::size_t>(config.inner), c = static_cast<std::size_t>(config.width);
  const Vector gate_up = linear(layer_input(config, x, w[0]), w[1], config.bias ? w[3] : Vector(), c);
  Vector inner(x.size() / c * f);
  for (std::size_t t = 0; t < x.size() / c; ++t) {
    for (std::size_t i = 0; i < f; ++i) {
      const double gate = gate_up[t * 2 * f + i];
      const double act = config.activation == Activation::swiglu  ? gate / (1.0 + std::exp(-gate))
                         : config.activation == Activation::geglu ? gate / 2 * std::erfc(-gate / std::sqrt(2.0))
                                                                  : gelu_tanh(gate);
      inner[t * f + i] = act * gate_up[t * 2 * f + f + i];
    }
  }
  const Vector y = linear(inner, w[2], config.bias ? w[4] : Vector(), f);
  return add_residual(x, y, config.norm_place, config.norm_config, w.back(), w[0]);
}

// The experts of a layer: w is norm, router [E, C], gate and up of each expert [E * 2F, C], down [E * C, F].
// `with_expert`, if given, is called with each token, expert and weight.
inline Vector moe_block(const MoeConfig& config, const Vector& x, const std::vector<Vector>& w,
                        const std::function<void(std::size_t, std::size_t, double)>& with_expert = {}) {
  const auto f = static_cast<std::size_t>(config.inner), c = static_cast<std::size_t>(config.width);
  const auto experts = static_cast<std::size_t>(config.experts), top_k = static_cast<std::size_t>(config.top_k);
  const Vector normed = rms_norm(x, w[0], config.norm_config.epsilon), logits = linear(normed, w[1], {}, c);
  const auto part = [](const Vector& all, std::size_t index, std::size_t size) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index * size);
    return Vector(begin, begin + static_cast<std::ptrdiff_t>(size));
  };
  Vector y = x;
  for (std::size_t t = 0; t < x.size() / c; ++t) {
    Vector p = part(logits, t, experts);
    double all = 0, chosen = 0;
    for (double& value : p) all += value = std::exp(value);
    std::vector<std::size_t> order;
    for (std::size_t e = 0; e < experts; ++e) order.push_back(e), p[e] /= all;
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return p[a] > p[b]; });
    order.resize(top_k);
    for (const std::size_t e : order) chosen += p[e];
    const Vector row = part(normed, t, c);
    for (const std::size_t e : order) {
      const Vector gate_up = linear(row, part(w[2], e, 2 * f * c), {}, c);
      Vector inner(f);
      for (std::size_t i = 0; i < f; ++i) inner[i] = gate_up[i] / (1.0 + std::exp(-gate_up[i])) * gate_up[f + i];
      const Vector out = linear(inner, part(w[3], e, c * f), {}, f);
      const double weight = p[e] / (config.normalise_top_k ? chosen : 1);
      for (std::size_t i = 0; i < c; ++i) y[t * c + i] += weight * out[i];
      if (with_expert) with_expert(t, e, weight);
    }
  }
  return y;
}

// The logits of a head; bias may be empty, softcap 0.
inline Vector head_logits(const Vector& x, const Vector& norm, const Vector& table, double epsilon,
                          const Vector& bias = {}, double softcap = 0) {
  Vector logits = linear(rms_norm(x, norm, epsilon), table, bias, norm.size());
  for (double& logit : logits) logit = softcap > 0 ? softcap * std::tanh(logit / softcap) : logit;
  return logits;
}

// The sum of -log p(label) over the rows with a label, of logits [T, v].
inline double loss_of_logits(const Vector& logits, std::size_t v, const std::vector<int>& labels) {
  double loss = 0;
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] < 0) continue;
    double sum = 0;
    for (std::size_t j = 0; j < v; ++j) sum += std::exp(logits[t * v + j]);
    loss += std::log(sum) - logits[t * v + static_cast<std::size_t>(labels[t])];
  }
  return loss;
}

inline double head_loss(const Vector& x, const Vector& norm, const Vector& table, double epsilon,
                        const std::vector<int>& labels, const Vector& bias = {}, double softcap = 0) {
  const Vector logits = head_logits(x, norm, table, epsilon, bias, softcap);
  return loss_of_logits(logits, table.size() / norm.size(), labels);
}

// d f / d at[i] for every i, by central differences; `at` is restored.
inline Vector differences(const std::function<double()>& f, Vector& at) {
  Vector out;
  for (double& value : at) {
    const double start = value, step = 1e-5;
    value = start + step;
    const double up = f();
    value = start - step;
    const double down = f();
    value = start;
    out.push_back((up - down) / (2 * step));
  }
  return out;
}

inline double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// |a - b| / |b|, with a lower bound on |b|.
inline double distance(const Vector& a, const Vector& b) {
  if (a.size() != b.size()) return 1e30;
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  const double out = std::sqrt(difference) / std::max(std::sqrt(norm), 1e-6);
  return std::isfinite(out) ? out : 1e30;
}

}  // namespace hawser::nn::testing
