#include "ops/loss/sliced_logits.h"

#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/parallel.h"

#define HAWSER_KERNELS "ops/loss/sliced_logits_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

// `count` logits of a row with their bias and cap. Those that have none are read where they are.
template <class Args>
class LogitRows {
 public:
  LogitRows(const Args& args, std::int64_t count) : args_(args), count_(count) {
    if (adjusts()) memory_.resize(static_cast<std::size_t>(count));
  }

  const float* row(std::int64_t t) {
    const float* const row = args_.logits.template data<float>() + t * args_.logits.size(1);
    if (!adjusts()) return row;
    dispatch_float(args_.bias.empty() ? DType::f32 : args_.bias.dtype(), [&](auto tag) {
      const auto* const bias = reinterpret_cast<const decltype(tag)*>(args_.bias.raw());
      HAWSER_DISPATCH(capped_row, row, bias, static_cast<float>(args_.softcap), memory_.data(), count_);
    });
    return memory_.data();
  }

 private:
  bool adjusts() const { return !args_.bias.empty() || args_.softcap > 0; }

  const Args& args_;
  std::int64_t count_;
  std::vector<float> memory_;
};

}  // namespace

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
    LogitRows logits(args, real);
    const float* const row = logits.row(t);
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
  const float scale = *args.scale.data<float>(), cap = static_cast<float>(args.softcap);
  const std::int64_t real = std::min(columns, args.total_columns - args.first_column);
  dispatch_float(args.gradients.dtype(), [&](auto tag) {
    using Out = decltype(tag);
    parallel_items(rows, [&](std::int64_t t) {
      LogitRows logits(args, real);
      Out* const out = args.gradients.data<Out>() + t * columns;
      if (labels[t] < 0) {
        std::fill_n(out, columns, Out(0.0f));
        return;
      }
      const float* const row = logits.row(t);
      const float by = scale / sums[t];
      const std::int64_t label = labels[t] - args.first_column;
      const bool own = label >= 0 && label < real;
      float at_label = own ? std::exp(row[label] - maxima[t]) * by - scale : 0.0f;
      if (cap > 0) {
        if (own) at_label *= 1.0f - (row[label] / cap) * (row[label] / cap);
        HAWSER_DISPATCH(capped_row_softmax, row, maxima[t], by, cap, out, real);
      } else {
        HAWSER_DISPATCH(row_softmax, row, maxima[t], by, out, real);
      }
      std::fill_n(out + real, columns - real, Out(0.0f));
      if (own) out[label] = static_cast<Out>(at_label);
    });
  });
}

}  // namespace hawser::ops::cpu
