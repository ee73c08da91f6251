#include "ops/loss/linear_cross_entropy_cpu.h"

#include <cmath>

#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/cpu/parallel.h"
#include "ops/gemm/gemm_cpu.h"

#define HAWSER_KERNELS "ops/loss/linear_cross_entropy_kernels.inc"
#include "ops/cpu/each_level.inc"

namespace hawser::ops::cpu {

namespace {

// The three GEMMs of a chunk of `rows` rows.
struct LossGemms {
  GemmProblem logits, dx, dweight;
};

LossGemms gemms_of(std::int64_t rows, std::int64_t channels, std::int64_t vocabulary, std::int64_t stride, DType act,
                   DType dx, DType dweight) {
  const std::int64_t gradient_stride = by_float(act, stride, 2 * stride);  // bf16 over float32 logits
  return {.logits = {.m = rows,
                     .n = vocabulary,
                     .k = channels,
                     .lda = channels,
                     .ldb = channels,
                     .ldc = stride,
                     .in_a = act,
                     .in_b = act,
                     .out = DType::f32,
                     .transpose_b = true},
          .dx = {.m = rows,
                 .n = channels,
                 .k = vocabulary,
                 .lda = gradient_stride,
                 .ldb = channels,
                 .ldc = channels,
                 .in_a = act,
                 .in_b = act,
                 .out = dx},
          .dweight = {.m = vocabulary,
                      .n = channels,
                      .k = rows,
                      .lda = gradient_stride,
                      .ldb = channels,
                      .ldc = channels,
                      .in_a = act,
                      .in_b = act,
                      .out = dweight,
                      .transpose_a = true}};
}

void check_labels(const TensorView& labels, std::int64_t vocabulary) {
  const auto* label = labels.data<std::int32_t>();
  for (std::int64_t t = 0; t < labels.size(0); ++t) {
    HAWSER_CHECK(label[t] < vocabulary, "linear_cross_entropy: label ", label[t], " of token ", t, " is outside [0, ",
                 vocabulary, ")");
  }
}

// db (+)= the column sums of g
void add_columns(const TensorView& g, const TensorView& db, bool accumulate) {
  if (g.size(0) > 0) return bias_gradient({.dy = g, .db = db, .accumulate = accumulate});
  if (!accumulate) fill({.y = db});
}

// to (+)= sum, rounded
void write_sum(const TensorView& sum, const TensorView& to, bool accumulate) {
  if (accumulate) return add({.a = to, .b = sum, .y = to});
  cast({.x = sum, .y = to});
}

}  // namespace

LossLayout loss_layout(const LinearCrossEntropy& call) {
  const std::int64_t tokens = call.x.size(0), channels = call.x.size(1), vocabulary = call.weight.size(0);
  const DType dtype = call.x.dtype();
  const LossChunks chunks = loss_chunks(call, DeviceKind::cpu);
  // Not a multiple of a page where the vocabulary is one: rows then share the sets of the caches.
  LossLayout layout{.chunks = chunks,
                    .stride = round_up(vocabulary, 16) + 16,
                    .sum_elements = chunks.sums_dweight ? call.weight.elements() : 0,
                    .bias_elements = chunks.sums_dbias ? vocabulary : 0};
  const std::int64_t rows = chunks.rows;
  const std::int64_t tail = rows > 0 ? tokens % rows : 0;
  for (const std::int64_t count : {rows, tail}) {
    if (count == 0) continue;
    for (const DType out : {DType::f32, dtype}) {
      LossGemms p = gemms_of(count, channels, vocabulary, layout.stride, dtype, out, out);
      for (const bool accumulate : {false, true}) {
        p.dweight.accumulate = accumulate;
        for (const GemmProblem& problem : {p.logits, p.dx, p.dweight}) {
          layout.gemms = std::max(layout.gemms, problem_workspace(problem));
        }
      }
    }
  }
  return layout;
}

// The GEMMs bound the op. So it takes chunks of rows: a GEMM computes their logits, each row of logits becomes its loss
// and its gradient in place, by one thread, and GEMMs over the gradients follow. The workspace holds the logits of one
// chunk only, and no logit is computed twice. Rows do not depend on each other; losses are added in float64 in order of
// the rows, and dweight and dbias chunk by chunk. So the number of threads changes no bit; the size of a chunk may.
void linear_cross_entropy(const LinearCrossEntropy& args) {
  const std::int64_t tokens = args.x.size(0), channels = args.x.size(1), vocabulary = args.weight.size(0);
  check_labels(args.labels, vocabulary);
  const DType act = args.x.dtype();
  const LossLayout layout = loss_layout(args);
  const std::int64_t chunk = layout.chunks.rows;
  std::byte* const memory = args.workspace.raw();
  auto* const logits = reinterpret_cast<float*>(memory);
  auto* const losses = reinterpret_cast<double*>(memory + layout.losses());
  // What the GEMMs of all chunks add up: a float32 sum, or dweight itself.
  const bool sums = layout.chunks.sums_dweight;
  const TensorView summed =
      sums ? TensorView(memory + layout.sum(), DType::f32, args.dweight.shape(), args.dweight.device()) : args.dweight;
  const bool sums_bias = layout.chunks.sums_dbias;
  const TensorView summed_bias =
      sums_bias ? TensorView(memory + layout.bias_sum(), DType::f32, {vocabulary}, args.dbias.device()) : args.dbias;
  std::byte* const scratch = memory + layout.scratch();
  const std::int64_t scratch_bytes = args.workspace.bytes() - layout.scratch();
  const bool gradients = has_gradients(args);
  const auto softcap = static_cast<float>(args.softcap);
  const float scale = gradients ? *args.scale.data<float>() : 0.0f;
  const auto* labels = args.labels.data<std::int32_t>();
  double total = 0;

  // An empty batch still writes dweight: one chunk without rows.
  for (std::int64_t begin = 0; begin == 0 || begin < tokens; begin += chunk) {
    const std::int64_t rows = std::min(chunk, tokens - begin);
    LossGemms p = gemms_of(rows, channels, vocabulary, layout.stride, act, args.dx.dtype(), summed.dtype());
    const std::byte* const x = args.x.raw() + begin * channels * size_of(act);
    p.logits.a = x;
    p.logits.b = args.weight.raw();
    p.logits.c = logits;
    multiply(p.logits, scratch, scratch_bytes);

    dispatch_float(act, [&](auto tag) {
      using Act = decltype(tag);
      parallel_items(rows, [&](std::int64_t r) {
        float* const row = logits + r * layout.stride;
        Act* const out = reinterpret_cast<Act*>(row);
        const std::int64_t label = labels[begin + r];
        losses[r] = 0;
        if (label < 0) {
          if (gradients) std::fill_n(out, vocabulary, Act(0.0f));
          return;
        }
        if (!args.bias.empty() || softcap > 0) {
          const auto* const bias = reinterpret_cast<const Act*>(args.bias.raw());
          HAWSER_DISPATCH(capped_row, row, bias, softcap, row, vocabulary);
        }
        double (*const log)(double) = std::log;
        losses[r] = HAWSER_DISPATCH(loss_row, row, out, vocabulary, label, gradients, scale, softcap, log);
      });
    });
    for (std::int64_t r = 0; r < rows; ++r) total += losses[r];

    if (!args.dweight.empty()) {
      p.dweight.a = logits;
      p.dweight.b = x;
      p.dweight.c = summed.raw();
      p.dweight.accumulate = begin > 0 || (args.accumulate_weight && !sums);
      multiply(p.dweight, scratch, scratch_bytes);
    }
    if (!args.dbias.empty()) {
      const TensorView rows_of_gradients(memory, act, {rows, p.dweight.lda}, args.x.device());
      add_columns(rows_of_gradients.columns(0, vocabulary), summed_bias,
                  begin > 0 || (args.accumulate_bias && !sums_bias));
    }
    if (!args.dx.empty()) {
      p.dx.a = logits;
      p.dx.b = args.weight.raw();
      p.dx.c = args.dx.raw() + begin * channels * size_of(args.dx.dtype());
      multiply(p.dx, scratch, scratch_bytes);
    }
    if (chunk == 0) break;
  }
  if (sums) write_sum(summed, args.dweight, args.accumulate_weight);
  if (sums_bias) write_sum(summed_bias, args.dbias, args.accumulate_bias);
  auto* sum = args.loss_sum.data<float>();
  total += static_cast<double>(sum[0]) + static_cast<double>(sum[1]);
  sum[0] = static_cast<float>(total);
  sum[1] = static_cast<float>(total - static_cast<double>(sum[0]));
}

}  // namespace hawser::ops::cpu
