// `AttentionLayer`: the attention half of a transformer block.
//
//   y = residual + o_proj(attention(rope(qkv_proj(norm(x)))))
//
// Attention is ops/attention/attention.h, with AttentionConfig::softcap, alibi and dropout those of its AttentionCall.
// With AttentionConfig::qk_norm each head of q and of k is normed before RoPE. With NormPlace::sandwich, o_proj's
// output is normed before the sum, with NormPlace::post the sum alone (nn/blocks/layer_output.h).
// Multi-head, grouped-query and multi-query attention, by heads / kv_heads; head_dim is independent of width / heads.
// Query, key and value weights are one Param [(heads + 2 kv_heads) D, C] with three segments, so that one GEMM computes
// all three; of a folder with one tensor they are ranges of it (Segment::range). With AttentionConfig::kv_copies those
// of K and V are another Param [2 kv_heads D, C], named "K+V" of their names, or "FUSED+kv". Source: Llama (arXiv
// 2302.13971), grouped queries (arXiv 2305.13245).
#pragma once

#include <array>
#include <cmath>
#include <optional>

#include "nn/blocks/layer_output.h"
#include "nn/blocks/linear_input.h"
#include "nn/blocks/norm.h"
#include "nn/blocks/saved_tensors.h"

namespace hawser::nn {

struct AttentionConfig {
  std::int64_t width = 0, heads = 0, kv_heads = 0, head_dim = 0;
  // With tensor parallelism, heads and kv_heads are these parts of the model's: both, or neither.
  DimSlice heads_slice, kv_heads_slice;
  bool sliced = true;  // false: every tensor rank has the complete layer (Linear::sliced)
  int kv_copies = 1;   // consecutive tensor ranks with the same kv_heads_slice (comm::MeshSizes::kv_copies)
  bool qkv_bias = false, output_bias = false;
  NormConfig norm_config;
  NormPlace norm_place = NormPlace::pre;
  std::optional<NormConfig> qk_norm;  // of each head of q and k, before RoPE (Qwen3); RMS norm only
  bool transposed = false;            // files have weights as [in, out] (Conv1D of GPT-2)
  std::optional<int> rope = 0;        // LayerContext::rope(rope), for all or the first dims of a head
  bool causal = true;                 // without it a query sees later keys of its document, too
  double rope_scale = 1.0;            // factor of cos and sin (attention scaling of some RoPE variants)
  std::int64_t window = 0;            // of mask()
  std::optional<double> scale;        // of the scores, in place of 1 / sqrt(head_dim)
  std::optional<double> softcap;      // scores become softcap * tanh(score / softcap) (Gemma 2)
  bool alibi = false;                 // biases of the scores by distance, after the soft cap (BLOOM, arXiv 2108.12409)
  double alibi_scale = 1;             // of the slopes (Falcon: as of the scores)
  double dropout = 0;                 // of the probabilities, while training: p, in [0, 1)
  double initial_std = 0.02, output_std = 0.02;
  // Names without ".weight" and ".bias", as in the Hugging Face folder. Without q, k and v the folder has one tensor
  // `fused`: in the model's form, all heads of q, then of k, then of v, of which a tensor rank has a range of each. In
  // files its rows are in the order qkv_rows (nn::FileForm::row_order), of the complete tensor on every rank.
  std::string norm, q, k, v, output, fused;
  std::string post_norm, q_norm, k_norm;  // NormPlace::sandwich; qk_norm
  std::vector<IndexRange> qkv_rows;
  std::vector<AdapterConfig> adapters;  // of q, k, v or fused, and output

  AttentionMask mask() const { return {.causal = causal, .window = window, .distances = alibi}; }
  // alibi_scale * ops::alibi_slopes of this rank's heads among the model's; 0 for heads of padding.
  std::vector<float> alibi_slopes() const;
  double score_scale() const { return scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim))); }
  std::int64_t q_size() const { return heads * head_dim; }
  std::int64_t kv_size() const { return kv_heads * head_dim; }
  std::int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
};

class AttentionLayer : public Layer {
 public:
  explicit AttentionLayer(AttentionConfig config);
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
  bool draws_random_numbers() const override;
  double flops(const RowCounts& rows, double pairs) const override;
  std::optional<AttentionMask> attention_mask() const override { return config_.mask(); }

 private:
  // From kProjected on: LayerOutput::Tensors.
  enum SavedIndex {
    kStatistics,
    kNormed,
    kQkv,
    kOut,
    kLse,
    kDqkv,
    kProjected,
    kPostStatistics,
    kDprojected,
    kOutputAdapters,
    kQkvAdapters,
    kNormedScale,
    kSavedCount
  };
  struct Heads {
    TensorView q, k, v;  // [T, heads, D] inside qkv [T, (H + 2 Hk) D]
  };
  // What attention reads. Without qk_norm, q, k and v are in qkv, q and k rotated in place. With it, qkv is what the
  // GEMM has written, and normed and rotated q and k are in a temporary: each pass that needs them computes them again.
  struct Inputs {
    TensorView q, k, v;                     // [T, heads, D], [T, kv_heads, D]
    TensorView q_statistics, k_statistics;  // of qk_norm
  };
  ColumnParallelLinear make_qkv();
  LayerOutput make_output();
  Heads heads_of(const TensorView& qkv) const;
  Inputs inputs_of(LayerContext&, const TensorView& qkv) const;
  LayerOutput::Tensors output_tensors(LayerContext& ctx, const Saved& saved) const;
  std::array<TensorSpec, kSavedCount> tensors(const RowCounts& rows, DType dtype) const;
  TensorView saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const;
  bool norms_input() const { return config_.norm_place != NormPlace::post; }  // else norm_ is that of the sum
  TensorView statistics_of(LayerContext& ctx, const Saved& saved) const;      // empty unless norms_input()
  // norm(x) if a weight's gradient reads it, otherwise empty.
  Scaled normed_again(LayerContext&, const Saved&) const;
  // norm(x) as the Linear of q, k and v reads it (write_input).
  Scaled write_normed(LayerContext&, const TensorView& x, const TensorView& statistics, const Saved&,
                      Linear::ReadBy) const;
  void project(LayerContext&, const Scaled& normed, const TensorView& qkv, const Saved&) const;
  void attend(LayerContext&, const Inputs& inputs, const TensorView& o, const TensorView& lse) const;
  // In place; inverse: of a gradient.
  void rope(LayerContext&, const TensorView& heads, bool inverse) const;
  TensorView query_heads(const TensorView& matrix) const;  // [T, heads, D] of [T, heads * D]
  // Attention has RowCounts::full rows, its Linears Linear::rows. The rows of the latter, of a matrix with the former;
  // and the same matrix made complete: by other ranks' rows, if that is not all of it.
  TensorView own_rows(const LayerContext&, const TensorView& matrix) const;
  void complete(LayerContext&, const TensorView& matrix) const;
  // What forward and backward of one part of the exchange share, with forward's FLOPs.
  ops::AttentionCall call_of(const LayerContext&, const AttentionPart& part) const;
  // None unless training. InternalError if the part has no row ids.
  ops::AttentionDropout dropout_of(const LayerContext&, const AttentionPart& part) const;

  AttentionConfig config_;
  std::vector<Param> params_;
  Norm norm_;
  std::optional<Norm> q_norm_, k_norm_;
  ColumnParallelLinear qkv_;
  LayerOutput output_;
};

}  // namespace hawser::nn
