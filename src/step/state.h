// `ModelState`: a rank's device memory that persists from step to step: its shard of every flat's parameters and
// moments, the KV caches of generation, and the scalars that a step reads and writes.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "models/model.h"
#include "optim/optimizer.h"
#include "step/step_record.h"
#include "tensor/tensor.h"

namespace hawser::step {

// A flat buffer in `parts` equal shards, of which this rank has number `part`.
struct Cut {
  int parts = 1, part = 0;
  bool operator==(const Cut&) const = default;
};

// How the flats of one domain are sharded.
struct DomainCut {
  Cut optimizer;  // master weights, moments and reduced gradients; what a rank saves of frozen weights
  // What layers read: as `optimizer`, then it is gathered before use (FSDP, ZeRO-3), or whole on every rank, then it is
  // gathered after each update (ZeRO-1 and ZeRO-2).
  Cut weights;
};

// This rank's part of one flat: elements [begin, begin + count) of the flat buffer, as DomainCut::optimizer cuts it.
struct FlatState {
  std::int64_t begin = 0, count = 0;
  Cut cut;
  // In FlatSpec::stored: the master weights of a trainable flat, float32 unless a recipe says otherwise, or frozen ones.
  TensorView stored;
  // In FlatSpec::gathered: `stored` itself if the dtypes are equal, otherwise a rounded copy.
  TensorView compute;
  // All elements in FlatSpec::gathered, if DomainCut::weights has one part; `compute` is this rank's part of it. Empty
  // if the weights are sharded.
  TensorView unsharded;
  TensorView scales;  // float32 [Flat::scale_count()], 1 at first, on every rank; empty: none
  // By optim::Optimizer::slots(flat), each [nn::extent_count]; none if frozen, or without StateOptions::optimizer.
  std::vector<TensorView> slots;
};

struct StateOptions {
  std::array<DomainCut, kDomains> cuts;  // by Domain
  DType compute = DType::f32;
  std::shared_ptr<const optim::Optimizer> optimizer;  // null: no slots
  std::int64_t kv_cache_rows = 0;                     // slots of each layer's KV cache (nn/kv_cache.h); 0: no KV cache

  const DomainCut& cut(Domain domain) const { return cuts[static_cast<std::size_t>(domain)]; }
};

class ModelState {
 public:
  // Reserves the memory and zeroes it, then writes the rotary frequencies. On meta the views have addresses but no
  // data.
  ModelState(const models::Model& model, const StateOptions& options, Device& device);

  const StateOptions& options() const { return options_; }
  const FlatState& flat(int i) const { return flats_[static_cast<std::size_t>(i)]; }
  const TensorView& rope_frequencies(int i) const { return ropes_.at(static_cast<std::size_t>(i)); }
  const RecordView<StepRecord>& record() const { return record_; }
  const RecordView<StepResult>& result() const { return result_; }
  const RecordView<OptimizerProgress>& progress() const { return progress_; }
  const TensorView& optimizer_scalars() const { return optimizer_scalars_; }  // float32 [optim::Optimizer::scalars()]
  // float32 [1]: the loss scale over the number of valid targets, which scales the gradients of a training step
  const TensorView& loss_factor() const { return loss_factor_; }
  const TensorView& skip() const { return skip_; }  // int32 [1]: StepInput::skip, or set if the norm is not finite
  const TensorView& parameter_norms() const { return norms_; }  // float32 [models::hf_tensors]
  // float32 [layers with an auxiliary loss, its statistics]: of a step; empty if the model has no such layer
  const TensorView& auxiliary_statistics() const { return auxiliary_statistics_; }
  std::int64_t bytes() const { return arena_.bytes(); }  // includes the three below
  std::int64_t parameter_bytes() const { return parameter_bytes_; }
  std::int64_t optimizer_bytes() const { return optimizer_bytes_; }
  std::int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  std::int64_t saved_bytes() const;  // of a copy of what checkpoints have of this rank: stored weights, scales, slots
  // The layer's KV cache, in the compute dtype. Empty if the layer is no attention layer, or kv_cache_rows is 0.
  const nn::KvCache& kv_cache(int layer) const { return kv_caches_[static_cast<std::size_t>(layer)]; }
  std::byte* data() const { return arena_.data(); }  // [bytes()]

  // Waits for the stream's work, then writes the progress of a resumed run.
  void set_progress(const OptimizerProgress& progress, Stream& stream) const;

  // Enqueues the rounding of FlatState::stored into FlatState::compute; does nothing if both are the same view.
  void refresh_compute(int flat, Stream& stream) const;

 private:
  void fill(const models::Model& model, Device& device);

  StateOptions options_;
  std::int64_t parameter_bytes_ = 0, optimizer_bytes_ = 0, kv_cache_bytes_ = 0;
  Arena arena_;
  std::vector<FlatState> flats_;
  std::vector<nn::KvCache> kv_caches_;  // by layer
  std::vector<TensorView> ropes_;
  TensorView optimizer_scalars_, loss_factor_, skip_, norms_, auxiliary_statistics_;
  RecordView<OptimizerProgress> progress_;
  RecordView<StepRecord> record_;
  RecordView<StepResult> result_;
};

}  // namespace hawser::step
