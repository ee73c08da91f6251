#include <cmath>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/norm/layer_norm.h"

namespace hawser::ops::cpu {

namespace {

template <class Act, class Weight>
void normalise(const LayerNormForward& args) {
  const auto x = rows_of<Act>(args.x);
  const auto y = rows_of<Act>(args.y);
  const auto* weight = args.weight.data<Weight>();
  const auto* bias = args.bias.empty() ? nullptr : args.bias.data<Weight>();
  float* const means = args.statistics.data<float>();
  float* const rstds = means + x.count;
  const auto columns = static_cast<double>(x.columns);
  parallel_pieces(x.count, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const Act* const from = x.row(t);
      double sum = 0, squares = 0;
      for (std::int64_t c = 0; c < x.columns; ++c) sum += static_cast<float>(from[c]);
      const double mean = sum / columns;
      for (std::int64_t c = 0; c < x.columns; ++c) {
        const double centred = static_cast<double>(static_cast<float>(from[c])) - mean;
        squares += centred * centred;
      }
      const double rstd = 1.0 / std::sqrt(squares / columns + args.epsilon);
      means[t] = static_cast<float>(mean);
      rstds[t] = static_cast<float>(rstd);
      Act* const to = y.row(t);
      for (std::int64_t c = 0; c < x.columns; ++c) {
        const float n = (static_cast<float>(from[c]) - means[t]) * rstds[t];
        to[c] =
            static_cast<Act>(n * static_cast<float>(weight[c]) + (bias != nullptr ? static_cast<float>(bias[c]) : 0));
      }
    }
  });
}

template <class Act, class Weight>
void input_gradient(const LayerNormBackward& args) {
  const auto x = rows_of<Act>(args.x);
  const auto dy = rows_of<Act>(args.dy);
  const auto dx = rows_of<Act>(args.dx);
  const auto residual = rows_of<Act>(args.residual_gradient);
  const auto* weight = args.weight.data<Weight>();
  const float* const means = args.statistics.data<float>();
  const float* const rstds = means + x.count;
  const auto columns = static_cast<double>(x.columns);
  parallel_pieces(x.count, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const Act *const from = x.row(t), *const gradient = dy.row(t);
      const auto n = [&](std::int64_t c) { return (static_cast<float>(from[c]) - means[t]) * rstds[t]; };
      const auto g = [&](std::int64_t c) { return static_cast<float>(gradient[c]) * static_cast<float>(weight[c]); };
      double sum = 0, product = 0;
      for (std::int64_t c = 0; c < x.columns; ++c) {
        sum += static_cast<double>(g(c));
        product += static_cast<double>(g(c)) * static_cast<double>(n(c));
      }
      const auto mean_g = static_cast<float>(sum / columns), mean_gn = static_cast<float>(product / columns);
      Act* const to = dx.row(t);
      for (std::int64_t c = 0; c < x.columns; ++c) {
        const float own = rstds[t] * (g(c) - mean_g - n(c) * mean_gn);
        to[c] = static_cast<Act>(own + (residual.data != nullptr ? static_cast<float>(residual.row(t)[c]) : 0));
      }
    }
  });
}

// Sums over tokens of dy * n, or of dy, for columns [begin, end): one thread has all tokens of a column.
template <class Act>
void parameter_gradients(const LayerNormBackward& args) {
  const auto x = rows_of<Act>(args.x);
  const auto dy = rows_of<Act>(args.dy);
  const float* const means = args.statistics.data<float>();
  const float* const rstds = means + x.count;
  parallel_pieces(x.columns, 16, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> weights(static_cast<std::size_t>(end - begin)), biases(weights.size());
    for (std::int64_t t = 0; t < x.count; ++t) {
      const Act *const from = x.row(t), *const gradient = dy.row(t);
      for (std::int64_t c = begin; c < end; ++c) {
        const auto i = static_cast<std::size_t>(c - begin);
        const auto d = static_cast<double>(static_cast<float>(gradient[c]));
        weights[i] += d * static_cast<double>((static_cast<float>(from[c]) - means[t]) * rstds[t]);
        biases[i] += d;
      }
    }
    const auto put = [&](const TensorView& to, const std::vector<double>& sums, bool accumulate) {
      if (to.empty()) return;
      dispatch_float(to.dtype(), [&](auto tag) {
        auto* values = to.data<decltype(tag)>();
        for (std::int64_t c = begin; c < end; ++c) {
          const double old = accumulate ? static_cast<double>(static_cast<float>(values[c])) : 0.0;
          values[c] = static_cast<decltype(tag)>(static_cast<float>(old + sums[static_cast<std::size_t>(c - begin)]));
        }
      });
    };
    put(args.dweight, weights, args.accumulate_weight);
    put(args.dbias, biases, args.accumulate_bias);
  });
}

}  // namespace

void layer_norm_forward(const LayerNormForward& args) {
  dispatch_float(args.x.dtype(), [&](auto act) {
    dispatch_float(args.weight.dtype(), [&](auto weight) { normalise<decltype(act), decltype(weight)>(args); });
  });
}

void layer_norm_backward(const LayerNormBackward& args) {
  dispatch_float(args.x.dtype(), [&](auto act) {
    // dx may be dy: the sums over tokens read it first.
    if (!args.dweight.empty() || !args.dbias.empty()) parameter_gradients<decltype(act)>(args);
    dispatch_float(args.weight.dtype(), [&](auto weight) { input_gradient<decltype(act), decltype(weight)>(args); });
  });
}

}  // namespace hawser::ops::cpu
