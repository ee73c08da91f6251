// `MlpLayer`: the MLP half of a transformer block.
//
//   y = residual + down_proj(activation(gate_up_proj(norm(x))))
//
// With NormPlace::sandwich, down_proj's output is normed before the sum, with NormPlace::post the sum alone
// (nn/blocks/layer_output.h).
// Gate and up weights are one Param [2 F, C] with two segments; without a gate it is up's alone, [F, C].
// Source: SwiGLU, arXiv 2002.05202.
#pragma once

#include <array>

#include "nn/blocks/activation.h"
#include "nn/blocks/layer_output.h"
#include "nn/blocks/linear_input.h"
#include "nn/blocks/norm.h"
#include "nn/blocks/saved_tensors.h"

namespace hawser::nn {

struct MlpConfig {
  std::int64_t width = 0, inner = 0;  // C, F
  DimSlice inner_slice;               // with tensor parallelism, F is this part of the model's
  bool sliced = true;                 // false: every tensor rank has the complete layer (Linear::sliced)
  bool bias = false;                  // on all projections
  NormConfig norm_config;
  NormPlace norm_place = NormPlace::pre;
  bool shared_norm = false;  // `norm` is a layer's before this one (Param::shared)
  bool transposed = false;   // files have weights as [in, out] (Conv1D of GPT-2)
  Activation activation = Activation::swiglu;
  double initial_std = 0.02, output_std = 0.02;
  std::string norm, gate, up, down, fused;  // names without ".weight" and ".bias"; `gate` only if there is one
  std::string post_norm;                    // NormPlace::sandwich
  std::vector<AdapterConfig> adapters;      // of gate, up and down

  std::int64_t up_size() const { return is_gated(activation) ? 2 * inner : inner; }
};

class MlpLayer : public Layer {
 public:
  explicit MlpLayer(MlpConfig config);
  const std::vector<Param>& params() const override { return params_; }
  std::vector<SavedSpec> saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                     const TrainableParams& trainable, const Seams& seams) const override;
  void forward(LayerContext&, const TensorView& x, const TensorView& residual, const TensorView& y,
               const Saved&) const override;
  void recompute(LayerContext&, const Saved&, const TensorView& y, const SavePolicy&) const override;
  void backward(LayerContext&, const TensorView& dy, const TensorView& dresidual, const TensorView& dx, const Saved&,
                GradientSink&, const SavePolicy&) const override;
  void backward_weight(LayerContext&, const TensorView& dy, const Saved&, GradientSink&) const override;
  std::vector<int> linear_weights(Site) const override;
  bool has_independent_rows() const override { return !config_.inner_slice.sliced(); }
  bool draws_random_numbers() const override;
  double flops(const RowCounts& rows, double pairs) const override;

 private:
  ColumnParallelLinear make_gate_up();
  LayerOutput make_down();
  // From kProjected on: LayerOutput::Tensors.
  enum SavedIndex {
    kStatistics,
    kNormed,
    kGateUp,
    kInner,
    kDgateUp,
    kProjected,
    kPostStatistics,
    kDprojected,
    kOutputAdapters,
    kGateUpAdapters,
    kNormedScale,
    kInnerScale,
    kSavedCount
  };
  std::array<TensorSpec, kSavedCount> tensors(const RowCounts& rows, DType dtype) const;
  TensorView saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const;
  bool norms_input() const { return config_.norm_place != NormPlace::post; }  // else norm_ is that of the sum
  TensorView statistics_of(LayerContext& ctx, const Saved& saved) const;      // empty unless norms_input()
  SavedInput saved_input(const Saved& saved, SavedIndex matrix, SavedIndex scale) const;
  // norm(x) and the activation of gate_up as the next Linear reads them (write_input).
  Scaled write_normed(LayerContext&, const TensorView& x, const TensorView& statistics, const Saved&,
                      Linear::ReadBy) const;
  Scaled write_inner(LayerContext&, const TensorView& gate_up, const Saved&, Linear::ReadBy) const;
  // norm(x) if a weight's gradient reads it, otherwise empty.
  Scaled normed_again(LayerContext&, const Saved&) const;
  // Of backward: dgate_up, in FP8 if it can be, and the input of down, if its weight's gradient reads it.
  struct InnerGradients {
    Scaled dgate_up, inner;
  };
  InnerGradients inner_backward(LayerContext&, const TensorView& dinner, const Saved&, const SavePolicy&) const;
  // What down's forward and recompute write.
  LayerOutput::Tensors down_tensors(LayerContext& ctx, const Saved& saved) const;

  MlpConfig config_;
  std::vector<Param> params_;
  Norm norm_;
  ColumnParallelLinear gate_up_;
  LayerOutput down_;
};

}  // namespace hawser::nn
