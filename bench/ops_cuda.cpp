// Benchmark of the CUDA ops at Llama-3.1-8B's shapes (16,384 tokens), relative to a copy measured in the same run.
//
//   ninja bench_ops_cuda && ./bench_ops_cuda [matrix of a line's name] [file for the chosen GEMM algorithms]
//
// Data is random. Memory-bound lines are medians of groups of back-to-back runs, as in a step; each run moves far more
// data than the cache holds. Bytes are the minimum for the formula: each input and output once. GEMM lines compare
// cuBLASLt's first choice with the algorithm chosen by measurement, timed alternately with a cold cache.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "base/philox.h"
#include "cuda_bench.h"
#include "ops/activation/gated.h"
#include "ops/adamw/adamw.h"
#include "ops/bias/add_bias.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"
#include "ops/embedding/embedding.h"
#include "ops/gemm/gemm.h"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/loss/softmax_cuda.h"
#include "ops/norm/rms_norm.h"
#include "ops/quantize/matrices.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/quantize_blocks.h"
#include "ops/reduce/sum_squares.h"
#include "ops/rope/rope.h"
#include "ops/seed/init.h"

namespace hawser::ops {
namespace {

constexpr std::int64_t kT = 16384, kC = 4096, kF = 14336, kV = 128256, kQkv = 6144;

class Bench : public CudaBench {
 public:
  explicit Bench(std::string only)
      : CudaBench(std::move(only)), plain_(make_cuda_device()), plain_stream_(plain_->make_stream("plain")) {}

  // Median time of one run in ms, measured in groups of a few milliseconds each.
  double milliseconds(const std::function<void()>& run) {
    const auto group = [&](int runs) {
      const float ms = timed(stream(), [&] {
        for (int i = 0; i < runs; ++i) run();
      });
      return ms / static_cast<float>(runs);
    };
    group(2);
    const int runs = std::clamp(static_cast<int>(3.0f / group(2)), 1, 30);
    std::vector<float> times;
    double spent = 0;
    while (times.size() < 7 || (times.size() < 21 && spent < 100)) {
      times.push_back(group(runs));
      spent += times.back() * static_cast<float>(runs);
    }
    return median(times);
  }

  void memory(const std::string& name, double bytes, const std::function<void()>& run) {
    if (wanted(name)) {
      const double ms = milliseconds(run), rate = bytes / ms * 1e-6;
      if (copy_rate_ == 0) copy_rate_ = rate;
      std::printf("%-44s %8.3f ms %9.1f MB %7.0f GB/s %5.2f of copy\n", name.c_str(), ms, bytes * 1e-6, rate,
                  rate / copy_rate_);
      std::fflush(stdout);
    }
    clear();
  }

  void gemm_line(const std::string& name, const Gemm& args) {
    const auto count = [](std::int64_t n) { return static_cast<double>(n); };
    const double work =
        2 * count(args.c.size(0)) * count(args.c.size(1)) * count(args.a.size(args.transpose_a ? 0 : 1));
    if (wanted(name)) {
      gemm_prepare(stream(), args);
      stream().synchronize();
      // The other device object has no measured choices: it uses the library's first choice.
      std::vector<float> chosen, first;
      for (int i = 0; i < 15; ++i) {
        chosen.push_back(cold(stream(), [&] { gemm(stream(), args); }));
        first.push_back(cold(*plain_stream_, [&] { gemm(*plain_stream_, args); }));
      }
      std::printf("%-44s %8.3f ms %7.0f TFLOP/s   (first choice %4.0f)\n", name.c_str(), median(chosen),
                  work / median(chosen) * 1e-9, work / median(first) * 1e-9);
      std::fflush(stdout);
    }
    clear();
  }

 private:
  std::unique_ptr<Device> plain_;
  std::unique_ptr<Stream> plain_stream_;
  double copy_rate_ = 0;
};

double d(std::int64_t n) {
  return static_cast<double>(n);
}

void copies(Bench& b) {
  const Copy whole{.x = b.normal(DType::bf16, {1 << 19, 1024}), .y = b.empty(DType::bf16, {1 << 19, 1024})};
  b.memory("copy, 1 GiB", 2 * d(whole.x.bytes()), [&] { copy(b.stream(), whole); });
  const Copy matrix{.x = b.normal(DType::bf16, {kT, kQkv}).columns(0, kC), .y = b.empty(DType::bf16, {kT, kC})};
  b.memory("copy of columns", 2 * d(matrix.y.bytes()), [&] { copy(b.stream(), matrix); });
  const Cast narrow{.x = b.normal(DType::f32, {kT, kC}), .y = b.empty(DType::bf16, {kT, kC})};
  b.memory("cast float32 to bf16", 6 * d(kT * kC), [&] { cast(b.stream(), narrow); });
  const Fill zero{.y = b.empty(DType::f32, {kT, kC}), .value = 1};
  b.memory("fill float32", 4 * d(kT * kC), [&] { fill(b.stream(), zero); });
  const Add sum{
      .a = b.normal(DType::bf16, {kT, kC}), .b = b.normal(DType::bf16, {kT, kC}), .y = b.empty(DType::bf16, {kT, kC})};
  b.memory("add (residual)", 6 * d(kT * kC), [&] { add(b.stream(), sum); });
  const AddBias bias{.y = b.normal(DType::bf16, {kT, kQkv}), .bias = b.normal(DType::bf16, {kQkv})};
  b.memory("add_bias", 4 * d(kT * kQkv), [&] { add_bias(b.stream(), bias); });
  const BiasGradient db{.dy = b.normal(DType::bf16, {kT, kQkv}), .db = b.empty(DType::f32, {kQkv})};
  b.memory("bias_gradient", 2 * d(kT * kQkv), [&] { bias_gradient(b.stream(), db); });
  std::vector<std::int32_t> index;
  for (std::int64_t t = 0; t < kT; ++t) index.push_back(static_cast<std::int32_t>((t * 4099) % kT));
  const GatherRows rows{
      .x = b.normal(DType::bf16, {kT, 2048}), .index = b.numbers(index, {kT}), .y = b.empty(DType::bf16, {kT, 2048})};
  b.memory("gather_rows (keys and values)", 4 * d(kT * 2048), [&] { gather_rows(b.stream(), rows); });
  const ScatterRows back{.x = b.normal(DType::bf16, {kT, 2048}),
                         .index = b.numbers(index, {kT}),
                         .y = b.normal(DType::f32, {kT, 2048}),
                         .accumulate = true};
  b.memory("scatter_rows, adding to float32", 10 * d(kT * 2048), [&] { scatter_rows(b.stream(), back); });
}

void layers(Bench& b) {
  const auto act = DType::bf16;
  const RmsNormForward norm{.x = b.normal(act, {kT, kC}),
                            .weight = b.normal(act, {kC}),
                            .y = b.empty(act, {kT, kC}),
                            .rstd = b.empty(DType::f32, {kT})};
  b.memory("rms_norm_forward", 4 * d(kT * kC), [&] { rms_norm_forward(b.stream(), norm); });
  for (const bool residual : {false, true}) {
    RmsNormBackward back{.x = b.normal(act, {kT, kC}),
                         .weight = b.normal(act, {kC}),
                         .rstd = b.normal(DType::f32, {kT}),
                         .dy = b.normal(act, {kT, kC}),
                         .dx = b.empty(act, {kT, kC}),
                         .dweight = b.empty(DType::f32, {kC}),
                         .workspace = b.empty(DType::u8, {rms_norm_backward_workspace(kT, kC)})};
    if (residual) back.residual_gradient = b.normal(act, {kT, kC});
    b.memory(residual ? "rms_norm_backward with residual" : "rms_norm_backward", (residual ? 8 : 6) * d(kT * kC),
             [&] { rms_norm_backward(b.stream(), back); });
  }
  // Tensors live until their line is printed.
  const auto qkv_heads = [&] { return b.normal(act, {kT, kQkv}).columns(0, 32 * 128).split_last(32, 128); };
  const RmsNormForward heads{.x = qkv_heads(),
                             .weight = b.normal(act, {128}),
                             .y = b.empty(act, {kT, 32, 128}),
                             .rstd = b.empty(DType::f32, {kT, 32}),
                             .unit_offset = true};
  b.memory("rms_norm_forward, 32 heads of a qkv row", 4 * d(kT * 32 * 128),
           [&] { rms_norm_forward(b.stream(), heads); });
  const TensorView dq = qkv_heads();
  const RmsNormBackward heads_back{.x = qkv_heads(),
                                   .weight = b.normal(act, {128}),
                                   .rstd = b.normal(DType::f32, {kT, 32}),
                                   .dy = dq,
                                   .dx = dq,
                                   .dweight = b.empty(DType::f32, {128}),
                                   .workspace = b.empty(DType::u8, {rms_norm_backward_workspace(kT * 32, 128)}),
                                   .unit_offset = true};
  b.memory("rms_norm_backward, 32 heads of a qkv row", 6 * d(kT * 32 * 128),
           [&] { rms_norm_backward(b.stream(), heads_back); });
  const auto gated = [&](const std::string& name, Gate kind) {
    const GatedForward forward{.gate_up = b.normal(act, {kT, 2 * kF}), .y = b.empty(act, {kT, kF}), .kind = kind};
    b.memory(name + "_forward", 6 * d(kT * kF), [&] { gated_forward(b.stream(), forward); });
    for (const bool again : {false, true}) {
      const GatedBackward backward{.gate_up = b.normal(act, {kT, 2 * kF}),
                                   .dy = b.normal(act, {kT, kF}),
                                   .dgate_up = b.empty(act, {kT, 2 * kF}),
                                   .y = again ? b.empty(act, {kT, kF}) : TensorView(),
                                   .kind = kind};
      b.memory(name + (again ? "_backward, y recomputed" : "_backward"), (again ? 12 : 10) * d(kT * kF),
               [&] { gated_backward(b.stream(), backward); });
    }
  };
  gated("swiglu", Gate::silu);
  gated("geglu", Gate::gelu);
  gated("geglu_tanh", Gate::gelu_tanh);
  std::vector<std::int32_t> positions;
  for (std::int64_t t = 0; t < kT; ++t) positions.push_back(static_cast<std::int32_t>(t));
  const Rope rotate{.x = b.normal(act, {kT, kQkv}).columns(0, 40 * 128).split_last(40, 128),
                    .positions = b.numbers(positions, {kT}),
                    .frequencies = b.normal(DType::f32, {64})};
  b.memory("rope, 40 heads of a qkv row", 4 * d(kT * 40 * 128), [&] { rope(b.stream(), rotate); });
}

// Names begin with fp8. Bytes: what is read in bf16, and rows and columns written in FP8.
void fp8(Bench& b) {
  const auto act = DType::bf16;
  const auto output = [&](DType dtype, std::int64_t columns, bool rows = true, bool transposed = true) {
    return Fp8Output{.scale = b.normal(DType::f32, {1}),
                     .q = rows ? b.empty(dtype, {kT, columns}) : TensorView(),
                     .transposed = transposed ? b.empty(dtype, {columns, kT}) : TensorView(),
                     .used = b.empty(DType::f32, {1}),
                     .amax = b.empty(DType::f32, {1})};
  };
  for (const std::int64_t columns : {kC, kQkv}) {
    for (const auto& [name, rows, transposed] :
         {std::tuple{"rows", true, false}, {"transposed", false, true}, {"both", true, true}}) {
      const TensorView x = b.normal(act, {kT, columns});
      const Fp8Output to = output(DType::f8e5m2, columns, rows, transposed);
      const Quantize args{
          .x = x, .scale = to.scale, .q = to.q, .transposed = to.transposed, .used = to.used, .amax = to.amax};
      b.memory(cat("fp8 quantize ", columns, " columns, ", name), (2 + rows + transposed) * d(kT * columns),
               [&] { quantize(b.stream(), args); });
    }
  }
  for (const std::int64_t columns : {kC, 2 * kC, 3 * kC}) {
    for (const auto& [name, rows, transposed] :
         {std::tuple{"rows", true, false}, {"transposed", false, true}, {"both", true, true}}) {
      const RmsNormForward norm{.x = b.normal(act, {kT, columns}),
                                .weight = b.normal(act, {columns}),
                                .rstd = b.empty(DType::f32, {kT}),
                                .fp8 = output(DType::f8e4m3, columns, rows, transposed)};
      b.memory(cat("fp8 rms_norm_forward ", columns, " columns, ", name), (2 + rows + transposed) * d(kT * columns),
               [&] { rms_norm_forward(b.stream(), norm); });
    }
  }
  const GatedForward forward{.gate_up = b.normal(act, {kT, 2 * kF}), .fp8 = output(DType::f8e4m3, kF)};
  b.memory("fp8 swiglu_forward", 6 * d(kT * kF), [&] { gated_forward(b.stream(), forward); });
  for (const bool again : {false, true}) {
    const GatedBackward backward{.gate_up = b.normal(act, {kT, 2 * kF}),
                                 .dy = b.normal(act, {kT, kF}),
                                 .dgate_up_fp8 = output(DType::f8e5m2, 2 * kF),
                                 .y_fp8 = again ? output(DType::f8e4m3, kF, false) : Fp8Output()};
    b.memory(again ? "fp8 swiglu_backward, y recomputed" : "fp8 swiglu_backward", (again ? 11 : 10) * d(kT * kF),
             [&] { gated_backward(b.stream(), backward); });
  }
}

// Of a flat buffer of weights in float32: one matrix, or the experts of a layer. For comparison, the ops that read
// one matrix at a time, and AdamW without amaxes.
void fp8_weights(Bench& b) {
  const std::int64_t n = std::int64_t{1} << 28;
  for (const std::int64_t count : {1, 256}) {
    const std::int64_t size = n / count;
    const std::vector<EqualMatrices> matrices{{.begin = 0, .size = size, .count = count}};
    const auto each = [&](const auto& body) {
      for (std::int64_t i = 0; i < count; ++i) body(i, i * size);
    };
    const auto weights = [&] { return b.normal(DType::f32, {n}, 0.02); };
    const AmaxOfMatrices amaxes{.x = weights(), .amax = b.empty(DType::f32, {count}), .matrices = matrices};
    b.memory(cat("fp8 amax of ", count, " matrices"), 4 * d(n), [&] { amax_of_matrices(b.stream(), amaxes); });
    const TensorView x = weights(), amax_of_one = b.empty(DType::f32, {count});
    b.memory(cat("fp8 amax of ", count, " matrices, one by one"), 4 * d(n), [&] {
      each([&](std::int64_t i, std::int64_t at) {
        amax(b.stream(), {.x = x.rows(at, size), .out = amax_of_one.rows(i, 1)});
      });
    });
    const TensorView scales = b.empty(DType::f32, {count});
    fill(b.stream(), {.y = scales, .value = 0.001});
    const QuantizeMatrices rounded{
        .x = weights(), .scales = scales, .q = b.empty(DType::f8e4m3, {n}), .matrices = matrices};
    b.memory(cat("fp8 quantize ", count, " matrices"), 5 * d(n), [&] { quantize_matrices(b.stream(), rounded); });
    const TensorView y = weights(), q = b.empty(DType::f8e4m3, {n}), scale_of_one = b.empty(DType::f32, {count});
    fill(b.stream(), {.y = scale_of_one, .value = 0.001});
    b.memory(cat("fp8 quantize ", count, " matrices, one by one"), 5 * d(n), [&] {
      each([&](std::int64_t i, std::int64_t at) {
        quantize(b.stream(), {.x = y.rows(at, size).reshape({size / 64, 64}),
                              .scale = scale_of_one.rows(i, 1),
                              .q = q.rows(at, size).reshape({size / 64, 64})});
      });
    });
    for (const bool records : {false, true}) {
      AdamW args{.weight = weights(),
                 .gradient = b.normal(DType::f32, {n}),
                 .exp_avg = b.empty(DType::f32, {n}),
                 .exp_avg_sq = b.empty(DType::f32, {n}),
                 .hyper = b.normal(DType::f32, {kAdamHyperFields}),
                 .weight_decay = 0.1};
      if (records) args.amax = b.empty(DType::f32, {count}), args.matrices = matrices;
      fill(b.stream(), {.y = args.exp_avg});
      fill(b.stream(), {.y = args.exp_avg_sq});
      fill(b.stream(), {.y = args.hyper, .value = 0.001});
      b.memory(cat("fp8 adamw, ", count, records ? " matrices, with amaxes" : " matrices, without amaxes"), 28 * d(n),
               [&] {
                 if (records) fill(b.stream(), {.y = args.amax});
                 adamw(b.stream(), args);
               });
    }
  }
}

// Names begin with fp8 blocks; GEMMs at the sizes of an MLP's gate and up. Bytes as above, and those of scales.
void fp8_blocks(Bench& b) {
  constexpr auto kVec = ScaleKind::vec128, kSquare = ScaleKind::block128;
  constexpr DType act = DType::bf16;
  const auto matrix = [&](std::int64_t rows, std::int64_t columns) { return b.empty(DType::f8e4m3, {rows, columns}); };
  const auto scales = [&](ScaleKind kind, std::int64_t rows, std::int64_t columns) {
    return b.empty(DType::f32, scale_shape(kind, rows, columns));
  };
  for (const ScaleKind kind : {kVec, kSquare}) {
    for (const auto& [name, rows, transposed] :
         {std::tuple{"rows", true, false}, {"transposed", false, true}, {"both", true, true}}) {
      QuantizeBlocks args{.x = b.normal(act, {kT, kC}), .kind = kind};
      if (rows) args.q = matrix(kT, kC), args.scales = scales(kind, kT, kC);
      if (transposed) args.transposed = matrix(kC, kT), args.transposed_scales = scales(kind, kC, kT);
      const double bytes = (2 + rows + transposed) * d(kT * kC) + (args.scales.empty() ? 0.0 : d(args.scales.bytes())) +
                           (args.transposed.empty() ? 0.0 : d(args.transposed_scales.bytes()));
      b.memory(cat("fp8 blocks quantize, ", to_string(kind), ", ", name), bytes,
               [&] { quantize_blocks(b.stream(), args); });
    }
  }
  const auto random = [&](ScaleKind kind, std::int64_t rows, std::int64_t columns) {
    const QuantizeBlocks args{.x = b.normal(act, {rows, columns}),
                              .kind = kind,
                              .q = matrix(rows, columns),
                              .scales = scales(kind, rows, columns)};
    quantize_blocks(b.stream(), args);
    return args;
  };
  const auto line = [&](const char* name, std::int64_t m, std::int64_t n, std::int64_t k, ScaleKind of_b, DType out) {
    const QuantizeBlocks a = random(kVec, m, k), w = random(of_b, n, k);
    b.gemm_line(cat("fp8 blocks gemm ", name), {.a = a.q,
                                                .b = w.q,
                                                .c = b.empty(out, {m, n}),
                                                .transpose_b = true,
                                                .scale_a = a.scales,
                                                .scale_b = w.scales,
                                                .scaling_a = kVec,
                                                .scaling_b = of_b});
  };
  line("fprop", kT, 2 * kF, kC, kSquare, act);
  line("dgrad", kT, kC, 2 * kF, kSquare, act);
  line("wgrad", 2 * kF, kC, kT, kVec, DType::f32);
}

void ends(Bench& b) {
  std::vector<std::int32_t> ids;
  const RandomStream random(3, "ids");
  // Half the tokens have one of few ids, as in text.
  for (std::int64_t t = 0; t < kT; ++t) {
    const auto at = static_cast<std::uint64_t>(t);
    ids.push_back(static_cast<std::int32_t>(random.below(random.below(2, 2 * at) == 0 ? 100 : kV, 2 * at + 1)));
  }
  std::vector<std::int32_t> unique = ids;
  std::sort(unique.begin(), unique.end());
  const auto distinct = std::unique(unique.begin(), unique.end()) - unique.begin();
  const EmbeddingForward look{
      .ids = b.numbers(ids, {kT}), .table = b.normal(DType::bf16, {kV, kC}), .y = b.empty(DType::bf16, {kT, kC})};
  b.memory("embedding_forward", 2 * d(kT * kC) + 2 * d(distinct * kC), [&] { embedding_forward(b.stream(), look); });
  const EmbeddingBackward back{.ids = b.numbers(ids, {kT}),
                               .dy = b.normal(DType::bf16, {kT, kC}),
                               .dtable = b.normal(DType::f32, {kV, kC}),
                               .accumulate = true};
  b.memory("embedding_backward, adding", 2 * d(kT * kC) + 8 * d(distinct * kC),
           [&] { embedding_backward(b.stream(), back); });
  const std::int64_t n = std::int64_t{1} << 28;
  for (const DType gradient : {DType::f32, DType::bf16}) {
    AdamW args{.weight = b.normal(DType::f32, {n}, 0.02),
               .gradient = b.normal(gradient, {n}),
               .exp_avg = b.empty(DType::f32, {n}),
               .exp_avg_sq = b.empty(DType::f32, {n}),
               .compute_weight = b.empty(DType::bf16, {n}),
               .hyper = b.normal(DType::f32, {kAdamHyperFields}),
               .weight_decay = 0.1};
    fill(b.stream(), {.y = args.exp_avg});
    fill(b.stream(), {.y = args.exp_avg_sq});
    fill(b.stream(), {.y = args.hyper, .value = 0.001});
    b.memory(cat("adamw, gradient ", to_string(gradient)), (26.0 + d(size_of(gradient))) * d(n),
             [&] { adamw(b.stream(), args); });
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const SumSquares squares{.x = b.normal(dtype, {n}), .out = b.empty(DType::f32, {1})};
    b.memory(cat("sum_squares ", to_string(dtype)), d(squares.x.bytes()), [&] { sum_squares(b.stream(), squares); });
  }
  const RandomNormal draw{.y = b.empty(DType::f32, {n})};
  b.memory("random_normal float32", 4 * d(n), [&] { random_normal(b.stream(), draw); });
}

void gemms(Bench& b) {
  struct Linear {
    const char* name;
    std::int64_t out, in;
  };
  const auto act = DType::bf16;
  for (const Linear& l : {Linear{"qkv", kQkv, kC}, {"o", kC, kC}, {"gate+up", 2 * kF, kC}, {"down", kC, kF}}) {
    b.gemm_line(cat("gemm ", l.name, " fprop"), {.a = b.normal(act, {kT, l.in}),
                                                 .b = b.normal(act, {l.out, l.in}),
                                                 .c = b.empty(act, {kT, l.out}),
                                                 .transpose_b = true});
    b.gemm_line(cat("gemm ", l.name, " dgrad"),
                {.a = b.normal(act, {kT, l.out}), .b = b.normal(act, {l.out, l.in}), .c = b.empty(act, {kT, l.in})});
    for (const bool accumulate : {false, true}) {
      b.gemm_line(cat("gemm ", l.name, accumulate ? " wgrad, adding to float32" : " wgrad to float32"),
                  {.a = b.normal(act, {kT, l.out}),
                   .b = b.normal(act, {kT, l.in}),
                   .c = b.normal(DType::f32, {l.out, l.in}),
                   .transpose_a = true,
                   .accumulate = accumulate});
    }
  }
  b.gemm_line("gemm float32 4096^3", {.a = b.normal(DType::f32, {kC, kC}),
                                      .b = b.normal(DType::f32, {kC, kC}),
                                      .c = b.empty(DType::f32, {kC, kC}),
                                      .transpose_b = true});
}

void loss(Bench& b) {
  const std::int64_t rows = 4096;
  for (const bool gradients : {false, true}) {
    const TensorView logits = b.normal(DType::f32, {rows, kV}), scale = b.normal(DType::f32, {1}),
                     labels = b.numbers(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 17), {rows}),
                     losses = b.empty(DType::u8, {8 * rows});
    // Gradients overwrite the logits and are read as logits by the next run: any values do.
    const cuda::SoftmaxRows call{.act = DType::bf16,
                                 .logits = logits.data<float>(),
                                 .rows = rows,
                                 .stride = kV,
                                 .vocabulary = kV,
                                 .labels = labels.data<std::int32_t>(),
                                 .scale = gradients ? scale.data<float>() : nullptr,
                                 .losses = reinterpret_cast<double*>(losses.raw())};
    b.memory(gradients ? "softmax of 4096 rows, with gradients" : "softmax of 4096 rows",
             (gradients ? 6 : 4) * d(rows * kV), [&] { cuda::softmax_rows(*b.stream().native(), call); });
  }
  // A bf16 dweight, as FSDP reduces it, is summed over chunks in float32.
  struct Case {
    std::string name;
    bool gradients;
    DType dweight;
  };
  for (const auto& [name, gradients, dweight] :
       {Case{"linear_cross_entropy", false, DType::f32}, Case{"linear_cross_entropy with gradients", true, DType::f32},
        Case{"linear_cross_entropy, bf16 weight gradient", true, DType::bf16}}) {
    if (!b.wanted(name)) continue;
    LinearCrossEntropy args{.x = b.normal(DType::bf16, {kT, kC}),
                            .weight = b.normal(DType::bf16, {kV, kC}, 0.02),
                            .labels = b.numbers(std::vector<std::int32_t>(static_cast<std::size_t>(kT), 17), {kT}),
                            .scale = b.normal(DType::f32, {1}),
                            .loss_sum = b.normal(DType::f32, {2})};
    if (gradients) {
      args.dx = b.empty(DType::bf16, {kT, kC});
      args.dweight = b.normal(dweight, {kV, kC});
      args.accumulate_weight = dweight == DType::f32;
    }
    args.workspace = b.empty(DType::u8, {linear_cross_entropy_workspace(args, DeviceKind::cuda)});
    linear_cross_entropy_prepare(b.stream(), args);
    const double work = (gradients ? 6.0 : 2.0) * d(kT) * d(kC) * d(kV);
    const double ms = b.milliseconds([&] { linear_cross_entropy(b.stream(), args); });
    std::printf("%-44s %8.3f ms %7.0f TFLOP/s of its GEMMs\n", name.c_str(), ms, work / ms * 1e-9);
    std::fflush(stdout);
    b.clear();
  }
}

}  // namespace
}  // namespace hawser::ops

int main(int argc, char** argv) {
  using namespace hawser;
  using namespace hawser::ops;
  try {
    const CudaInfo info = cuda_info();
    Bench bench(argc > 1 ? argv[1] : "");
    std::printf("%s, GPUs: %d; %lld tokens\n", info.name.c_str(), info.devices, static_cast<long long>(kT));
    copies(bench);
    layers(bench);
    fp8(bench);
    fp8_weights(bench);
    fp8_blocks(bench);
    ends(bench);
    gemms(bench);
    loss(bench);
    if (argc > 2) std::ofstream(argv[2]) << gemm_choices(bench.stream());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
