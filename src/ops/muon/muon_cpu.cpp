#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/gemm/gemm_cpu.h"
#include "ops/muon/muon.h"
#include "ops/update/store_weight_cpu.h"

namespace hawser::ops::cpu {

namespace {

constexpr std::int64_t kMuonPiece = 4096;

float as_bf16(float x) {
  return static_cast<float>(Bf16(x));
}
bool muon_skips(const TensorView& skip) {
  return !skip.empty() && *skip.data<std::int32_t>() != 0;
}

// C [m, n] = A B, of float32 that are bf16 numbers.
void product(const float* a, const float* b, float* c, std::int64_t m, std::int64_t n, std::int64_t k,
             bool transpose_b) {
  multiply({.m = m,
            .n = n,
            .k = k,
            .a = a,
            .b = b,
            .c = c,
            .lda = k,
            .ldb = transpose_b ? k : n,
            .ldc = n,
            .transpose_b = transpose_b},
           nullptr, 0);
}

// y = bf16(a * x + b * y) of `count` elements; x is replaced.
void mix(float* x, const float* y, std::int64_t count, float a, float b) {
  parallel_pieces(count, kMuonPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) x[i] = as_bf16(a * x[i] + b * y[i]);
  });
}

double squares_of(const float* x, std::int64_t count) {
  std::vector<double> sums(static_cast<std::size_t>(ceil_div(count, kMuonPiece)));
  parallel_items(static_cast<std::int64_t>(sums.size()), [&](std::int64_t piece) {
    double sum = 0;
    for (std::int64_t i = piece * kMuonPiece; i < std::min(count, (piece + 1) * kMuonPiece); ++i)
      sum += double{x[i]} * x[i];
    sums[static_cast<std::size_t>(piece)] = sum;
  });
  double all = 0;
  for (const double sum : sums) all += sum;
  return all;
}

void orthogonalize(const MuonOrthogonalize& args, const ExchangedMatrix& m) {
  const bool turn = m.rows > m.columns;
  const std::int64_t n = std::min(m.rows, m.columns), k = std::max(m.rows, m.columns);
  float *const x = args.x.data<float>(), *const y = args.y.data<float>(), *const a = args.a.data<float>(),
               *const t = args.t.data<float>();
  const Bf16* const from = args.from.data<Bf16>();
  Bf16* const to = args.to.data<Bf16>();
  const auto place = [&](std::int64_t i, std::int64_t j) {
    return turn ? m.place(args.flat, j, i) : m.place(args.flat, i, j);
  };
  parallel_pieces(n, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < k; ++j) x[i * k + j] = static_cast<float>(from[place(i, j)]);
    }
  });
  const float norm = std::max(as_bf16(static_cast<float>(std::sqrt(squares_of(x, n * k)))), kMuonEpsilon);
  parallel_pieces(n * k, kMuonPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) x[i] = as_bf16(x[i] / norm);
  });
  for (int iteration = 0; iteration < kMuonIterations; ++iteration) {
    product(x, x, a, n, n, k, /*transpose_b=*/true);
    mix(a, a, n * n, 1, 0);
    product(a, a, t, n, n, n, /*transpose_b=*/false);
    mix(a, t, n * n, kMuonB, kMuonC);
    product(a, x, y, n, k, n, /*transpose_b=*/false);
    mix(x, y, n * k, kMuonA, 1);
  }
  parallel_pieces(n, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < k; ++j) to[place(i, j)] = Bf16(x[i * k + j]);
    }
  });
}

}  // namespace

void muon_momentum(const MuonMomentum& args) {
  const bool skip = muon_skips(args.skip);
  const auto momentum = static_cast<float>(args.momentum), rest = static_cast<float>(1.0 - args.momentum);
  const float coefficient = args.coefficient.empty() ? 1.0f : *args.coefficient.data<float>();
  float* const buffer = args.buffer.data<float>();
  const float* const gradient = args.gradient.data<float>();
  Bf16* const sent = args.sent.data<Bf16>();
  parallel_pieces(args.buffer.elements(), kMuonPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float g = gradient[i] * coefficient;
      if (!skip) buffer[i] = momentum * buffer[i] + rest * g;
      sent[i] = Bf16(args.nesterov ? momentum * buffer[i] + rest * g : buffer[i]);
    }
  });
}

void muon_orthogonalize(const MuonOrthogonalize& args) {
  for (const ExchangedMatrix& matrix : args.matrices) orthogonalize(args, matrix);
}

void muon_apply(const MuonApply& args) {
  if (muon_skips(args.skip)) return;
  const float rate = *args.rate.data<float>();
  const auto keep = static_cast<float>(1.0 - double{rate} * args.weight_decay),
             step = static_cast<float>(double{rate} * args.scale);
  const Bf16* const direction = args.direction.data<Bf16>();
  parallel_pieces(args.weight.size(0), kMuonPiece, [&](std::int64_t begin, std::int64_t end) {
    store_weights(args.weight, args.compute_weight, args.rounding, begin, end,
                  [&](float w, std::int64_t i) { return keep * w - step * static_cast<float>(direction[i]); });
  });
}

}  // namespace hawser::ops::cpu
