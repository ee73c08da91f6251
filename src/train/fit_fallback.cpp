// A Linear that saturates FP8 again and again leaves it: the run is saved, opened again without it and resumed, in this
// process. So everything after it is planned and computed as if the recipe excluded the Linear.
#include <algorithm>

#include "base/cat.h"
#include "engine/does_not_fit.h"
#include "engine/memory_choice.h"
#include "engine/model_changes.h"
#include "engine/rank_sync.h"
#include "models/linear_names.h"
#include "train/fit_run.h"
#include "train/stored_fallbacks.h"

namespace hawser::train {

std::vector<engine::Fp8Fallback> stored_fallbacks(const plan::RunPlan& plan) {
  if (plan.recipe.precision.compute != ComputePrecision::fp8) return {};
  Problems ignored;
  try {
    const auto found = checkpoint::Checkpoint::latest(plan.files.checkpoints, ignored);
    if (found) return engine::run_state_of(found->metadata()).fp8_fallbacks;
  } catch (const UserError&) {
    // reported when it is loaded
  }
  return {};
}

std::vector<engine::Fp8Fallback> FitRun::resumed_fallbacks() const {
  if (!request_.resume) return {};
  const std::string state = engine::on_rank_zero(world_, [&] {
    return engine::to_json(engine::RunState{.fp8_fallbacks = stored_fallbacks(plan_), .recipe = "{}"});
  });
  return engine::run_state_of(state).fp8_fallbacks;
}

std::string FitRun::name_of(int layer, nn::Site site) const {
  const std::vector<std::string> modules = models::modules_at(*open_.model, layer, site);
  return cat("block ", open_.model->block_of(layer), "'s ",
             modules.empty() ? to_string(site) : models::joined(models::last_parts(modules)));
}

void FitRun::rebuild_model() {
  const engine::ModelChanges changes = engine::changes_of(plan_.recipe, rank(), engine::modules_of(fallbacks_));
  open_.model = std::make_unique<models::Model>(open_.model->whole(), changes.spec_of, changes.share);
}

void FitRun::reopen(std::vector<engine::Fp8Fallback> fallbacks) {
  fallbacks_ = std::move(fallbacks);
  refused_step_ = -1;  // the new session refuses it again
  saver_->close_session();
  session_.reset();
  // A rank's memory is free when the others have closed their mappings of it as well. Those that count free memory for
  // the next session must not begin before.
  if (world_ != nullptr) world_->barrier();
  rebuild_model();
  plan_.recipe.memory = request_.plan.recipe.memory;  // auto chooses again
  lay_out();
  engine::expect_forecast_fits(plan_, *open_.model, device_->kind(), world_, request_.ranks_here);
  open_session();
  if (watch_) watch_->set_memory(memory_facts(*session_));
  saver_->open_session(*session_);
  if (!frozen_weights_.empty()) load_initial();
}

void FitRun::fall_back(bool saved) {
  constexpr std::int64_t kWindow = engine::SaturationHistory::kWindow;
  while (const auto linear = saturations_.due(plan_.recipe.precision.fp8.fallback_after)) {
    const std::int64_t step = done_ + 1, times = saturations_.count(*linear);
    if (!saved) {
      phase(cat("saving step ", done_), "saving");
      saver_->save_again(done_);
      saved = true;
    }
    phase(cat("planning step ", step));
    const std::string name = name_of(linear->layer, linear->site);
    const std::int64_t window = std::min(kWindow, step);
    const std::vector<engine::Fp8Fallback> before = fallbacks_;
    std::vector<engine::Fp8Fallback> after = before;
    after.push_back({step, models::modules_at(*open_.model, linear->layer, linear->site)});
    bool fits = true;
    try {
      reopen(after);
      log(cat("hawser: step ", step, ": ", name, " falls back to ", to_string(plan_.layout.compute),
              ": its inputs or gradients saturated FP8 in ", times, " of ", window, " steps"));
    } catch (const engine::DoesNotFit& error) {  // on every rank, with no session and no memory reserved
      fits = false;
      reopen(before);
      const std::string what = error.what();
      log(cat("hawser: step ", step, ": ", name, " stays in FP8 although its inputs or gradients saturated FP8 in ",
              times, " of ", window, " steps: ", what.substr(0, what.find('\n'))));
    }
    const std::optional<checkpoint::Checkpoint> checkpoint = load_checkpoint();
    if (!checkpoint || checkpoint->step() != step - 1) {
      throw UserError(Problem{.file = plan_.files.checkpoints,
                              .what = cat("the checkpoint of step ", step - 1, " was removed during the run")});
    }
    set_progress(engine::run_state_of(checkpoint->metadata()));
    if (!fits) {
      // A resumed run does not try again, as this one does not, whatever memory it has.
      phase(cat("saving step ", done_), "saving");
      saturations_.keep_in_fp8(*linear);
      saver_->save_again(done_);
    }
    last_end_ = std::chrono::steady_clock::now();
  }
}

}  // namespace hawser::train
