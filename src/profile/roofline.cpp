#include "profile/roofline.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>

#include "device/cuda/time_mark.h"
#include "engine/gemm_algorithms.h"
#include "ops/attention/attention.h"
#include "ops/copy/copy.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/grouped_gemm.h"
#include "ops/quantize/quantize.h"
#include "ops/seed/init.h"

namespace hawser::profile {

double Roofline::burst_seconds() const {
  double sum = 0;
  for (const RooflineTerm& term : terms) sum += term.count * term.burst;
  return sum;
}

double Roofline::alone_seconds() const {
  double sum = 0;
  for (const RooflineTerm& term : terms) sum += term.count * term.alone;
  return sum;
}

namespace {

// Adds a GEMM, or its count to an equal one's.
void add_shape(std::vector<ExpertGemm>& list, ExpertGemm gemm) {
  const auto same = [&](const ExpertGemm& there) {
    return there.kind == gemm.kind && there.experts == gemm.experts && there.assignments == gemm.assignments &&
           there.outputs == gemm.outputs && there.inputs == gemm.inputs && there.out == gemm.out &&
           there.fp8 == gemm.fp8 && there.accumulate == gemm.accumulate;
  };
  const auto there = std::ranges::find_if(list, same);
  if (there == list.end()) {
    list.push_back(std::move(gemm));
  } else {
    there->count += gemm.count;
  }
}

}  // namespace

std::vector<ExpertGemm> expert_gemms_of(const models::Model& model, const plan::Layout& layout) {
  using Kind = ExpertGemm::Kind;
  const std::int64_t times = layout.micro_batches;
  const bool each = layout.parts() > 1 && layout.accumulation == GradientAccumulation::sharded;
  std::vector<ExpertGemm> list;
  const auto add_weight = [&](const std::string& name, const nn::MoeConfig& c, std::int64_t outputs,
                              std::int64_t inputs, bool fp8) {
    const auto add = [&](const char* what, Kind kind, DType out, std::int64_t count, bool accumulate = false) {
      add_shape(list, {.name = cat(name, ", ", what),
                       .kind = kind,
                       .experts = c.experts,
                       .assignments = layout.bounds.rows * c.top_k,
                       .outputs = outputs,
                       .inputs = inputs,
                       .in = layout.compute,
                       .out = out,
                       .fp8 = fp8,
                       .accumulate = accumulate,
                       .count = count});
    };
    add("y", Kind::y, layout.compute, times);
    add("dx", Kind::dx, layout.compute, times);
    add("dW", Kind::dweight, each ? layout.reduce_dtype : DType::f32, each ? times : 1);
    if (!each && times > 1) add("dW +=", Kind::dweight, DType::f32, times - 1, true);
  };
  for (int layer = 0; layer < model.layers(); ++layer) {
    const auto& moe = model.description().blocks[static_cast<std::size_t>(model.block_of(layer))].moe;
    if (!moe || model.attention(layer) != nullptr) continue;
    const nn::SavePolicy& policy = layout.policies[static_cast<std::size_t>(layer)];
    const auto in_fp8 = [&](nn::Site site) { return policy.format(site) != LinearFormat::compute; };
    add_weight("experts.gate_up", *moe, moe->up_size(), moe->width, in_fp8(nn::Site::up_projection));
    add_weight("experts.down", *moe, moe->width, moe->inner, in_fp8(nn::Site::down_projection));
  }
  return list;
}

namespace {

// What the local sum of a reduction reads and writes; 0 for other collectives. A rank sums one part of the members'
// data, as many elements from each, so it reads as much as its own data has. The op's last access is the workspace,
// through which other members' parts come.
double local_sum_bytes(const OpRecord& record) {
  const auto bytes = [](const Access& access) { return static_cast<double>(access.row_bytes * access.rows); };
  const std::vector<Access>& accesses = record.accesses;
  if (record.collective.kind == CollectiveKind::all_reduce) return bytes(accesses.front());
  if (record.collective.kind != CollectiveKind::reduce_scatter) return 0;
  double sum = 0;
  bool written = false;
  for (const Access& access : accesses) {
    if (access.write && written) continue;
    written = written || access.write;
    sum += bytes(access);
  }
  return sum;
}

}  // namespace

double fused_bytes(const models::Model& model, plan::Layout layout) {
  for (nn::SavePolicy& policy : layout.policies) policy.checkpointing = Checkpointing::none;
  const plan::RankPlan plan =
      plan::plan_rank(model, layout, step::Purpose::train, 0, false, program::Placing::estimate);
  double sum = 0;
  for (const TraceItem& item : plan.trace.items) {
    const OpRecord& record = item.record;
    if (item.kind != TraceItem::Kind::work) continue;
    if (record.collective.kind != CollectiveKind::none) {
      sum += local_sum_bytes(record);
      continue;
    }
    if (bound_of(record.kind) != Bound::bytes) continue;
    if (record.bytes > 0) {
      sum += record.bytes;
      continue;
    }
    for (const Access& access : record.accesses) sum += static_cast<double>(access.row_bytes * access.rows);
  }
  return sum;
}

namespace {

// How long a term runs.
enum class Load { burst, sustained };

class Bench {
 public:
  Bench(Device& device, Load load) : device_(device), load_(load), stream_(device.make_stream("roofline")) {}

  // Random numbers, since zeros would run faster. FP8: scaled to most of its range, as in a step.
  Storage numbers(DType dtype, const Shape& shape) {
    if (is_fp8(dtype)) return quantized(dtype, shape);
    Storage out(device_, dtype, shape);
    ops::random_normal(*stream_, {.y = out, .seed = 1, .name = ++drawn_});
    return out;
  }

  // Seconds of one call.
  double time(const std::function<void()>& call) {
    const auto run = [&](int times) {
      const cuda::TimeMark begin(*stream_->native());
      for (int i = 0; i < times; ++i) call();
      const cuda::TimeMark end(*stream_->native());
      stream_->synchronize();
      return end.seconds_since(begin) / times;
    };
    const double once = std::max(run(2), 1e-6);
    if (load_ == Load::burst) return run(std::clamp(static_cast<int>(0.1 / once), 3, 200));
    for (int i = 0; i < static_cast<int>(0.3 / once); ++i) call();
    return run(static_cast<int>(1.0 / once) + 1);
  }

  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  // One scale for a matrix in FP8.
  Storage scale() { return filled(Storage(device_, DType::f32, {1})); }
  // Those of a matrix; empty without a kind.
  Storage scales(std::optional<ops::ScaleKind> kind, const TensorView& matrix) {
    return kind ? filled(engine::scales_for(kind, matrix, device_)) : Storage();
  }

 private:
  Storage filled(Storage scales) {
    ops::fill(*stream_, {.y = scales, .value = 1.0 / 64});
    return scales;
  }
  Storage quantized(DType dtype, const Shape& shape) {
    const Storage x = numbers(DType::f32, shape), by = scale();
    Storage out(device_, dtype, shape);
    ops::quantize(*stream_, {.x = x, .scale = by, .q = out});
    stream_->synchronize();  // x is freed
    return out;
  }

  Device& device_;
  Load load_;
  std::unique_ptr<Stream> stream_;
  std::uint64_t drawn_ = 0;
};

void add_gemms(Bench& bench, const models::Model& model, const plan::Layout& layout, Roofline& out) {
  for (const engine::GemmShape& p : engine::gemms_of(model, layout, true)) {
    const Storage a = bench.numbers(p.in_a, p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k});
    const Storage b = bench.numbers(p.in_b, p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n});
    const Storage c = bench.numbers(p.out, {p.m, p.n});
    const Storage scale_a = bench.scales(p.scaling_a, a), scale_b = bench.scales(p.scaling_b, b);
    const ops::Gemm gemm{.a = a,
                         .b = b,
                         .c = c,
                         .transpose_a = p.transpose_a,
                         .transpose_b = p.transpose_b,
                         .accumulate = p.accumulate,
                         .scale_a = scale_a,
                         .scale_b = scale_b,
                         .scaling_a = p.scaling_a.value_or(ops::ScaleKind::one),
                         .scaling_b = p.scaling_b.value_or(ops::ScaleKind::one)};
    ops::gemm_prepare(bench.stream(), gemm);
    const double each = bench.time([&] { ops::gemm(bench.stream(), gemm); });
    out.terms.push_back({.what = cat("GEMM ", p.name, " [", p.m, " x ", p.n, " x ", p.k, "]"),
                         .count = static_cast<double>(p.count),
                         .work = p.flops(),
                         .burst = each});
  }
}

// The operands of an expert's GEMM with groups of `rows` rows together.
struct ExpertOperands {
  Storage a, b, scale;
  TensorView weight;  // b, if that is one
  ExpertOperands(Bench& bench, const ExpertGemm& p, std::int64_t rows) {
    const bool gradient = p.kind == ExpertGemm::Kind::dweight, y = p.kind == ExpertGemm::Kind::y;
    const std::int64_t of_a = y ? p.inputs : p.outputs;
    const DType in_a = !p.fp8 ? p.in : y ? DType::f8e4m3 : DType::f8e5m2, in_b = p.fp8 ? DType::f8e4m3 : p.in;
    // FP8 has the rows along the sums: those of gradients transposed, and the weight for dx.
    a = bench.numbers(in_a, gradient && p.fp8 ? Shape{of_a, rows} : Shape{rows, of_a});
    if (gradient) {
      b = bench.numbers(in_b, p.fp8 ? Shape{p.inputs, rows} : Shape{rows, p.inputs});
    } else {
      const bool transposed = p.fp8 && !y;
      const std::int64_t outer = transposed ? p.inputs : p.outputs, inner = transposed ? p.outputs : p.inputs;
      b = bench.numbers(in_b, {p.experts * outer, inner});
      weight = b.view().reshape({p.experts, outer, inner});
    }
    if (p.fp8) scale = bench.scale();
  }
};

void add_expert_gemms(Bench& bench, const models::Model& model, const plan::Layout& layout, Roofline& out) {
  using Kind = ExpertGemm::Kind;
  for (const ExpertGemm& p : expert_gemms_of(model, layout)) {
    const std::int64_t group = ceil_div(ceil_div(p.assignments, p.experts), ops::kGroupRows) * ops::kGroupRows;
    std::vector<std::int32_t> ends;
    for (std::int64_t e = 0; e <= p.experts; ++e) ends.push_back(static_cast<std::int32_t>(e * group));
    const Storage offsets(bench.device(), DType::i32, {p.experts + 1});
    transfer(bench.stream(), offsets.view().raw(), ends.data(), offsets.view().bytes());
    bench.stream().synchronize();
    const Shape of_inputs{p.experts * group, p.inputs}, of_outputs{p.experts * group, p.outputs};
    const Shape of_weight{p.experts, p.outputs, p.inputs};
    const ExpertOperands operands(bench, p, p.experts * group);
    const Storage c =
        bench.numbers(p.out, p.kind == Kind::y ? of_outputs : (p.kind == Kind::dx ? of_inputs : of_weight));
    const double each = bench.time([&] {
      if (p.kind == Kind::dweight) {
        ops::grouped_weight_gradient(bench.stream(), {.a = operands.a,
                                                      .b = operands.b,
                                                      .c = c,
                                                      .offsets = offsets,
                                                      .accumulate = p.accumulate,
                                                      .scale_a = operands.scale,
                                                      .scale_b = operands.scale});
      } else {
        ops::grouped_gemm(bench.stream(), {.a = operands.a,
                                           .b = operands.weight,
                                           .c = c,
                                           .offsets = offsets,
                                           .transpose_b = p.fp8 || p.kind == Kind::y,
                                           .scale_a = operands.scale,
                                           .scale_b = operands.scale});
      }
    });
    out.terms.push_back({.what = cat("GEMM ", p.name, " [", p.experts, " experts, ", p.assignments, " x ", p.outputs,
                                     " x ", p.inputs, "]"),
                         .count = static_cast<double>(p.count),
                         .work = p.flops(),
                         .burst = each});
  }
}

// The `layers` layers with a mask. One full sequence; a context rank counts its share of it.
void add_attention(Bench& bench, const models::Model& model, const plan::Layout& layout, const AttentionWork& work,
                   const AttentionMask& mask, int layers, Roofline& out) {
  const nn::AttentionConfig& c = model.description().blocks.front().attention;
  const std::int64_t length = layout.batch.sequence_length;
  const DType act = layout.compute;
  const Storage q = bench.numbers(act, {length, c.heads, c.head_dim}), o = bench.numbers(act, q.view().shape());
  const Storage k = bench.numbers(act, {length, c.kv_heads, c.head_dim}), v = bench.numbers(act, k.view().shape());
  const Storage d_o = bench.numbers(act, q.view().shape()), dq = bench.numbers(act, q.view().shape());
  const Storage dk = bench.numbers(act, k.view().shape()), dv = bench.numbers(act, k.view().shape());
  const Storage lse = bench.numbers(DType::f32, {c.heads, length}), slopes = bench.numbers(DType::f32, {c.heads});
  std::vector<std::int32_t> diagonal;
  std::int32_t begin = 0;
  double pairs = 0;
  for (const std::int32_t rows : work.documents) {
    diagonal.insert(diagonal.end(), {begin, rows, begin, rows, 0, 0});
    begin += rows;
    pairs += ops::visible_pairs(rows, rows, 0, mask.causal, mask.window);
  }
  const auto used = static_cast<std::int32_t>(work.documents.size());
  std::vector<ops::StridedBlocks> blocks;
  if (used == 1 && mask.causal) blocks = {ops::equal_diagonal_blocks(length, length)};
  const Storage segments(bench.device(), DType::i32, {used, ops::kSegmentFields}),
      count(bench.device(), DType::i32, {1});
  transfer(bench.stream(), segments.view().raw(), diagonal.data(),
           static_cast<std::int64_t>(diagonal.size() * sizeof(std::int32_t)));
  transfer(bench.stream(), count.view().raw(), &used, sizeof used);
  bench.stream().synchronize();
  const ops::AttentionSizes sizes{.query_rows = length,
                                  .key_rows = length,
                                  .query_heads = c.heads,
                                  .kv_heads = c.kv_heads,
                                  .head_dim = c.head_dim,
                                  .dtype = act};
  const Storage ids(bench.device(), DType::i32, {length, 2}), step(bench.device(), DType::i32, {1});
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(2 * length));
  transfer(bench.stream(), ids.view().raw(), zeros.data(), ids.view().bytes());
  transfer(bench.stream(), step.view().raw(), zeros.data(), step.view().bytes());
  bench.stream().synchronize();
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim));
  ops::AttentionCall forward_call{
      .q = q,
      .k = k,
      .v = v,
      .segments = segments,
      .segment_count = count,
      .form = ops::SegmentForm::diagonal,
      .blocks = blocks,
      .host_segments = &diagonal,
      .causal = mask.causal,
      .window = mask.window,
      .scale = scale,
      .softcap = c.softcap.value_or(0),
      .slopes = mask.distances ? slopes.view() : TensorView(),
      .dropout = {.probability = c.dropout, .step = step.view(), .query_ids = ids.view(), .key_ids = ids.view()},
      .o = o,
      .lse = lse};
  ops::AttentionBackward backward_call{.call = forward_call, .d_o = d_o, .dq = dq, .dk = dk, .dv = dv};
  const DeviceKind kind = bench.device().kind();
  const std::int64_t bytes =
      std::max(ops::attention_workspace(forward_call, kind), ops::attention_workspace(backward_call, kind));
  const Storage workspace(bench.device(), DType::u8, {std::max<std::int64_t>(bytes, 1)});
  forward_call.workspace = backward_call.call.workspace = workspace;
  const double forward = bench.time([&] { ops::attention_forward(bench.stream(), forward_call); });
  const double backward = bench.time([&] { ops::attention_backward(bench.stream(), backward_call); });
  const double flops = ops::attention_flops(sizes, pairs);
  const double times = layers * work.pairs.at(mask) / pairs;
  const std::string shape =
      cat(" [", length, used > 1 ? cat(" in ", used, " documents") : "", ", ", c.heads, "/", c.kv_heads, " x ",
          c.head_dim, mask.window > 0 ? cat(", window ", mask.window) : "", mask.causal ? "" : ", not causal", "]");
  out.terms.push_back({.what = "attention forward" + shape, .count = times, .work = flops, .burst = forward});
  out.terms.push_back({.what = "attention backward" + shape, .count = times, .work = 2.5 * flops, .burst = backward});
}

void add_copies(Bench& bench, const models::Model& model, const plan::Layout& layout, Roofline& out) {
  constexpr std::int64_t kFloats = std::int64_t{1} << 28;  // 1 GiB, far larger than any cache
  const Storage x = bench.numbers(DType::f32, {kFloats}), y = bench.numbers(DType::f32, {kFloats});
  const double each = bench.time([&] { ops::copy(bench.stream(), {.x = x, .y = y}); });
  const double rate = 2.0 * kFloats * sizeof(float) / each, bytes = fused_bytes(model, layout);
  const std::string size = format_bytes(Bytes(static_cast<std::int64_t>(bytes)));
  out.terms.push_back({.what = cat("fused kernels, ", size, " at copy rate"),
                       .count = 1,
                       .work = bytes,
                       .bytes = true,
                       .burst = bytes / rate});
}

// The terms with their times in `burst`. Attention follows GEMMs, which leave a low clock, and copies are last: after
// them the clock has recovered, and would be that of no step.
std::vector<RooflineTerm> measure_terms(const models::Model& model, const plan::Layout& layout,
                                        const AttentionWork& attention, Device& device, Load load) {
  Bench bench(device, load);
  Roofline out;
  add_gemms(bench, model, layout, out);
  add_expert_gemms(bench, model, layout, out);
  for (const auto& [mask, layers] : model.masks()) add_attention(bench, model, layout, attention, mask, layers, out);
  add_copies(bench, model, layout, out);
  return std::move(out.terms);
}

}  // namespace

Roofline measure_roofline(const models::Model& model, const plan::Layout& layout, const AttentionWork& attention,
                          Device& device) {
  Roofline out;
  if (device.kind() != DeviceKind::cuda) {
    out.problem = "measured on a GPU only";
    return out;
  }
  try {
    out.terms = measure_terms(model, layout, attention, device, Load::burst);
    const auto alone = measure_terms(model, layout, attention, device, Load::sustained);
    for (std::size_t i = 0; i < alone.size(); ++i) out.terms[i].alone = alone[i].burst;
  } catch (const Error& error) {
    out.problem = error.what();
  }
  return out;
}

}  // namespace hawser::profile
