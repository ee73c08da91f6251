#include "step/state.h"

#include "models/weights.h"
#include "ops/copy/copy.h"

namespace hawser::step {

namespace {

// Returns aligned views of one region; a first run without memory computes its size.
class Carver {
 public:
  explicit Carver(std::byte* data, DeviceKind device) : data_(data), device_(device) {}

  TensorView take(DType dtype, const Shape& shape) {
    const TensorView view(data_ == nullptr ? nullptr : data_ + used_, dtype, shape, device_);
    used_ += round_up(view.bytes(), Device::kAlignment);
    return view;
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* data_;
  DeviceKind device_;
  std::int64_t used_ = 0;
};

}  // namespace

ModelState::ModelState(const models::Model& model, const StateOptions& options, Device& device) : options_(options) {
  for (const DomainCut& cut : options.cuts) {
    HAWSER_CHECK(cut.weights == cut.optimizer || cut.weights.parts == 1, "weights in ", cut.weights.parts,
                 " shards, the optimizer's state in ", cut.optimizer.parts);
  }
  const auto carve = [&](std::byte* data) {
    Carver carver(data, device.kind());
    flats_.clear();
    for (const nn::Flat& flat : model.flats()) {
      const nn::FlatSpec& spec = flat.spec();
      const DomainCut& domain = options.cut(spec.domain);
      const Cut cut = domain.optimizer;
      const std::int64_t total = flat.total(cut.parts), count = total / cut.parts;
      FlatState state{.begin = cut.part * count, .count = count, .cut = cut};
      const DType gathered = spec.gathered.value_or(options.compute);
      const DType stored = spec.stored.value_or(spec.trainable ? DType::f32 : gathered);
      if (domain.weights.parts == 1) {
        state.unsharded = carver.take(gathered, {total});
        state.compute = state.unsharded.rows(state.begin, count);
        state.stored = gathered == stored ? state.compute : carver.take(stored, {count});
      } else {
        state.stored = carver.take(stored, {count});
        state.compute = gathered == stored ? state.stored : carver.take(gathered, {count});
      }
      flats_.push_back(state);
    }
    for (std::size_t f = 0; f < flats_.size(); ++f) {
      const nn::Flat& flat = model.flats()[f];
      if (flat.scale_count() > 0) flats_[f].scales = carver.take(DType::f32, {flat.scale_count()});
    }
    parameter_bytes_ = carver.used();
    if (options.optimizer != nullptr) {
      for (std::size_t f = 0; f < flats_.size(); ++f) {
        FlatState& state = flats_[f];
        const nn::Flat& flat = model.flats()[f];
        if (!flat.spec().trainable) continue;
        HAWSER_CHECK(options.optimizer->granularity(flat) != optim::Granularity::matrix || state.cut.parts == 1,
                     options.optimizer->name(), " updates matrices of ", flat.name(), ", which shards cut");
        for (const optim::StateSlot& slot : options.optimizer->slots(flat)) {
          state.slots.push_back(carver.take(slot.dtype, {state.count}));
        }
      }
    }
    optimizer_bytes_ = carver.used() - parameter_bytes_;
    kv_caches_.assign(static_cast<std::size_t>(model.layers()), {});
    if (options.kv_cache_rows > 0) {
      for (int layer = 0; layer < model.layers(); ++layer) {
        const nn::AttentionConfig* const c = model.attention(layer);
        if (c == nullptr) continue;
        nn::KvCache& cache = kv_caches_[static_cast<std::size_t>(layer)];
        cache.k = carver.take(options.compute, {options.kv_cache_rows, c->kv_heads, c->head_dim});
        cache.v = carver.take(options.compute, {options.kv_cache_rows, c->kv_heads, c->head_dim});
      }
    }
    kv_cache_bytes_ = carver.used() - optimizer_bytes_ - parameter_bytes_;
    const auto tensors = static_cast<std::int64_t>(models::hf_tensors(model).size());
    ropes_.clear();
    for (const ops::RopeConfig& rope : model.description().ropes) {
      ropes_.push_back(carver.take(DType::f32, {rope.head_dim / 2}));
    }
    record_ = RecordView<StepRecord>(carver.take(DType::f32, {RecordView<StepRecord>::kFloats}));
    result_ = RecordView<StepResult>(carver.take(DType::f32, {RecordView<StepResult>::kFloats}));
    // What the device writes for itself, in one aligned piece.
    constexpr std::int64_t kProgress = RecordView<OptimizerProgress>::kFloats;
    const std::int64_t own = options.optimizer != nullptr ? options.optimizer->scalars() : 0;
    const TensorView scalars = carver.take(DType::f32, {kProgress + 2 + own});
    progress_ = RecordView<OptimizerProgress>(scalars.rows(0, kProgress));
    loss_factor_ = scalars.rows(kProgress, 1);
    skip_ = {scalars.rows(kProgress + 1, 1).raw(), DType::i32, {1}, device.kind()};
    if (own > 0) optimizer_scalars_ = scalars.rows(kProgress + 2, own);
    norms_ = carver.take(DType::f32, {tensors});
    return carver.used();
  };
  arena_ = Arena(device, carve(nullptr));
  carve(arena_.data());
  if (device.kind() != DeviceKind::meta) fill(model, device);
}

void ModelState::fill(const models::Model& model, Device& device) {
  const std::unique_ptr<Stream> stream = device.make_stream("state");
  // The CPU's pages are zero already, and count as used only once they are touched.
  if (device.kind() != DeviceKind::cpu) {
    ops::fill(*stream,
              {.y = TensorView(arena_.data(), DType::f32, {arena_.bytes() / size_of(DType::f32)}, device.kind())});
  }
  for (const FlatState& flat : flats_) {
    if (!flat.scales.empty()) ops::fill(*stream, {.y = flat.scales, .value = 1.0});
  }
  set_progress({}, *stream);
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    const std::vector<float> frequencies = ops::rope_frequencies(model.description().ropes[i]);
    HAWSER_CHECK(static_cast<std::int64_t>(frequencies.size()) == ropes_[i].elements(), "rotary frequencies");
    transfer(*stream, {.name = "load_rope_frequencies", .kind = OpKind::transfer, .accesses = {writes(ropes_[i])}},
             ropes_[i].raw(), frequencies.data(), ropes_[i].bytes());
    stream->synchronize();
  }
  stream->synchronize();
}

void ModelState::set_progress(const OptimizerProgress& progress, Stream& stream) const {
  stream.synchronize();
  transfer(stream, {.name = "set_progress", .kind = OpKind::transfer, .accesses = {writes(progress_.all())}},
           progress_.all().raw(), &progress, sizeof(progress));
  stream.synchronize();
}

void ModelState::refresh_compute(int flat, Stream& stream) const {
  const FlatState& state = flats_[static_cast<std::size_t>(flat)];
  if (state.compute.raw() != state.stored.raw()) ops::cast(stream, {.x = state.stored, .y = state.compute});
}

}  // namespace hawser::step
