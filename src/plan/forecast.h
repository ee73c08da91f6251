// What a recipe will need and how fast it will be on a number of ranks of a target; and the check that it fits.
//
//   plan::Forecaster forecaster(recipe, model, world, plan::load_target("h200"), plan::this_machine(), threads);
//   plan::Forecast f = forecaster.forecast();
//   if (!f.fits()) throw ...                     // or, all in one, before anything is allocated:
//   plan::check_capacity(recipe, model, world, threads);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "models/model.h"
#include "plan/cost_model.h"
#include "plan/plan.h"
#include "plan/target.h"

namespace hawser::plan {

// Ranks that need the same: planned once.
struct RankClass {
  int first = 0, last = 0;   // every rank between
  std::string text() const;  // "ranks 0-7", "rank 0"
};
std::vector<RankClass> rank_classes(const MeshSizes& mesh);

struct Forecast {
  Layout layout;
  Costs costs;                // of one rank
  std::int64_t overhead = 0;  // context and communicators
  std::int64_t capacity = 0;
  StepTime time;
  double tokens_per_second = 0;  // of all ranks
  double planning_seconds = 0;
  bool chosen = false;  // the policies of layout are those that memory.activation_checkpointing: auto came to

  // The policy of each block.
  std::vector<Checkpointing> checkpointing() const;
  std::int64_t needed() const { return costs.total_bytes + overhead; }
  bool fits() const { return needed() <= capacity; }
};

// What memory.activation_checkpointing: auto leaves free of a rank's capacity, for what the plan cannot know: the
// context and the communicators are estimates, and another process may hold some of a device.
constexpr double kAutoMargin = 0.01;

// A change of a recipe: "memory.activation_checkpointing=full".
struct Change {
  std::string key, value;
  std::string flag() const;  // as it is typed, quoted for a shell where it must be
};

// Settings that keep sequence length and global batch.
struct Suggestion {
  std::vector<Change> changes;
  Recipe recipe;  // with the changes
  std::int64_t needed = 0;
  double tokens_per_second = 0;
  std::string flags() const;  // "--set A=B --set C=D"
};

class Forecaster {
 public:
  // Borrows recipe and model. The recipe has passed config's checks for `world` ranks. threads: of a rank on the CPU.
  Forecaster(const Recipe& recipe, const models::Model& model, int world, Target target, Machine machine, int threads);

  const Target& target() const { return target_; }
  std::int64_t capacity() const { return capacity_; }

  // Of a recipe that says memory.activation_checkpointing: auto, the forecast of what is chosen: the policies of the
  // blocks with which a step is fastest and needs at most 1 - kAutoMargin of the capacity; where there are none, those
  // with which it needs least. Equal arguments give equal choices.
  Forecast forecast() const;
  // At most `count` settings whose own plans fit, fastest first; takes seconds at most. Empty: none was found.
  std::vector<Suggestion> suggestions(int count) const;

 private:
  class Search;
  class Choice;
  Layout layout_of(const Recipe& recipe) const;
  // The recipe with a step of at most so many micro-batches.
  Recipe shortened(const Recipe& recipe, int micro_batches) const;
  Forecast choose(const Recipe& recipe) const;
  // auto counts as none here.
  Forecast forecast(const Recipe& recipe, const models::Model& model, program::Placing placing) const;

  const Recipe& recipe_;
  const models::Model& model_;
  int world_;
  Target target_;
  Machine machine_;
  int threads_;
  std::int64_t capacity_;
};

constexpr int kSuggestions = 3;

// The lines about a recipe that does not fit: what is needed, what there is, and the offers.
std::string rejection(const Recipe& recipe, const Forecast& forecast, const std::vector<Suggestion>& suggestions);

// Throws Error(ExitCode::does_not_fit) with refusal() where the recipe needs more than a rank may use. Takes no memory
// to speak of and sends no message: every rank, or the process that starts them, may call it.
void check_capacity(const Recipe& recipe, const models::Model& model, int world, int threads,
                    const Machine& machine = this_machine(), const std::string& target = "cpu");

// The same for a session that does not train and offers nothing: `hint` says what to try.
void check_capacity(const Recipe& recipe, const models::Model& model, const Layout& layout, step::Purpose purpose,
                    const std::string& hint, const Machine& machine = this_machine(),
                    const std::string& target = "cpu");

// The same for what was planned elsewhere: `needed` bytes of a rank, with overhead_of the target.
void check_capacity(const Recipe& recipe, std::int64_t needed, int world, const std::string& hint,
                    const Machine& machine = this_machine(), const std::string& target = "cpu");

}  // namespace hawser::plan
