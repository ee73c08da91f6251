// What a session does with its weights outside of steps.
#include <functional>
#include <optional>

#include "engine/host_copy.h"
#include "engine/nf4_loader.h"
#include "engine/session.h"
#include "engine/staged_weights.h"
#include "models/weights.h"
#include "step/weight_scales.h"

namespace hawser::engine {

namespace {

step::Workspace workspace_in(std::vector<Arena>& arenas, Device& device) {
  return [&arenas, &device](std::int64_t bytes) {
    arenas.emplace_back(device, bytes);
    return TensorView(arenas.back().data(), DType::u8, {bytes}, device.kind());
  };
}

// Reads this rank's shard from weight files.
class ShardReader {
 public:
  ShardReader(const models::Model& model, const step::ModelState& state, const models::WeightSources& sources,
              std::uint64_t seed, Device& device, Stream& stream)
      : model_(model), state_(state), sources_(sources), seed_(seed), stream_(stream) {
    if (device.kind() != DeviceKind::cpu) staging_.emplace(device, stream);
  }

  // Fills `values`, elements from `first` on of the shard of a flat, in host memory or of the device. Elements that the
  // files do not have get their initial values in `place`, memory of the device for the same elements.
  void read(int flat, std::int64_t first, const TensorView& values, const TensorView& place,
            const std::function<void(std::int64_t begin, std::int64_t count)>& store) {
    const std::int64_t from = state_.flat(flat).begin + first;
    std::vector<std::pair<std::int64_t, std::int64_t>> absent;  // begin and count, in `values`
    const auto load = [&](std::int64_t begin, std::int64_t count, const TensorView& to) {
      for (const models::SegmentRange& range : models::load_flat(model_, flat, sources_, from + begin, count, to)) {
        absent.emplace_back(begin + range.at, range.count);
      }
    };
    if (!staging_ || values.device() == DeviceKind::cpu) {
      load(0, values.elements(), values);
    } else {
      const std::int64_t element = size_of(values.dtype());
      staging_->send(values, [&](std::byte* piece, std::int64_t begin, std::int64_t bytes) {
        load(begin / element, bytes / element, TensorView(piece, values.dtype(), {bytes / element}, DeviceKind::cpu));
      });
    }
    for (const auto& [begin, count] : absent) {
      models::initialise_flat(model_, flat, seed_, from + begin, count, stream_, place.rows(begin, count), &sources_);
      store(begin, count);
    }
    if (!absent.empty()) stream_.synchronize();  // the host writes the next elements to the same bytes
  }

 private:
  const models::Model& model_;
  const step::ModelState& state_;
  const models::WeightSources& sources_;
  std::uint64_t seed_;
  Stream& stream_;
  std::optional<PinnedStagingBuffer> staging_;
};

}  // namespace

bool Session::in_nf4(int flat) const {
  return state_->flat(flat).held && model_.flat(flat).spec().packed();
}

void Session::load_nf4(StagedWeights& staged, const ReadShard& fill, const models::WeightSources* sources) {
  std::vector<Arena> workspaces;
  Nf4Loader loader(*stream_, *state_, model_, mesh_, staged, workspace_in(workspaces, device_), sources);
  for (const nn::Unit& unit : model_.units()) {
    for (const int f : unit.flats) {
      if (!in_nf4(f)) continue;
      loader.load(f, [&](std::int64_t first, const TensorView& values) { fill(f, first, values); });
    }
    loader.finish_unit();
  }
}

void Session::initialise(std::uint64_t seed) {
  {
    StagedWeights staged = stage_weights();
    const auto initialise = [&](int f, std::int64_t first, const TensorView& values) {
      models::initialise_flat(model_, f, seed, state_->flat(f).begin + first, values.elements(), *stream_, values);
    };
    for (int f = 0; f < static_cast<int>(model_.flats().size()); ++f) {
      const step::FlatState& flat = state_->flat(f);
      if (!flat.held || in_nf4(f)) continue;
      initialise(f, 0, staged.place(f));
      staged.store(f, 0, flat.count);
      if (flat.quantized_on_load()) quantize(f, staged.place(f), staged);
    }
    load_nf4(staged, initialise);
    stream_->synchronize();
  }
  parameters_changed();
}

void Session::load(const models::WeightSources& sources, std::uint64_t seed) {
  {
    StagedWeights staged = stage_weights();
    ShardReader reader(model_, *state_, sources, seed, device_, *stream_);
    for (int f = 0; f < static_cast<int>(model_.flats().size()); ++f) {
      const step::FlatState& flat = state_->flat(f);
      if (!flat.held || in_nf4(f)) continue;
      const TensorView place = staged.place(f), values = flat.quantized_on_load() ? place : flat.stored;
      reader.read(f, 0, values, place, [&](std::int64_t begin, std::int64_t count) { staged.store(f, begin, count); });
      if (flat.quantized_on_load()) quantize(f, values, staged);
    }
    const auto read = [&](int f, std::int64_t first, const TensorView& values) {
      reader.read(f, first, values, values, [](std::int64_t, std::int64_t) {});
    };
    load_nf4(staged, read, &sources);
    stream_->synchronize();
  }
  parameters_changed();
}

void Session::load_quantized(const std::vector<int>& flats, const ReadShard& read) {
  StagedWeights staged = stage_weights();
  std::vector<float> host;
  const auto fill = [&](int flat, std::int64_t first, const TensorView& values) {
    host.resize(static_cast<std::size_t>(values.elements()));
    read(flat, first,
         TensorView(reinterpret_cast<std::byte*>(host.data()), DType::f32, values.shape(), DeviceKind::cpu));
    transfer(*stream_, {.name = "load_weights", .kind = OpKind::transfer, .accesses = {writes(values)}}, values.raw(),
             reinterpret_cast<const std::byte*>(host.data()), values.bytes());
    stream_->synchronize();  // the next values are in the same memory
  };
  bool nf4 = false;
  for (const int f : flats) {
    nf4 = nf4 || in_nf4(f);
    if (in_nf4(f)) continue;
    fill(f, 0, staged.place(f));
    quantize(f, staged.place(f), staged);
  }
  if (nf4) load_nf4(staged, fill);
}

void Session::quantize(int flat, const TensorView& values, StagedWeights& staged) {
  std::vector<Arena> workspaces;
  step::quantize_loaded(*state_, model_, mesh_, flat, values, staged.compute(flat), *stream_,
                        workspace_in(workspaces, device_));
  staged.store_compute(flat);
  stream_->synchronize();  // the host writes the next flat to the same memory
}

void Session::parameters_changed(Scales scales) {
  std::vector<Arena> workspaces;
  StagedWeights staged = stage_weights();
  if (scales == Scales::measure) {
    for (int f = 0; f < state_->flats(); ++f) {
      if (state_->flat(f).quantized_after_updates()) state_->measure(f, staged.load(f), *stream_);
    }
    step::scale_weights(*state_, mesh_, *stream_, workspace_in(workspaces, device_));
  }
  for (int f = 0; f < static_cast<int>(model_.flats().size()); ++f) {
    const step::FlatState& flat = state_->flat(f);
    if (!flat.held) continue;
    const bool same = flat.stored.raw() == flat.compute.raw();
    state_->refresh_compute(f, same ? flat.stored : staged.load(f), same ? flat.compute : staged.compute(f), *stream_);
    if (!same) staged.store_compute(f);
    if (!flat.unsharded.empty() && flat.shard.count > 1) {
      mesh_.shard_gather(model_.flat(f).spec().domain).all_gather(*stream_, flat.compute, flat.unsharded);
    }
    state_->transpose_unsharded(f, *stream_);
  }
  stream_->synchronize();
  has_history_.reset();
}

}  // namespace hawser::engine
