#include "ops/norm/layer_norm.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace layer_norm_cases {

using namespace testing;

struct Normed {
  Values y, statistics;
};

Normed layer_norm(const Values& x, const Values& weight, const Values& bias, std::int64_t tokens) {
  const std::size_t columns = weight.size();
  Normed out;
  Values rstds;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double* row = x.data() + static_cast<std::size_t>(t) * columns;
    double mean = 0, squares = 0;
    for (std::size_t c = 0; c < columns; ++c) mean += row[c] / static_cast<double>(columns);
    for (std::size_t c = 0; c < columns; ++c) squares += (row[c] - mean) * (row[c] - mean);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + 1e-5);
    out.statistics.push_back(mean);
    rstds.push_back(rstd);
    for (std::size_t c = 0; c < columns; ++c) {
      out.y.push_back((row[c] - mean) * rstd * weight[c] + (bias.empty() ? 0 : bias[c]));
    }
  }
  out.statistics.insert(out.statistics.end(), rstds.begin(), rstds.end());
  return out;
}

void check(DType act, std::int64_t tokens, std::int64_t channels, bool bias, bool residual, bool accumulate) {
  Values x = random_values(tokens * channels, 1, act), weight = random_values(channels, 2, act),
         shift = bias ? random_values(channels, 3, act) : Values();
  const auto dy = random_values(tokens * channels, 4, act), added = random_values(tokens * channels, 5, act);
  const auto old_weight = random_values(channels, 6), old_bias = random_values(channels, 7);
  const Normed expected = layer_norm(x, weight, shift, tokens);
  const Values given = x, given_weight = weight;
  const Shape shape{tokens, channels};
  const double tolerance = act == DType::bf16 ? kBf16Tolerance : 5e-6;
  const std::string text = cat(to_string(act), " ", tokens, "x", channels, bias, residual, accumulate);
  check_case({"layer_norm_forward " + text,
              [&](World& world) -> std::vector<Values> {
                const LayerNormForward args{.x = world.in(act, shape, given, 1),
                                            .weight = world.in(act, {channels}, given_weight),
                                            .bias = bias ? world.in(act, {channels}, shift) : TensorView(),
                                            .y = world.out(act, shape, 2),
                                            .statistics = world.out(DType::f32, {2, tokens})};
                layer_norm_forward(world.stream(), args);
                return {world.values(args.y), world.values(args.statistics)};
              },
              {expected.y, expected.statistics},
              tolerance});
  const auto loss = [&] { return dot(layer_norm(x, weight, shift, tokens).y, dy); };
  Values dx = numeric_gradient(loss, x), dweight = numeric_gradient(loss, weight);
  Values dbias = bias ? numeric_gradient(loss, shift) : Values();
  if (residual) dx = plus(dx, added);
  if (accumulate) dweight = plus(dweight, old_weight);
  if (accumulate && bias) dbias = plus(dbias, old_bias);
  check_case({"layer_norm_backward " + text,
              [&](World& world) -> std::vector<Values> {
                const auto gradient = [&](const Values& old) {
                  return accumulate ? world.in_out(DType::f32, {channels}, old) : world.out(DType::f32, {channels});
                };
                const LayerNormBackward args{
                    .x = world.in(act, shape, given, 1),
                    .weight = world.in(act, {channels}, given_weight),
                    .statistics = world.in(DType::f32, {2, tokens}, expected.statistics),
                    .dy = world.in(act, shape, dy, 2),
                    .residual_gradient = residual ? world.in(act, shape, added, 3) : TensorView(),
                    .dx = world.out(act, shape, 4),
                    .dweight = gradient(old_weight),
                    .dbias = bias ? gradient(old_bias) : TensorView(),
                    .accumulate_weight = accumulate,
                    .accumulate_bias = accumulate};
                layer_norm_backward(world.stream(), args);
                std::vector<Values> got{world.values(args.dx), world.values(args.dweight)};
                if (bias) got.push_back(world.values(args.dbias));
                return got;
              },
              bias ? std::vector<Values>{dx, dweight, dbias} : std::vector<Values>{dx, dweight}, tolerance});
}

TEST(LayerNorm, AgreesWithFloat64AndFiniteDifferences) {
  for (const DType act : {DType::f32, DType::bf16}) {
    check(act, 7, 20, true, true, false);
    check(act, 3, 33, false, false, false);
    check(act, 1, 1, true, false, false);
  }
  check(DType::f32, 5, 16, true, true, true);
  check(DType::f32, 40, 4, true, false, true);
}

// Rows of the lengths that the fast kernels of a GPU take, and longer ones; gradients by the formulas in float64.
void check_wide(DType act, std::int64_t tokens, std::int64_t channels) {
  const auto x = random_values(tokens * channels, 1, act), weight = random_values(channels, 2, act),
             bias = random_values(channels, 3, act), dy = random_values(tokens * channels, 4, act),
             added = random_values(tokens * channels, 5, act);
  const Normed normed = layer_norm(x, weight, bias, tokens);
  Values dx, dweight(weight.size()), dbias(weight.size());
  const auto count = static_cast<double>(channels);
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    const double mean = normed.statistics[t], rstd = normed.statistics[static_cast<std::size_t>(tokens) + t];
    const std::size_t row = t * weight.size();
    double sum = 0, product = 0;
    for (std::size_t c = 0; c < weight.size(); ++c) {
      const double n = (x[row + c] - mean) * rstd, g = dy[row + c] * weight[c];
      sum += g, product += g * n;
      dweight[c] += dy[row + c] * n, dbias[c] += dy[row + c];
    }
    for (std::size_t c = 0; c < weight.size(); ++c) {
      const double n = (x[row + c] - mean) * rstd;
      dx.push_back(rstd * (dy[row + c] * weight[c] - sum / count - n * product / count) + added[row + c]);
    }
  }
  const Shape shape{tokens, channels};
  check_case({cat("layer_norm wide ", to_string(act), " ", shape.text()),
              [&](World& world) -> std::vector<Values> {
                const LayerNormForward args{.x = world.in(act, shape, x),
                                            .weight = world.in(act, {channels}, weight),
                                            .bias = world.in(act, {channels}, bias),
                                            .y = world.out(act, shape),
                                            .statistics = world.out(DType::f32, {2, tokens})};
                layer_norm_forward(world.stream(), args);
                return {world.values(args.y), world.values(args.statistics)};
              },
              {normed.y, normed.statistics},
              act == DType::bf16 ? kBf16Tolerance : 5e-6});
  check_case({cat("layer_norm_backward wide ", to_string(act), " ", shape.text()),
              [&](World& world) -> std::vector<Values> {
                const LayerNormBackward args{.x = world.in(act, shape, x),
                                             .weight = world.in(act, {channels}, weight),
                                             .statistics = world.in(DType::f32, {2, tokens}, normed.statistics),
                                             .dy = world.in(act, shape, dy),
                                             .residual_gradient = world.in(act, shape, added),
                                             .dx = world.out(act, shape),
                                             .dweight = world.out(DType::f32, {channels}),
                                             .dbias = world.out(DType::f32, {channels})};
                layer_norm_backward(world.stream(), args);
                return {world.values(args.dx), world.values(args.dweight), world.values(args.dbias)};
              },
              {dx, dweight, dbias},
              act == DType::bf16 ? kBf16Tolerance : 5e-6});
}

TEST(LayerNorm, AgreesWithFloat64InWideRows) {
  for (const DType act : {DType::f32, DType::bf16}) {
    check_wide(act, 300, 64);
    check_wide(act, 9, 2048);
    check_wide(act, 3, act == DType::bf16 ? 6144 : 3072);
    check_wide(act, 3, 20480);
  }
}

TEST(LayerNorm, WorksInPlaceOfTheGradient) {
  World world(DeviceKind::cpu, 2);
  const Values x = random_values(12, 1), weight = random_values(4, 2), dy = random_values(12, 3);
  const Normed normed = layer_norm(x, weight, {}, 3);
  const auto run = [&](const TensorView& gradient, const TensorView& dx, const TensorView& residual) {
    layer_norm_backward(world.stream(), {.x = world.in(DType::f32, {3, 4}, x),
                                         .weight = world.in(DType::f32, {4}, weight),
                                         .statistics = world.in(DType::f32, {2, 3}, normed.statistics),
                                         .dy = gradient,
                                         .residual_gradient = residual,
                                         .dx = dx,
                                         .dweight = world.out(DType::f32, {4})});
    return world.values(dx);
  };
  const Values apart = run(world.in(DType::f32, {3, 4}, dy), world.out(DType::f32, {3, 4}), TensorView());
  const TensorView over = world.in_out(DType::f32, {3, 4}, dy);
  EXPECT_EQ(run(over, over, TensorView()), apart);
}

TEST(LayerNorm, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {2, 4}, Values(8)), weight = world.in(DType::f32, {4}, Values(4)),
                   y = world.out(DType::f32, {2, 4}), statistics = world.out(DType::f32, {2, 2});
  Stream& s = world.stream();
  expect_rejected([&] { layer_norm_forward(s, {.x = x, .weight = weight, .y = x, .statistics = statistics}); },
                  "share memory");
  expect_rejected([&] { layer_norm_forward(s, {.x = x, .weight = weight, .y = y, .statistics = weight}); },
                  "statistics has shape");
  expect_rejected(
      [&] { layer_norm_backward(s, {.x = x, .weight = weight, .statistics = statistics, .dy = y, .dx = x}); },
      "share memory");
}

}  // namespace layer_norm_cases
}  // namespace hawser::ops
