#include <cmath>

#include "ops/cpu/parallel.h"
#include "ops/dora/dora.h"

namespace hawser::ops::cpu {

namespace {

float factor_of(float m, float n) {
  return n > 0 ? m / std::sqrt(n) : 0.0f;
}

}  // namespace

void dora_row_squares(const DoraRowSquares& args) {
  dispatch_float(args.w.dtype(), [&](auto w_tag) {
    dispatch_float(args.b.dtype(), [&](auto b_tag) {
      const auto w = rows_of<decltype(w_tag)>(args.w);
      const auto b = rows_of<decltype(b_tag)>(args.b);
      const auto p = rows_of<float>(args.p), q = rows_of<float>(args.q);
      float* const n = args.n.data<float>();
      const double scale = args.scale;
      parallel_pieces(w.count, 4, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          double squares = 0, cross = 0, low_rank = 0;
          for (std::int64_t c = 0; c < w.columns; ++c) {
            const auto value = static_cast<double>(static_cast<float>(w.row(r)[c]));
            squares += value * value;
          }
          for (std::int64_t k = 0; k < b.columns; ++k) {
            const auto b_k = static_cast<double>(static_cast<float>(b.row(r)[k]));
            double inner = 0;
            for (std::int64_t l = 0; l < b.columns; ++l) {
              inner += static_cast<double>(q.row(k)[l]) * static_cast<double>(static_cast<float>(b.row(r)[l]));
            }
            cross += b_k * static_cast<double>(p.row(r)[k]);
            low_rank += b_k * inner;
          }
          n[r] = static_cast<float>(std::max(0.0, squares + 2 * scale * cross + scale * scale * low_rank));
        }
      });
    });
  });
}

void scale_by_norms(const ScaleByNorms& args) {
  dispatch_float(args.x.dtype(), [&](auto tag) {
    dispatch_float(args.m.dtype(), [&](auto m_tag) {
      using Act = decltype(tag);
      const auto x = rows_of<Act>(args.x), y = rows_of<Act>(args.y);
      const auto* const m = args.m.data<decltype(m_tag)>();
      const float* const n = args.n.data<float>();
      const auto minus = static_cast<float>(args.minus);
      const bool accumulate = args.accumulate;
      parallel_pieces(x.count, std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, x.columns)),
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t t = begin; t < end; ++t) {
                          for (std::int64_t r = 0; r < x.columns; ++r) {
                            const float value =
                                (factor_of(static_cast<float>(m[r]), n[r]) - minus) * static_cast<float>(x.row(t)[r]);
                            y.row(t)[r] =
                                static_cast<Act>(accumulate ? static_cast<float>(y.row(t)[r]) + value : value);
                          }
                        }
                      });
    });
  });
}

void dora_magnitude_gradient(const DoraMagnitudeGradient& args) {
  dispatch_float(args.dy.dtype(), [&](auto tag) {
    dispatch_float(args.dm.dtype(), [&](auto dm_tag) {
      using Act = decltype(tag);
      using Dm = decltype(dm_tag);
      const auto dy = rows_of<Act>(args.dy), u = rows_of<Act>(args.u);
      auto* const dm = args.dm.data<Dm>();
      const float* const n = args.n.data<float>();
      const bool accumulate = args.accumulate;
      constexpr std::int64_t kColumns = 16;
      parallel_pieces(dy.columns, kColumns, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t begin = first; begin < last; begin += kColumns) {
          const std::int64_t count = std::min(kColumns, last - begin);
          double sums[kColumns] = {};
          for (std::int64_t t = 0; t < dy.count; ++t) {
            for (std::int64_t i = 0; i < count; ++i) {
              sums[i] += static_cast<double>(static_cast<float>(dy.row(t)[begin + i])) *
                         static_cast<double>(static_cast<float>(u.row(t)[begin + i]));
            }
          }
          for (std::int64_t i = 0; i < count; ++i) {
            Dm& out = dm[begin + i];
            const auto value = static_cast<float>(sums[i]) * factor_of(1.0f, n[begin + i]);
            out = static_cast<Dm>(accumulate ? static_cast<float>(out) + value : value);
          }
        }
      });
    });
  });
}

}  // namespace hawser::ops::cpu
