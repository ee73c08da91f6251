#include "ops/loss/sliced_logits.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace sliced_logits_cases {

using namespace testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Logits of all columns, cut into slices that begin at `cuts`; the last number is the number of columns. The last slice
// has columns of padding after them, with the largest logits and biases.
struct Sliced {
  Values logits, labels;
  std::vector<std::int64_t> cuts;
  std::int64_t padding = 0;
  Values bias = {};  // may be empty
  double softcap = 0;
  std::int64_t rows() const { return static_cast<std::int64_t>(labels.size()); }
  std::int64_t columns() const { return cuts.back(); }
  double logit(std::int64_t row, std::int64_t column) const {
    return logits[static_cast<std::size_t>(row * columns() + column)];
  }
  // z
  double at(std::int64_t row, std::int64_t column) const {
    const double z = logit(row, column) + (bias.empty() ? 0 : bias[static_cast<std::size_t>(column)]);
    return softcap > 0 ? softcap * std::tanh(z / softcap) : z;
  }
  // The factor of the gradient of a logit.
  double factor(std::int64_t row, std::int64_t column) const {
    return softcap > 0 ? 1 - std::pow(at(row, column) / softcap, 2) : 1;
  }
  Values slice(std::size_t s) const {
    Values out;
    for (std::int64_t t = 0; t < rows(); ++t) {
      for (std::int64_t v = cuts[s]; v < cuts[s + 1]; ++v) out.push_back(logit(t, v));
      if (s + 2 == cuts.size()) out.insert(out.end(), static_cast<std::size_t>(padding), 9000.0);
    }
    return out;
  }
  Values bias_of_slice(std::size_t s) const {
    if (bias.empty()) return {};
    Values out(bias.begin() + cuts[s], bias.begin() + cuts[s + 1]);
    if (s + 2 == cuts.size()) out.insert(out.end(), static_cast<std::size_t>(padding), 100.0);
    return out;
  }
};

struct Expected {
  double loss = 0;
  Values gradients;  // of all columns
};

Expected expected_of(const Sliced& sliced, double scale) {
  Expected out;
  for (std::int64_t t = 0; t < sliced.rows(); ++t) {
    const double label = sliced.labels[static_cast<std::size_t>(t)];
    double max = -kInfinity, sum = 0;
    for (std::int64_t v = 0; v < sliced.columns(); ++v) max = std::max(max, sliced.at(t, v));
    for (std::int64_t v = 0; v < sliced.columns(); ++v) sum += std::exp(sliced.at(t, v) - max);
    for (std::int64_t v = 0; v < sliced.columns(); ++v) {
      const double p = std::exp(sliced.at(t, v) - max) / sum;
      out.gradients.push_back(
          label < 0 ? 0 : scale * (p - (static_cast<double>(v) == label ? 1 : 0)) * sliced.factor(t, v));
    }
    if (label >= 0) out.loss += max + std::log(sum) - sliced.at(t, static_cast<std::int64_t>(label));
  }
  return out;
}

// One rank's statistics and gradients, in `dtype` like the bias; the other slices' statistics are computed here.
void check(const std::string& name, const Sliced& sliced, DType dtype, bool gradients) {
  constexpr double kScale = 0.25, kBefore = 3;
  const std::int64_t rows = sliced.rows();
  const Expected expected = expected_of(sliced, kScale);
  const auto wide = static_cast<std::size_t>(rows);
  Values maxima(wide, -kInfinity), sums(wide), targets(wide);
  for (std::size_t t = 0; t < wide; ++t) {
    const auto row = static_cast<std::int64_t>(t);
    for (std::int64_t v = 0; v < sliced.columns(); ++v) maxima[t] = std::max(maxima[t], sliced.at(row, v));
    for (std::int64_t v = 0; v < sliced.columns(); ++v) sums[t] += std::exp(sliced.at(row, v) - maxima[t]);
    if (sliced.labels[t] >= 0) targets[t] = sliced.at(row, static_cast<std::int64_t>(sliced.labels[t]));
  }
  Values all = maxima;
  all.insert(all.end(), sums.begin(), sums.end());
  all.insert(all.end(), targets.begin(), targets.end());
  Values parts;  // of all slices
  for (std::size_t s = 0; s + 1 < sliced.cuts.size(); ++s) {
    const bool last = s + 2 == sliced.cuts.size();
    const std::int64_t first = sliced.cuts[s], real = sliced.cuts[s + 1] - first;
    const std::int64_t columns = real + (last ? sliced.padding : 0);
    const Values own = sliced.slice(s), bias = sliced.bias_of_slice(s);
    Values statistics(3 * wide), of_slice;
    for (std::size_t t = 0; t < wide; ++t) {
      Values row;
      for (std::int64_t v = first; v < first + real; ++v) row.push_back(sliced.at(static_cast<std::int64_t>(t), v));
      const double max = *std::max_element(row.begin(), row.end());
      double sum = 0;
      for (const double z : row) sum += max > -kInfinity ? std::exp(z - max) : 0;
      const double label = sliced.labels[t] - static_cast<double>(first);
      const bool has = sliced.labels[t] >= 0 && label >= 0 && label < static_cast<double>(real);
      statistics[t] = max;
      statistics[wide + t] = sum;
      statistics[2 * wide + t] = has ? row[static_cast<std::size_t>(label)] : 0;
      for (std::int64_t v = first; v < first + real; ++v) {
        of_slice.push_back(
            expected.gradients[t * static_cast<std::size_t>(sliced.columns()) + static_cast<std::size_t>(v)]);
      }
      of_slice.resize((t + 1) * static_cast<std::size_t>(columns));  // padding has none
    }
    const std::string what = cat(name, " slice ", s, " ", to_string(dtype));
    check_case({"logit_statistics " + what,
                [&](World& world) -> std::vector<Values> {
                  LogitStatistics args{.logits = world.in(DType::f32, {rows, columns}, own),
                                       .labels = world.in(DType::i32, {rows}, sliced.labels),
                                       .statistics = world.out(DType::f32, {3, rows}),
                                       .first_column = first,
                                       .total_columns = sliced.columns(),
                                       .softcap = sliced.softcap};
                  if (!bias.empty()) args.bias = world.in(dtype, {columns}, bias);
                  logit_statistics(world.stream(), args);
                  return {world.values(args.statistics)};
                },
                {statistics},
                1e-6});
    parts.insert(parts.end(), statistics.begin(), statistics.end());
    std::vector<Values> results{{kBefore + expected.loss}};
    if (gradients) results.push_back(of_slice);
    check_case({"logit_gradients " + what,
                [&](World& world) -> std::vector<Values> {
                  LogitGradients args{.logits = world.in(DType::f32, {rows, columns}, own),
                                      .labels = world.in(DType::i32, {rows}, sliced.labels),
                                      .statistics = world.in(DType::f32, {3, rows}, all),
                                      .loss_sum = world.in_out(DType::f32, {2}, {kBefore, 0}),
                                      .first_column = first,
                                      .total_columns = sliced.columns(),
                                      .softcap = sliced.softcap};
                  if (!bias.empty()) args.bias = world.in(dtype, {columns}, bias);
                  if (gradients) {
                    args.scale = world.in(DType::f32, {1}, {kScale});
                    args.gradients = world.out(dtype, {rows, columns});
                  }
                  logit_gradients(world.stream(), args);
                  const Values parts = world.values(args.loss_sum);
                  std::vector<Values> got{parts.empty() ? Values() : Values{parts[0] + parts[1]}};
                  if (gradients) got.push_back(world.values(args.gradients));
                  return got;
                },
                results, dtype == DType::bf16 ? kBf16Tolerance : 2e-6});
  }
  const auto slices = static_cast<std::int64_t>(sliced.cuts.size()) - 1;
  check_case({"combine_statistics " + name,
              [&](World& world) -> std::vector<Values> {
                const CombineStatistics args{.parts = world.in(DType::f32, {3 * slices, rows}, parts),
                                             .statistics = world.out(DType::f32, {3, rows})};
                combine_statistics(world.stream(), args);
                return {world.values(args.statistics)};
              },
              {all},
              1e-6});
}

TEST(SlicedLogits, AreTheCrossEntropyOfAllColumns) {
  constexpr std::int64_t kRows = 9, kColumns = 67;
  Sliced sliced{.logits = random_values(kRows * kColumns, 1, DType::f32, 3.0),
                .labels = {0, 66, -100, 33, 34, 5, 66, -1, 40},
                .cuts = {0, 34, kColumns}};
  for (const DType dtype : {DType::f32, DType::bf16}) check("two", sliced, dtype, true);
  sliced.cuts = {0, 17, 34, 51, kColumns};
  check("four", sliced, DType::f32, false);
  sliced.padding = 1;
  for (const DType dtype : {DType::f32, DType::bf16}) check("four, padded", sliced, dtype, true);
}

// A bias, a cap that many logits are near to, and both.
TEST(SlicedLogits, BiasAndSoftcapAreThoseOfAllColumns) {
  constexpr std::int64_t kRows = 9, kColumns = 67;
  for (const auto& [bias, softcap] : {std::pair{true, 0.0}, {false, 2.0}, {true, 2.0}}) {
    const Sliced sliced{.logits = random_values(kRows * kColumns, 1, DType::f32, 3.0),
                        .labels = {0, 66, -100, 33, 34, 5, 66, -1, 40},
                        .cuts = {0, 34, kColumns},
                        .padding = 1,
                        .bias = bias ? random_values(kColumns, 2, DType::bf16, 2.0) : Values(),
                        .softcap = softcap};
    for (const DType dtype : {DType::f32, DType::bf16}) check(cat("softcap ", softcap), sliced, dtype, true);
  }
}

// The gradients may be written over the logits.
TEST(SlicedLogits, GradientsMayBeTheLogits) {
  constexpr std::int64_t kRows = 3, kColumns = 21;
  const Values logits = random_values(kRows * kColumns, 1, DType::f32, 3.0);
  for (const DeviceKind kind : devices()) {
    for (const double softcap : {0.0, 2.0}) {
      std::vector<Values> got;
      for (const bool over : {false, true}) {
        World world(kind, 2);
        LogitGradients args{.logits = world.in_out(DType::f32, {kRows, kColumns}, logits),
                            .labels = world.in(DType::i32, {kRows}, {4, -1, 20}),
                            .statistics = world.in(DType::f32, {3, kRows}, {2, 2, 2, 9, 9, 9, 1, 0, 1}),
                            .scale = world.in(DType::f32, {1}, {1}),
                            .loss_sum = world.in_out(DType::f32, {2}, {0, 0}),
                            .total_columns = kColumns,
                            .softcap = softcap};
        args.gradients = over ? args.logits : world.out(DType::f32, {kRows, kColumns});
        logit_gradients(world.stream(), args);
        got.push_back(world.values(args.gradients));
      }
      EXPECT_EQ(got[0], got[1]) << softcap;
    }
  }
}

// The first slice's logits are all -inf, and all labels are in the last one.
TEST(SlicedLogits, ASliceCanHaveNoProbability) {
  constexpr std::int64_t kRows = 4, kColumns = 21;
  Sliced sliced{.logits = random_values(kRows * kColumns, 1, DType::f32, 3.0),
                .labels = {15, 20, 16, 19},
                .cuts = {0, 8, 15, kColumns}};
  for (std::int64_t t = 0; t < kRows; ++t) {
    std::fill_n(sliced.logits.begin() + t * kColumns, 8, -kInfinity);
  }
  check("-inf", sliced, DType::f32, true);
}

// Logits of several thousand, with the largest in another slice.
TEST(SlicedLogits, HugeLogits) {
  check("huge", {.logits = {-5000, 3000, 2000, 3001}, .labels = {2}, .cuts = {0, 2, 4}}, DType::f32, true);
}

// Logits of rows without a label are infinite or NaN, and so are their statistics: the loss is that of the other rows,
// and these have no gradient.
TEST(SlicedLogits, RowsWithoutALabelMayOverflow) {
  constexpr std::int64_t kRows = 4, kColumns = 8;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Sliced sliced{.logits = random_values(kRows * kColumns, 1, DType::f32, 3.0), .labels = {2, -100, -1, 7}};
  const Expected expected = expected_of(
      [&] {
        Sliced all = sliced;
        all.cuts = {0, kColumns};
        return all;
      }(),
      1);
  std::fill_n(sliced.logits.begin() + kColumns, kColumns, kInfinity);
  std::fill_n(sliced.logits.begin() + 2 * kColumns, kColumns, nan);
  sliced.logits[kColumns] = -kInfinity;
  sliced.cuts = {0, kColumns / 2, kColumns};
  for (const DeviceKind kind : devices()) {
    World world(kind, 2);
    const TensorView labels = world.in(DType::i32, {kRows}, sliced.labels), all = world.out(DType::f32, {3, kRows});
    const auto slice_of = [&](std::size_t s) { return world.in(DType::f32, {kRows, kColumns / 2}, sliced.slice(s)); };
    Values parts;
    for (const std::size_t s : {std::size_t{0}, std::size_t{1}}) {
      const TensorView own = world.out(DType::f32, {3, kRows});
      logit_statistics(world.stream(), {.logits = slice_of(s),
                                        .labels = labels,
                                        .statistics = own,
                                        .first_column = sliced.cuts[s],
                                        .total_columns = kColumns});
      const Values values = world.values(own);
      parts.insert(parts.end(), values.begin(), values.end());
    }
    combine_statistics(world.stream(), {.parts = world.in(DType::f32, {6, kRows}, parts), .statistics = all});
    for (const std::size_t s : {std::size_t{0}, std::size_t{1}}) {
      const TensorView loss = world.in_out(DType::f32, {2}, {0, 0}),
                       gradients = world.out(DType::f32, {kRows, kColumns / 2});
      logit_gradients(world.stream(), {.logits = slice_of(s),
                                       .labels = labels,
                                       .statistics = all,
                                       .scale = world.in(DType::f32, {1}, {1}),
                                       .loss_sum = loss,
                                       .gradients = gradients,
                                       .first_column = sliced.cuts[s],
                                       .total_columns = kColumns});
      const Values sum = world.values(loss), got = world.values(gradients);
      EXPECT_NEAR(sum[0] + sum[1], expected.loss, 1e-5) << to_string(kind);
      for (std::size_t i = 0; i < got.size(); ++i) {
        const std::size_t row = i / (kColumns / 2), column = s * (kColumns / 2) + i % (kColumns / 2);
        EXPECT_NEAR(got[i], expected.gradients[row * kColumns + column], 1e-6) << to_string(kind) << ' ' << i;
      }
    }
  }
}

TEST(SlicedLogits, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView logits = world.in(DType::f32, {2, 3}, Values(6)), labels = world.in(DType::i32, {2}, {0, 1}),
                   statistics = world.out(DType::f32, {3, 2});
  const auto statistics_of = [&](std::int64_t first, std::int64_t total, const TensorView& to) {
    logit_statistics(
        world.stream(),
        {.logits = logits, .labels = labels, .statistics = to, .first_column = first, .total_columns = total});
  };
  expect_rejected([&] { statistics_of(5, 5, statistics); }, "3 columns from 5 of 5");
  expect_rejected([&] { statistics_of(0, 3, world.out(DType::f32, {2, 2})); }, "statistics has shape");
  const LogitStatistics good{.logits = logits, .labels = labels, .statistics = statistics, .total_columns = 3};
  const auto rejected = [&](const std::function<void(LogitStatistics&)>& spoil, const std::string& part) {
    LogitStatistics args = good;
    spoil(args);
    expect_rejected([&] { logit_statistics(world.stream(), args); }, part);
  };
  rejected([&](auto& a) { a.bias = world.in(DType::f32, {2}, Values(2)); }, "bias has shape");
  rejected([&](auto& a) { a.bias = labels; }, "bias is int32");
  rejected([&](auto& a) { a.softcap = -1; }, "softcap is -1");
  rejected([&](auto& a) { a.softcap = std::numeric_limits<double>::infinity(); }, "softcap is inf");
  rejected([&](auto& a) { a.softcap = std::numeric_limits<double>::quiet_NaN(); }, "softcap is nan");
  const auto combine = [&](const TensorView& parts) {
    combine_statistics(world.stream(), {.parts = parts, .statistics = statistics});
  };
  expect_rejected([&] { combine(logits); }, "statistics of no rank");
  expect_rejected([&] { combine(world.in(DType::f32, {4, 2}, Values(8))); }, "parts has shape");
  expect_rejected(
      [&] {
        logit_gradients(world.stream(), {.logits = logits,
                                         .labels = labels,
                                         .statistics = statistics,
                                         .loss_sum = world.out(DType::f32, {2}),
                                         .gradients = world.out(DType::f32, {2, 3}),
                                         .total_columns = 3});
      },
      "scale");
  World other(DeviceKind::cpu, 1);
  logit_statistics(other.stream(), {.logits = other.in(DType::f32, {1, 2}, {0, 0}),
                                    .labels = other.in(DType::i32, {1}, {5}),
                                    .statistics = other.out(DType::f32, {3, 1}),
                                    .first_column = 2,
                                    .total_columns = 5});
  EXPECT_THROW(other.stream().synchronize(), InternalError);
}

}  // namespace sliced_logits_cases
}  // namespace hawser::ops
