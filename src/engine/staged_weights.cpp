#include "engine/staged_weights.h"

#include <algorithm>

namespace hawser::engine {

namespace {

void copy(Stream& stream, const TensorView& from, const TensorView& to) {
  transfer(stream, {.name = "stage_weights", .kind = OpKind::transfer, .accesses = {reads(from), writes(to)}}, to.raw(),
           from.raw(), from.bytes());
}

}  // namespace

StagedWeights::StagedWeights(Device& device, Stream& stream, const step::ModelState& state)
    : device_(device), stream_(stream), state_(state) {
  for (int f = 0; f < state.flats(); ++f) {
    if (state.flat(f).stored_on_host()) bytes_ = std::max(bytes_, state.flat(f).stored.bytes());
  }
}

TensorView StagedWeights::place(int flat) {
  const step::FlatState& state = state_.flat(flat);
  if (!state.stored_on_host()) return state.stored;
  if (region_.data() == nullptr) region_ = Arena(device_, bytes_);
  return TensorView(region_.data(), state.stored.dtype(), state.stored.shape(), device_.kind());
}

TensorView StagedWeights::load(int flat) {
  const TensorView view = place(flat);
  if (state_.flat(flat).stored_on_host()) copy(stream_, state_.flat(flat).stored, view);
  return view;
}

void StagedWeights::store(int flat, std::int64_t begin, std::int64_t count) {
  const step::FlatState& state = state_.flat(flat);
  if (state.stored_on_host()) copy(stream_, place(flat).rows(begin, count), state.stored.rows(begin, count));
}

}  // namespace hawser::engine
