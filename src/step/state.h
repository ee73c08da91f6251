// `ModelState`: a rank's memory that persists from step to step: its shard of every flat's parameters and moments
// (`FlatState`), the scales of a quantizer, the KV caches of generation, and the scalars that a step reads and writes.
// It is one region of the device, and one of pinned host memory for what StateOptions::host names.
//
// Example: a model of two flats, on two ranks that shard all of it (ZeRO-3), trained in bf16 with AdamW. Flat 0 is a
// frozen embedding [1024, 64]. Flat 1 is the MLP of nn/flat.h, whose total(2) is 12,544 elements. FlatState on rank 1:
//
//                        flat 0                     flat 1
//   begin, count         32,768 and 32,768          6,272 and 6,272
//   compute              bf16, 65,536 bytes         bf16, 12,544 bytes     what layers read, when it is gathered
//   stored               the same view              float32, 25,088 bytes  the master weights
//   slots                none                       2 of 25,088 bytes      exp_avg and exp_avg_sq
//
// So rank 1 has 65,536 + 12,544 + 3 * 25,088 = 153,344 bytes of parameters and optimizer state: flat(1).stored is
// float32 [6272], and element 0 of it is element 6,272 of the flat. With HostPlacement::state of flat 1, `stored` and
// `slots` are in host memory, and the device has 65,536 + 12,544 bytes.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
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

// When ModelState quantizes a flat's weights.
enum class QuantizesWeights {
  never,
  on_load,        // once: a frozen flat in NF4 (engine::Nf4Loader), or in FP8 with a quantizer (quantize_loaded)
  after_updates,  // a trainable flat with scales, if there is a quantizer
};

// A rank's memory of one flat.
struct FlatState {
  // Which part of the flat. It is elements [begin, begin + count) of the flat buffer, as StateOptions::shards says.
  std::int64_t begin = 0, count = 0;
  EqualShard shard;
  bool held = true;         // This rank's pipeline stage uses the flat. Otherwise count is 0, and there is no memory.
  bool first_stage = true;  // This stage is the first that holds it: it counts the flat in norms and saves it.

  // Where the memory is. In a step, ops of the device work on copies of what is in host memory. Outside of steps the
  // caller makes such copies (engine/staged_weights.h).
  // `memory`: of `stored` and `slots` between steps. It is host memory with HostPlacement::state, and for streamed
  // frozen weights. For an update, state_in copies them to the device, and state_out copies them back.
  Memory memory = Memory::device;
  // HostPlacement::streams: `compute` is in host memory, and sharded in any case. A step reads the copies of
  // load_weights. An update rounds to a buffer on the device, which state_out copies to `compute`.
  bool streamed = false;

  // Weights.
  QuantizesWeights quantizes = QuantizesWeights::never;
  // [nn::flat_shape] of `count`, in FlatSpec::stored: the master weights of a trainable flat, float32 unless a recipe
  // says otherwise, or frozen ones. If the weights are quantized on load, `stored` is the same view as `compute`, and
  // the master weights exist only while they are loaded.
  TensorView stored;
  // [nn::flat_shape] of `count`, in FlatSpec::gathered. It is a rounded copy of `stored` if the dtypes differ, or
  // if the weights are quantized after updates. Otherwise it is the same view. If the weights are quantized, it has the
  // values that, times the scales, are about `stored`.
  TensorView compute;
  // All elements in FlatSpec::gathered, if they are neither gathered before each use nor streamed; `compute` is this
  // rank's part of it. Otherwise it is empty.
  TensorView unsharded;
  // `unsharded` with its matrices transposed (Flat::transposed_view). It is empty without FlatSpec::transposed.
  TensorView transposed;

  // Scales of quantized weights. They are equal on all ranks that have the same weights, and empty if there are none.
  TensorView scales;       // float32 [Flat::scale_count()]. They are 1 at first.
  TensorView gemm_scales;  // float32 [4 * Flat::scale_count()]: `scales`, 16 bytes apart, as GEMMs of FP8 read them
  TensorView amax;         // float32 [Flat::scale_count()]: the maxima that `scales` come from

  // Scales of weights in DType::nf4_double, empty for others: of all groups of the flat's global tensors, on each rank,
  // and float32 [G, 2] each; and int32 [all rows of the flat's parameters] (nn/nf4_places.h).
  TensorView nf4_groups, nf4_row_places;

  // float32 [count]: the gradient of a Verification::reference, and then its difference from that of the comparison.
  // A trainable flat has it, with StateOptions::verifies.
  TensorView reference_gradient;

  // The optimizer's state, by optim::Optimizer::slots(flat): [nn::value_count] each. Frozen flats have none, and no
  // flat has any without StateOptions::optimizer.
  std::vector<TensorView> slots;

  bool on_host() const { return memory == Memory::host; }
  bool stored_on_host() const { return stored.raw() == compute.raw() ? streamed : on_host(); }
  bool quantized_on_load() const { return quantizes == QuantizesWeights::on_load; }
  bool quantized_after_updates() const { return quantizes == QuantizesWeights::after_updates; }
  // Bytes of the device that work on the weights takes outside of steps: for copies of `stored` and `compute`, where
  // these are in host memory, or for `stored` in float32 if the weights are quantized on load. Of NF4 only a piece is in
  // float32 at a time, kNf4PieceElements or fewer; of nf4_double there are the scale and the place of each block, too.
  std::int64_t staged_stored_bytes() const;
  std::int64_t staged_compute_bytes() const;
};

constexpr std::int64_t kNf4PieceElements = std::int64_t{16} << 20;

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

// What ModelState keeps of StateOptions::scaled_sites, in their order. The views are empty if there are no sites.
struct SiteState {
  TensorView scales;   // float32 [sites]. They are 1 at first.
  TensorView history;  // float32 [sites, nn::Quantizer::history()]: amaxes of earlier steps
  // Of the running step: the amaxes, the elements beyond the range of the scale, and all elements that were counted.
  TensorView amax, saturated, elements;  // float32 [sites]
  TensorView records;                    // float32 [3, sites]: these three in one view
};

struct StateOptions {
  // By Domain, this rank's shard of the flats: of master weights, moments and reduced gradients, and what a rank saves of
  // frozen weights.
  std::array<EqualShard, kDomains> shards;
  // What layers read is sharded in the same way, and gathered before each use (FSDP, ZeRO-3). Otherwise it is whole on
  // every rank, and gathered after each update (ZeRO-1 and ZeRO-2).
  bool gathers_weights = false;
  DType compute = DType::f32;
  std::shared_ptr<const optim::Optimizer> optimizer;  // without it there are no slots
  std::shared_ptr<const nn::Quantizer> quantizer;     // without it nothing is quantized in FP8
  std::vector<ScaledSite> scaled_sites;               // needs a quantizer
  HostPlacement host;
  bool verifies = false;                      // there are FlatState::reference_gradient
  std::optional<std::int64_t> kv_cache_rows;  // slots of each layer's KV cache (nn/kv_cache.h), if there are caches
  models::PipelinePartition partition;
  int stage = 0;  // of the partition
};

class ModelState {
 public:
  // Reserves the memory and zeroes it, then writes the rotary frequencies and ALiBi slopes. On meta the views have
  // addresses but no data. The model outlives this.
  ModelState(const models::Model& model, const StateOptions& options, Device& device);

  const StateOptions& options() const { return options_; }
  int flats() const { return static_cast<int>(flats_.size()); }
  const FlatState& flat(int i) const { return flats_[static_cast<std::size_t>(i)]; }

  // What layers read besides weights.
  nn::RopeViews rope(int i) const {
    const auto index = static_cast<std::size_t>(i);
    return {ropes_.at(index), model_->description().ropes[index].interleaved};
  }
  // nn::LayerContext::alibi_slopes of a layer; empty without AttentionConfig::alibi. Equal layers share one tensor.
  TensorView alibi_slopes(int layer) const;
  // The layer's KV cache, in the compute dtype: of this tensor rank's key-value heads. It is empty if the layer is no
  // attention layer, and without kv_cache_rows.
  const nn::KvCache& kv_cache(int layer) const { return kv_caches_[static_cast<std::size_t>(layer)]; }

  // The scalars and results of a step.
  const RecordView<StepRecord>& record() const { return record_; }
  const RecordView<StepResult>& result() const { return result_; }
  const RecordView<OptimizerProgress>& progress() const { return progress_; }
  const TensorView& optimizer_scalars() const { return optimizer_scalars_; }  // float32 [optim::Optimizer::scalars()]
  // float32 [1]: the loss scale over the number of valid targets, which scales the gradients of a training step
  const TensorView& loss_factor() const { return loss_factor_; }
  TensorView skip() const { return result_.field(&StepResult::skip); }  // int32 [1]: Skip
  const TensorView& parameter_norms() const { return norms_; }          // float32 [models::hf_tensors]
  // float32 [layers with an auxiliary loss, its statistics]: of a step. It is empty if the model has no such layer.
  const TensorView& auxiliary_statistics() const { return auxiliary_statistics_; }
  // Waits for the stream's work, then writes the progress of a resumed run.
  void set_progress(const OptimizerProgress& progress, Stream& stream) const;

  // Scales of x and dy, and the maxima of weights that ranks reduce together.
  const SiteState& sites() const { return sites_; }
  std::int64_t site_index(const ScaledSite& site) const;  // InternalError if it is not among them
  const std::vector<AmaxGroup>& amax_groups() const { return amax_groups_; }
  // What checkpoints have besides the flats: scales and histories of the sites.
  const std::vector<StateTable>& tables() const { return tables_; }

  // How much memory it is.
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
  std::byte* data() const { return arena_.data(); }            // [bytes()]
  std::byte* host_data() const { return host_arena_.data(); }  // [host_bytes()]. It is null if these are 0.

  // The passes that make `compute` of `stored`. The executor, and what loads weights, call them for one flat after
  // another. `stored`: FlatState::stored, or a copy of it on the device if it is in host memory.

  // Enqueues the rounding of `stored` into `compute`, with the scales as they are, unless both are the same view; and
  // the copies of the scales in FlatState::gemm_scales. If the weights are quantized on load, `stored` has them in
  // float32 or bf16. `compute`: FlatState::compute, or memory of the device for it.
  void refresh_compute(int flat, const TensorView& stored, const TensorView& compute, Stream& stream) const;
  // What a Linear reads beside a gathered weight, or a layer beside several (nn::Param::gemm_matrices).
  TensorView gemm_scale(int flat, int param) const;
  // What a Linear reads beside a gathered weight in NF4.
  nn::Nf4Matrix nf4_matrix(int flat, int param) const;
  // Enqueues FlatState::amax of this rank's shard.
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
  SiteState sites_;
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
