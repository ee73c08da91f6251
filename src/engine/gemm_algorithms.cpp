#include "engine/gemm_algorithms.h"

#include <algorithm>
#include <sstream>

#include "base/text.h"
#include "engine/gemm_cache.h"
#include "engine/rank_sync.h"
#include "ops/attention/attention.h"
#include "ops/copy/copy.h"
#include "ops/gemm/gemm.h"
#include "ops/loss/linear_cross_entropy.h"
#include "tensor/fp8.h"

namespace hawser::engine {

namespace {

bool same(const GemmShape& a, const GemmShape& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.transpose_a == b.transpose_a && a.transpose_b == b.transpose_b &&
         a.accumulate == b.accumulate && a.in_a == b.in_a && a.in_b == b.in_b && a.out == b.out &&
         a.scaling_a == b.scaling_a && a.scaling_b == b.scaling_b;
}

class Lister {
 public:
  explicit Lister(const plan::Layout& layout) : layout_(layout) {}

  // The three GEMMs of a linear layer y [T, O] = x [T, I] W^T, W [O, I], whose layers read W as `spec` says. T: the
  // residual's rows, or all.
  void add_linear(const std::string& name, std::int64_t outputs, std::int64_t inputs, const nn::FlatSpec& spec = {},
                  bool of_residual_rows = false) {
    const nn::RowCounts counts = layout_.bounds.row_counts();
    const std::int64_t rows = of_residual_rows ? counts.residual : counts.full, times = layout_.micro_batches;
    // A router reads float32 weights, and its rows in float32.
    const DType act = spec.gathered == DType::f32 ? DType::f32 : layout_.compute;
    const bool each = layout_.parts() > 1 && layout_.accumulation == GradientAccumulation::sharded;
    const DType gradient = each && act != DType::f32 ? layout_.reduce_dtype : DType::f32;  // see nn::layer_gemm
    const DType read = spec.packed() ? act : spec.gathered.value_or(act);
    GemmShape of_weight{.in_a = act, .in_b = read, .out = act, .count = times};
    if (spec.scaled) of_weight.scaling_b = ops::ScaleKind::one;
    const GemmShape of_gradient{.transpose_a = true, .in_a = act, .in_b = act, .out = gradient, .gradient = true};
    GemmShape y = of_weight, dx = of_weight, dw = of_gradient;
    const bool blocks = spec.quantized_on_use;
    if (blocks || is_fp8(read)) {  // nn/precision: all three read rows along K
      for (GemmShape* const shape : {&y, &dx, &dw}) {
        shape->in_a = shape == &y || blocks ? DType::f8e4m3 : DType::f8e5m2;
        shape->in_b = DType::f8e4m3;
        shape->transpose_b = true;
        shape->scaling_a = shape->scaling_b = blocks ? ops::ScaleKind::vec128 : ops::ScaleKind::one;
      }
      if (blocks) y.scaling_b = dx.scaling_b = ops::ScaleKind::block128;
      dw.transpose_a = false;
    }
    y.name = name + ", y", y.m = rows, y.n = outputs, y.k = inputs, y.transpose_b = true;
    add(y);
    dx.name = name + ", dx", dx.m = rows, dx.n = inputs, dx.k = outputs, dx.gradient = true;
    add(dx);
    dw.name = name + ", dW", dw.m = outputs, dw.n = inputs, dw.k = rows, dw.count = each ? times : 1;
    add(dw);
    if (each || times == 1) return;
    dw.name = name + ", dW +=", dw.accumulate = true, dw.count = times - 1;
    add(dw);
  }
  std::vector<GemmShape> take() { return std::move(list_); }

 private:
  void add(GemmShape shape) {
    for (GemmShape& there : list_) {
      if (same(there, shape)) {
        there.count += shape.count;
        there.gradient = there.gradient && shape.gradient;
        return;
      }
    }
    list_.push_back(std::move(shape));
  }

  const plan::Layout& layout_;
  std::vector<GemmShape> list_;
};

// "model.layers.0.mlp.gate_up_proj.weight" to "gate_up_proj".
std::string short_name(const std::string& name) {
  const auto end = name.rfind('.');
  const auto begin = end == std::string::npos || end == 0 ? std::string::npos : name.rfind('.', end - 1);
  if (begin == std::string::npos) return name.substr(0, end);
  return name.substr(begin + 1, end - begin - 1);
}

// Float32 if gradients are not reduced after each micro-batch, or share a unit with the embedding.
DType head_gradient(const models::Model& model, const plan::Layout& layout) {
  const bool each = layout.parts() > 1 && layout.accumulation == GradientAccumulation::sharded;
  return each && !model.description().head.tied ? layout.reduce_dtype : DType::f32;
}

// The head's op splits its logits into chunks and prepares the GEMMs of these chunks itself.
void prepare_head(const models::Model& model, const plan::Layout& layout, Device& device, Stream& stream,
                  bool backward) {
  const std::int64_t rows = layout.bounds.rows, width = model.width(), vocabulary = model.head_columns();
  const auto gradient_of = [&](DType dtype, const Shape& shape) {
    return backward ? Storage(device, dtype, shape) : Storage();
  };
  const Storage x(device, layout.compute, {rows, width}), dx = gradient_of(layout.compute, {rows, width});
  const Storage weight(device, layout.compute, {vocabulary, width});
  const Storage gradient = gradient_of(head_gradient(model, layout), {vocabulary, width});
  const Storage labels(device, DType::i32, {rows}), scale(device, DType::f32, {1}), sum(device, DType::f32, {2});
  ops::LinearCrossEntropy call{
      .x = x, .weight = weight, .labels = labels, .scale = scale, .loss_sum = sum, .dx = dx, .dweight = gradient};
  const Storage workspace(device, DType::u8,
                          {std::max<std::int64_t>(ops::linear_cross_entropy_workspace(call, stream.target()), 1)});
  call.workspace = workspace;
  ops::linear_cross_entropy_prepare(stream, call);
  stream.synchronize();
}

// Logits of the selected positions, as the head computes them for generation.
void prepare_logits(const models::Model& model, const plan::Layout& layout, Device& device, Stream& stream) {
  const Storage x(device, layout.compute, {plan::logit_rows(layout), model.width()});
  const Storage weight(device, layout.compute, {model.head_columns(), model.width()});
  const Storage logits(device, DType::f32, {plan::logit_rows(layout), model.head_columns()});
  ops::gemm_prepare(stream, {.a = x, .b = weight, .c = logits, .transpose_b = true});
  stream.synchronize();
}

}  // namespace

Storage scales_for(std::optional<ops::ScaleKind> kind, const TensorView& matrix, Device& device) {
  if (!kind) return {};
  return {device, DType::f32, ops::scale_shape(*kind, matrix.size(0), matrix.size(1))};
}

std::vector<GemmShape> gemms_of(const models::Model& model, const plan::Layout& layout, bool head) {
  Lister lister(layout);
  for (int layer = 0; layer < model.layers(); ++layer) {
    for (const models::ParamIndex& place : model.layer_params(layer)) {
      const nn::Flat& flat = model.flats()[static_cast<std::size_t>(place.flat)];
      const nn::Param& param = flat.params()[static_cast<std::size_t>(place.index)];
      if (param.shape.rank() != 2 || param.flat.domain == Domain::expert) continue;  // grouped GEMMs are no GEMMs
      lister.add_linear(short_name(param.name), param.shape[0], param.shape[1], flat.spec(), param.of_residual_rows);
    }
  }
  if (head) lister.add_linear("head", model.head_columns(), model.width());
  return lister.take();
}

void prepare_gemms(const models::Model& model, const plan::Layout& layout, Device& device, step::Purpose purpose) {
  if (device.kind() != DeviceKind::cuda) return;
  const auto stream = device.make_stream("prepare");
  const GemmCache cache(GemmCache::default_folder());
  ops::gemm_take_choices(*stream, cache.read(first_line(ops::gemm_choices(*stream))), true);
  const std::string before = ops::gemm_choices(*stream);
  for (const GemmShape& p : gemms_of(model, layout, false)) {
    if (p.gradient && step::forward_only(purpose)) continue;
    const Storage a(device, p.in_a, p.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k});
    const Storage b(device, p.in_b, p.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n});
    const Storage c(device, p.out, {p.m, p.n}), scale_a = scales_for(p.scaling_a, a, device);
    const Storage scale_b = scales_for(p.scaling_b, b, device);
    for (const Storage* const scale : {&scale_a, &scale_b}) {
      if (!scale->view().empty()) ops::fill(*stream, {.y = *scale, .value = 1});
    }
    ops::gemm_prepare(*stream, {.a = a,
                                .b = b,
                                .c = c,
                                .transpose_a = p.transpose_a,
                                .transpose_b = p.transpose_b,
                                .accumulate = p.accumulate,
                                .scale_a = scale_a,
                                .scale_b = scale_b,
                                .scaling_a = p.scaling_a.value_or(ops::ScaleKind::one),
                                .scaling_b = p.scaling_b.value_or(ops::ScaleKind::one)});
    stream->synchronize();
  }
  if (purpose == step::Purpose::logits) {
    prepare_logits(model, layout, device, *stream);
  } else {
    prepare_head(model, layout, device, *stream, !step::forward_only(purpose));
  }
  stream->synchronize();
  cache.add(before, ops::gemm_choices(*stream));
}

std::string choose_gemm_algorithms(const models::Model& model, const plan::Layout& layout, Device& device,
                                   comm::World* world, const GemmAlgorithmOptions& how,
                                   const std::function<void(const std::string&)>& log) {
  if (device.kind() != DeviceKind::cuda) return "";
  const auto stream = device.make_stream("gemm_algorithms");
  const auto heading = [&] { return first_line(ops::gemm_choices(*stream)); };
  const std::string text = on_rank_zero(world, [&] {
    std::vector<StoredChoices> all = how.stored ? how.stored() : std::vector<StoredChoices>{};
    std::ranges::reverse(all);  // a later text replaces choices of an earlier one
    for (const StoredChoices& stored : all) {
      if (stored.text.empty()) continue;
      if (first_line(stored.text) == heading()) {
        ops::gemm_take_choices(*stream, stored.text);
      } else {
        log(cat("hawser: not using the GEMM algorithms of ", stored.origin, ": they are for ", first_line(stored.text),
                ", this is ", heading()));
      }
    }
    if (how.measure) prepare_gemms(model, layout, device, how.purpose);
    return ops::gemm_choices(*stream);
  });
  if (world == nullptr) return text;
  const bool other = first_line(text) != heading();
  take_time(world, [&] {
    if (world->rank().value() == 0) return;
    if (!other) {
      ops::gemm_take_choices(*stream, text);
    } else if (how.measure) {
      prepare_gemms(model, layout, device, how.purpose);
    }
  });
  const std::vector<std::string> kinds = world->all_gather_strings(heading());
  for (std::size_t rank = 1; rank < kinds.size(); ++rank) {
    if (kinds[rank] == kinds[0] || world->rank().value() != 0) continue;
    log(cat("hawser: rank ", rank, " has ", kinds[rank], ", rank 0 has ", kinds[0],
            ": each uses its own GEMM algorithms"));
  }
  return text;
}

std::vector<std::string> slow_kernels(Stream& stream) {
  constexpr std::size_t kLines = 5;
  std::vector<std::string> out;
  std::istringstream text(ops::gemm_choices(stream));
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("# ")) out.push_back("GEMM " + line.substr(2));
  }
  if (out.size() > kLines) {
    const std::size_t more = out.size() - kLines;
    out.resize(kLines);
    out.push_back(cat("and ", more, " more GEMMs like these"));
  }
  for (std::string& line : ops::rejected_attention(stream)) {
    if (std::find(out.begin(), out.end(), line) == out.end()) out.push_back(std::move(line));
  }
  return out;
}

}  // namespace hawser::engine
