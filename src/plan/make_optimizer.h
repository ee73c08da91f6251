// `make_optimizer`: the optimizer of a recipe's keys `optimizer`.
#pragma once

#include <memory>

#include "config/recipe.h"
#include "models/model.h"
#include "optim/optimizer.h"

namespace hawser::plan {

std::shared_ptr<const optim::Optimizer> make_optimizer(const OptimizerRecipe& recipe);

// `spec_of` with what the optimizer needs of trained flats: FlatSpec::stored, elementwise and grain.
nn::FlatSpecOf with_optimizer(nn::FlatSpecOf spec_of, const OptimizerRecipe& recipe);

// UserError if a rank's slice of a tensor, or a parameter of several tensors, cuts a block of elements that share a
// value of the optimizer's state.
void check_state_blocks(const Recipe& recipe, const models::Model& model, const optim::Optimizer& optimizer);

// Whether optimizer.state_dtype changes the state: the kind has moments, and not in a format of its own.
bool has_state_dtype(const OptimizerRecipe& recipe);

// "lion, state in bf16, weights in bf16": what is not that of a default recipe; "" for AdamW in float32.
std::string optimizer_text(const OptimizerRecipe& recipe);

// optimizer.kind as recipes have it.
const char* kind_name(OptimizerKind kind);
const char* dtype_name(StateDType dtype);

}  // namespace hawser::plan
