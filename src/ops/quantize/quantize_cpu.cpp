#include <algorithm>
#include <cmath>

#include "ops/quantize/quantize.h"
#include "ops/quantize/quantize_rows_cpu.h"
#include "ops/quantize/scale_of.h"

namespace hawser::ops::cpu {

void quantize(const Quantize& args) {
  dispatch_float(args.x.dtype(), [&](auto x_tag) {
    using X = decltype(x_tag);
    const auto x = rows_of<X>(args.x);
    const Fp8Output to = args.output();
    dispatch_fp8(to.dtype(), [&](auto q_tag) {
      quantize_rows<X, decltype(q_tag)>(x.count, x.columns, 0, to, [&](std::int64_t t, X*) { return x.row(t); });
    });
  });
}

void dequantize(const Dequantize& args) {
  const float* const scales = args.scale.data<float>();
  const std::int64_t size = args.q.elements() / std::max<std::int64_t>(args.scale.elements(), 1);
  dispatch_fp8(args.q.dtype(), [&](auto q_tag) {
    dispatch_float(args.y.dtype(), [&](auto y_tag) {
      using Y = decltype(y_tag);
      const auto* const q = args.q.data<decltype(q_tag)>();
      auto* const y = args.y.data<Y>();
      parallel_pieces(args.q.elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end;) {
          const std::int64_t matrix = i / size, to = std::min(end, (matrix + 1) * size);
          for (; i < to; ++i) y[i] = static_cast<Y>(scales[matrix] * static_cast<float>(q[i]));
        }
      });
    });
  });
}

void amax(const Amax& args) {
  Maximum largest;
  dispatch_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    const bool vector = args.x.rank() == 1;
    const auto x = vector ? RowsOf<X>{args.x.data<X>(), 1, args.x.elements(), 0} : rows_of<X>(args.x);
    const std::int64_t items = vector ? x.columns : counted_rows(args.row_count, x.count);
    parallel_pieces(items, vector ? 4096 : 16, [&](std::int64_t begin, std::int64_t end) {
      std::uint32_t found = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        if (!counts(args.mask, i)) continue;
        const X* const from = vector ? x.data + i : x.row(i);
        for (std::int64_t c = 0; c < (vector ? 1 : x.columns); ++c) {
          found = std::max(found, size_bits(static_cast<float>(from[c])));
        }
      }
      largest.take(found);
    });
  });
  float& out = *args.out.data<float>();
  out = of_size_bits(std::max(args.accumulate ? size_bits(out) : 0, largest.bits()));
}

void scales_of_amaxes(const ScalesOfAmaxes& args) {
  const ScaleOf of = scale_of(args.dtype, args.rule);
  for (std::int64_t i = 0; i < args.amax.elements(); ++i) {
    const float amax = args.amax.data<float>()[i];
    float& scale = args.scales.data<float>()[i];
    if (std::isfinite(amax) && amax != 0) {
      scale = of(amax);
    } else if (args.otherwise) {
      scale = *args.otherwise;
    }
  }
}

void delayed_scales(const DelayedScales& args) {
  if (const std::int32_t skip = *args.skip.data<std::int32_t>(); skip != 0 && skip != args.refreshes) return;
  const ScaleOf of_x = scale_of(DType::f8e4m3, args.rule), of_dy = scale_of(DType::f8e5m2, args.rule);
  const std::int64_t length = args.history.size(1);
  for (std::int64_t i = 0; i < args.history.size(0); ++i) {
    const float amax = args.amax.data<float>()[i];
    if (!std::isfinite(amax) || amax == 0) continue;
    float* const history = args.history.rows(i, 1).data<float>();
    std::copy_backward(history, history + length - 1, history + length);
    history[0] = amax;
    const float from = args.most_recent ? amax : *std::max_element(history, history + length);
    args.scales.data<float>()[i] = (i % 2 == 0 ? of_x : of_dy)(from);
  }
}

}  // namespace hawser::ops::cpu
