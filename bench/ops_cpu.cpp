// Benchmark of the CPU ops at SmolLM2-135M's shapes, with dnnl_sgemm on the same machine for comparison.
//
//   ninja bench_ops && ./bench_ops [threads] [seconds per line] [part of a line's name]
//
// One thread is timed by CPU time, which other load on the machine disturbs least; more threads by wall-clock time.
//
// GFLOP/s count the formula's operations: visible pairs for attention, three GEMMs for the loss with gradients.
#include <oneapi/dnnl/dnnl.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ops/activation/gated.h"
#include "ops/adamw/adamw.h"
#include "ops/attention/attention.h"
#include "ops/gemm/gemm.h"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/seed/init.h"

namespace hawser::ops {
namespace {

class Bench {
 public:
  Bench(int threads, double seconds, std::string only)
      : threads_(threads),
        seconds_(seconds),
        only_(std::move(only)),
        device_(make_cpu_device({.threads = threads})),
        stream_(device_->make_stream("bench")) {}

  Stream& stream() { return *stream_; }
  int threads() const { return threads_; }

  TensorView normal(DType dtype, const Shape& shape, double std = 1.0) {
    const TensorView view = empty(dtype, shape);
    random_normal(*stream_, {.y = view, .seed = 1, .name = kept_.size(), .std = std});
    return view;
  }
  TensorView empty(DType dtype, const Shape& shape) {
    kept_.emplace_back(*device_, dtype, shape);
    return kept_.back();
  }
  TensorView workspace(std::int64_t bytes) { return bytes > 0 ? empty(DType::u8, {bytes}) : TensorView(); }
  TensorView numbers(const std::vector<std::int32_t>& values, const Shape& shape) {
    const TensorView view = empty(DType::i32, shape);
    std::copy(values.begin(), values.end(), view.data<std::int32_t>());
    return view;
  }

  // The best of repeated runs, since other load can only slow them down.
  void line(const std::string& name, double work, const char* unit, const std::function<void()>& run) {
    if (name.find(only_) != std::string::npos) measure(name, work, unit, run);
    stream_->synchronize();
    kept_.clear();
  }

 private:
  void measure(const std::string& name, double work, const char* unit, const std::function<void()>& run) {
    run();
    stream_->synchronize();
    double best = 1e30, spent = 0;
    while (spent < seconds_) {
      const double start = now();
      run();
      stream_->synchronize();
      const double took = now() - start;
      best = std::min(best, took);
      spent += took;
    }
    std::printf("%-56s %9.2f ms %8.1f %s\n", name.c_str(), best * 1e3, work / best * 1e-9, unit);
    std::fflush(stdout);
  }

  double now() const {
    timespec at{};
    clock_gettime(threads_ == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &at);
    return static_cast<double>(at.tv_sec) + 1e-9 * static_cast<double>(at.tv_nsec);
  }

  int threads_;
  double seconds_;
  std::string only_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<Storage> kept_;
};

void peak(Bench& bench) {
  const std::int64_t n = 1024;
  float* const a = bench.normal(DType::f32, {n, n}).data<float>();
  float* const b = bench.normal(DType::f32, {n, n}).data<float>();
  float* const c = bench.empty(DType::f32, {n, n}).data<float>();
  bench.line("dnnl_sgemm 1024 x 1024 x 1024", 2.0 * n * n * n, "GFLOP/s", [&] {
    bench.stream().launch({.name = "dnnl_sgemm", .kind = OpKind::gemm},
                          [=] { dnnl_sgemm('N', 'N', n, n, n, 1, a, n, b, n, 0, c, n); });
  });
}

void gemms(Bench& bench, DType dtype, std::int64_t t) {
  struct Line {
    const char* name;
    std::int64_t m, n, k;
    bool transpose_a, transpose_b;
  };
  for (const Line& l : {Line{"qkv", t, 960, 576, false, true},
                        {"gate_up", t, 3072, 576, false, true},
                        {"down", t, 576, 1536, false, true},
                        {"down dx", t, 1536, 576, false, false},
                        {"gate_up dw", 3072, 576, t, true, false}}) {
    Gemm args{.a = bench.normal(dtype, l.transpose_a ? Shape{l.k, l.m} : Shape{l.m, l.k}),
              .b = bench.normal(dtype, l.transpose_b ? Shape{l.n, l.k} : Shape{l.k, l.n}),
              .c = bench.empty(l.transpose_a ? DType::f32 : dtype, {l.m, l.n}),
              .transpose_a = l.transpose_a,
              .transpose_b = l.transpose_b};
    args.workspace = bench.workspace(gemm_workspace(args));
    const double work = 2.0 * static_cast<double>(l.m) * static_cast<double>(l.n) * static_cast<double>(l.k);
    bench.line(cat("gemm ", l.name, " ", to_string(dtype)), work, "GFLOP/s", [&] { gemm(bench.stream(), args); });
  }
}

void attention(Bench& bench, DType dtype, std::int64_t t, std::int64_t d, std::int64_t document) {
  const std::int64_t hq = 9, hkv = 3;
  std::vector<std::int32_t> table;
  double pairs = 0;
  for (std::int64_t at = 0; at < t; at += document) {
    const auto begin = static_cast<std::int32_t>(at), count = static_cast<std::int32_t>(std::min(document, t - at));
    table.insert(table.end(), {begin, count, begin, count, 0, 0});
    pairs += visible_pairs(count, count, 0, true, 0);
  }
  const auto n = static_cast<std::int64_t>(table.size()) / kSegmentFields;
  const AttentionSizes sizes{.query_rows = t,
                             .key_rows = t,
                             .query_heads = hq,
                             .kv_heads = hkv,
                             .head_dim = d,
                             .segments = n,
                             .dtype = dtype,
                             .threads = bench.threads()};
  const auto make = [&] {
    const TensorView qkv = bench.normal(dtype, {t, (hq + 2 * hkv) * d});
    return AttentionCall{.q = qkv.columns(0, hq * d).split_last(hq, d),
                         .k = qkv.columns(hq * d, hkv * d).split_last(hkv, d),
                         .v = qkv.columns((hq + hkv) * d, hkv * d).split_last(hkv, d),
                         .segments = bench.numbers(table, {n, kSegmentFields}),
                         .segment_count = bench.numbers({static_cast<std::int32_t>(n)}, {1}),
                         .scale = 0.125,
                         .o = bench.empty(dtype, {t, hq, d}),
                         .lse = bench.empty(DType::f32, {hq, t}),
                         .workspace = bench.workspace(cpu_attention_forward_workspace(sizes))};
  };
  const std::string what =
      cat("T ", t, ", D ", d, document < t ? cat(", documents of ", document) : "", ", ", to_string(dtype));
  const double work = attention_flops(sizes, pairs);
  AttentionCall f = make();
  bench.line("attention forward " + what, work, "GFLOP/s", [&] { attention_forward(bench.stream(), f); });
  f = make();
  attention_forward(bench.stream(), f);
  AttentionBackward b{.call = f,
                      .d_o = bench.normal(dtype, {t, hq, d}),
                      .dq = bench.empty(dtype, {t, hq, d}),
                      .dk = bench.empty(dtype, {t, hkv, d}),
                      .dv = bench.empty(dtype, {t, hkv, d})};
  b.call.workspace = bench.workspace(cpu_attention_backward_workspace(sizes));
  bench.line("attention backward " + what, 2.5 * work, "GFLOP/s", [&] { attention_backward(bench.stream(), b); });
}

void loss(Bench& bench, DType dtype, std::int64_t t) {
  const std::int64_t c = 576, v = 49152;
  for (const bool gradients : {false, true}) {
    LinearCrossEntropy args{.x = bench.normal(dtype, {t, c}),
                            .weight = bench.normal(dtype, {v, c}, 0.05),
                            .labels = bench.numbers(std::vector<std::int32_t>(static_cast<std::size_t>(t), 17), {t}),
                            .scale = bench.normal(DType::f32, {1}),
                            .loss_sum = bench.normal(DType::f32, {2})};
    if (gradients) {
      args.dx = bench.empty(dtype, {t, c});
      args.dweight = bench.empty(DType::f32, {v, c});
    }
    args.workspace = bench.workspace(linear_cross_entropy_workspace(args, DeviceKind::cpu));
    const double work =
        (gradients ? 6.0 : 2.0) * static_cast<double>(t) * static_cast<double>(c) * static_cast<double>(v);
    bench.line(cat("loss ", gradients ? "with gradients " : "", to_string(dtype)), work, "GFLOP/s",
               [&] { linear_cross_entropy(bench.stream(), args); });
  }
}

// Memory-bound ops; counts the bytes that must be moved.
void pointwise(Bench& bench, DType dtype, std::int64_t t) {
  const std::int64_t c = 576, f = 1536;
  const auto size = static_cast<double>(size_of(dtype));
  const auto count = [](std::int64_t n) { return static_cast<double>(n); };
  const RmsNormForward norm{.x = bench.normal(dtype, {t, c}),
                            .weight = bench.normal(dtype, {c}),
                            .y = bench.empty(dtype, {t, c}),
                            .rstd = bench.empty(DType::f32, {t})};
  bench.line(cat("rms_norm forward ", to_string(dtype)), 2 * size * count(t * c), "GB/s",
             [&] { rms_norm_forward(bench.stream(), norm); });
  const RmsNormBackward back{.x = bench.normal(dtype, {t, c}),
                             .weight = bench.normal(dtype, {c}),
                             .rstd = bench.normal(DType::f32, {t}),
                             .dy = bench.normal(dtype, {t, c}),
                             .residual_gradient = bench.normal(dtype, {t, c}),
                             .dx = bench.empty(dtype, {t, c}),
                             .dweight = bench.empty(DType::f32, {c}),
                             .workspace = bench.workspace(rms_norm_backward_workspace(t, c))};
  bench.line(cat("rms_norm backward ", to_string(dtype)), 4 * size * count(t * c), "GB/s",
             [&] { rms_norm_backward(bench.stream(), back); });
  const GatedForward forward{.gate_up = bench.normal(dtype, {t, 2 * f}), .y = bench.empty(dtype, {t, f})};
  bench.line(cat("swiglu forward ", to_string(dtype)), 3 * size * count(t * f), "GB/s",
             [&] { gated_forward(bench.stream(), forward); });
  const GatedBackward backward{.gate_up = bench.normal(dtype, {t, 2 * f}),
                               .dy = bench.normal(dtype, {t, f}),
                               .dgate_up = bench.empty(dtype, {t, 2 * f})};
  bench.line(cat("swiglu backward ", to_string(dtype)), 5 * size * count(t * f), "GB/s",
             [&] { gated_backward(bench.stream(), backward); });
  const Rope rotate{.x = bench.normal(dtype, {t, 12, 64}),
                    .positions = bench.numbers(std::vector<std::int32_t>(t, 9), {t}),
                    .frequencies = bench.normal(DType::f32, {32})};
  bench.line(cat("rope ", to_string(dtype)), 2 * size * count(t * 12 * 64), "GB/s",
             [&] { rope(bench.stream(), rotate); });
}

void update(Bench& bench) {
  const std::int64_t n = 8 << 20;
  const AdamW args{.weight = bench.normal(DType::f32, {n}),
                   .gradient = bench.normal(DType::f32, {n}),
                   .exp_avg = bench.empty(DType::f32, {n}),
                   .exp_avg_sq = bench.empty(DType::f32, {n}),
                   .hyper = bench.normal(DType::f32, {kAdamHyperFields})};
  bench.line("adamw float32", 28.0 * static_cast<double>(n), "GB/s", [&] { adamw(bench.stream(), args); });
  const RandomNormal draw{.y = bench.empty(DType::f32, {n})};
  bench.line("random_normal float32", static_cast<double>(n), "G/s", [&] { random_normal(bench.stream(), draw); });
}

}  // namespace
}  // namespace hawser::ops

int main(int argc, char** argv) {
  using namespace hawser;
  using namespace hawser::ops;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  Bench bench(threads, argc > 2 ? std::atof(argv[2]) : 1.0, argc > 3 ? argv[3] : "");
  std::printf("%d threads\n", threads);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    peak(bench);
    gemms(bench, dtype, 1024);
    attention(bench, dtype, 1024, 64, 1024);
    attention(bench, dtype, 4096, 64, 4096);
    attention(bench, dtype, 4096, 64, 300);
    attention(bench, dtype, 4096, 128, 4096);
    loss(bench, dtype, 1024);
    pointwise(bench, dtype, 1024);
  }
  update(bench);
  return 0;
}
