#include "engine/staged_weights.h"

#include <algorithm>

#include "step/replay.h"
#include "tensor/nf4.h"

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
  HAWSER_CHECK(!is_nf4(state.compute.dtype()), "weights in NF4 are loaded in pieces");
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

TensorView StagedWeights::load_compute(int flat) {
  const step::FlatState& state = state_.flat(flat);
  const TensorView view = compute(flat);
  if (state.staged_compute_bytes() > 0) copy(stream_, state.compute, view);
  return view;
}

StagedWeights::Nf4 StagedWeights::nf4(int flat) {
  const step::FlatState& state = state_.flat(flat);
  std::int64_t at = 0;
  const auto take = [&](DType dtype, std::int64_t count) {
    const TensorView view(arena_.raw() + at, dtype, {count}, arena_.device());
    at = round_up(at + view.bytes(), Device::kAlignment);
    return view;
  };
  Nf4 out{.piece = take(DType::f32, std::min(state.count, step::kNf4PieceElements)), .maxima = {}, .places = {}};
  if (state.nf4_groups.empty()) return out;
  out.maxima = take(DType::f32, state.nf4_groups.size(0) * kNf4GroupBlocks);
  out.places = take(DType::i32, state.count / kNf4Block);
  return out;
}

void StagedWeights::store_compute(int flat) {
  const step::FlatState& state = state_.flat(flat);
  if (state.staged_compute_bytes() > 0) copy(stream_, compute(flat), state.compute);
}

}  // namespace hawser::engine
