// `EmbeddingLayer`: token embedding. `HeadLayer`: final norm, vocabulary projection and loss.
#pragma once

#include <optional>

#include "nn/blocks/linear.h"
#include "nn/blocks/norm.h"
#include "nn/blocks/sliced_loss.h"

namespace hawser::nn {

struct EmbeddingConfig {
  std::int64_t vocabulary = 0, width = 0;  // vocabulary: of this rank, padding included
  PartOf vocabulary_part;                  // sliced over the tensor ranks
  double initial_std = 0.02;
  std::string table;  // name without ".weight"
  // Learned position embeddings (GPT-2), added to those of the tokens; "" and 0: none.
  std::string positions;
  std::int64_t max_position = 0;
  double scale = 1;   // of the sum (Gemma: sqrt(width))
  std::string types;  // name of the token types' embeddings (BERT); "" and 0: none. Not supported yet
  std::int64_t type_count = 0;
  std::optional<NormConfig> norm_config;  // a norm of the sum (BERT, BLOOM). Not supported yet
  std::string norm;
};

// y[t] = scale * (table[ids[t]] + positions[position of t]), each product rounded; without positions, one of them. With
// a slice of the vocabulary, it is the Redistribute seam's sum of the ranks' rows, and the first slice's rank adds
// positions. y, dy [RowCounts::residual, C]. Without, every tensor rank has the complete tables and exchanges nothing:
// with sequence parallelism it computes the residual's rows, and its gradients are parts of sums (set_unsliced).
class EmbeddingLayer {
 public:
  explicit EmbeddingLayer(EmbeddingConfig config);
  const std::vector<Param>& params() const { return params_; }
  void forward(LayerContext&, const TensorView& y) const;
  void backward(LayerContext&, const TensorView& dy, GradientSink&) const;

 private:
  bool sliced() const { return config_.vocabulary_part.total > 0; }
  void look_up(LayerContext&, const TensorView& y, std::int64_t first_row) const;
  void position_gradient(LayerContext&, const TensorView& ids, const TensorView& dy, const GradientTarget&) const;

  EmbeddingConfig config_;
  std::vector<Param> params_;
};

// What the head predicts. All but `language_model` are not supported yet.
enum class HeadKind {
  language_model,           // the next token of each row
  masked_language_model,    // the token of each row with a label
  sequence_classification,  // a class of each sequence
  token_classification,     // a class of each row
  span,                     // begin and end of an answer in each sequence
};

struct HeadConfig {
  std::int64_t vocabulary = 0, width = 0;  // vocabulary: of this rank, padding included
  PartOf vocabulary_part;                  // sliced over the tensor ranks
  bool tied = false;                       // the projection's weight is the embedding's table
  NormConfig norm_config;
  double initial_std = 0.02;
  std::string norm, output;  // names without ".weight"
  HeadKind kind = HeadKind::language_model;
  std::int64_t classes = 0;  // of a classification
  double softcap = 0;        // logits become softcap * tanh(logit / softcap) (Gemma 2); 0: no
  bool bias = false;         // of the projection (GPT-J): a parameter of its own, also if the weight is tied
};

// Final norm, vocabulary projection and cross entropy, fused: the full logits are never stored and no GEMM runs twice.
// Weight 0 is the norm's, weight 1 the projection's [V, C]; the biases [C] and [V] of those that have one follow. The
// bias of the projection is sliced like its weight, and starts with zeros. x, dx [RowCounts::residual, C]. With a slice
// of the vocabulary the loss is sliced_loss (nn/blocks/sliced_loss.h). Without, every tensor rank has the complete
// projection and exchanges nothing: it computes the loss of the residual's rows (loss_of_residual_rows), and with
// sequence parallelism its gradients are parts of sums (set_unsliced).
class HeadLayer {
 public:
  using LossViews = nn::LossViews;
  // `table`: name of the embedding's table (EmbeddingConfig::table), which a tied head shares.
  explicit HeadLayer(HeadConfig config, const std::string& table = "");
  const std::vector<Param>& params() const { return params_; }
  void loss(LayerContext&, const TensorView& x, const LossViews&) const;
  void loss_and_gradient(LayerContext&, const TensorView& x, const TensorView& dx, const LossViews&,
                         GradientSink&) const;
  // logits float32 [B, V] = projection of the final norm of x [B, C], with its bias and soft-capped: the rows at
  // BatchViews::logit_positions, which the caller has gathered. V: of the model, on every rank; with a slice of the
  // vocabulary TensorReduce::gather gathers the ranks' columns. For generation, and not with sequence parallelism.
  void logits(LayerContext&, const TensorView& x, const TensorView& logits) const;
  // LossViews::sum gets the loss of RowCounts::residual rows, not of all: with sequence parallelism a step's loss is a
  // sum over the tensor ranks, too.
  bool loss_of_residual_rows() const { return !sliced(); }
  double flops(const RowCounts& rows) const;

 private:
  static Linear projection();
  TensorView bias(const LayerContext&) const;
  void project(LayerContext&, const TensorView& h, const TensorView& logits) const;
  TensorView normed(LayerContext&, const TensorView& x, const TensorView& statistics) const;
  bool sliced() const { return config_.vocabulary_part.total > 0; }

  HeadConfig config_;
  std::vector<Param> params_;
  Norm norm_;
  int bias_ = -1;  // of the projection, among the parameters
};

}  // namespace hawser::nn
