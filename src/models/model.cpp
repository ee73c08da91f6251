#include "models/model.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "base/cat.h"
#include "models/supported.h"

namespace hawser::models {

namespace {

// The configuration of the layer after attention, MLP or experts, as the residual has it.
template <class Config>
Config after_attention(const BlockDescription& block, Config config) {
  if (block.residual != Residual::parallel_one_norm) return config;
  HAWSER_CHECK(config.norm_config == block.attention.norm_config, config.norm, ": one norm of two kinds");
  config.shared_norm = true;
  return config;
}

// `spec_of` with the weights of these modules, and of parameters that have some of them, not in NF4.
nn::FlatSpecOf without_nf4(nn::FlatSpecOf spec_of, std::vector<std::string> modules) {
  if (modules.empty()) return spec_of;
  return [of = std::move(spec_of), modules = std::move(modules)](const nn::Param& param, const nn::UnitId& place) {
    nn::FlatSpec spec = of(param, place);
    const auto is_of = [](const std::string& name, const std::string& module) {
      return cat(".", name, ".").find(cat(".", module, ".")) != std::string::npos;
    };
    const bool kept = std::ranges::any_of(param.segments, [&](const nn::Segment& segment) {
      return std::ranges::any_of(modules, [&](const std::string& module) { return is_of(segment.name, module); });
    });
    if (spec.packed() && kept) spec.gathered = std::nullopt;
    return spec;
  };
}

}  // namespace

Model::Model(ModelDescription whole, nn::FlatSpecOf rule, const RankShare& share, const ReplaceLayer& replace)
    : whole_(std::move(whole)),
      spec_of_(std::move(rule)),
      share_(share),
      description_(rank_description(whole_, share)),
      embedding_(description_.embedding),
      head_(description_.head, description_.embedding.table) {
  Problems unsupported;
  check_supported(description_, "", unsupported);
  HAWSER_CHECK(unsupported.empty(), description_.family, ": ", unsupported.lines());
  check_tables(description_.tables);
  for (const BlockDescription& block : description_.blocks) {
    if (block.moe && router_loss_ == nullptr) router_loss_ = std::make_shared<nn::RouterLoss>(block.moe->loss());
  }
  using Kind = nn::UnitId::Kind;
  const nn::FlatSpecOf spec_of = rank_specs(without_nf4(spec_of_, description_.unquantized_modules), share_);
  const auto add = [&](const std::string& name, const nn::UnitId& unit, const std::vector<nn::Param>& params) {
    return nn::add_unit(name, unit, params, spec_of, units_, flats_);
  };
  embedding_params_ = add("embedding", {.kind = Kind::embedding}, embedding_.params());
  for (std::size_t b = 0; b < description_.blocks.size(); ++b) {
    const BlockDescription& block = description_.blocks[b];
    const std::size_t first = layers_.size();
    const int number = static_cast<int>(b), input = static_cast<int>(first) - 1, attention = input + 1;
    layers_.push_back(std::make_unique<nn::AttentionLayer>(block.attention));
    places_.push_back({number, "attention"});
    inputs_.push_back({.x = input, .residual = input});
    if (block.moe) {
      layers_.push_back(std::make_unique<nn::MoeLayer>(after_attention(block, *block.moe), router_loss_));
    } else {
      layers_.push_back(std::make_unique<nn::MlpLayer>(after_attention(block, block.mlp)));
    }
    places_.push_back({number, block.moe ? "experts" : "MLP"});
    inputs_.push_back({.x = block.residual == Residual::serial ? attention : input, .residual = attention});
    if (replace) {
      for (std::size_t layer = first; layer < layers_.size(); ++layer) {
        layers_[layer] = replace(std::move(layers_[layer]), static_cast<int>(layer));
      }
    }
    std::vector<nn::Param> params;
    for (std::size_t layer = first; layer < layers_.size(); ++layer) {
      params.insert(params.end(), layers_[layer]->params().begin(), layers_[layer]->params().end());
    }
    const std::vector<ParamIndex> places = add(cat("block ", b), {.kind = Kind::block, .block = number}, params);
    auto place = places.begin();
    for (std::size_t layer = first; layer < layers_.size(); ++layer) {
      const auto end = place + static_cast<std::ptrdiff_t>(layers_[layer]->params().size());
      layer_params_.emplace_back(place, end);
      place = end;
    }
  }
  head_params_ = add("head", {.kind = Kind::head}, head_.params());
  const auto trainable = [&](const std::vector<ParamIndex>& places) {
    std::vector<bool> of;
    for (const ParamIndex& place : places) of.push_back(flat(place.flat).spec().trainable);
    return nn::TrainableParams(std::move(of));
  };
  for (const std::vector<ParamIndex>& places : layer_params_) trainable_.push_back(trainable(places));
  head_trainable_ = trainable(head_params_);
  for (const auto& layer : layers_) {
    const nn::AuxiliaryLoss* const loss = layer->auxiliary_loss();
    auxiliary_index_.push_back(loss != nullptr ? auxiliary_layers_++ : -1);
    if (loss == nullptr) continue;
    HAWSER_CHECK(auxiliary_loss_ == nullptr || auxiliary_loss_ == loss, "layers add to two auxiliary losses");
    auxiliary_loss_ = loss;
  }
}

std::shared_ptr<const Model> Model::on_rank(const RankShare& share, int blocks) const {
  ModelDescription description = whole_;
  HAWSER_CHECK(blocks <= this->blocks(), blocks, " blocks of ", this->blocks());
  description.blocks.resize(static_cast<std::size_t>(blocks));
  return std::make_shared<const Model>(std::move(description), spec_of_, share);
}

std::shared_ptr<const Model> Model::with_specs(const std::function<nn::FlatSpecOf(nn::FlatSpecOf)>& change) const {
  return std::make_shared<const Model>(whole_, change(spec_of_), share_);
}

const nn::AttentionConfig* Model::attention(int layer) const {
  const auto* found = dynamic_cast<const nn::AttentionLayer*>(&this->layer(layer));
  return found == nullptr ? nullptr : &description_.blocks[static_cast<std::size_t>(block_of(layer))].attention;
}

int Model::attention_layers() const {
  int count = 0;
  for (int layer = 0; layer < layers(); ++layer) count += attention(layer) != nullptr ? 1 : 0;
  return count;
}

bool Model::drops_probabilities() const {
  return std::ranges::any_of(description_.blocks,
                             [](const BlockDescription& block) { return block.attention.dropout > 0; });
}

bool Model::draws_random_numbers() const {
  return std::ranges::any_of(layers_, [](const auto& layer) { return layer->draws_random_numbers(); });
}

bool Model::may_refuse(const nn::Seams& seams) const {
  return std::ranges::any_of(layers_, [&](const auto& layer) { return layer->may_refuse(seams); });
}

bool Model::reads_token_mask() const {
  return std::ranges::any_of(layers_, [](const auto& layer) { return layer->reads_token_mask(); });
}

namespace {

// Elements of the global tensors of flats. One tensor may be several segments, slices of it.
std::int64_t elements_of(const std::vector<nn::Flat>& flats, bool only_trainable) {
  std::int64_t count = 0;
  std::set<std::string_view> known;
  for (const nn::Flat& flat : flats) {
    if (only_trainable && !flat.spec().trainable) continue;
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) {
        if (known.insert(segment.name).second) count += segment.global.elements();
      }
    }
  }
  return count;
}

}  // namespace

std::int64_t Model::vocabulary() const {
  const nn::EmbeddingConfig& embedding = description_.embedding;
  return embedding.vocabulary_slice.sliced() ? embedding.vocabulary_slice.total : embedding.vocabulary;
}

std::int64_t Model::parameters() const {
  return elements_of(flats_, false);
}

std::int64_t Model::trainable_parameters() const {
  return elements_of(flats_, true);
}

std::map<AttentionMask, int> Model::masks() const {
  std::map<AttentionMask, int> out;
  for (const auto& layer : layers_) {
    if (const auto mask = layer->attention_mask()) ++out[*mask];
  }
  return out;
}

int Model::first_trained_layer() const {
  const auto trains = [&](const ParamIndex& place) { return flat(place.flat).spec().trainable; };
  if (std::ranges::any_of(embedding_params_, trains)) return 0;
  int layer = 0;
  while (layer < layers() && std::ranges::none_of(layer_params(layer), trains)) ++layer;
  return layer;
}

double Model::training_flops(const nn::RowCounts& rows,
                             const std::function<double(const AttentionMask&)>& pairs) const {
  return training_flops(rows, pairs, {{0, layers()}}, /*head=*/true);
}

double Model::training_flops(const nn::RowCounts& rows, const std::function<double(const AttentionMask&)>& pairs,
                             const std::vector<LayerRange>& ranges, bool head) const {
  const int first = first_trained_layer();
  double forward = head ? head_.flops(rows) : 0.0, below = 0;
  const auto for_each_layer = [&](const auto& call) {
    for (const LayerRange& range : ranges) {
      for (int number = range.begin; number < range.end; ++number) call(number);
    }
  };
  for_each_layer([&](int number) {
    const auto mask = layer(number).attention_mask();
    (number < first ? below : forward) += layer(number).flops(rows, mask ? pairs(*mask) : 0.0);
  });
  // The GEMM of a matrix's gradient has as many FLOPs as its GEMM in forward.
  double frozen = 0;
  const auto subtract = [&](const ParamIndex& place, double share) {
    const nn::Param& param = flat(place.flat).params()[static_cast<std::size_t>(place.index)];
    const double rows_of = share * static_cast<double>(param.of_residual_rows ? rows.residual : rows.full);
    const bool matrix = param.shape.rank() == 2 && !flat(place.flat).spec().trainable;
    if (matrix) frozen += 2.0 * rows_of * static_cast<double>(param.elements());
  };
  for_each_layer([&](int number) {
    if (number < first) return;
    const std::optional<nn::MoeConfig>& moe = description_.blocks[static_cast<std::size_t>(block_of(number))].moe;
    for (const ParamIndex& place : layer_params(number)) {
      const nn::Param& param = flat(place.flat).params()[static_cast<std::size_t>(place.index)];
      const bool of_experts = moe && param.flat.domain == Domain::expert;
      const double share =
          of_experts ? static_cast<double>(moe->top_k) / static_cast<double>(moe->local_experts()) : 1.0;
      subtract(place, share);
    }
  });
  if (head) {
    for (const ParamIndex& place : head_params_) subtract(place, 1.0);
  }
  return below + 3.0 * forward - frozen;
}

}  // namespace hawser::models
