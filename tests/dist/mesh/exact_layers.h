// A toy whose sums are exact in float32, so that every mesh and every split into micro-batches must give the same bits:
// each layer is two Linears with small multiples of powers of two, dy follows from the token ids, and the optimizer
// moves each weight by a power of two. Embedding and head are frozen; the head's loss and gradient are not used.
#pragma once

#include "delayed_scaling.h"
#include "nn/blocks/linear.h"
#include "ops/copy/add.h"
#include "step/weight_scales.h"
#include "toy_training.h"

namespace hawser::testing {

constexpr std::int64_t kExactInner = 16;
constexpr float kPadding = 1e4f;  // in rows that are padding, beyond all others

inline float position_factor(std::int32_t position) {
  return static_cast<float>(1 + position / 8);
}

//   h = x_l up^T;  y = residual + h down^T        x_l: x; layer 0 has kPadding in padding rows, layer 1 zeros
// dy of `down` is an integer of the token's id and the column; in padding rows zero in layer 0, kPadding in layer 1.
// by_position: x_l of layer 0 and dy are times position_factor(), so that ranks have different maxima.
class ExactLayer : public nn::Layer {
 public:
  ExactLayer(int number, std::int64_t width, bool by_position)
      : number_(number), width_(width), by_position_(by_position) {
    const auto weight = [&](const char* name, std::int64_t rows, std::int64_t columns) {
      params_.push_back(nn::full_param(cat("layers.", number, ".", name, ".weight"), {rows, columns}, {}, true));
    };
    weight("up", kExactInner, width);
    weight("down", width, kExactInner);
  }
  const std::vector<nn::Param>& params() const override { return params_; }

  std::vector<nn::SavedSpec> saved_specs(const nn::RowCounts& rows, DType dtype, const nn::SavePolicy& p,
                                         const nn::TrainableParams&, const nn::Seams&) const override {
    const nn::Pass last = p.delay_weight_gradients ? nn::Pass::backward_weight : nn::Pass::backward;
    const bool again = p.checkpointing != Checkpointing::none;
    const Shape inner{rows.full, kExactInner};
    return {{"h", dtype, inner, again ? nn::Pass::recompute : nn::Pass::forward, last},
            {"dh", dtype, p.delay_weight_gradients ? inner : Shape{}, nn::Pass::backward, nn::Pass::backward_weight}};
  }
  void forward(nn::LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
               const nn::Saved& saved) const override {
    const TensorView h = saved.tensors[0].empty() ? inner(ctx) : saved.tensors[0], z = ctx.temp(ctx.dtype(), x.shape());
    up_.forward(ctx, input(ctx, x), h);
    down_.forward(ctx, h, z);
    ops::add(ctx.compute(), {.a = residual, .b = z, .y = y});
  }
  void recompute(nn::LayerContext& ctx, const nn::Saved& saved, const TensorView&,
                 const nn::SavePolicy&) const override {
    up_.forward(ctx, input(ctx, saved.x), saved.tensors[0]);
  }
  void backward(nn::LayerContext& ctx, const TensorView&, const TensorView& dresidual, const TensorView& dx,
                const nn::Saved& saved, nn::GradientSink& sink, const nn::SavePolicy& policy) const override {
    const nn::Scaled& weight = ctx.parameter(0);
    if (!weight.transposed.empty()) {
      EXPECT_EQ(weight.transposed.shape(), (Shape{width_, kExactInner}));
    }
    const TensorView dy = gradient(ctx), through = ctx.temp(ctx.dtype(), dx.shape());
    const TensorView dh = policy.delay_weight_gradients ? saved.tensors[1] : inner(ctx);
    down_.input_gradient(ctx, dy, dh);
    if (!policy.delay_weight_gradients) {
      down_.weight_gradient(ctx, dy, saved.tensors[0], sink);
      up_.weight_gradient(ctx, dh, input(ctx, saved.x), sink);
    }
    up_.input_gradient(ctx, dh, through);
    ops::add(ctx.compute(), {.a = dresidual, .b = through, .y = dx});
  }
  void backward_weight(nn::LayerContext& ctx, const TensorView&, const nn::Saved& saved,
                       nn::GradientSink& sink) const override {
    down_.weight_gradient(ctx, gradient(ctx), saved.tensors[0], sink);
    up_.weight_gradient(ctx, saved.tensors[1], input(ctx, saved.x), sink);
  }
  double flops(const nn::RowCounts& rows, double) const override {
    return 4.0 * static_cast<double>(rows.full * width_ * kExactInner);
  }

 private:
  TensorView inner(nn::LayerContext& ctx) const {
    return ctx.temp(ctx.dtype(), {ctx.batch().ids.size(0), kExactInner});
  }
  TensorView input(nn::LayerContext& ctx, const TensorView& x) const {
    return masked(ctx, x, number_ == 0 ? kPadding : 0.0f);
  }
  TensorView gradient(nn::LayerContext& ctx) const { return masked(ctx, {}, number_ == 0 ? 0.0f : kPadding); }

  // x, or the exact dy if it is empty; `padding` in the rows of no diagonal segment.
  TensorView masked(nn::LayerContext& ctx, const TensorView& x, float padding) const {
    const TensorView y = ctx.temp(ctx.dtype(), {ctx.batch().ids.size(0), width_});
    const TensorView ids = ctx.batch().ids, segments = ctx.batch().diagonal, count = ctx.batch().diagonal_count;
    OpRecord record{.name = "masked", .kind = OpKind::elementwise};
    const TensorView positions = ctx.batch().positions;
    const bool scaled = by_position_ && (x.empty() || number_ == 0);
    for (const TensorView& view : {ids, positions, segments, count}) record.accesses.push_back(reads(view));
    if (!x.empty()) record.accesses.push_back(reads(x));
    record.accesses.push_back(writes(y));
    ctx.compute().launch(std::move(record), [=] {
      dispatch_float(y.dtype(), [&](auto tag) {
        using T = decltype(tag);
        std::fill_n(y.data<T>(), y.elements(), static_cast<T>(padding));
        const auto* const table = segments.data<std::int32_t>();
        for (std::int32_t s = 0; s < *count.data<std::int32_t>(); ++s) {
          for (std::int64_t row = table[6 * s]; row < table[6 * s] + table[6 * s + 1]; ++row) {
            for (std::int64_t c = 0; c < y.size(1); ++c) {
              const std::int64_t id = ids.data<std::int32_t>()[row];
              const float factor = scaled ? position_factor(positions.data<std::int32_t>()[row]) : 1.0f;
              const float value =
                  x.empty() ? static_cast<float>((id + c) % 5 - 2) : static_cast<float>(x.rows(row, 1).data<T>()[c]);
              y.rows(row, 1).data<T>()[c] = static_cast<T>(factor * value);
            }
          }
        }
      });
    });
    return y;
  }

  int number_;
  std::int64_t width_;
  bool by_position_;
  std::vector<nn::Param> params_;
  nn::Linear up_{.site = nn::Site::up_projection, .weight = 0}, down_{.site = nn::Site::down_projection, .weight = 1};
};

// weight -= learning_rate * sign(gradient)
class SignDescent : public optim::Optimizer {
 public:
  std::string name() const override { return "sign descent"; }
  std::vector<optim::StateSlot> slots(const nn::Flat&) const override { return {}; }
  std::int64_t scalars() const override { return 1; }
  void prepare(Stream& stream, const optim::Prepare& step) const override {
    OpRecord record{
        .name = "rate", .kind = OpKind::optimizer, .accesses = {reads(step.learning_rate), writes(step.scalars)}};
    stream.launch(std::move(record), [step] { *step.scalars.data<float>() = *step.learning_rate.data<float>(); });
  }
  void update(Stream& stream, const optim::FlatUpdate& u) const override {
    if (u.flat.spec().scaled) {
      EXPECT_TRUE(u.compute.empty());  // the executor quantizes
    }
    OpRecord record{.name = "sign descent", .kind = OpKind::optimizer};
    for (const TensorView& view : {u.weights, u.gradient, u.scalars, u.skip}) record.accesses.push_back(reads(view));
    record.accesses.push_back(writes(u.weights));
    if (!u.compute.empty()) record.accesses.push_back(writes(u.compute));
    stream.launch(std::move(record),
                  [weights = u.weights, gradient = u.gradient, rate = u.scalars, skip = u.skip, compute = u.compute] {
                    if (*skip.data<std::int32_t>() != 0) return;
                    for (std::int64_t i = 0; i < weights.elements(); ++i) {
                      const float g = gradient.data<float>()[i];
                      float& weight = weights.data<float>()[i];
                      if (g != 0) weight -= std::copysign(*rate.data<float>(), g);
                      if (!compute.empty()) compute.data<Bf16>()[i] = Bf16(weight);
                    }
                  });
  }
};

// scaled: weights have scales; transposed: backward reads them transposed; fp8: gathered in FP8; frozen_up: the first
// Linear of each layer does not train; on_use: weights are rounded to FP8 where they are read.
inline models::Model exact_model(bool scaled = true, bool transposed = false, bool by_position = false,
                                 bool fp8 = false, bool frozen_up = false, bool on_use = false) {
  models::ModelDescription description = toy_description();
  description.blocks.resize(1);
  const std::int64_t width = description.embedding.width;
  return models::Model(
      std::move(description),
      [=](const nn::Param& param) {
        nn::FlatSpec spec = nn::common_domain(param);
        const bool own = param.name.starts_with("layers.");
        spec.trainable = own && !(frozen_up && param.name.ends_with(".up.weight"));
        if (own && scaled) spec.scaled = true;
        spec.transposed = own && transposed;
        if (own && fp8) spec.gathered = DType::f8e4m3;
        spec.quantized_on_use = own && on_use;
        return spec;
      },
      {}, [=](auto, int number) { return std::make_unique<ExactLayer>(number, width, by_position); });
}

inline void set_formats(plan::LayoutChoices& layout, const std::vector<nn::Site>& sites,
                        LinearFormat format = LinearFormat::fp8_delayed) {
  for (nn::SavePolicy& policy : layout.policies) {
    for (const nn::Site site : sites) policy.formats[static_cast<std::size_t>(site)] = format;
  }
}

inline plan::LayoutChoices exact_layout(const models::Model& model, const comm::MeshSizes& mesh) {
  plan::LayoutChoices layout;
  layout.mesh = mesh;
  layout.batch_sizes = toy_batch(mesh.context);
  layout.policies.assign(static_cast<std::size_t>(model.layers()), {});
  layout.optimizer = std::make_shared<SignDescent>();
  layout.quantizer = std::make_shared<DelayedScaling>();
  set_formats(layout, {nn::Site::up_projection, nn::Site::down_projection});
  return layout;
}

struct ExactCase {
  MeshCase on;
  int sequences = 2;  // of a micro-batch: a step has as many micro-batches as its batch takes

  std::string name() const { return joined(on.name(), name_if(sequences == 1, "one_sequence")); }
  friend void PrintTo(const ExactCase& c, std::ostream* out) { *out << c.name(); }
};

// Each mesh with a split into micro-batches, and what else must not change a bit.
inline std::vector<ExactCase> exact_cases() {
  std::vector<ExactCase> out;
  for (MeshCase c : sharded_meshes()) {
    const std::size_t i = out.size() + static_cast<std::size_t>(the_world->size());
    c.compute = DType::f32;
    c.shard_policy = i % 3 == 0 ? ShardPolicy::optimizer : ShardPolicy::parameters;
    c.policy.checkpointing = i / 2 % 2 == 0 ? Checkpointing::full : Checkpointing::none;
    c.policy.delay_weight_gradients = i % 3 == 1;
    c.in_flight = i % 3 == 1 ? 2 : 1;
    out.push_back({c, i % 2 == 0 ? 1 : 2});
  }
  return out;
}

inline plan::LayoutChoices with_options(plan::LayoutChoices layout, const ExactCase& c) {
  layout.accumulation = c.on.accumulation;
  layout.batch_sizes.sequences = c.sequences;
  layout.shard_policy = c.on.shard_policy;
  for (nn::SavePolicy& policy : layout.policies) {
    policy.checkpointing = c.on.policy.checkpointing;
    policy.delay_weight_gradients = c.on.policy.delay_weight_gradients;
  }
  layout.schedule.group = c.on.in_flight;
  return layout;
}

// Element `at` of the layers' weights, and of the embedding: 4 in column 0.
inline float exact_value(const nn::Flat& flat, std::int64_t at, std::int64_t width) {
  constexpr std::array<float, 8> kWeights = {0.25f, 0, 0, -0.25f, 0, 0, 0.5f, 0};
  if (flat.params().front().name.starts_with("layers."))
    return kWeights[static_cast<std::size_t>(at * 2654435761u % 4093 % 8)];
  return at % width == 0 ? 4.0f : static_cast<float>(at * 40503u % 1021 % 7) - 3.0f;
}

// Writes the weights of layers and embedding; those of the embedding times `factor`.
inline void write_exact(engine::Session& session, float factor = 1) {
  const models::Model& model = session.model();
  for (int f = 0; f < static_cast<int>(model.flats().size()); ++f) {
    const nn::Flat& flat = model.flat(f);
    const std::string& name = flat.params().front().name;
    const bool table = name.find("embed") != std::string::npos;
    if (!name.starts_with("layers.") && !table) continue;
    const step::FlatState& state = session.state().flat(f);
    const Storage loaded(session.device(), DType::f32, {state.quantized_on_load() ? state.count : 0});
    const TensorView values = state.quantized_on_load() ? loaded.view() : state.stored;
    for (std::int64_t i = 0; i < state.count; ++i) {
      const float value = exact_value(flat, state.begin + i, model.width()) * (table ? factor : 1.0f);
      if (values.dtype() == DType::f32) {
        values.data<float>()[i] = value;
      } else {
        values.data<Bf16>()[i] = Bf16(value);
      }
    }
    if (!state.quantized_on_load()) continue;
    std::vector<Storage> workspaces;
    step::quantize_loaded(
        session.state(), model, session.mesh(), f, values, state.compute, session.stream(),
        [&](std::int64_t bytes) { return workspaces.emplace_back(session.device(), DType::u8, Shape{bytes}).view(); });
    session.stream().synchronize();
  }
  session.parameters_changed();
}

constexpr float kExactRate = 0.0625f;
constexpr std::int64_t kInputs = 4;  // steps that ToySteps has sequences for

// Runs a session over the sequences of steps; `batch`: of the whole step.
class ExactRun {
 public:
  ExactRun(const models::Model& model, plan::LayoutChoices layout, comm::Mesh& mesh, std::int64_t batch,
           bool random = true)
      : device_(rank_device(random ? CpuOptions{.random_delay_s = 2e-4, .delay_seed = 5} : CpuOptions{})),
        steps_(model, layout, mesh.coordinate(), batch),
        session_(model, plan::derive(layout, model), *device_, mesh, {step::Purpose::train}, std::nullopt,
                 {.replay = true}) {}

  step::StepOutput enqueue(std::int64_t which, const std::function<void(step::StepInput&)>& change = {}) {
    step::StepInput input = steps_.input(which % kInputs);
    input.record.step = static_cast<std::int32_t>(which);
    input.record.learning_rate = kExactRate;
    if (change) change(input);
    return session_.enqueue(step::Purpose::train, input);
  }
  step::StepOutput step(std::int64_t which, const std::function<void(step::StepInput&)>& change = {}) {
    step::StepOutput output = enqueue(which, change);
    session_.synchronize();
    return output;
  }
  engine::Session& session() { return session_; }
  const plan::Layout& layout() const { return session_.layout(); }

 private:
  std::shared_ptr<Device> device_;
  ToySteps steps_;
  engine::Session session_;
};

}  // namespace hawser::testing
