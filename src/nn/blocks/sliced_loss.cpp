#include "nn/blocks/sliced_loss.h"

#include <algorithm>

#include "base/units.h"
#include "nn/blocks/layer_gemm.h"
#include "nn/blocks/row_sum.h"
#include "ops/loss/sliced_logits.h"

namespace hawser::nn {

namespace {

// A gradient to which chunks of rows add: in float32, which is rounded once.
class ChunkSum {
 public:
  ChunkSum(LayerContext& ctx, const GradientTarget& target) : ctx_(ctx), target_(target) {
    const TensorView& view = target_.view;
    if (!view.empty() && view.dtype() != DType::f32) sum_ = ctx.temp(DType::f32, view.shape());
  }

  // Calls write(view, accumulate) for a chunk, unless no gradient is wanted.
  template <class Write>
  void add(const Write& write) {
    if (target_.view.empty()) return;
    write(sum_.empty() ? target_.view : sum_, begun_ || (target_.accumulate && sum_.empty()));
    begun_ = true;
  }

  void finish() const {
    if (sum_.empty()) return;
    if (target_.accumulate) {
      ops::add(ctx_.compute(), {.a = target_.view, .b = sum_, .y = target_.view});
    } else {
      ops::cast(ctx_.compute(), {.x = sum_, .y = target_.view});
    }
  }

 private:
  LayerContext& ctx_;
  GradientTarget target_;
  TensorView sum_;
  bool begun_ = false;  // it has a chunk
};

class SlicedLoss {
 public:
  SlicedLoss(LayerContext& ctx, const SlicedProjection& projection, const TensorView& h, const LossViews& views,
             const ProjectionGradients& gradients)
      : ctx_(ctx),
        projection_(projection),
        h_(h),
        views_(views),
        columns_(ctx.weight(projection.linear.weight).size(0)),
        ranks_((projection.vocabulary.total + columns_ - 1) / columns_),
        chunk_(std::min(h.size(0), std::max<std::int64_t>(32, bytes_of_chunk() / (4 * columns_)))),
        logits_(ctx.temp(DType::f32, {chunk_, columns_})),
        gradients_(ctx.dtype() == DType::f32 ? logits_ : ctx.temp(ctx.dtype(), {chunk_, columns_})),
        statistics_(ctx.temp(DType::f32, {3 * chunk_})),
        parts_(ctx.temp(DType::f32, {ranks_ * 3 * chunk_})),
        weight_(ctx, gradients.weight),
        bias_(ctx, gradients.bias) {}

  // Rows [begin, begin + rows) of h. dh: of these rows; empty: only the loss.
  void run(std::int64_t begin, std::int64_t rows, const TensorView& dh) {
    const std::int64_t most = ceil_div(rows, ceil_div(rows, chunk_));
    for (std::int64_t at = 0; at < rows; at += most) {
      const std::int64_t count = std::min(most, rows - at);
      chunk(begin + at, count, dh.empty() ? dh : dh.rows(at, count));
    }
  }

  void finish() const {
    weight_.finish();
    bias_.finish();
  }

 private:
  std::int64_t bytes_of_chunk() const {
    const bool cuda = ctx_.compute().target() == DeviceKind::cuda;
    return projection_.logit_bytes.value_or(std::int64_t{cuda ? 1024 : 256} << 20);
  }

  void chunk(std::int64_t begin, std::int64_t rows, const TensorView& dh) {
    const TensorView h = h_.rows(begin, rows), labels = ctx_.batch().labels.rows(begin, rows);
    const TensorView logits = logits_.rows(0, rows);
    const TensorView parts = parts_.rows(0, ranks_ * 3 * rows).reshape({ranks_ * 3, rows});
    const TensorView statistics = statistics_.rows(0, 3 * rows).reshape({3, rows});
    const DimSlice& vocabulary = projection_.vocabulary;
    projection_.linear.forward(ctx_, h, logits);
    ops::logit_statistics(ctx_.compute(), {.logits = logits,
                                           .bias = projection_.bias,
                                           .labels = labels,
                                           .statistics = statistics,
                                           .first_column = vocabulary.begin,
                                           .total_columns = vocabulary.total,
                                           .softcap = projection_.softcap.value_or(0)});
    ctx_.seams().tensor_reduce->gather(ctx_, statistics, parts);
    ops::combine_statistics(ctx_.compute(), {.parts = parts, .statistics = statistics});
    const TensorView gradients = dh.empty() ? dh : gradients_.rows(0, rows);
    ops::logit_gradients(ctx_.compute(), {.logits = logits,
                                          .bias = projection_.bias,
                                          .labels = labels,
                                          .statistics = statistics,
                                          .scale = views_.inverse_targets,
                                          .loss_sum = views_.sum,
                                          .gradients = gradients,
                                          .first_column = vocabulary.begin,
                                          .total_columns = vocabulary.total,
                                          .softcap = projection_.softcap.value_or(0)});
    if (dh.empty()) return;
    weight_.add([&](const TensorView& to, bool accumulate) {
      layer_gemm(ctx_, {.a = gradients, .b = h, .c = to, .transpose_a = true, .accumulate = accumulate});
    });
    bias_.add([&](const TensorView& to, bool accumulate) {
      ops::bias_gradient(ctx_.compute(), {.dy = gradients, .db = to, .accumulate = accumulate});
    });
    projection_.linear.input_gradient(ctx_, gradients, dh);
  }

  LayerContext& ctx_;
  const SlicedProjection& projection_;
  TensorView h_;
  const LossViews& views_;
  std::int64_t columns_, ranks_, chunk_;
  TensorView logits_, gradients_, statistics_, parts_;
  ChunkSum weight_, bias_;
};

}  // namespace

void sliced_loss(LayerContext& ctx, const SlicedProjection& projection, const TensorView& h, const TensorView& dh,
                 const LossViews& views, const ProjectionGradients& gradients) {
  const auto gather = ctx.seams().redistribute->gather(ctx, h, Redistribute::Rows::together);
  const TensorView all = gather->all().view;
  SlicedLoss loss(ctx, projection, all, views, gradients);
  if (dh.empty()) {
    loss.run(0, all.size(0), dh);
    return gather->finish();
  }
  write_row_sum(
      ctx, *ctx.seams().redistribute, dh, {},
      [&](const TensorView& rows, std::int64_t first) { loss.run(first, rows.size(0), rows); },
      Redistribute::Order::same);
  gather->finish();
  loss.finish();
}

}  // namespace hawser::nn
