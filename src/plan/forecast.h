// Forecast of memory and speed of a recipe on the ranks of a target, and the check that it fits.
//
//   plan::Forecaster forecaster(recipe, model, world, plan::load_target("h200"), plan::this_machine(), threads);
//   plan::Forecast f = forecaster.forecast();
//   if (!f.fits()) throw ...                     // or in one call, before anything is allocated:
//   plan::check_capacity(recipe, model, world, threads);
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/recipe.h"
#include "models/model.h"
#include "plan/candidate.h"
#include "plan/context_form.h"
#include "plan/cost_model.h"
#include "plan/host_memory.h"
#include "plan/pipeline_balance.h"
#include "plan/plan.h"
#include "plan/policy_candidates.h"
#include "plan/target.h"

namespace hawser::plan {

// Consecutive ranks that need and do the same, those of a pipeline stage: they are planned once.
struct RankClass {
  int first = 0, last = 0;   // inclusive
  std::string text() const;  // "ranks 0-7", "rank 0"
};
std::vector<RankClass> rank_classes(const comm::MeshSizes& mesh);  // by stage

// Memory and work of each rank of a pipeline stage.
struct StageForecast {
  Costs costs;
  std::int64_t overhead = 0;  // context and communicators
  StepTime time;              // until the rank's last work of the step has ended
  double computing() const;   // without communication and transfers
};

// A form of context parallelism: what a step of it is predicted to take, and a rank to need. Estimates: with few
// blocks, and of few micro-batches.
struct ContextForecast {
  ContextForm form;
  double seconds = 0;
  std::int64_t needed = 0;
  bool fits = true;
};

struct Forecast {
  Candidate candidate;  // what is planned
  Layout layout;
  std::vector<StageForecast> stages;  // without pipeline parallelism one
  std::int64_t capacity = 0;          // of each rank
  HostMemory host;                    // of each machine
  double seconds = 0;                 // of a step: stages wait for each other
  double tokens_per_second = 0;       // of all ranks
  double planning_seconds = 0;
  bool placed = false;  // offsets were computed: needed() is not an estimate
  bool chosen = false;  // the policies of `layout` are the choice for memory.activation_checkpointing: auto
  // With parallel.context_comm: auto, those that the model allows: the choice, then the others, fastest first.
  std::vector<ContextForecast> context_forms;
  // With parallel.pipeline_partition: auto: by how much longer the passes of a step are predicted to take with model
  // chunks of equally many blocks, as a fraction.
  std::optional<double> equal_cuts = {};

  // The policy of each block.
  std::vector<Checkpointing> checkpointing() const;
  // With memory.optimizer_offload: auto, the flats of each pipeline stage whose state is in host memory.
  int offloaded_flats() const { return candidate.state_flats.value_or(0); }
  // On the CPU, pinned host memory is memory of the device.
  std::int64_t needed(const StageForecast& stage) const {
    return stage.costs.total_bytes + stage.overhead + (layout.device == DeviceKind::cpu ? stage.costs.pinned_bytes : 0);
  }
  // Fraction of a step in which a stage waits for the others, the mean of the stages; 0 with one stage.
  double bubble() const;                 // bubble_of
  int largest_stage() const;             // the first of those that need the most memory
  std::string of_largest_stage() const;  // " of pipeline stage 3"; empty if there is one
  const StageForecast& largest() const { return stages[static_cast<std::size_t>(largest_stage())]; }
  std::int64_t needed() const { return needed(largest()); }  // by a rank of the largest stage
  std::int64_t host_needed() const;                          // by the ranks of a machine together (HostMemory::needed)
  bool host_fits() const { return host.capacity == 0 || host_needed() <= host.capacity; }
  bool fits() const { return needed() <= capacity && host_fits(); }
};

// Fraction of a rank's capacity that memory.activation_checkpointing: auto leaves free for what the plan cannot know:
// the sizes of context and communicators are estimates, and other processes may use memory of the device.
constexpr double kAutoMargin = 0.01;

// "ring; predicted step times of others: all_gather +0.4%, all_to_all +2.1%, does not fit": Forecast::context_forms.
std::string context_choice_text(const std::vector<ContextForecast>& forms);

// A change of a recipe: "memory.activation_checkpointing=full".
struct Change {
  std::string key, value;
  std::string flag() const;  // a command-line option, quoted for a shell if necessary
};

// A suggestion: settings that fit and keep sequence length and global batch.
struct Suggestion {
  std::vector<Change> changes;
  Recipe recipe;        // with the changes, as far as it has keys for them
  Candidate candidate;  // with all of them
  std::int64_t needed = 0;
  double tokens_per_second = 0;
  std::string flags() const;  // "--set A=B --set C=D"
};

// A number of ranks on which a recipe fits, and the changes that it needs there.
struct FittingRanks {
  int ranks = 0;
  std::vector<Change> changes;  // a global batch that divides over the ranks; all state sharded, checkpointing auto
  std::int64_t needed = 0;
  std::string flags() const;  // "--ranks 16 --set train.global_batch_size=16"
};

// What to change if a recipe does not fit.
struct Alternatives {
  std::vector<Suggestion> suggestions;  // on as many ranks
  std::optional<FittingRanks> ranks;
  // If there are no suggestions: what a rank needs at least, by an estimate, and the changes for it; without changes
  // the bytes of weights and optimizer state alone, which are too many.
  std::optional<Suggestion> least = {};
  // If there are no suggestions: with moments in bf16 or 8 bits, or without optimizer.ema, the recipe fits.
  std::optional<Suggestion> smaller_state = {};
};

// Completes the choices of a recipe and a candidate before the layout is derived, by what no key says (tests).
using CompleteChoices = std::function<void(LayoutChoices&, const models::Model&)>;

// What the planner needs for choices that recipes have no keys for yet: tests fill it.
struct Choices {
  // How ranks divide the model. By default it is parallelism_of the recipe.
  std::function<Parallelism(const Recipe&, int world)> parallelism;
  CompleteChoices complete;  // by default it changes nothing
  // suggestions() only: other parallelisms over as many ranks. forecast() has that of `parallelism` and does not look
  // at these; to choose among parallelisms, compare the forecasts of one Candidate each, or of a Forecaster each. By
  // default there are none.
  std::function<std::vector<Parallelism>(const Recipe&, int world)> parallelisms;
  // The changes that name what `to` has and a recipe cannot say. Needed by suggestions of it.
  std::function<std::vector<Change>(const Candidate& to)> changes;
};

class Forecaster {
 public:
  // Borrows recipe and model, of any rank. The recipe has passed config's checks for `world` ranks. `threads`: per
  // rank, on the CPU.
  Forecaster(const Recipe& recipe, const models::Model& model, int world, Target target, Machine machine, int threads,
             CompleteChoices complete = {});
  Forecaster(const Recipe& recipe, const models::Model& model, int world, Target target, Machine machine, int threads,
             Choices choices);

  const Target& target() const { return target_; }
  double rate_scale() const;  // of the target's rates, for a rank (step_time)
  // What the recipe chooses; of memory.activation_checkpointing: auto, none.
  Candidate candidate() const { return candidate_of(recipe_); }

  // For memory.activation_checkpointing: auto, the forecast of the chosen policies: those of the fastest step that
  // needs at most 1 - kAutoMargin of the capacity, or, if none fits, those with the minimum memory. Equal arguments
  // give equal choices. For parallel.context_comm: auto, that of the fastest form that fits; for
  // parallel.pipeline_partition: auto, that of balanced cuts. A recipe of many micro-batches that clearly does not fit
  // is planned with the first of them: its memory may be a little too low. The plans of all pipeline stages are checked
  // together (check_plans), unless they are estimates.
  Forecast forecast() const;
  // The complete plan of a candidate on as many ranks, with everything else as in the recipe.
  Forecast forecast(const Candidate& candidate) const;
  // Up to `count` settings whose complete plans fit, fastest first; takes at most seconds. Empty if none was found.
  // Large plans of several stages are estimated.
  std::vector<Suggestion> suggestions(int count) const;
  // The first of twice, four times, ... as many ranks (powers of two) on which the recipe fits; first unchanged but for
  // the batch, then with all state sharded and checkpointing auto. None on a CPU whose ranks share its memory.
  std::optional<FittingRanks> fitting_ranks() const;
  std::optional<Suggestion> with_smaller_state() const;
  Alternatives alternatives() const;

 private:
  class Search;
  class Choice;
  enum class Cuts { chosen, equal };  // between stages, with parallel.pipeline_partition: auto
  Candidate candidate_of(const Recipe& recipe, Cuts cuts = Cuts::chosen) const;
  // The forms that the model allows with the recipe's degrees, fastest first. UserError if no step with one of them can
  // be planned.
  std::vector<ContextForecast> context_forms(const Recipe& recipe) const;
  // That of the first one that fits, or else of the one that needs the least memory.
  Forecast fastest_form() const;
  // The recipe with the form that is the fastest with its degrees of tensor and context parallelism: other settings
  // change hardly anything about that.
  Recipe with_context_form(const Recipe& recipe) const;
  // Cuts between pipeline stages that make a step the fastest, or with parallel.pipeline_optimize: memory the stage
  // with the most memory the smallest.
  struct FreeCuts {
    std::vector<int> blocks;  // as parallel.pipeline_partition
    double equal = 0;         // Forecast::equal_cuts
  };
  FreeCuts balanced_cuts(const Recipe& recipe, const Candidate& equal, bool within_capacity) const;
  FreeCuts cuts_of(const Recipe& recipe) const;
  // Estimates of a step with other cuts, from plans with two and three blocks in each model chunk (or one and two).
  struct FewBlocks {
    std::vector<StageMemory> memory;  // by stage
    double base = 0, per_block = 0;   // seconds of the step: base + per_block x the most blocks of a stage
    double needed(const models::PipelinePartition& partition) const;   // by the stage that needs the most
    double seconds(const models::PipelinePartition& partition) const;  // of the step
  };
  // With one policy in all blocks. None if the model has too few.
  std::optional<FewBlocks> few_blocks(const Recipe& recipe, const Candidate& candidate) const;
  // By stage. Empty if the model has too few blocks.
  std::vector<StageMemory> stage_memory(const Recipe& recipe, const Candidate& candidate) const;
  ModelTimes times_without_stages(const Recipe& recipe, const Candidate& candidate) const;
  Recipe with_partition(const Recipe& recipe) const;  // with those cuts, where they are free
  bool cuts_are_free(const Recipe& recipe) const;     // with several stages, and pipeline_partition: auto
  // The forecast, or, where a stage needs more than there is and the cuts are free, that of other cuts if they need
  // less.
  Forecast fitted(const Recipe& recipe, Forecast forecast) const;
  // memory.activation_offload, where auto is free: on GPUs.
  std::optional<bool> offload_of(const Recipe& recipe) const;
  // The forecast of the candidate: its policies chosen, if they are free. With memory.optimizer_offload: auto the state
  // of as few flats as let it fit is in host memory.
  Forecast with_offload(const Recipe& recipe, const Candidate& candidate) const;
  Forecast with_policies(const Recipe& recipe, const Candidate& candidate) const;
  // complete(), or of a step that does not fit the plan of its first micro-batches.
  Forecast planned(const Recipe& recipe, const Candidate& candidate) const;
  // Of the first rank.
  Layout layout_of(const Recipe& recipe, const Candidate& candidate) const;
  Layout layout_of(const Recipe& recipe, const Candidate& candidate, const models::Model& model) const;
  // The recipe with at most `micro_batches` micro-batches per step.
  Recipe shortened(const Recipe& recipe, const Candidate& candidate, int micro_batches) const;
  // The policies of a block that memory.activation_checkpointing: auto mixes (list_policy_candidates).
  std::vector<PolicyCandidate> policies_of(const Recipe& recipe, const Candidate& base) const;
  // Policies of the blocks; all else is that of `base`.
  Forecast choose(const Recipe& recipe, const Candidate& base) const;
  // Whether a step has many passes of blocks. Then its first micro-batches are planned in place of all: further ones
  // need hardly more memory.
  bool extrapolates(const Recipe& recipe, const Candidate& candidate) const;
  // The complete plan, or that of the first micro-batches of a step that extrapolates().
  Forecast complete(const Recipe& recipe, const Candidate& candidate) const;
  // Several stages whose plan takes a good part of a second.
  bool is_large(const Recipe& recipe, const Candidate& candidate) const;
  Forecaster with_estimates() const;          // complete() estimates large plans
  bool surely_fits(const Forecast& f) const;  // with offsets, if it is an estimate
  // An estimate of few blocks is not clearly too large; with checkpointing auto, that of the least memory.
  bool may_fit(const Recipe& recipe, const Candidate& candidate) const;
  static constexpr double kPlaced = 0.005;  // what offsets need more than an estimate, a fraction of the capacity
  // Two short steps from which a long one is extrapolated: further micro-batches take as long as those by which the two
  // differ. Those of 1F1B do soon after the first stage has as many in flight as it ever has. With other schedules they
  // do after two periods P, and only P of them: 2 P + R and 3 P + R, where R is the rest of all micro-batches.
  struct ShortSteps {
    int first, more;  // micro-batches
  };
  ShortSteps short_steps(const Recipe& recipe, const Candidate& candidate) const;
  // A forecast from the plans of the two. Device memory is that of the first.
  Forecast extrapolated(const Recipe& recipe, const Candidate& candidate, program::Placing placing) const;
  // With the first `blocks` blocks of the model. Does not compute offsets if the estimate is above `max_needed`; then
  // needed() is the estimate.
  Forecast forecast(const Recipe& recipe, const Candidate& candidate, int blocks, program::Placing placing,
                    std::int64_t max_needed = std::numeric_limits<std::int64_t>::max()) const;
  Forecast forecast(const Recipe& recipe, const Candidate& candidate, program::Placing placing,
                    std::int64_t max_needed = std::numeric_limits<std::int64_t>::max()) const {
    return forecast(recipe, candidate, model_.blocks(), placing, max_needed);
  }

  // Memory and seconds of a step, estimated with few blocks and a few micro-batches: both grow linearly with the number
  // of blocks, and micro-batches after the second period take as long as these.
  struct Sketch {
    double needed = 0, seconds = 0;
  };
  static constexpr double kSlack = 1.03;  // a sketch may be above what fits by this factor
  Sketch sketch(const Recipe& recipe, const Candidate& candidate) const;
  Sketch sketch_of_stages(const Recipe& recipe, const Candidate& candidate) const;

  static int stages(const Candidate& candidate) { return candidate.parallelism.mesh.pipeline; }
  // Micro-batches after which a schedule repeats itself: a multiple of the stages, and at least those in flight. If a
  // longer step has more in flight, as with GPipe, all of the step.
  int period(const Recipe& recipe, const Candidate& candidate) const;
  // Further micro-batches need hardly more memory.
  int searched_micro_batches(const Recipe& recipe, const Candidate& candidate) const {
    return 2 * period(recipe, candidate);
  }

  const Recipe& recipe_;
  const models::Model& model_;  // of a rank of the run
  RankModels models_;
  mutable std::map<std::pair<int, int>, ContextForm> context_choices_;  // by tensor and context degree
  mutable std::map<std::string, FreeCuts> cuts_;                        // by the keys that they depend on
  int world_;
  Target target_;
  Machine machine_;
  int threads_;
  bool evaluates_;
  std::int64_t capacity_;
  Choices choices_;
  bool estimates_ = false;
};

constexpr int kSuggestions = 3;

// The message about a recipe that does not fit, in one line: needed memory, of a rank or of a machine's host, and
// available memory.
std::string rejection(const Recipe& recipe, const Forecast& forecast);
// The same, and in further lines what to change.
std::string rejection(const Recipe& recipe, const Forecast& forecast, const Alternatives& alternatives);

// Throws Error(ExitCode::does_not_fit) with rejection() if the recipe needs more than a rank may use, or its ranks more
// than the host memory of their machine. Allocates little and does not communicate: every rank may call it, or the
// process that starts them.
void check_capacity(const Recipe& recipe, const models::Model& model, int world, int threads,
                    const Machine& machine = this_machine(), const std::string& target = "cpu");

// The same for a session that does not train. Makes no suggestions; `hint` is the message's hint.
void check_capacity(const Recipe& recipe, const models::Model& model, const Layout& layout, step::Purpose purpose,
                    const std::string& hint, const Machine& machine = this_machine(),
                    const std::string& target = "cpu");

// The same for a plan made elsewhere: `needed` bytes of a rank, including overhead_of the target. Host memory is not
// checked.
void check_capacity(const Recipe& recipe, std::int64_t needed, int world, const std::string& hint,
                    const Machine& machine = this_machine(), const std::string& target = "cpu");

}  // namespace hawser::plan
