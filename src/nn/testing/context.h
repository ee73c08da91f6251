// `TestContext`: a LayerContext for tests. It allocates temporaries on demand, fills them with NaN, and stores the op
// records of what is enqueued, to compare devices.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "nn/row_tiles.h"

namespace hawser::nn::testing {

// Forwards everything to the inner stream and stores the op records.
class NotingStream : public Stream {
 public:
  explicit NotingStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}
  DeviceKind kind() const override { return inner_->kind(); }
  DeviceKind target() const override { return inner_->target(); }
  const CudaNative* native() const override { return inner_->native(); }
  const std::string& name() const override { return inner_->name(); }
  void launch(OpRecord record, std::function<void()> work) override {
    records_.push_back(record);
    inner_->launch(std::move(record), std::move(work));
  }
  Event record_event() override { return inner_->record_event(); }
  void wait(const Event& event) override { inner_->wait(event); }
  void synchronize() override { inner_->synchronize(); }
  void check() override { inner_->check(); }
  const std::vector<OpRecord>& records() const { return records_; }

 private:
  std::unique_ptr<Stream> inner_;
  std::vector<OpRecord> records_;
};

inline void fill_with_nan(const TensorView& view) {
  if (view.device() == DeviceKind::cpu && view.bytes() > 0) {
    std::memset(view.raw(), 0xff, static_cast<std::size_t>(view.bytes()));
  }
}

inline void set(const TensorView& view, const std::vector<double>& values) {
  HAWSER_CHECK(view.dense() && static_cast<std::size_t>(view.elements()) == values.size(), "values for ", view.text());
  if (view.device() != DeviceKind::cpu) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (view.dtype() == DType::f32) view.data<float>()[i] = static_cast<float>(values[i]);
    if (view.dtype() == DType::bf16) view.data<Bf16>()[i] = Bf16(static_cast<float>(values[i]));
    if (view.dtype() == DType::i32) view.data<std::int32_t>()[i] = static_cast<std::int32_t>(values[i]);
  }
}

inline std::vector<double> get(const TensorView& view) {
  std::vector<double> out(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (view.dtype() == DType::f32) out[i] = view.data<float>()[i];
    if (view.dtype() == DType::bf16) out[i] = static_cast<double>(static_cast<float>(view.data<Bf16>()[i]));
    if (view.dtype() == DType::i32) out[i] = view.data<std::int32_t>()[i];
  }
  return out;
}

inline std::vector<double> normals(const std::string& name, std::int64_t count, double std = 1.0, double mean = 0.0) {
  const RandomStream random(3, fnv1a(name));
  std::vector<double> out;
  // Rounded to bf16, so that all dtypes start from the same numbers.
  for (std::int64_t i = 0; i < count; ++i) {
    const Bf16 rounded(static_cast<float>(mean + std * random.normal(static_cast<std::uint64_t>(i))));
    out.push_back(static_cast<double>(static_cast<float>(rounded)));
  }
  return out;
}

class TestContext : public LayerContext {
 public:
  TestContext(Device& device, DType dtype)
      : device_(device),
        dtype_(dtype),
        compute_(device.make_stream("compute")),
        exchange_(device.make_stream("exchange")) {}
  ~TestContext() override {
    if (!failed_) finish();
  }

  // The view is valid as long as the context.
  TensorView make(DType dtype, const Shape& shape) {
    if (shape.elements() == 0) return {};
    owned_.push_back(std::make_unique<Storage>(device_, dtype, shape));
    fill_with_nan(owned_.back()->view());
    return owned_.back()->view();
  }
  TensorView make(DType dtype, const Shape& shape, const std::vector<double>& values) {
    const TensorView view = make(dtype, shape);
    set(view, values);
    return view;
  }
  // Throws the error of an op, once.
  void finish() {
    failed_ = true;
    compute_.synchronize();
    exchange_.synchronize();
    failed_ = false;
  }

  TensorView temp(DType dtype, const Shape& shape) override { return make(dtype, shape); }
  Stream& compute() override { return compute_; }
  Stream& exchange() override { return exchange_; }
  const BatchViews& batch() const override { return batch_; }
  RowCounts rows() const override { return rows_; }
  const Seams& seams() const override { return seams_; }
  const Scaled& parameter(int param) const override {
    parameters_.resize(weights_.size());
    const auto i = static_cast<std::size_t>(param);
    parameters_.at(i) = {weights_.at(i), i < scales_.size() ? scales_[i] : TensorView(),
                         i < transposed_.size() ? transposed_[i] : TensorView()};
    return parameters_[i];
  }
  RopeViews rope(int /*i*/) const override { return {frequencies_, interleaved_}; }
  TensorView alibi_slopes() const override { return slopes_; }
  DType dtype() const override { return dtype_; }
  int threads() const override { return 1; }
  bool training() const override { return training_; }
  const TrainableParams& trainable() const override { return trainable_; }
  TensorView refusal() const override { return refusal_; }
  ops::RandomKey random(Site site, int index) const override {
    return {.key = {static_cast<std::uint32_t>(site), static_cast<std::uint32_t>(index)},
            .step = step_,
            .rows = batch_.row_ids};
  }

  BatchViews batch_;
  RowCounts rows_;              // LayerRun sets it
  std::int64_t row_parts_ = 1;  // RowCounts::full / RowCounts::residual
  std::int64_t row_part_ = 0;   // RowCounts::first / RowCounts::residual
  Seams seams_;
  std::vector<TensorView> weights_;
  std::vector<TensorView> scales_, transposed_;  // of weights_; may be shorter
  mutable std::vector<Scaled> parameters_;
  TensorView frequencies_, slopes_, step_, refusal_;
  bool interleaved_ = false;  // RopeViews::interleaved
  bool training_ = false;
  TrainableParams trainable_;
  const std::vector<OpRecord>& records() const { return compute_.records(); }

 private:
  Device& device_;
  DType dtype_;
  std::vector<std::unique_ptr<Storage>> owned_;
  bool failed_ = false;
  NotingStream compute_, exchange_;
};

// Gradients of all parameters in `dtype`; with `accumulate`, added to `start`.
class TestSink : public GradientSink {
 public:
  TestSink(TestContext& ctx, const std::vector<Param>& params, bool accumulate = false, double start = 0,
           DType dtype = DType::f32)
      : accumulate_(accumulate), asked_(params.size(), 0) {
    for (const Param& param : params) {
      views_.push_back(ctx.make(dtype, param.shape));
      if (accumulate) set(views_.back(), std::vector<double>(static_cast<std::size_t>(param.elements()), start));
    }
  }
  GradientTarget target(int param) override {
    ++asked_.at(static_cast<std::size_t>(param));
    return {views_.at(static_cast<std::size_t>(param)), accumulate_};
  }
  void reject(int param) { views_.at(static_cast<std::size_t>(param)) = {}; }
  const std::vector<TensorView>& views() const { return views_; }
  const std::vector<int>& asked() const { return asked_; }

 private:
  bool accumulate_;
  std::vector<TensorView> views_;
  std::vector<int> asked_;
};

// The documents of a micro-batch, one after another.
struct Documents {
  std::vector<std::int64_t> lengths;

  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const std::int64_t length : lengths) sum += length;
    return sum;
  }
  std::vector<std::int64_t> positions() const {
    std::vector<std::int64_t> out;
    for (const std::int64_t length : lengths) {
      for (std::int64_t i = 0; i < length; ++i) out.push_back(i);
    }
    return out;
  }
};

// The local attention of complete documents on one rank. mask: of the attention layer that the context is for.
inline void set_batch(TestContext& ctx, const Documents& documents, std::int64_t head_dim,
                      const AttentionMask& mask = {}) {
  std::vector<double> positions, segments, frequencies;
  for (const std::int64_t p : documents.positions()) positions.push_back(static_cast<double>(p));
  double begin = 0;
  for (const std::int64_t length : documents.lengths) {
    const auto count = static_cast<double>(length);
    segments.insert(segments.end(), {begin, count, begin, count, 0.0, 0.0});
    begin += count;
  }
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    frequencies.push_back(std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
  const auto count = static_cast<std::int64_t>(documents.lengths.size());
  ctx.batch_.positions = ctx.make(DType::i32, {documents.rows()}, positions);
  ctx.batch_.diagonal = ctx.make(DType::i32, {count, 6}, segments);
  ctx.batch_.diagonal_count = ctx.make(DType::i32, {1}, {static_cast<double>(count)});
  ctx.batch_.masks = {{.mask = mask, .diagonal_pairs = begin}};
  ctx.frequencies_ = ctx.make(DType::f32, {head_dim / 2}, frequencies);
}

// One layer through all passes, under a policy. A saved tensor is allocated, full of NaN, before its writing pass, and
// filled with NaN again after its last reader.
struct LayerResult {
  std::vector<double> y, dx;
  std::vector<std::vector<double>> gradients;
};

class LayerRun {
 public:
  LayerRun(TestContext& ctx, const Layer& layer, std::int64_t rows, std::int64_t width, const SavePolicy& policy)
      : LayerRun(ctx, layer, width, policy, normals("x", rows * width), normals("dy", rows * width)) {}
  LayerRun(TestContext& ctx, const Layer& layer, std::int64_t width, const SavePolicy& policy,
           const std::vector<double>& x, const std::vector<double>& dy)
      : ctx_(ctx), layer_(layer), policy_(policy) {
    const auto rows = static_cast<std::int64_t>(x.size()) / width;
    ctx.rows_ = {rows, rows * ctx.row_parts_, rows * ctx.row_part_};
    specs_ = saved_specs_of(layer, ctx.rows_, ctx.dtype(), policy, ctx.trainable(), ctx.seams_);
    saved_.x = ctx.make(ctx.dtype(), {rows, width}, x);
    dy_ = ctx.make(ctx.dtype(), {rows, width}, dy);
    y_ = ctx.make(ctx.dtype(), {rows, width});
    dx_ = ctx.make(ctx.dtype(), {rows, width});
    saved_.tensors.resize(specs_.size());
  }

  // Calls `on_pass` before each pass is enqueued.
  void run(GradientSink& sink, const std::function<void(Pass)>& on_pass = {}) {
    for (const Pass pass : {Pass::forward, Pass::recompute, Pass::backward, Pass::backward_weight}) {
      if (pass == Pass::recompute && !recomputes(layer_, policy_, ctx_.trainable())) continue;
      if (pass == Pass::backward_weight && (!policy_.delay_weight_gradients || !trains())) continue;
      if (on_pass) on_pass(pass);
      for (std::size_t i = 0; i < specs_.size(); ++i) {
        if (specs_[i].shape.rank() > 0 && specs_[i].writer == pass) {
          saved_.tensors[i] = ctx_.make(specs_[i].dtype, specs_[i].shape);
          if (on_saved) on_saved(i, saved_.tensors[i]);
        }
      }
      if (pass == Pass::forward) run_forward(layer_, ctx_, saved_.x, saved_.x, y_, saved_, policy_);
      if (pass == Pass::recompute) layer_.recompute(ctx_, saved_, {}, policy_);
      if (pass == Pass::backward) run_backward(layer_, ctx_, dy_, dy_, dx_, saved_, sink, policy_);
      if (pass == Pass::backward_weight) layer_.backward_weight(ctx_, dy_, saved_, sink);
      ctx_.finish();
      for (std::size_t i = 0; i < specs_.size(); ++i) {
        if (!saved_.tensors[i].empty() && specs_[i].last_reader == pass) fill_with_nan(saved_.tensors[i]);
      }
    }
  }

  LayerResult result(const TestSink& sink) const {
    LayerResult out{get(y_), get(dx_), {}};
    for (const TensorView& view : sink.views())
      out.gradients.push_back(view.empty() ? std::vector<double>() : get(view));
    return out;
  }
  const std::vector<SavedSpec>& saved_specs() const { return specs_; }
  std::function<void(std::size_t, const TensorView&)> on_saved;

 private:
  bool trains() const {
    for (std::size_t p = 0; p < layer_.params().size(); ++p) {
      if (ctx_.trainable()(static_cast<int>(p))) return true;
    }
    return false;
  }

  TestContext& ctx_;
  const Layer& layer_;
  SavePolicy policy_;
  std::vector<SavedSpec> specs_;
  Saved saved_;
  TensorView dy_, y_, dx_;
};

inline std::vector<SavePolicy> all_policies() {
  std::vector<SavePolicy> out;
  for (const bool delay : {false, true}) {
    for (const auto checkpointing :
         {Checkpointing::none, Checkpointing::selective, Checkpointing::gate_up, Checkpointing::qkv,
          Checkpointing::projections, Checkpointing::full, Checkpointing::block}) {
      out.push_back({checkpointing, delay});
    }
  }
  return out;
}

inline std::string text(const SavePolicy& policy) {
  const char* names[] = {"none", "selective", "gate_up", "qkv", "projections", "full", "block"};
  return std::string(names[static_cast<int>(policy.checkpointing)]) +
         (policy.delay_weight_gradients ? ", weights delayed" : "");
}

}  // namespace hawser::nn::testing
