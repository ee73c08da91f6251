// `changes_of`: what a recipe makes of the model that it names, and the check of the recipe against this model.
#pragma once

#include "config/recipe.h"
#include "engine/open_model.h"
#include "engine/run_state.h"

namespace hawser::engine {

// A list of memory.activation_checkpointing: adds a problem if it has not one entry for each block (check_blocks).
// The keys `moe`: coefficients of the losses that routers add. Adds a problem if one is set for a model without
// experts.
// The keys `adapter`: with_adapters. Adds a problem for each target that the model does not have.
// adapter.base: nf4: with_nf4_base.
// train.freeze: with_frozen.
// optimizer.groups: nn::FlatSpec::group is the number of a group, from 1. Adds the problems of models::check_groups.
// optimizer.kind and optimizer.master_dtype: plan::with_optimizer.
// The keys `precision.fp8`, with precision.compute: fp8: which weights are gathered in FP8, frozen ones included. Adds
// a problem for each block and each Linear that the model has not, and with DoRA. `fallbacks`: modules of Linears that
// have fallen back from FP8 (engine/fp8_fallback.h).
// The keys `parallel` of tensor parallelism: on_rank.
ModelChanges changes_of(const Recipe& recipe, int rank = 0, const std::vector<std::string>& fallbacks = {});

// `changes`, and what a rank of the recipe's mesh has of the model.
ModelChanges on_rank(ModelChanges changes, const Recipe& recipe, int rank);

// A note that the recipe's adapters leave the model's experts as they are. It is "" if they do not, or
// if the model has none.
std::string experts_without_adapter(const Recipe& recipe, const models::Model& model);

// A warning about settings of precision.fp8 that have no effect: some are given and precision.compute is not fp8, no
// Linear of the model is in FP8, or entries of exclude name Linears of other blocks than those of layers alone. "":
// there are none. `model`: with changes_of(recipe).
std::string useless_fp8(const Recipe& recipe, const models::Model& model);

// A model as `eval` computes it: the load-balancing loss counts if the model's own loss includes it
// (nn::MoeConfig::reported), with the coefficient of its config, and no other loss of routers does.
ModelChanges changes_for_evaluation();

// `changes`, and adapters, beside which all weights but their modules_to_save are frozen (models::train_lora). `place`:
// of messages.
ModelChanges with_adapters(const ModelChanges& changes, const std::vector<models::LoraConfig>& adapters,
                           const models::LoraPlace& place);

// `changes`, and frozen weights of Linears and experts of blocks in NF4 (nn::with_nf4_weights), as the keys
// adapter.base and adapter.double_quantization say; unchanged if the base is another. Adds a problem if one has rows of
// a length that blocks do not divide. `place`: of this problem.
ModelChanges with_nf4_base(const ModelChanges& changes, const AdapterRecipe& adapter, const Problem& place);
// Where a recipe says that its base is in NF4: adapter.base or adapter.kind.
Problem place_of_base(const Recipe& recipe);

// `changes` of a model that does not train: ModelChanges::base. `stored`: the recipe of its checkpoint, or "". `adapted`:
// it has adapters, or parameters that were frozen; otherwise all weights are the base.
ModelChanges with_stored_base(const ModelChanges& changes, const std::string& stored, bool adapted);

// `changes`, and these parameters frozen (models::freeze). Adds a problem for each entry that selects nothing or a part
// of a parameter. `place`: of messages.
ModelChanges with_frozen(const ModelChanges& changes, const std::vector<std::string>& entries, const Problem& place);

// Lists what the losses that routers add depend on, where it differs from the checkpoint's run:
// "moe.aux_loss_coefficient was 0.02 and is 0", and if the loss is added, "micro-batches of a step were 4 and are 2";
// "" if nothing does. `now`: with the changes of the run's recipe. `micro_batches`: of a step.
std::string router_changes(const RunState& state, const models::ModelDescription& now, std::int64_t micro_batches);

// The adapter that a recipe trains; nullopt: none.
std::optional<models::LoraConfig> lora_of(const AdapterRecipe& adapter);
// The same of a checkpoint's recipe (OpenModel::recipe). UserError if this version rejects one of its keys.
std::optional<models::LoraConfig> lora_of(const std::string& recipe_json);
// train.freeze of a checkpoint's recipe.
std::vector<std::string> frozen_of(const std::string& recipe_json);

}  // namespace hawser::engine
