// `EmbeddingLayer`: token embedding. `HeadLayer`: final norm, vocabulary projection and loss.
#pragma once

#include <optional>

#include "base/label_spec.h"
#include "nn/blocks/head_transform.h"
#include "nn/blocks/linear.h"
#include "nn/blocks/norm.h"
#include "nn/blocks/sliced_loss.h"

namespace hawser::nn {

// The table of a micro-batch with the type of each token: 0 for padding. A model with several types declares it
// (models::ModelDescription::tables).
inline const TableSpec kTokenTypes{.name = "token_type_ids"};

struct EmbeddingConfig {
  std::int64_t vocabulary = 0, width = 0;  // vocabulary: of this rank, padding included
  DimSlice vocabulary_slice;               // sliced over the tensor ranks
  double initial_std = 0.02;
  std::string table;  // name without ".weight"
  // The table of learned position embeddings (GPT-2), which are added to those of the tokens. Without its name there
  // are none. It has max_position rows, of which the first position_offset are of no position (RoBERTa).
  std::string positions;
  std::int64_t max_position = 0, position_offset = 0;
  // The table of the embeddings of token types (BERT), which are added, too. Without its name there are none. With one
  // type (RoBERTa), every token has it; otherwise kTokenTypes has the type of each.
  std::string types;
  std::int64_t type_count = 0;
  double scale = 1;                       // of the sum (Gemma: sqrt(width))
  std::optional<NormConfig> norm_config;  // a norm of the scaled sum (BERT, BLOOM)
  std::string norm;
};

//   s[t] = scale * table[ids[t]] + scale * positions[position of t + offset] + scale * types[type of t]
//   y[t] = s[t], or norm(s[t])
// Each product and sum of two is rounded. With a slice of the vocabulary, s is the Redistribute seam's sum of the
// ranks' rows, and the first slice's rank adds positions and types. y, dy [RowCounts::residual, C]. Without, every
// tensor rank has the complete tables and exchanges nothing: with sequence parallelism it computes the residual's rows,
// and its gradients are parts of sums (set_unsliced). Nothing is saved: with a norm, backward computes s again. A
// position or type outside its table throws on the stream.
class EmbeddingLayer {
 public:
  explicit EmbeddingLayer(EmbeddingConfig config);
  const std::vector<Param>& params() const { return params_; }
  void forward(LayerContext&, const TensorView& y) const;
  void backward(LayerContext&, const TensorView& dy, GradientSink&) const;
  bool backward_reads_weights() const { return norm_.has_value(); }

 private:
  // A table besides that of the tokens. A token has the row first + its id.
  struct More {
    int param = -1;
    std::int64_t first = 0;
    bool of_types = false;
  };
  bool sliced() const { return config_.vocabulary_slice.sliced(); }
  bool adds_more() const { return config_.vocabulary_slice.begin == 0; }
  // The ids of `more` for rows [first_row, first_row + rows) of the micro-batch.
  TensorView ids_of(LayerContext&, const More& more, std::int64_t first_row, std::int64_t rows) const;
  void look_up(LayerContext&, const TensorView& s, std::int64_t first_row) const;
  void sum(LayerContext&, const TensorView& s) const;
  // Writes ds, and the gradients of the norm's parameters.
  void norm_backward(LayerContext&, const TensorView& dy, const TensorView& ds, GradientSink&) const;
  void add_gradient(LayerContext&, const More& more, const TensorView& ds, std::int64_t first_row,
                    const GradientTarget&) const;

  EmbeddingConfig config_;
  std::vector<Param> params_;
  std::vector<More> more_;
  std::optional<Norm> norm_;
};

// What the head predicts. All are one computation, the loss of the rows that have labels: data with the labels of
// labels_of() are what differs.
enum class HeadKind {
  language_model,           // the next token of each row
  masked_language_model,    // the token of each row that has a label
  sequence_classification,  // a class of each document
  token_classification,     // a class of each row that has a label
};
const char* to_string(HeadKind kind);

struct HeadConfig {
  std::int64_t vocabulary = 0, width = 0;  // vocabulary: of this rank, padding included
  DimSlice vocabulary_slice;               // sliced over the tensor ranks
  bool tied = false;                       // the projection's weight is the embedding's table
  NormConfig norm_config;
  double initial_std = 0.02;
  std::string norm, output;                      // names without ".weight"; without `norm` there is none
  std::optional<HeadTransformConfig> transform;  // before the norm, which is then the head's own
  HeadKind kind = HeadKind::language_model;
  // Of a classification, in place of `vocabulary`; its projection is neither tied nor sliced.
  std::int64_t classes = 0;
  bool last_row = false;  // sequence_classification: the row of a document is its last (Llama), not its first (BERT)
  std::optional<double> softcap;  // logits become softcap * tanh(logit / softcap) (Gemma 2)
  bool bias = false;              // of the projection (GPT-J): a parameter of its own, also if the weight is tied

  bool classifies() const {
    return kind == HeadKind::sequence_classification || kind == HeadKind::token_classification;
  }
  std::int64_t columns() const { return classifies() ? classes : vocabulary; }  // of this rank's logits
};

// The labels that a head reads.
LabelSpec labels_of(const HeadConfig& config);

// Final norm, projection to the vocabulary or to classes, and cross entropy, fused: the full logits are never stored
// and no GEMM runs twice.
//   logits = norm(transform(x)) W^T + bias,   of a head without one of these: without it
//   loss   = sum over rows t with label[t] >= 0 of -log softmax(logits[t])[label[t]]
// A transform with tanh and no norm is the pooler of BERT. Transform and logits are computed for all rows, also if few
// have labels, as with a classification of sequences: to gather these rows first would save little beside the blocks.
// The first weight is the norm's, if there is one; then the projection's [V, C], V: HeadConfig::columns(); the norm's
// bias, the parameters of the transform and the projection's bias [V] follow, of those that have them. The bias of the
// projection is sliced like its weight, and starts with zeros. x, dx [RowCounts::residual, C], which are apart. With a
// slice of the vocabulary the loss is sliced_loss (nn/blocks/sliced_loss.h). Without, every tensor rank has the
// complete projection and exchanges nothing: it computes the loss of the residual's rows (loss_of_residual_rows), and
// with sequence parallelism its gradients are parts of sums (set_unsliced).
class HeadLayer {
 public:
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
  Linear projection() const { return {.site = Site::logits, .weight = projection_}; }
  HeadTransform::Tensors transformed(LayerContext&, const TensorView& x) const;
  TensorView bias(const LayerContext&) const;
  void project(LayerContext&, const TensorView& h, const TensorView& logits) const;
  // The loss of h, which follows from x. dh: the gradient of h. It is empty if only the loss is wanted.
  void cross_entropy(LayerContext&, const TensorView& x, const TensorView& h, const TensorView& dh, const LossViews&,
                     const ProjectionGradients& gradients) const;
  TensorView statistics(LayerContext&, const TensorView& x) const;
  // x without a norm.
  TensorView normed(LayerContext&, const TensorView& x, const TensorView& statistics) const;
  bool sliced() const { return config_.vocabulary_slice.sliced(); }

  HeadConfig config_;
  std::vector<Param> params_;
  std::optional<Norm> norm_;
  std::optional<HeadTransform> transform_;
  int projection_ = 0, bias_ = -1;  // its weight and bias, among the parameters
};

}  // namespace hawser::nn
