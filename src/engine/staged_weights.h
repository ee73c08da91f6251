// `StagedWeights`: weights where ops of the device can work on them outside of steps. Those in host memory
// (step::StateOptions::host) are copied to the device and back; frozen weights that the state has in FP8 or NF4 alone
// (step::FlatState::quantized_on_load) are in float32 until they are quantized, those in NF4 a piece at a time.
#pragma once

#include "device/device.h"
#include "step/state.h"

namespace hawser::engine {

// All these flats use the first bytes of the steps' arena in turn, which is planned for it (plan::RankPlan::bytes):
// work on a flat is enqueued on the stream before the next flat is placed. Other flats are used where they are.
class StagedWeights {
 public:
  // All arguments outlive this. No step runs before the stream's work has ended, and what the steps so far have left in
  // the arena is lost. `arena` [step::ModelState::staged_bytes() or more] u8. `guarded`: the arena is poisoned between
  // steps (step::ArenaGuard); it is again when this is destroyed, which waits for the stream then.
  StagedWeights(Stream& stream, const step::ModelState& state, const TensorView& arena, bool guarded);
  ~StagedWeights();
  StagedWeights(const StagedWeights&) = delete;

  // FlatState::stored, or memory of the device of its shape, with any contents; if quantized_on_load, in float32. Not of
  // NF4.
  TensorView place(int flat);
  // FlatState::stored, or place() with its values if it is in host memory.
  TensorView load(int flat);
  // Enqueues the copy of `count` elements of place() to FlatState::stored, if that is in host memory and no other form
  // is kept.
  void store(int flat, std::int64_t begin, std::int64_t count);
  // FlatState::compute, or memory of the device for it, with any contents or its own. The third enqueues the copy back.
  TensorView compute(int flat);
  TensorView load_compute(int flat);
  void store_compute(int flat);
  // What a flat in NF4 is quantized with; the last two are of nf4_double alone.
  struct Nf4 {
    TensorView piece;   // float32 [kNf4PieceElements, or FlatState::count]
    TensorView maxima;  // float32 [256 G], and
    TensorView places;  // int32 [blocks of the shard]: as ops::QuantizeNf4 has them
  };
  Nf4 nf4(int flat);

 private:
  Stream& stream_;
  const step::ModelState& state_;
  TensorView arena_;  // [step::ModelState::staged_bytes()]
  bool guarded_;
};

}  // namespace hawser::engine
