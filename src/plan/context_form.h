// `ContextForm`: how the ranks that share a sequence exchange keys and values for attention, and which forms a model
// allows.
//
//   recipe: parallel: {context_parallel_degree: 8, context_comm: hybrid}; a model of 32 heads and 4 key-value heads
//
//   context_form(recipe, description)      // hybrid with context_heads 4: two groups of four ranks, four rings of two
//   context_forms(recipe, description)     // all_gather, ring, all_to_all, and this hybrid
//
// all_gather  each rank gathers the keys of all (parallel/context/all_gather_exchange.h)
// ring        keys move from rank to rank (ring_exchange.h)
// all_to_all  each rank gets some of the heads of all rows (all_to_all_exchange.h)
// hybrid      groups of `context_heads` consecutive ranks exchange heads, and keys move from group to group in a ring
#pragma once

#include <string>
#include <vector>

#include "config/recipe.h"
#include "models/model.h"
#include "plan/layout.h"

namespace hawser::plan {

struct ContextForm {
  ContextComm comm = ContextComm::all_gather;
  int context_heads = 1;  // ranks of a group (comm::MeshSizes::context_heads)

  bool ring_attention() const { return comm == ContextComm::ring || comm == ContextComm::hybrid; }
  bool operator==(const ContextForm&) const = default;
};

// The form that the keys name. auto is as all_gather: Forecaster::context_forms() compares the forms. With one context
// rank it is all_gather. The keys have passed check_context_form. `whole`: the model of all ranks.
ContextForm context_form(const ParallelRecipe& recipe, const models::ModelDescription& whole);

// The forms that the model allows with the degrees of the recipe, all_gather first; of hybrid the one with the default
// degree: the largest that divides the key-value heads, keeps a group on a host, and leaves a ring of at least two.
std::vector<ContextForm> context_forms(const ParallelRecipe& recipe, const models::ModelDescription& whole);

// The keys that name a form.
void set_context_form(ParallelRecipe& recipe, const ContextForm& form);

// Problems of groups that the recipe's form has not, or that do not divide the context ranks, or the attention heads of
// a tensor rank; each with the nearest degrees that do. With one context rank there are none.
void check_context_form(const Recipe& recipe, const models::ModelDescription& whole, Problems& problems);

// The form of a mesh.
ContextForm form_of(const Parallelism& parallelism);

// "all_gather", "hybrid of 4": as parallel.context_comm, and the ranks of a group.
std::string context_text(const ContextForm& form);

// " by ring", to follow the number of context ranks; "" for all_gather.
std::string by_form(const Parallelism& parallelism);

}  // namespace hawser::plan
