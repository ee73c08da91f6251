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
  for (int f = 0; f < state.flats(); ++f) bytes_ = std::max(bytes_, staged_bytes(state.flat(f)));
}

std::int64_t StagedWeights::staged_bytes(const step::FlatState& state) {
  if (state.quantized_on_load) return state.count * size_of(DType::f32);
  return state.stored_on_host() ? state.stored.bytes() : 0;
}

TensorView StagedWeights::place(int flat) {
  const step::FlatState& state = state_.flat(flat);
  if (staged_bytes(state) == 0) return state.stored;
  if (region_.data() == nullptr) region_ = Arena(device_, bytes_);
  const DType dtype = state.quantized_on_load ? DType::f32 : state.stored.dtype();
  return TensorView(region_.data(), dtype, state.stored.shape(), device_.kind());
}

TensorView StagedWeights::load(int flat) {
  const step::FlatState& state = state_.flat(flat);
  if (!state.stored_on_host()) return state.stored;
  const TensorView view = place(flat);
  copy(stream_, state.stored, view);
  return view;
}

void StagedWeights::store(int flat, std::int64_t begin, std::int64_t count) {
  const step::FlatState& state = state_.flat(flat);
  if (state.stored_on_host()) copy(stream_, place(flat).rows(begin, count), state.stored.rows(begin, count));
}

}  // namespace hawser::engine
