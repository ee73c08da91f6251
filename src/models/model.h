// `Model`: units of parameters, the flats that store them, and the layers that use them. It holds no data: views are
// passed with each call.
//
// Layers are numbered in forward order. Each block has two: attention, and an MLP or experts; code that needs the
// layers of a block asks block_of(). The units are the embedding, the blocks and the head. A family is a config reader,
// a description and parameter names; see models/llama/.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/rank_share.h"
#include "nn/blocks/attention_layer.h"
#include "nn/blocks/embedding_and_head.h"
#include "nn/blocks/mlp_layer.h"
#include "nn/blocks/moe_layer.h"
#include "nn/flat.h"
#include "ops/rope/rope.h"

namespace hawser::models {

using nn::ParamIndex;

// How the layers of a block are added to its input x.
enum class Residual {
  serial,             // h = x + attention(x);  y = h + mlp(h)
  parallel,           // y = x + attention(x) + mlp(x), each with its norm
  parallel_one_norm,  // the same with one norm for both (Phi, Falcon), which both configurations name
};

// Description of one transformer block. To extend it, add fields, not classes. check_supported() (models/supported.h)
// rejects what has no kernel yet.
struct BlockDescription {
  nn::AttentionConfig attention;
  nn::MlpConfig mlp;
  std::optional<nn::MoeConfig> moe;  // in place of `mlp`
  Residual residual = Residual::serial;
};

// The layers whose outputs a layer reads. The embedding has number -1.
struct LayerInputs {
  int x = -1, residual = -1;
};

// Layers [begin, end).
struct LayerRange {
  int begin = 0, end = 0;
};

struct ModelDescription {
  std::string family;
  nn::EmbeddingConfig embedding;
  std::vector<BlockDescription> blocks;
  nn::HeadConfig head;
  std::vector<ops::RopeConfig> ropes;  // nn::AttentionConfig::rope is an index
  std::int64_t max_position = 0;       // longest sequence that the model was trained for
  // Tables of a micro-batch that layers read by name (nn::BatchViews::table) and the data must have.
  std::vector<TableSpec> tables = {};
  // Tensors of the files that are not part of the model, such as buffers: names, or "*" and an ending, or a beginning
  // and "*".
  std::vector<std::string> ignored_tensors = {};
  // Modules that are not stored in NF4 (llm_int8_skip_modules of bitsandbytes): a name, or consecutive parts of one,
  // "lm_head" or "layers.0.mlp".
  std::vector<std::string> unquantized_modules = {};
};

class Model {
 public:
  // Replaces a layer that the description says by another with the same inputs and output.
  using ReplaceLayer = std::function<std::unique_ptr<nn::Layer>(std::unique_ptr<nn::Layer> layer, int number)>;

  // What a rank has of the model that `whole` describes (check_share).
  explicit Model(ModelDescription whole, nn::FlatSpecOf spec_of = nn::common_domain, const RankShare& share = {},
                 const ReplaceLayer& replace = {});
  Model(const Model&) = delete;

  const ModelDescription& description() const { return description_; }  // of what this rank has
  const ModelDescription& whole() const { return whole_; }
  const RankShare& share() const { return share_; }
  // Another rank's part of the same model, or of its first `blocks` blocks.
  std::shared_ptr<const Model> on_rank(const RankShare& share, int blocks) const;
  // This rank's part of the model with other specs of its parameters, such as those of another optimizer.
  std::shared_ptr<const Model> with_specs(const std::function<nn::FlatSpecOf(nn::FlatSpecOf)>& change) const;
  const std::vector<nn::Unit>& units() const { return units_; }
  // The flats of all units, in the order of the units.
  const std::vector<nn::Flat>& flats() const { return flats_; }
  const nn::Flat& flat(int i) const { return flats_[static_cast<std::size_t>(i)]; }
  const nn::EmbeddingLayer& embedding() const { return embedding_; }
  const nn::HeadLayer& head() const { return head_; }
  int layers() const { return static_cast<int>(layers_.size()); }
  const nn::Layer& layer(int i) const { return *layers_[static_cast<std::size_t>(i)]; }
  const LayerInputs& inputs(int layer) const { return inputs_[static_cast<std::size_t>(layer)]; }
  int blocks() const { return static_cast<int>(description_.blocks.size()); }
  int block_of(int layer) const { return places_[static_cast<std::size_t>(layer)].block; }
  const char* kind_of(int layer) const {
    return places_[static_cast<std::size_t>(layer)].kind;
  }  // "attention", "MLP", "experts"
  // The layer's configuration if it is an attention layer, otherwise null.
  const nn::AttentionConfig* attention(int layer) const;
  int attention_layers() const;
  bool draws_random_numbers() const;              // a layer does while training
  bool drops_probabilities() const;               // an attention layer has AttentionConfig::dropout
  bool reads_token_mask() const;                  // a layer does
  bool may_refuse(const nn::Seams& seams) const;  // a layer may
  // The loss that layers add to the model's; null if none does. auxiliary_index: of a layer among those that do, or -1.
  const nn::AuxiliaryLoss* auxiliary_loss() const { return auxiliary_loss_; }
  const nn::RouterLoss* router_loss() const { return router_loss_.get(); }  // null without experts
  int auxiliary_layers() const { return auxiliary_layers_; }
  int auxiliary_index(int layer) const { return auxiliary_index_[static_cast<std::size_t>(layer)]; }
  std::int64_t width() const { return description_.embedding.width; }
  // Of the model, whatever slice of it this rank has; head_columns() has the slice. A shared parameter counts once.
  std::int64_t vocabulary() const;
  std::int64_t parameters() const;
  std::int64_t trainable_parameters() const;
  std::int64_t head_columns() const { return description_.head.columns(); }

  // The parameters of each layer, in the order of its weights. Of a shared one all layers have the same place.
  const std::vector<ParamIndex>& layer_params(int layer) const {
    return layer_params_[static_cast<std::size_t>(layer)];
  }
  const nn::TrainableParams& trainable(int layer) const { return trainable_[static_cast<std::size_t>(layer)]; }
  const nn::TrainableParams& trainable_of_head() const { return head_trainable_; }
  // Layers before it have no backward: neither they nor the embedding have a trainable parameter. layers(): none has.
  int first_trained_layer() const;
  const std::vector<ParamIndex>& embedding_params() const { return embedding_params_; }
  const std::vector<ParamIndex>& head_params() const { return head_params_; }

  // The distinct masks of the attention layers, with the number of layers that have each.
  std::map<AttentionMask, int> masks() const;

  // FLOPs of one training step (forward and backward, no recompute) of a rank's rows, with this rank's slice of the
  // model. Gradients of frozen weights are none of them, nor is the backward of layers before first_trained_layer().
  // `pairs`: the visible query-key pairs per head of attention layers with a mask.
  double training_flops(const nn::RowCounts& rows, const std::function<double(const AttentionMask&)>& pairs) const;
  // Of these layers, and of the head if `head`.
  double training_flops(const nn::RowCounts& rows, const std::function<double(const AttentionMask&)>& pairs,
                        const std::vector<LayerRange>& layers, bool head) const;

 private:
  ModelDescription whole_;
  nn::FlatSpecOf spec_of_;  // before rank_specs
  RankShare share_;
  ModelDescription description_;
  nn::EmbeddingLayer embedding_;
  std::vector<std::unique_ptr<nn::Layer>> layers_;
  nn::HeadLayer head_;
  std::vector<nn::Unit> units_;
  std::vector<nn::Flat> flats_;
  struct LayerPlace {
    int block = 0;
    const char* kind = "";
  };
  std::vector<LayerPlace> places_;
  std::vector<LayerInputs> inputs_;
  std::shared_ptr<const nn::RouterLoss> router_loss_;
  const nn::AuxiliaryLoss* auxiliary_loss_ = nullptr;
  int auxiliary_layers_ = 0;
  std::vector<int> auxiliary_index_;  // by layer
  std::vector<std::vector<ParamIndex>> layer_params_;
  std::vector<nn::TrainableParams> trainable_;  // by layer
  nn::TrainableParams head_trainable_;
  std::vector<ParamIndex> embedding_params_, head_params_;
};

}  // namespace hawser::models
