// `StagedWeights`: weights where ops of the device can work on them outside of steps. Master weights of flats whose state
// is in host memory (step::StateOptions::on_host) are copied to the device and back; frozen weights that the state has in
// FP8 alone (step::FlatState::quantized_on_load) are in float32 until they are quantized.
#pragma once

#include "device/device.h"
#include "step/state.h"

namespace hawser::engine {

// All these flats share one region of the device, of the size of the largest shard, in turn: work on a flat is enqueued
// on the stream before the next flat is placed. The region is in no plan; it is allocated for the first such flat. Other
// flats are used where they are.
class StagedWeights {
 public:
  // All arguments outlive this; the stream's work must have ended before it is destroyed.
  StagedWeights(Device& device, Stream& stream, const step::ModelState& state);

  // FlatState::stored, or memory of the device of its shape, with any contents; if quantized_on_load, in float32.
  TensorView place(int flat);
  // FlatState::stored, or place() with its values if it is in host memory.
  TensorView load(int flat);
  // Enqueues the copy of `count` elements of place() to FlatState::stored, if that is in host memory.
  void store(int flat, std::int64_t begin, std::int64_t count);

 private:
  // Bytes of the region that place() returns; 0: FlatState::stored.
  static std::int64_t staged_bytes(const step::FlatState& state);

  Device& device_;
  Stream& stream_;
  const step::ModelState& state_;
  std::int64_t bytes_ = 0;
  Arena region_;
};

}  // namespace hawser::engine
