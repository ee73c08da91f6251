#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/adafactor/adafactor.h"
#include "ops/cpu/parallel.h"
#include "ops/update/store_weight_cpu.h"

namespace hawser::ops::cpu {

namespace {

constexpr std::int64_t kAdafactorPiece =
    4096;  // elements whose sum is one term of the sum of all, with any number of threads

bool adafactor_skips(const TensorView& skip) {
  return !skip.empty() && *skip.data<std::int32_t>() != 0;
}
float coefficient_of(const TensorView& coefficient) {
  return coefficient.empty() ? 1.0f : *coefficient.data<float>();
}
const float* floats(const TensorView& view) {
  return view.empty() ? nullptr : view.data<float>();
}

}  // namespace

void adafactor_hyper(const AdafactorHyper& args) {
  const double n = std::max(1, *args.step.data<std::int32_t>());
  float* const hyper = args.hyper.data<float>();
  const float rate = *args.learning_rate.data<float>();
  hyper[0] = args.relative_step ? std::min(rate, static_cast<float>(1.0 / std::sqrt(n))) : rate;
  hyper[1] = static_cast<float>(1.0 - std::pow(n, -0.8));
}

void adafactor_sums(const AdafactorSums& args) {
  const float* const gradient = args.gradient.data<float>();
  const float coefficient = coefficient_of(args.coefficient);
  const std::int64_t n = args.gradient.elements(), first = args.first, columns = args.columns;
  if (n == 0) return;
  const auto square = [&](std::int64_t i) {
    const float g = gradient[i] * coefficient;
    return g * g + kAdafactorSquare;
  };
  const std::int64_t row0 = first / columns, rows = args.row_sums.elements();
  // Of row r: elements [begin(r), end(r)) of the range.
  const auto begin = [&](std::int64_t r) { return std::max<std::int64_t>(0, (row0 + r) * columns - first); };
  const auto end = [&](std::int64_t r) { return std::min(n, (row0 + r + 1) * columns - first); };
  float* const row_sums = args.row_sums.data<float>();
  parallel_pieces(rows, 16, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t r = from; r < to; ++r) {
      double sum = 0;
      for (std::int64_t i = begin(r); i < end(r); ++i) sum += square(i);
      row_sums[r] += static_cast<float>(sum);
    }
  });
  float* const column_sums = args.column_sums.data<float>();
  parallel_pieces(columns, 64, [&](std::int64_t from, std::int64_t to) {
    std::vector<double> sums(static_cast<std::size_t>(to - from));
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t zero = (row0 + r) * columns - first;  // of column 0
      for (std::int64_t c = from; c < to; ++c) {
        if (zero + c >= 0 && zero + c < n) sums[static_cast<std::size_t>(c - from)] += square(zero + c);
      }
    }
    for (std::int64_t c = from; c < to; ++c)
      column_sums[c] += static_cast<float>(sums[static_cast<std::size_t>(c - from)]);
  });
}

void adafactor_moments(const AdafactorMoments& args) {
  if (adafactor_skips(args.skip)) return;
  const float beta = args.hyper.data<float>()[1], rest = 1.0f - beta;
  const std::int64_t rows = args.all_row_sums.elements();
  const auto advance = [&](const TensorView& state, const TensorView& sums, std::int64_t terms) {
    for (std::int64_t i = 0; i < state.elements(); ++i) {
      float& value = state.data<float>()[i];
      value = beta * value + rest * (sums.data<float>()[i] / static_cast<float>(terms));
    }
  };
  advance(args.row, args.row_sums, args.columns);
  advance(args.column, args.column_sums, rows);
  double sum = 0;
  for (std::int64_t i = 0; i < rows; ++i) sum += args.all_row_sums.data<float>()[i];
  float& mean = *args.mean.data<float>();
  mean = beta * mean + rest * static_cast<float>(sum / static_cast<double>(rows) / static_cast<double>(args.columns));
}

void adafactor_direction(const AdafactorDirection& args) {
  if (adafactor_skips(args.skip)) return;
  const float beta = args.hyper.data<float>()[1], coefficient = coefficient_of(args.coefficient);
  const std::int64_t n = args.gradient.elements(), columns = args.columns, row0 = args.first / columns;
  float* const gradient = args.gradient.data<float>();
  const float *const row = floats(args.row), *const column = floats(args.column);
  const float mean = row != nullptr ? *args.mean.data<float>() : 1.0f;
  float* const second = args.second.empty() ? nullptr : args.second.data<float>();
  const std::int64_t pieces = ceil_div(n, kAdafactorPiece);
  std::vector<double> updates(static_cast<std::size_t>(pieces)), weights(static_cast<std::size_t>(pieces));
  parallel_items(pieces, [&](std::int64_t piece) {
    double sum = 0;
    for (std::int64_t i = piece * kAdafactorPiece; i < std::min(n, (piece + 1) * kAdafactorPiece); ++i) {
      const float g = gradient[i] * coefficient;
      float u = 0;
      if (second != nullptr) {
        second[i] = beta * second[i] + (1.0f - beta) * (g * g + kAdafactorSquare);
        u = g / std::sqrt(second[i]);
      } else {
        const std::int64_t e = args.first + i;
        u = g / std::sqrt(row[e / columns - row0] / mean) / std::sqrt(column[e % columns]);
      }
      gradient[i] = u;
      sum += double{u} * u;
    }
    updates[static_cast<std::size_t>(piece)] = sum;
    if (args.weight_sum.empty()) return;
    double squares = 0;
    dispatch_float(args.weight.dtype(), [&](auto tag) {
      const auto* const weight = args.weight.data<decltype(tag)>();
      for (std::int64_t i = piece * kAdafactorPiece; i < std::min(n, (piece + 1) * kAdafactorPiece); ++i) {
        const double w = static_cast<float>(weight[i]);
        squares += w * w;
      }
    });
    weights[static_cast<std::size_t>(piece)] = squares;
  });
  const auto add = [](const TensorView& to, const std::vector<double>& terms) {
    double sum = 0;
    for (const double term : terms) sum += term;
    *to.data<float>() += static_cast<float>(sum);
  };
  add(args.update_sum, updates);
  if (!args.weight_sum.empty()) add(args.weight_sum, weights);
}

void adafactor_apply(const AdafactorApply& args) {
  if (adafactor_skips(args.skip)) return;
  const AdafactorRates rates = adafactor_rates(args.hyper.data<float>()[0], *args.update_sum.data<float>(),
                                               args.weight_sum.empty() ? -1.0f : *args.weight_sum.data<float>(),
                                               static_cast<float>(args.elements), static_cast<float>(args.weight_decay),
                                               [](float x) { return std::sqrt(x); });
  const float* const direction = args.direction.data<float>();
  parallel_pieces(args.weight.size(0), kAdafactorPiece, [&](std::int64_t begin, std::int64_t end) {
    store_weights(args.weight, args.compute_weight, args.rounding, begin, end,
                  [&](float w, std::int64_t i) { return rates.keep * w - rates.update * direction[i]; });
  });
}

}  // namespace hawser::ops::cpu
