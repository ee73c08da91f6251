#include "ops/loss/sliced_logits.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/loss/sliced_logits_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

void logit_statistics(const LogitStatistics& args) {
  const std::int64_t rows = args.logits.size(0), columns = args.logits.size(1);
  const auto* labels = args.labels.data<std::int32_t>();
  for (std::int64_t t = 0; t < rows; ++t) {
    HAWSER_CHECK(labels[t] < args.total_columns, "logit_statistics: label ", labels[t], " of row ", t,
                 " is outside [0, ", args.total_columns, ")");
  }
  const std::int64_t real = std::min(columns, args.total_columns - args.first_column);
  auto* const maxima = args.statistics.data<float>();
  auto* const sums = maxima + rows;
  auto* const targets = sums + rows;
  parallel_items(rows, [&](std::int64_t t) {
    const float* const row = args.logits.data<float>() + t * columns;
    HAWSER_DISPATCH(row_statistics, row, real, maxima + t, sums + t);
    const std::int64_t label = labels[t] - args.first_column;
    targets[t] = labels[t] >= 0 && label >= 0 && label < real ? row[label] : 0.0f;
  });
}

void combine_statistics(const CombineStatistics& args) {
  const std::int64_t ranks = args.parts.size(0) / 3, rows = args.parts.size(1);
  const auto* const parts = args.parts.data<float>();
  auto* const statistics = args.statistics.data<float>();
  for (std::int64_t t = 0; t < rows; ++t) {
    const auto part = [&](std::int64_t rank, std::int64_t row) { return parts[(3 * rank + row) * rows + t]; };
    float max = part(0, 0), sum = 0, target = 0;
    for (std::int64_t r = 1; r < ranks; ++r) max = std::max(max, part(r, 0));
    for (std::int64_t r = 0; r < ranks; ++r) {
      // Two maxima may be -inf.
      sum += part(r, 0) == max ? part(r, 1) : part(r, 1) * std::exp(part(r, 0) - max);
      target += part(r, 2);
    }
    statistics[t] = max;
    statistics[rows + t] = sum;
    statistics[2 * rows + t] = target;
  }
}

void logit_gradients(const LogitGradients& args) {
  const std::int64_t rows = args.logits.size(0), columns = args.logits.size(1);
  const auto* const labels = args.labels.data<std::int32_t>();
  const auto* const maxima = args.statistics.data<float>();
  const auto* const sums = maxima + rows;
  const auto* const targets = sums + rows;
  double total = 0;
  for (std::int64_t t = 0; t < rows; ++t) {
    if (labels[t] < 0) continue;
    total += static_cast<double>(maxima[t]) - static_cast<double>(targets[t]) + std::log(static_cast<double>(sums[t]));
  }
  auto* const sum = args.loss_sum.data<float>();
  total += static_cast<double>(sum[0]) + static_cast<double>(sum[1]);
  sum[0] = static_cast<float>(total);
  sum[1] = static_cast<float>(total - static_cast<double>(sum[0]));
  if (args.gradients.empty()) return;
  const float scale = *args.scale.data<float>();
  const std::int64_t real = std::min(columns, args.total_columns - args.first_column);
  dispatch_float(args.gradients.dtype(), [&](auto tag) {
    using Out = decltype(tag);
    parallel_items(rows, [&](std::int64_t t) {
      const float* const row = args.logits.data<float>() + t * columns;
      Out* const out = args.gradients.data<Out>() + t * columns;
      if (labels[t] < 0) {
        std::fill_n(out, columns, Out(0.0f));
        return;
      }
      const float by = scale / sums[t];
      const std::int64_t label = labels[t] - args.first_column;
      const bool own = label >= 0 && label < real;
      const float at_label = own ? std::exp(row[label] - maxima[t]) * by - scale : 0.0f;
      HAWSER_DISPATCH(row_softmax, row, maxima[t], by, out, real);
      std::fill_n(out + real, columns - real, Out(0.0f));
      if (own) out[label] = static_cast<Out>(at_label);
    });
  });
}

}  // namespace hawser::ops::cpu
