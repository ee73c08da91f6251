#include "engine/staged_weights.h"

#include "step/replay.h"

namespace hawser::engine {

namespace {

void copy(Stream& stream, const TensorView& from, const TensorView& to) {
  transfer(stream, {.name = "stage_weights", .kind = OpKind::transfer, .accesses = {reads(from), writes(to)}}, to.raw(),
           from.raw(), from.bytes());
}

}  // namespace

StagedWeights::StagedWeights(Stream& stream, const step::ModelState& state, const TensorView& arena, bool guarded)
    : stream_(stream), state_(state), arena_(arena.rows(0, state.staged_bytes())), guarded_(guarded) {
  if (guarded_) step::unpoison(arena_.raw(), arena_.bytes());
}

StagedWeights::~StagedWeights() {
  if (!guarded_) return;
  stream_.synchronize();
  step::poison(arena_.raw(), arena_.bytes());
}

TensorView StagedWeights::place(int flat) {
  const step::FlatState& state = state_.flat(flat);
  if (state.staged_stored_bytes() == 0) return state.stored;
  if (state.quantized_on_load()) return TensorView(arena_.raw(), DType::f32, {state.count}, arena_.device());
  return TensorView(arena_.raw(), state.stored.dtype(), state.stored.shape(), arena_.device());
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
  if (!state.stored_on_host() || state.quantized_on_load()) return;
  copy(stream_, place(flat).rows(begin, count), state.stored.rows(begin, count));
}

TensorView StagedWeights::compute(int flat) {
  const step::FlatState& state = state_.flat(flat);
  if (state.staged_compute_bytes() == 0) return state.compute;
  const std::int64_t begin = round_up(state.staged_stored_bytes(), Device::kAlignment);
  return TensorView(arena_.raw() + begin, state.compute.dtype(), state.compute.shape(), arena_.device());
}

void StagedWeights::store_compute(int flat) {
  const step::FlatState& state = state_.flat(flat);
  if (state.staged_compute_bytes() > 0) copy(stream_, compute(flat), state.compute);
}

}  // namespace hawser::engine
