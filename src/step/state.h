// `ModelState`: a rank's memory that persists from step to step: its shard of every flat's parameters and moments, the
// scales of a quantizer, the KV caches of generation, and the scalars that a step reads and writes. It is one region of
// the device, and one of pinned host memory for what StateOptions::host names.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/index_range.h"
#include "models/model.h"
#include "models/pipeline_partition.h"
#include "optim/optimizer.h"
#include "step/host_placement.h"
#include "step/step_record.h"
#include "tensor/tensor.h"

namespace hawser::step {

// Which shard of the flats of one domain a rank has.
struct FlatSharding {
  EqualShard optimizer;  // master weights, moments and reduced gradients; what a rank saves of frozen weights
  // What layers read: as `optimizer`, then it is gathered before use (FSDP, ZeRO-3), or whole on every rank, then it is
  // gathered after each update (ZeRO-1 and ZeRO-2).
  EqualShard weights;
};

// This rank's part of one flat: elements [begin, begin + count) of the flat buffer, as FlatSharding::optimizer says.
struct FlatState {
  // Whether this rank's pipeline stage uses the flat. Otherwise count is 0, and there is no memory of it.
  bool held = true;
  // The first stage that holds it counts it in norms and saves it.
  bool first_stage = true;
  std::int64_t begin = 0, count = 0;
  EqualShard shard;
  // HostPlacement::state: `slots` are in host memory, and so is `stored` unless it is the same view as `compute`,
  // which is where `streamed` says. Ops of the device work on copies: in a step on those of state_in, otherwise on a
  // copy that the caller makes.
  bool on_host = false;
  // With it, and HostPlacement::updates, of a trainable flat: its updates run on the host, on `stored` and `slots`
  // where they are, and `stored` is the same view as `compute` only if that is in host memory, too.
  bool updated_on_host = false;
  // HostPlacement::streams: `compute` is in host memory, sharded in any case. A
  // step reads the copies of load_weights; an update on the device rounds to a buffer there, which state_out copies to
  // `compute`.
  bool streamed = false;
  // [nn::flat_shape] of `count`, as `compute`. In FlatSpec::stored: the master weights of a trainable flat, float32
  // unless a recipe says otherwise, or frozen ones. If `quantized_on_load`, these are only there while they are loaded,
  // and `stored` is `compute`.
  TensorView stored;
  // In FlatSpec::gathered: `stored` itself if the dtypes are equal, otherwise a rounded copy. If `quantized`, always a
  // copy: the values that, times the scales, are about `stored`.
  TensorView compute;
  bool quantized = false;  // ModelState quantizes `stored`: a trainable flat with scales and a quantizer
  // A frozen flat in NF4, or in FP8 and a quantizer: its weights are quantized once, as they are loaded
  // (quantize_loaded).
  bool quantized_on_load = false;
  // All elements in FlatSpec::gathered, if FlatSharding::weights is one shard; `compute` is this rank's part of it.
  // Empty if the weights are sharded.
  TensorView unsharded;
  TensorView transposed;  // `unsharded` with its matrices transposed (Flat::transposed_view). With FlatSpec::transposed
  TensorView scales;      // float32 [Flat::scale_count()], 1 at first, on every rank; empty: none
  // float32 [4 * Flat::scale_count()]: each of `scales`, 16 bytes apart, as GEMMs read them. If `quantized`, with
  // `quantized_on_load`.
  TensorView gemm_scales;
  TensorView amax;  // float32 [Flat::scale_count()]: the maxima that `scales` come from. With either of the two
  // float32 [count]: the gradient of a Verification::reference, and then its difference from that of the comparison. Of
  // a trainable flat, with StateOptions::verifies.
  TensorView reference_gradient;
  // By optim::Optimizer::slots(flat), each [nn::value_count]; none if frozen, or without StateOptions::optimizer.
  std::vector<TensorView> slots;

  bool stored_on_host() const { return stored.raw() == compute.raw() ? streamed : on_host; }
  // Bytes of memory of the device that hold copies of `stored` and `compute`, or `stored` in float32 if
  // `quantized_on_load`, where these cannot be used as they are outside of steps; 0: there is no need.
  std::int64_t staged_stored_bytes() const;
  std::int64_t staged_compute_bytes() const;
};

// An operand of a Linear whose scale is kept from step to step (LinearFormat::fp8_delayed).
struct ScaledSite {
  int layer = 0;
  nn::Site site = nn::Site::logits;
  nn::Operand operand = nn::Operand::x;
};

// State that belongs to no flat and is equal on every rank: one rank saves it, and all load it.
struct StateTable {
  std::string name;  // in checkpoints: scale_table(), or "quantization/amax_history/layer.3/up_projection/x"
  TensorView view;
};

std::string scale_table(const ScaledSite& site);  // "quantization/scale/layer.3/up_projection/x"

// The amaxes of the flats that are reduced over the same ranks.
struct AmaxGroup {
  Domain domain = Domain::sliced;
  bool tensor_ranks = false;  // tensor-parallel ranks have slices of what one scale belongs to
  TensorView amax;            // float32, of all these flats
};

struct StateOptions {
  std::array<FlatSharding, kDomains> shardings;  // by Domain
  DType compute = DType::f32;
  std::shared_ptr<const optim::Optimizer> optimizer;  // null: no slots
  std::shared_ptr<const nn::Quantizer> quantizer;     // null: nothing is quantized
  std::vector<ScaledSite> scaled_sites;               // needs a quantizer
  HostPlacement host;
  bool verifies = false;           // there are FlatState::reference_gradient
  std::int64_t kv_cache_rows = 0;  // slots of each layer's KV cache (nn/kv_cache.h); 0: no KV cache
  models::PipelinePartition partition;
  int stage = 0;  // of the partition

  const FlatSharding& sharding(Domain domain) const { return shardings[static_cast<std::size_t>(domain)]; }
};

class ModelState {
 public:
  // Reserves the memory and zeroes it, then writes the rotary frequencies and ALiBi slopes. On meta the views have
  // addresses but no data. The model outlives this.
  ModelState(const models::Model& model, const StateOptions& options, Device& device);

  const StateOptions& options() const { return options_; }
  int flats() const { return static_cast<int>(flats_.size()); }
  const FlatState& flat(int i) const { return flats_[static_cast<std::size_t>(i)]; }
  nn::RopeViews rope(int i) const {
    const auto index = static_cast<std::size_t>(i);
    return {ropes_.at(index), model_->description().ropes[index].interleaved};
  }
  // nn::LayerContext::alibi_slopes of a layer; empty without AttentionConfig::alibi. Equal layers share one tensor.
  TensorView alibi_slopes(int layer) const;
  const RecordView<StepRecord>& record() const { return record_; }
  const RecordView<StepResult>& result() const { return result_; }
  const RecordView<OptimizerProgress>& progress() const { return progress_; }
  const TensorView& optimizer_scalars() const { return optimizer_scalars_; }  // float32 [optim::Optimizer::scalars()]
  // float32 [1]: the loss scale over the number of valid targets, which scales the gradients of a training step
  const TensorView& loss_factor() const { return loss_factor_; }
  TensorView skip() const { return result_.field(&StepResult::skip); }  // int32 [1]: Skip
  const TensorView& parameter_norms() const { return norms_; }          // float32 [models::hf_tensors]
  // float32 [layers with an auxiliary loss, its statistics]: of a step; empty if the model has no such layer
  const TensorView& auxiliary_statistics() const { return auxiliary_statistics_; }
  std::int64_t bytes() const { return arena_.bytes(); }  // of the device; includes the four below
  std::int64_t parameter_bytes() const { return parameter_bytes_; }
  std::int64_t optimizer_bytes() const { return optimizer_bytes_; }
  std::int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  std::int64_t reference_bytes() const { return reference_bytes_; }  // of FlatState::reference_gradient
  std::int64_t host_bytes() const { return host_arena_.bytes(); }    // of pinned host memory
  // Of the device: the largest sum of FlatState::staged_*_bytes. Work outside of steps on the weights of one flat after
  // another takes them; between steps that is memory of the steps' arena.
  std::int64_t staged_bytes() const;
  // Of a copy of what a run's checkpoints have of this rank: trained weights, scales, slots, tables.
  std::int64_t saved_bytes() const;
  // The layer's KV cache, in the compute dtype: of this tensor rank's key-value heads. Empty if the layer is no
  // attention layer, or kv_cache_rows is 0.
  const nn::KvCache& kv_cache(int layer) const { return kv_caches_[static_cast<std::size_t>(layer)]; }
  std::byte* data() const { return arena_.data(); }            // [bytes()]
  std::byte* host_data() const { return host_arena_.data(); }  // [host_bytes()]; null: there is none

  // Of StateOptions::scaled_sites, in their order; empty if there are none. site_amax: of the running step.
  const TensorView& site_scales() const { return site_scales_; }  // float32 [sites], 1 at first
  const TensorView& site_amax() const { return site_amax_; }      // float32 [sites]
  // float32 [sites]: of the running step, the elements beyond the range of the scale, and all that were counted
  const TensorView& site_saturated() const { return site_saturated_; }
  const TensorView& site_elements() const { return site_elements_; }
  const TensorView& site_records() const { return site_records_; }  // float32 [3, sites]: the three above
  const TensorView& amax_history() const { return amax_history_; }  // float32 [sites, nn::Quantizer::history()]
  std::int64_t site_index(const ScaledSite& site) const;            // InternalError if it is not among them
  const std::vector<AmaxGroup>& amax_groups() const { return amax_groups_; }
  // What checkpoints have besides the flats: scales and histories of the sites.
  const std::vector<StateTable>& tables() const { return tables_; }

  // Waits for the stream's work, then writes the progress of a resumed run.
  void set_progress(const OptimizerProgress& progress, Stream& stream) const;

  // Enqueues the rounding of `stored` into `compute`, with the scales as they are, unless both are the same view; and
  // the copies of the scales in FlatState::gemm_scales. `stored`: FlatState::stored, or a copy of it on the device if
  // it is in host memory. If `quantized_on_load`, the weights in float32 or bf16. `compute`: FlatState::compute, or
  // memory of the device for it.
  void refresh_compute(int flat, const TensorView& stored, const TensorView& compute, Stream& stream) const;
  // What a Linear reads beside a gathered weight, or a layer beside several (nn::Param::gemm_matrices).
  TensorView gemm_scale(int flat, int param) const;
  // Enqueues FlatState::amax of this rank's shard, with `stored` as above.
  void measure(int flat, const TensorView& stored, Stream& stream) const;
  // Enqueues the scales that follow when the amaxes of all ranks are reduced.
  void weight_scales(int flat, Stream& stream) const;
  // Enqueues FlatState::transposed from FlatState::unsharded; does nothing if there is none.
  void transpose_unsharded(int flat, Stream& stream) const;

 private:
  void fill(const models::Model& model, Device& device);
  void name_tables();

  const models::Model* model_;
  StateOptions options_;
  std::int64_t parameter_bytes_ = 0, optimizer_bytes_ = 0, kv_cache_bytes_ = 0, reference_bytes_ = 0;
  Arena arena_, host_arena_;
  std::vector<FlatState> flats_;
  std::vector<nn::KvCache> kv_caches_;               // by layer
  std::vector<TensorView> ropes_;                    // frequencies
  std::map<std::vector<float>, TensorView> slopes_;  // of ALiBi, by their values
  TensorView optimizer_scalars_, loss_factor_, norms_, auxiliary_statistics_;
  TensorView site_scales_, site_records_, site_amax_, site_saturated_, site_elements_, amax_history_;
  std::map<std::tuple<int, nn::Site, nn::Operand>, std::int64_t> site_indices_;
  std::vector<AmaxGroup> amax_groups_;
  std::vector<StateTable> tables_;
  RecordView<OptimizerProgress> progress_;
  RecordView<StepRecord> record_;
  RecordView<StepResult> result_;
};

// Enqueues the transposes of a flat's matrices from one unsharded buffer into another (nn::Flat::transposed_view).
void transpose_flat(const nn::Flat& flat, const TensorView& rows, const TensorView& transposed, Stream& stream);

}  // namespace hawser::step
