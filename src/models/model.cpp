#include "models/model.h"

#include "base/cat.h"

namespace hawser::models {

Model::Model(ModelDescription description)
    : description_(std::move(description)), embedding_(description_.embedding), head_(description_.head) {
  units_.emplace_back("embedding", embedding_.params());
  embedding_params_ = {{0, 0}};
  for (std::size_t b = 0; b < description_.blocks.size(); ++b) {
    const BlockDescription& block = description_.blocks[b];
    layers_.push_back(std::make_unique<nn::AttentionLayer>(block.attention));
    layers_.push_back(std::make_unique<nn::MlpLayer>(block.mlp));
    const int unit = static_cast<int>(units_.size());
    std::vector<nn::Param> params;
    for (std::size_t half = 2 * b; half < 2 * b + 2; ++half) {
      std::vector<ParamPlace> places;
      for (const nn::Param& param : layers_[half]->params()) {
        places.push_back({unit, static_cast<int>(params.size())});
        params.push_back(param);
      }
      layer_params_.push_back(std::move(places));
    }
    units_.emplace_back(cat("block ", b), std::move(params));
  }
  const int unit = static_cast<int>(units_.size());
  units_.emplace_back("head", head_.params());
  head_params_ = {{unit, 0}, head_.tied() ? ParamPlace{0, 0} : ParamPlace{unit, 1}};
}

std::int64_t Model::parameters() const {
  std::int64_t count = 0;
  for (const nn::Unit& unit : units_) {
    for (const nn::Param& param : unit.params()) count += param.elements();
  }
  return count;
}

double Model::training_flops(std::int64_t rows, double pairs) const {
  double forward = head_.flops(rows);
  for (const auto& layer : layers_) forward += layer->flops(rows, pairs);
  return 3.0 * forward;
}

}  // namespace hawser::models
