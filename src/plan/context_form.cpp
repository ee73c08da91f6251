#include "plan/context_form.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "config/config.h"

namespace hawser::plan {
namespace {

constexpr int kRanksOfAHost = 8;  // GPUs with fast links between them

// The heads of a tensor rank in each block.
struct Heads {
  std::int64_t query = 0, key_value = 0;
};

std::vector<Heads> heads_of(const ParallelRecipe& recipe, const models::ModelDescription& whole) {
  const bool sliced = std::ranges::count(recipe.tensor_parallel_modules, "attention") > 0;
  const std::int64_t tensor = sliced ? recipe.tensor_parallel_degree : 1;
  std::vector<Heads> out;
  for (const models::BlockDescription& block : whole.blocks) {
    // More tensor ranks than key-value heads have copies of one each.
    out.push_back({block.attention.heads / tensor, std::max<std::int64_t>(1, block.attention.kv_heads / tensor)});
  }
  return out;
}

bool divides(std::int64_t ranks, const Heads& heads) {
  const std::int64_t kv = heads.key_value;
  return heads.query % ranks == 0 && (kv % ranks == 0 || ranks % kv == 0);
}

bool divides_all(std::int64_t ranks, const std::vector<Heads>& blocks) {
  return std::ranges::all_of(blocks, [&](const Heads& heads) { return divides(ranks, heads); });
}

// Of hybrid; 1: there is none.
int default_degree(const ParallelRecipe& recipe, const std::vector<Heads>& blocks) {
  const int context = recipe.context_parallel_degree;
  for (int degree = std::min(context / 2, kRanksOfAHost / recipe.tensor_parallel_degree); degree > 1; --degree) {
    const bool has_keys =
        std::ranges::all_of(blocks, [&](const Heads& heads) { return heads.key_value % degree == 0; });
    if (context % degree == 0 && has_keys && divides_all(degree, blocks)) return degree;
  }
  return 1;
}

int hybrid_degree(const ParallelRecipe& recipe, const std::vector<Heads>& blocks) {
  return recipe.context_all_to_all_degree > 0 ? recipe.context_all_to_all_degree : default_degree(recipe, blocks);
}

}  // namespace

ContextForm context_form(const ParallelRecipe& recipe, const models::ModelDescription& whole) {
  if (recipe.context_parallel_degree == 1) return {};
  switch (recipe.context_comm) {
    case ContextComm::all_to_all:
      return {ContextComm::all_to_all, recipe.context_parallel_degree};
    case ContextComm::hybrid:
      return {ContextComm::hybrid, hybrid_degree(recipe, heads_of(recipe, whole))};
    case ContextComm::ring:
      return {ContextComm::ring, 1};
    case ContextComm::all_gather:
    case ContextComm::automatic:
      break;
  }
  return {};
}

std::vector<ContextForm> context_forms(const ParallelRecipe& recipe, const models::ModelDescription& whole) {
  std::vector<ContextForm> out{{ContextComm::all_gather}};
  const int context = recipe.context_parallel_degree;
  if (context == 1) return out;
  const std::vector<Heads> blocks = heads_of(recipe, whole);
  out.push_back({ContextComm::ring});
  if (divides_all(context, blocks)) out.push_back({ContextComm::all_to_all, context});
  const int degree = hybrid_degree(recipe, blocks);
  if (degree > 1 && degree < context && context % degree == 0 && divides_all(degree, blocks))
    out.push_back({ContextComm::hybrid, degree});
  return out;
}

void set_context_form(ParallelRecipe& recipe, const ContextForm& form) {
  recipe.context_comm = form.comm;
  recipe.context_all_to_all_degree = form.comm == ContextComm::hybrid ? form.context_heads : 0;
}

namespace {

// context_all_to_all_degree against the other two keys.
std::optional<Problem> wrong_group(const Recipe& recipe) {
  const ParallelRecipe& parallel = recipe.parallel;
  const int group = parallel.context_all_to_all_degree, context = parallel.context_parallel_degree;
  const char* key = "parallel.context_all_to_all_degree";
  Problem problem = problem_at(recipe, key);
  problem.got = cat(group);
  if (parallel.context_comm != ContextComm::hybrid && parallel.context_comm != ContextComm::automatic) {
    problem.what = "only hybrid context parallelism has groups";
    problem.expected = "no group, or parallel.context_comm: hybrid";
    problem.hint = cat("removing ", key);
    return problem;
  }
  if (group > 1 && group < context && context % group == 0) return std::nullopt;
  std::vector<std::string> degrees;
  for (int degree = 2; degree < context; ++degree) {
    if (context % degree == 0) degrees.push_back(cat(degree));
  }
  problem.what = "groups do not divide the context ranks";
  problem.expected = cat("a divisor of context_parallel_degree ", context, ", at least 2 and less than all");
  problem.hint =
      degrees.empty() ? "parallel.context_comm: all_to_all, or ring" : cat(key, ": ", joined(degrees, " or "));
  return problem;
}

}  // namespace

void check_context_form(const Recipe& recipe, const models::ModelDescription& whole, Problems& problems) {
  const ParallelRecipe& parallel = recipe.parallel;
  const int context = parallel.context_parallel_degree;
  if (context == 1) return;  // the other keys have no effect
  if (parallel.context_all_to_all_degree > 0) {
    if (std::optional<Problem> problem = wrong_group(recipe)) return problems.add(std::move(*problem));
  }
  const bool all = parallel.context_comm == ContextComm::all_to_all,
             hybrid = parallel.context_comm == ContextComm::hybrid;
  if (!all && !hybrid) return;
  const std::vector<Heads> blocks = heads_of(parallel, whole);
  const int degree = all ? context : hybrid_degree(parallel, blocks);
  const char* key = all                                      ? "parallel.context_parallel_degree"
                    : parallel.context_all_to_all_degree > 0 ? "parallel.context_all_to_all_degree"
                                                             : "parallel.context_comm";
  Problem problem = problem_at(recipe, key);
  if (degree == 1) {
    std::vector<std::string> degrees;  // with copies of key-value heads, or on several hosts
    for (int other = 2; other < context; ++other) {
      if (context % other == 0 && divides_all(other, blocks)) degrees.push_back(cat(other));
    }
    problem.what = "no group of context ranks divides the key-value heads";
    problem.expected = cat("a common divisor of ", context, " context ranks and ",
                           plural(blocks.front().key_value, "key-value head"), " of a rank");
    problem.got = "hybrid";
    problem.hint =
        cat(degrees.empty() ? "" : cat("parallel.context_all_to_all_degree: ", joined(degrees, " or "), ", or "),
            "parallel.context_comm: ring");
    return problems.add(std::move(problem));
  }
  const auto wrong = std::ranges::find_if(blocks, [&](const Heads& heads) { return !divides(degree, heads); });
  if (wrong == blocks.end()) return;
  problem.what = "an all-to-all over ranks that do not divide the attention heads";
  problem.expected = cat("a divisor of ", plural(wrong->query, "head"), " that divides ",
                         plural(wrong->key_value, "key-value head"), " or is a multiple");
  problem.got = cat(degree);
  const auto allowed = [&](int other) { return divides_all(other, blocks) && (all || context % other == 0); };
  const int most = all ? static_cast<int>(wrong->query) : context / 2;
  int below = degree - 1, above = degree + 1;
  while (below > 1 && !allowed(below)) --below;
  while (above <= most && !allowed(above)) ++above;
  std::vector<std::string> nearest;
  if (below > 1) nearest.push_back(cat(below));
  if (above <= most) nearest.push_back(cat(above));
  problem.hint =
      cat(nearest.empty() ? "" : cat(key, ": ", joined(nearest, " or "), ", or "), "parallel.context_comm: ring");
  problems.add(std::move(problem));
}

ContextForm form_of(const Parallelism& parallelism) {
  const comm::MeshSizes& mesh = parallelism.mesh;
  const ContextComm of_heads = mesh.context_heads == mesh.context ? ContextComm::all_to_all : ContextComm::hybrid;
  if (mesh.context > 1 && mesh.context_heads > 1) return {of_heads, mesh.context_heads};
  return {parallelism.ring_attention ? ContextComm::ring : ContextComm::all_gather, 1};
}

std::string context_text(const ContextForm& form) {
  switch (form.comm) {
    case ContextComm::all_gather:
      return "all_gather";
    case ContextComm::ring:
      return "ring";
    case ContextComm::all_to_all:
      return "all_to_all";
    case ContextComm::hybrid:
      return cat("hybrid of ", form.context_heads);
    case ContextComm::automatic:
      break;
  }
  return "auto";
}

std::string by_form(const Parallelism& parallelism) {
  const ContextForm form = form_of(parallelism);
  return form.comm == ContextComm::all_gather ? "" : " by " + context_text(form);
}

}  // namespace hawser::plan
