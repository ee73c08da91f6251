#include "step/state.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "models/weights.h"
#include "nn/nf4_places.h"
#include "ops/copy/copy.h"
#include "ops/copy/transpose.h"
#include "step/schedule.h"

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

void check_update(const optim::Optimizer& optimizer, const nn::Flat& flat, int parts) {
  const int group = flat.spec().group;
  HAWSER_CHECK(group >= 0 && group < optim::kGroups, flat.name(), ": group ", group, ", and groups are 0 to ",
               optim::kGroups - 1);
  if (!optimizer.needs_matrices(flat)) return;
  const std::vector<optim::Phase> phases = optimizer.phases(flat);
  const bool gathers = std::ranges::any_of(phases, [](const optim::Phase& phase) { return phase.gathers.has_value(); });
  const bool slices =
      std::ranges::any_of(phases, [](const optim::Phase& phase) { return phase.gathers && phase.slices; });
  HAWSER_CHECK(gathers || parts == 1, "the optimizer ", optimizer.name(), " needs complete matrices of ", flat.name(),
               ", which is in ", parts, " shards, and gathers none");
  std::set<std::pair<std::string_view, std::int64_t>> known;
  for (const nn::Param& param : flat.params()) {
    for (const nn::Segment& segment : param.segments) {
      HAWSER_CHECK(known.insert({segment.name, segment.range ? segment.range->begin : 0}).second, "the optimizer ",
                   optimizer.name(), " needs the complete matrix ", nn::range_name(segment),
                   ", of which a rank has several slices");
      const bool complete = !nn::is_sliced(segment) || segment.slice->dim < segment.global.rank() - 2;
      HAWSER_CHECK(complete || slices, "the optimizer ", optimizer.name(), " needs the complete matrix ",
                   nn::range_name(segment), ", which tensor parallelism slices, and gathers no slices");
    }
  }
}

constexpr std::int64_t kGemmScaleStride = 4;  // float32: GEMMs of FP8 read scales at multiples of 16 bytes

}  // namespace

ModelState::ModelState(const models::Model& model, const StateOptions& options, Device& device)
    : model_(&model), options_(options) {
  HAWSER_CHECK(options.scaled_sites.empty() || options.quantizer != nullptr, "scaled sites need a quantizer");
  const auto stages = models::flat_stages(model, options.partition);
  const auto carve = [&](std::byte* data, std::byte* host_data) {
    Carver carver(data, device.kind());
    Carver host(host_data, device.kind() == DeviceKind::meta ? DeviceKind::meta : DeviceKind::cpu);
    flats_.clear();
    for (const nn::Flat& flat : model.flats()) {
      const nn::FlatSpec& spec = flat.spec();
      const EqualShard shard = options.shards[static_cast<std::size_t>(spec.domain)];
      const std::vector<int>& of = stages[flats_.size()];
      if (std::ranges::find(of, options.stage) == of.end()) {
        flats_.push_back({.shard = shard, .held = false, .first_stage = false});
        continue;
      }
      const std::int64_t total = flat.total(shard.count), count = total / shard.count;
      FlatState state{
          .begin = shard.index * count, .count = count, .shard = shard, .first_stage = of.front() == options.stage};
      const int number = static_cast<int>(flats_.size());
      state.streamed = options.host.streams(model, number);
      if (options.host.has_state(number) || (state.streamed && !spec.trainable)) {
        state.memory = Memory::host;
      }
      Carver& own = state.on_host() ? host : carver;
      if (options.quantizer != nullptr && quantizes_weights(spec)) {
        state.quantizes = QuantizesWeights::after_updates;
      } else if ((options.quantizer != nullptr || spec.packed()) && quantizes_loaded_weights(spec)) {
        state.quantizes = QuantizesWeights::on_load;
      }
      const DType gathered = spec.gathered_in(options.compute), stored = spec.stored_in(options.compute);
      if (state.streamed) {
        state.compute = host.take(gathered, nn::flat_shape(gathered, count));
        state.stored = gathered == stored && !state.quantized_after_updates()
                           ? state.compute
                           : own.take(stored, nn::flat_shape(stored, count));
      } else if (shard.count == 1 || !options.gathers_weights) {
        const std::int64_t values = values_per_element(gathered);
        state.unsharded = carver.take(gathered, nn::flat_shape(gathered, total));
        state.compute = state.unsharded.rows(state.begin / values, count / values);
        state.stored =
            gathered == stored && !state.quantized_after_updates() ? state.compute : own.take(stored, {count});
        if (spec.transposed) state.transposed = carver.take(gathered, {total});
      } else if (gathered == stored && !state.quantized_after_updates()) {
        state.stored = state.compute = carver.take(stored, nn::flat_shape(stored, count));
      } else {
        state.stored = own.take(stored, {count});
        state.compute = carver.take(gathered, {count});
      }
      flats_.push_back(state);
    }
    for (std::size_t f = 0; f < flats_.size(); ++f) {
      const nn::Flat& flat = model.flats()[f];
      if (flat.scale_count() == 0 || !flats_[f].held) continue;
      flats_[f].scales = carver.take(DType::f32, {flat.scale_count()});
      const bool on_load = flats_[f].quantized_on_load();
      if (on_load || (flats_[f].quantized_after_updates() && flat.spec().scaled)) {
        flats_[f].gemm_scales = carver.take(DType::f32, {kGemmScaleStride * flat.scale_count()});
      }
      // Not in an AmaxGroup: no step reduces it.
      if (on_load) flats_[f].amax = carver.take(DType::f32, {flat.scale_count()});
    }
    for (std::size_t f = 0; f < flats_.size(); ++f) {
      const nn::Flat& flat = model.flats()[f];
      if (!flat.spec().double_quantized() || !flats_[f].held) continue;
      flats_[f].nf4_groups = carver.take(DType::f32, {nn::Nf4Places(flat).groups(), 2});
      flats_[f].nf4_row_places = carver.take(DType::i32, {nn::rows_before(flat, flat.params().size())});
    }
    parameter_bytes_ = carver.used();
    if (options.optimizer != nullptr) {
      for (std::size_t f = 0; f < flats_.size(); ++f) {
        FlatState& state = flats_[f];
        const nn::Flat& flat = model.flats()[f];
        if (!flat.spec().trainable || !state.held) continue;
        check_update(*options.optimizer, flat, state.shard.count);
        for (const optim::StateSlot& slot : options.optimizer->slots(flat)) {
          Carver& own = state.on_host() ? host : carver;
          state.slots.push_back(own.take(slot.dtype, {nn::value_count(flat, slot.granularity, state.count)}));
        }
      }
    }
    optimizer_bytes_ = carver.used() - parameter_bytes_;
    kv_caches_.assign(static_cast<std::size_t>(model.layers()), {});
    for (int layer = 0; options.kv_cache_rows && layer < model.layers(); ++layer) {
      const nn::AttentionConfig* const c = model.attention(layer);
      if (c == nullptr) continue;
      nn::KvCache& cache = kv_caches_[static_cast<std::size_t>(layer)];
      cache.k = carver.take(options.compute, {*options.kv_cache_rows, c->kv_heads, c->head_dim});
      cache.v = carver.take(options.compute, {*options.kv_cache_rows, c->kv_heads, c->head_dim});
    }
    kv_cache_bytes_ = carver.used() - optimizer_bytes_ - parameter_bytes_;
    const std::int64_t before_references = carver.used();
    for (std::size_t f = 0; options.verifies && f < flats_.size(); ++f) {
      if (!flats_[f].held || !model.flats()[f].spec().trainable) continue;
      flats_[f].reference_gradient = carver.take(DType::f32, {flats_[f].count});
    }
    reference_bytes_ = carver.used() - before_references;
    const auto tensors = static_cast<std::int64_t>(models::hf_tensors(model).size());
    ropes_.clear();
    for (const ops::RopeConfig& rope : model.description().ropes) {
      ropes_.push_back(carver.take(DType::f32, {rope.head_dim / 2}));
    }
    slopes_.clear();
    for (int layer = 0; layer < model.layers(); ++layer) {
      const nn::AttentionConfig* const c = model.attention(layer);
      if (c == nullptr || !c->alibi) continue;
      TensorView& slopes = slopes_[c->alibi_slopes()];
      if (slopes.empty()) slopes = carver.take(DType::f32, {c->heads});
    }
    record_ = RecordView<StepRecord>(carver.take(DType::f32, {RecordView<StepRecord>::kFloats}));
    result_ = RecordView<StepResult>(carver.take(DType::f32, {RecordView<StepResult>::kFloats}));
    // What the device writes for itself, in one aligned piece.
    constexpr std::int64_t kProgress = RecordView<OptimizerProgress>::kFloats;
    const std::int64_t own = options.optimizer != nullptr ? options.optimizer->scalars() : 0;
    const TensorView scalars = carver.take(DType::f32, {kProgress + 1 + own});
    progress_ = RecordView<OptimizerProgress>(scalars.rows(0, kProgress));
    loss_factor_ = scalars.rows(kProgress, 1);
    if (own > 0) optimizer_scalars_ = scalars.rows(kProgress + 1, own);
    norms_ = carver.take(DType::f32, {tensors});
    if (const nn::AuxiliaryLoss* const loss = model.auxiliary_loss()) {
      auxiliary_statistics_ = carver.take(DType::f32, {model.auxiliary_layers(), loss->statistics()});
    }
    if (const auto sites = static_cast<std::int64_t>(options.scaled_sites.size()); sites > 0) {
      sites_.scales = carver.take(DType::f32, {sites});
      sites_.records = carver.take(DType::f32, {3, sites});
      sites_.amax = sites_.records.rows(0, 1).reshape({sites});
      sites_.saturated = sites_.records.rows(1, 1).reshape({sites});
      sites_.elements = sites_.records.rows(2, 1).reshape({sites});
      sites_.history = carver.take(DType::f32, {sites, options.quantizer->history()});
    }
    amax_groups_.clear();
    for (int d = 0; d < kDomains; ++d) {
      for (const bool tensor_ranks : {true, false}) {
        std::vector<std::size_t> members;
        std::int64_t count = 0;
        for (std::size_t f = 0; f < flats_.size(); ++f) {
          const nn::FlatSpec& spec = model.flats()[f].spec();
          if (!flats_[f].quantized_after_updates() || spec.domain != static_cast<Domain>(d)) continue;
          const bool cut = spec.domain == Domain::sliced || spec.domain == Domain::kv_copies;
          if ((cut && spec.scaled) != tensor_ranks) continue;
          members.push_back(f);
          count += model.flats()[f].scale_count();
        }
        if (members.empty()) continue;
        const TensorView all = carver.take(DType::f32, {count});
        amax_groups_.push_back({static_cast<Domain>(d), tensor_ranks, all});
        std::int64_t at = 0;
        for (const std::size_t f : members) {
          flats_[f].amax = all.rows(at, model.flats()[f].scale_count());
          at += model.flats()[f].scale_count();
        }
      }
    }
    return std::pair(carver.used(), host.used());
  };
  const auto [bytes, host_bytes] = carve(nullptr, nullptr);
  arena_ = Arena(device, bytes);
  if (host_bytes > 0) host_arena_ = Arena(device, host_bytes, Memory::host);
  carve(arena_.data(), host_arena_.data());
  name_tables();
  if (device.kind() != DeviceKind::meta) fill(model, device);
}

void ModelState::fill(const models::Model& model, Device& device) {
  const std::unique_ptr<Stream> stream = device.make_stream("state");
  // The CPU's pages are zero already, and count as used only once they are touched.
  if (device.kind() != DeviceKind::cpu) {
    ops::fill(*stream,
              {.y = TensorView(arena_.data(), DType::f32, {arena_.bytes() / size_of(DType::f32)}, device.kind())});
    if (host_bytes() > 0) std::memset(host_data(), 0, static_cast<std::size_t>(host_bytes()));
  }
  for (const FlatState& flat : flats_) {
    if (!flat.scales.empty()) ops::fill(*stream, {.y = flat.scales, .value = 1.0});
  }
  if (!sites_.scales.empty()) ops::fill(*stream, {.y = sites_.scales, .value = 1.0});
  set_progress({}, *stream);
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    const std::vector<float> frequencies = ops::rope_frequencies(model.description().ropes[i]);
    HAWSER_CHECK(static_cast<std::int64_t>(frequencies.size()) == ropes_[i].elements(), "rotary frequencies");
    transfer(*stream, {.name = "load_rope_frequencies", .kind = OpKind::transfer, .accesses = {writes(ropes_[i])}},
             ropes_[i].raw(), frequencies.data(), ropes_[i].bytes());
    stream->synchronize();
  }
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    const TensorView& places = flats_[f].nf4_row_places;
    if (places.empty()) continue;
    const std::vector<std::int32_t> of_rows = nn::Nf4Places(model.flats()[f]).of_rows();
    transfer(*stream, {.name = "load_row_places", .kind = OpKind::transfer, .accesses = {writes(places)}}, places.raw(),
             reinterpret_cast<const std::byte*>(of_rows.data()), places.bytes());
    stream->synchronize();
  }
  for (const auto& [values, view] : slopes_) {
    transfer(*stream, {.name = "load_alibi_slopes", .kind = OpKind::transfer, .accesses = {writes(view)}}, view.raw(),
             values.data(), view.bytes());
    stream->synchronize();
  }
  stream->synchronize();
}

TensorView ModelState::alibi_slopes(int layer) const {
  const nn::AttentionConfig* const c = model_->attention(layer);
  return c != nullptr && c->alibi ? slopes_.at(c->alibi_slopes()) : TensorView();
}

std::int64_t ModelState::saved_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t f = 0; f < flats_.size(); ++f) {
    const FlatState& flat = flats_[f];
    if (!model_->flat(static_cast<int>(f)).spec().trainable || !flat.held) continue;
    for (const TensorView* view : {&flat.stored, &flat.scales}) {
      if (!view->empty()) bytes += round_up(view->bytes(), Device::kAlignment);
    }
    for (const TensorView& slot : flat.slots) bytes += round_up(slot.bytes(), Device::kAlignment);
  }
  for (const StateTable& table : tables_) bytes += round_up(table.view.bytes(), Device::kAlignment);
  return bytes;
}

void ModelState::set_progress(const OptimizerProgress& progress, Stream& stream) const {
  stream.synchronize();
  transfer(stream, {.name = "set_progress", .kind = OpKind::transfer, .accesses = {writes(progress_.all())}},
           progress_.all().raw(), &progress, sizeof(progress));
  stream.synchronize();
}

std::int64_t FlatState::staged_stored_bytes() const {
  if (is_nf4(compute.dtype())) {
    const std::int64_t piece = std::min(count, kNf4PieceElements) * size_of(DType::f32);
    if (nf4_groups.empty()) return piece;
    return round_up(piece, Device::kAlignment) +
           round_up(nf4_groups.size(0) * kNf4GroupBlocks * size_of(DType::f32), Device::kAlignment) +
           count / kNf4Block * size_of(DType::i32);
  }
  if (quantized_on_load()) return count * size_of(DType::f32);
  return stored_on_host() ? stored.bytes() : 0;
}

std::int64_t FlatState::staged_compute_bytes() const {
  return streamed && (quantized_on_load() || stored.raw() != compute.raw()) ? compute.bytes() : 0;
}

std::int64_t ModelState::staged_bytes() const {
  std::int64_t most = 0;
  for (const FlatState& flat : flats_) {
    most = std::max(most, round_up(flat.staged_stored_bytes(), Device::kAlignment) +
                              round_up(flat.staged_compute_bytes(), Device::kAlignment));
  }
  return most;
}

void ModelState::refresh_compute(int flat, const TensorView& stored, const TensorView& compute, Stream& stream) const {
  const FlatState& state = flats_[static_cast<std::size_t>(flat)];
  const bool copies = compute.raw() != stored.raw();
  HAWSER_CHECK(!copies || !model_->flat(flat).spec().packed(), model_->flat(flat).name(), ": NF4 after it is loaded");
  if (copies && (state.quantized_after_updates() || state.quantized_on_load())) {
    options_.quantizer->quantize_weights(stream, {.flat = model_->flat(flat), .begin = state.begin, .values = stored},
                                         state.scales, compute);
  } else if (copies) {
    ops::cast(stream, {.x = stored, .y = compute});
  }
  if (state.gemm_scales.empty()) return;
  const std::int64_t count = state.scales.elements();
  ops::copy(stream, {.x = state.scales.reshape({count, 1}),
                     .y = state.gemm_scales.reshape({count, kGemmScaleStride}).columns(0, 1)});
}

TensorView ModelState::gemm_scale(int flat, int param) const {
  const FlatState& state = flats_[static_cast<std::size_t>(flat)];
  const nn::Flat& of = model_->flat(flat);
  // Grouped GEMMs read the scales of several matrices as they are.
  const bool several = of.params()[static_cast<std::size_t>(param)].gemm_matrices() > 1;
  if (several || state.gemm_scales.empty()) return of.scale_view(state.scales, param);
  return state.gemm_scales.rows(kGemmScaleStride * of.scale_offset(param), 1);
}

nn::Nf4Matrix ModelState::nf4_matrix(int flat, int param) const {
  const FlatState& state = flats_[static_cast<std::size_t>(flat)];
  const nn::Flat& of = model_->flat(flat);
  const nn::Param& matrix = of.params()[static_cast<std::size_t>(param)];
  nn::Nf4Matrix nf4{.columns = matrix.read_columns};
  if (!state.nf4_groups.empty()) {
    const std::int64_t first = nn::rows_before(of, static_cast<std::size_t>(param));
    nf4.scales = {state.nf4_groups, state.nf4_row_places.rows(first, matrix.shape[0])};
  }
  return nf4;
}

void ModelState::measure(int flat, const TensorView& stored, Stream& stream) const {
  const FlatState& state = flats_[static_cast<std::size_t>(flat)];
  options_.quantizer->measure(stream, {.flat = model_->flat(flat), .begin = state.begin, .values = stored}, state.amax);
}

void ModelState::weight_scales(int flat, Stream& stream) const {
  const FlatState& state = flats_[static_cast<std::size_t>(flat)];
  options_.quantizer->weight_scales(stream, model_->flat(flat), state.amax, state.scales);
}

void ModelState::transpose_unsharded(int flat, Stream& stream) const {
  const FlatState& state = flats_[static_cast<std::size_t>(flat)];
  if (!state.transposed.empty()) transpose_flat(model_->flat(flat), state.unsharded, state.transposed, stream);
}

void transpose_flat(const nn::Flat& flat, const TensorView& rows, const TensorView& transposed, Stream& stream) {
  for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
    const nn::Param& param = flat.params()[static_cast<std::size_t>(p)];
    const std::int64_t parts = param.gemm_matrices(), count = param.shape[0] / parts, columns = param.shape[1];
    ops::transpose(stream, {.x = flat.view(rows, p).reshape({parts, count, columns}),
                            .y = flat.transposed_view(transposed, p).reshape({parts, columns, count})});
  }
}

namespace {

std::string place_of(const ScaledSite& site) {
  return cat("layer.", site.layer, "/", to_string(site.site), "/", to_string(site.operand));
}

}  // namespace

std::string scale_table(const ScaledSite& site) {
  return "quantization/scale/" + place_of(site);
}

void ModelState::name_tables() {
  for (std::size_t i = 0; i < options_.scaled_sites.size(); ++i) {
    const ScaledSite& site = options_.scaled_sites[i];
    const auto row = static_cast<std::int64_t>(i);
    site_indices_[{site.layer, site.site, site.operand}] = row;
    tables_.push_back({scale_table(site), sites_.scales.rows(row, 1)});
    tables_.push_back({"quantization/amax_history/" + place_of(site),
                       sites_.history.rows(row, 1).reshape({options_.quantizer->history()})});
  }
}

std::int64_t ModelState::site_index(const ScaledSite& site) const {
  const auto found = site_indices_.find({site.layer, site.site, site.operand});
  HAWSER_CHECK(found != site_indices_.end(), "no scale of layer ", site.layer, "'s ", to_string(site.site));
  return found->second;
}

}  // namespace hawser::step
