#include "train/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/clock.h"
#include "base/paths.h"
#include "base/units.h"
#include "config/config.h"
#include "engine/evaluate_loss.h"
#include "engine/feed.h"
#include "engine/gradient_norms.h"
#include "engine/rank_sync.h"
#include "models/weights.h"
#include "ops/gemm/gemm.h"
#include "plan/forecast.h"
#include "train/fit_run.h"
#include "train/step_outcome.h"

namespace hawser::train {

using Clock = std::chrono::steady_clock;

FitResult FitRun::run() {
  open();
  resume();
  train();
  finish();
  return result_;
}

void FitRun::end_progress() {
  if (watch_) watch_->finish(report::Ending::failed);
  if (progress_) progress_->finish();
}

void FitRun::phase(const std::string& text, const char* kind) {
  stage_ = text;
  phases_.enter(kind, text);
  if (world_ != nullptr) world_->set_phase(text);
  if (progress_ && std::string_view(kind) == kStarting) progress_->stage(text);
}

void FitRun::log(const std::string& line) {
  if (progress_) progress_->message(line);
}

void FitRun::remark(const std::string& line) {
  log("hawser: " + line);
  result_.notes.push_back(line);
}

void FitRun::finish_evaluation() {
  report::StepMetrics metrics = *unfinished_evaluation_;
  metrics.validation_loss = evaluate();
  if (watch_) watch_->step(metrics);  // its line was left out when the files were opened
  if (result_.interrupted) return;
  unfinished_evaluation_.reset();
  phase(cat("saving step ", done_), "saving");
  saver_->save_again(done_);
}

void FitRun::train() {
  if (unfinished_evaluation_) {
    finish_evaluation();
    if (result_.interrupted) return;
    if (done_ >= total_steps()) return;
  }
  if (nothing_to_do_) {
    log(cat("nothing to do: ", done_, " of ", total_steps(), " steps are done",
            done_ > total_steps() ? "; a run that was extended needs its larger train.steps or train.epochs again"
                                  : "; a larger train.steps or train.epochs extends the run"));
    evaluate();
    return;
  }
  fall_back(true);
  std::optional<batches::Prefetcher> prefetcher(std::in_place, loader_, done_, total_steps());
  if (done_ == 0) {
    result_.initial_validation_loss = evaluate();
    if (result_.interrupted) return;
  }
  last_end_ = Clock::now();
  while (done_ < total_steps() && !stops_early()) {
    if (asked_to_stop()) {
      result_.interrupted = true;
      announce_stop();
      while (!in_flight_.empty()) retire(false);
      rewind();
      return;
    }
    const std::int64_t step = ++done_;
    in_flight_.push_back(enqueue(step, *prefetcher));
    const bool last = step == total_steps();
    const bool evaluate = !validation_.empty() && (last || (plan_.evaluate_every && on_beat(*plan_.evaluate_every)));
    const bool due = !last && saver_->due(step), between = due && !saver_->asynchronous();
    if (due && !between) {
      saver_->take(step, in_flight_.back().output.end, [this] {
        while (in_flight_.size() > 1) retire(false);
      });
    }
    const bool pause = evaluate || between || last;
    const std::size_t ahead = slow_ ? kInFlightOfSlow : kInFlight;
    while (in_flight_.size() > (pause ? 0u : ahead)) retire(evaluate);
    if (rewind()) {
      fall_back(false);
      prefetcher.emplace(loader_, done_, total_steps());
      continue;
    }
    if (between) {
      phase(cat("saving step ", done_), "saving");
      saver_->save(done_);
    }
    if (pause) last_end_ = Clock::now();
  }
}

void FitRun::announce_stop() {
  if (in_flight_.empty() || step_seconds_ < 1) return;
  const double left = step_seconds_ * static_cast<double>(in_flight_.size()) -
                      std::chrono::duration<double>(Clock::now() - last_end_).count();
  log(cat("hawser: finishing step ", done_, ", about ", format_seconds(std::max(1.0, std::round(left))),
          ", then saving"));
}

bool FitRun::asked_to_stop() {
  constexpr std::uint64_t kStop = 1, kSlow = 8;
  const std::uint64_t mine =
      (request_.stop_requested() ? kStop : 0) | (step_seconds_ > kSlowStep ? kSlow : 0) | saver_->requests();
  const std::uint64_t all = world_ != nullptr ? world_->any_of(mine) : mine;
  saver_->apply(all);
  slow_ = (all & kSlow) != 0;
  return (all & kStop) != 0;
}

FitRun::InFlightStep FitRun::enqueue(std::int64_t step, batches::Prefetcher& prefetcher) {
  phase(cat("step ", step), kTraining);
  InFlightStep pending{.step = step};
  step::StepInput input;
  for (int m = 0; m < plan_.layout.micro_batches; ++m) {
    const batches::MicroBatch batch = prefetcher.next();
    pending.targets = batch.step_targets;
    pending.imbalance.add(batch.imbalance, batch.pairs);
    pending.flops += open_.model->training_flops(plan_.layout.bounds.row_counts(), [&](const AttentionMask& mask) {
      return engine::visible_pairs(batch, plan_.layout.batch, mask);
    });
    input.batches.push_back(engine::to_host_batch(batch, plan_.layout.batch));
  }
  input.skip = pending.targets == 0;
  input.record = {.learning_rate = plan::learning_rates_at(plan_, step),
                  .step = static_cast<std::int32_t>(step),
                  .inverse_targets = pending.targets > 0 ? 1.0f / static_cast<float>(pending.targets) : 0.0f};
  pending.lr = input.record.learning_rate.of[0];
  const std::optional<std::int64_t>& verify_every = plan_.layout.verify_every;
  if (step == refused_step_) {
    pending.output = session_->enqueue_refused(step::Purpose::train, input);
    pending.with_fallback_rows = true;
  } else if (verify_every && step % *verify_every == 0 && !input.skip) {
    auto [reference, output] = session_->enqueue_verified(input);
    pending.reference = std::move(reference);
    pending.output = std::move(output);
    pending.with_fallback_rows = true;
  } else {
    pending.output = session_->enqueue(step::Purpose::train, input);
  }
  return pending;
}

void FitRun::retire(bool evaluate_after) {
  InFlightStep pending = std::move(in_flight_.front());
  in_flight_.pop_front();
  session_->wait(pending.output.end);
  const auto [loss_scale, replays] = std::pair(progress_of_retired_.loss_scale, progress_of_retired_.replays);
  progress_of_retired_ = *pending.output.progress;
  if (is_replayed(pending)) return;
  // Measured with the time at which the step ended, not at which the host retires it: before a pause the host retires
  // several steps that ended earlier.
  const double seconds = std::chrono::duration<double>(*pending.output.reached - last_end_).count();
  const PowerUse power = power_->between(last_end_, *pending.output.reached);
  last_end_ = *pending.output.reached;
  const step::StepResult& r = *pending.output.result;
  const int ranks = world_ != nullptr ? world_->size() : 1;
  const double tokens = plan_.tokens_per_step();
  report::StepMetrics metrics{
      .step = pending.step,
      .time = unix_time(*pending.output.reached),
      .loss = pending.targets > 0 ? r.loss_sum.value() / static_cast<double>(pending.targets) : 0.0,
      .grad_norm = r.gradient_norm,
      .lr = pending.lr,
      .tokens_per_second = tokens / seconds,
      // The ranks of all stages together compute the model once.
      .model_flops_per_second = pending.flops * ranks / plan_.layout.mesh.pipeline / seconds,
      .step_seconds = seconds,
      .targets = pending.targets,
      .peak_arena_bytes = session_->largest_planned_bytes(),
      .attention_imbalance = pending.imbalance.value(),
      .data_position = {
          .sequences = pending.step * plan_.global_batch_size,
          .epoch = static_cast<double>(pending.step * plan_.global_batch_size) / static_cast<double>(sequences_)}};
  if (const nn::RouterLoss* const routers = open_.model->router_loss()) {
    nn::ExpertLoad load = nn::expert_load(*pending.output.auxiliary_statistics, routers->config().experts);
    metrics.router_loss = r.auxiliary_loss;
    metrics.expert_imbalance = load.imbalance;
    const std::size_t counts = load.tokens.size() * static_cast<std::size_t>(routers->config().experts);
    if (counts <= report::kMaxExpertCounts) metrics.expert_tokens = std::move(load.tokens);
  }
  step_seconds_ = seconds;
  if (retired_ == 0) metrics.checkpointing = result_.checkpointing;
  if (pending.step == 1) metrics.initial_validation_loss = result_.initial_validation_loss;
  add_power(metrics, power, ranks);
  if (peak_flops_) metrics.model_flops_utilization = metrics.model_flops_per_second / *peak_flops_;
  if (r.skipped() == step::Skip::none &&
      r.saturation > static_cast<float>(plan_.recipe.precision.fp8.saturation_limit)) {
    log_saturation(pending, cat("it was replayed ", replays, " times and counts as it is"));
  }
  if (pending.targets == 0) log(cat("step ", pending.step, " has no token to predict: skipped"));
  const ops::LossScaling& scaling = plan_.layout.loss_scaling;
  if (scaling.dynamic()) metrics.loss_scale = loss_scale;
  const Outcome outcome = outcome_of(metrics.loss, metrics.grad_norm, loss_scale, scaling);
  metrics.overflow = outcome == Outcome::overflow;
  metrics.replays = replays;
  for (const engine::Fp8Fallback& fallback : fallbacks_) {
    if (fallback.step != pending.step) continue;
    metrics.fp8_fallback.insert(metrics.fp8_fallback.end(), fallback.modules.begin(), fallback.modules.end());
  }
  if (pending.reference && pending.reference->result->skipped() != step::Skip::refused)  // that has no gradient
    metrics.fp8_error = fp8_error(pending);
  if (outcome == Outcome::diverged) not_finite(metrics, remedy_of(metrics.loss, loss_scale, scaling));
  if (evaluate_after && in_flight_.empty()) {
    metrics.validation_loss = evaluate();
    if (result_.interrupted) unfinished_evaluation_ = metrics;
  }
  if (metrics.targets > 0) result_.train_loss = metrics.loss;
  result_.steps = pending.step;
  if (retired_ == 0) {
    for (const std::string& line : engine::slow_kernels(session_->stream())) remark(line);
  }
  if (slow_steps_) {
    const auto slow =
        slow_steps_->step(seconds, [&] { return circumstances_here(power, engine::slow_kernels(session_->stream())); });
    if (slow) metrics.findings.push_back({pending.step, kSlowSteps, *slow});
  }
  imbalance_.add(metrics.attention_imbalance, pending.imbalance.work());
  if (retired_ <= 1) counted_tokens_ = counted_seconds_ = 0;  // the first step includes startup; counts only if alone
  ++retired_;
  counted_tokens_ += tokens;
  counted_seconds_ += seconds;
  if (watch_) watch_->step(metrics);
  if (progress_) progress_->step(metrics);
  saver_->retired(pending.step, pending.output.end);
}

const step::ScaledSite& FitRun::saturated_site(const InFlightStep& ended) const {
  return session_->state().options().scaled_sites.at(static_cast<std::size_t>(ended.output.result->saturated_site));
}

void FitRun::log_saturation(const InFlightStep& ended, const std::string& consequence) {
  const step::StepResult& result = *ended.output.result;
  const step::ScaledSite& site = saturated_site(ended);
  log(fmt::format("hawser: step {}: {:.3g}% of {} of {} saturate FP8; {}", ended.step, 100 * result.saturation,
                  to_string(site.operand), name_of(site.layer, site.site), consequence));
}

bool FitRun::is_replayed(const InFlightStep& ended) {
  const std::int64_t replay_step = progress_of_retired_.replay_step;
  if (replay_step < 0) return false;
  if (replay_step == ended.step && ended.output.result->skipped() == step::Skip::refused) {
    if (ended.with_fallback_rows) throw session_->too_many_rows(ended.output);
    log(cat("hawser: step ", ended.step, ": ", to_string(ended.output.result->refused()),
            "; the step runs again with a larger plan"));
    refused_step_ = ended.step;
  } else if (replay_step == ended.step) {
    log_saturation(ended, "the step is replayed with new scales");
    const step::ScaledSite& site = saturated_site(ended);
    saturations_.add({.step = ended.step, .layer = site.layer, .site = site.site});
  }
  saver_->discard(replay_step - 1);
  rewinds_ = true;
  return true;
}

report::Fp8Error FitRun::fp8_error(const InFlightStep& ended) const {
  const double loss = ended.reference->result->loss_sum.value();
  const std::vector<engine::TensorNorm> reference = engine::gradient_norms(*session_, *ended.reference),
                                        difference = engine::gradient_norms(*session_, ended.output);
  report::Fp8Error error{.loss = std::abs(ended.output.result->loss_sum.value() - loss) / std::abs(loss)};
  double squares = 0, of_reference = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double norm = reference[i].norm, off = difference[i].norm;
    squares += off * off;
    of_reference += norm * norm;
    if (norm == 0 || off / norm <= error.worst) continue;
    error.worst = off / norm;
    error.parameter = reference[i].name;
  }
  if (of_reference > 0) error.gradient = std::sqrt(squares / of_reference);
  return error;
}

bool FitRun::rewind() {
  if (!rewinds_) return false;
  while (!in_flight_.empty()) retire(false);
  done_ = progress_of_retired_.replay_step - 1;
  rewinds_ = false;
  return true;
}

void FitRun::not_finite(const report::StepMetrics& metrics, const std::string& remedy) {
  if (watch_) {
    watch_->step(metrics);
    watch_->finish(report::Ending::diverged);
  }
  saver_->settle();  // the checkpoint of an earlier step may still be in progress
  const bool saved = saver_->saved_step() > 0;
  throw Error(ExitCode::diverged,
              cat("step ", metrics.step, ": loss ", fmt::format("{:.4g}", metrics.loss), ", grad_norm ",
                  fmt::format("{:.4g}", metrics.grad_norm), ": not finite; the run stops without saving",
                  saved ? cat("; last checkpoint: step ", saver_->saved_step()) : "", remedy,
                  metrics.step == 1 ? ", and check the initial weights" : ""));
}

bool FitRun::stops_early() {
  if (plan_.recipe.train.early_stopping_patience == 0 || validation_.empty() || done_ != evaluated_) return false;
  const auto why = watch_ ? watch_->stops_early() : std::nullopt;  // rank 0's
  const bool stops = world_ != nullptr ? world_->any_of(why ? 1 : 0) != 0 : why.has_value();
  if (!stops) return false;
  result_.stopped_early = true;
  if (why) log(cat("early stopping after step ", done_, ": ", *why));
  return true;
}

bool FitRun::has_diverged() const {
  const bool mine = watch_ && watch_->diverged();  // rank 0's
  return world_ != nullptr ? world_->any_of(mine ? 1 : 0) != 0 : mine;
}

std::optional<ValidationLosses> FitRun::evaluate() {
  if (validation_.empty()) return std::nullopt;
  std::int64_t steps = 0, before = 0, tokens = 0;  // before: steps of the sets before the present one
  for (const ValidationData& set : validation_) steps += set.loader->steps();
  phase(cat("evaluation after step ", done_), "evaluating");
  // A stop must not wait for a long evaluation: the steps before it are not saved yet.
  bool stopped = false;
  double sum = 0;
  ValidationLosses losses;
  for (const ValidationData& set : validation_) {
    const auto [of_set, targets] =
        engine::evaluate_loss(*session_, *set.loader, set.loader->steps(), [&](std::int64_t s) {
          if (progress_) progress_->phase("evaluating", before + s, steps);
          stopped = before + s < steps && asked_to_stop();
          return !stopped;
        });
    if (stopped) break;
    before += set.loader->steps();
    sum += of_set;
    tokens += targets;
    if (!set.name.empty()) losses.sets[set.name] = of_set / static_cast<double>(targets);
  }
  result_.interrupted = result_.interrupted || stopped;
  if (stopped || tokens == 0) return std::nullopt;
  expect_unchanged_data();
  losses.all = sum / static_cast<double>(tokens);
  result_.validation_loss = losses;
  if (!std::isfinite(losses.all)) {
    saver_->settle();
    throw Error(ExitCode::diverged, cat("after step ", done_, ": the validation loss is not finite; the run stops ",
                                        "without saving; try a lower optimizer.learning_rate"));
  }
  const std::string of_sets = set_losses_text(losses);
  log(fmt::format("step {}: validation loss {:.4f} over {} tokens{}", done_, losses.all, tokens,
                  of_sets.empty() ? "" : cat("; ", of_sets)));
  if (watch_) watch_->validated(done_, losses);
  evaluated_ = done_;
  if (done_ > 0) saver_->evaluated(done_, losses, has_diverged());  // there is nothing to save before
  return losses;
}

engine::RunState FitRun::state_of(std::int64_t step) {
  return {.step = step,
          .sequences = step * plan_.global_batch_size,
          .micro_batches = plan_.layout.micro_batches,
          .skipped = step - progress_of_retired_.step,
          .good_steps = progress_of_retired_.good_steps,
          .loss_scale = progress_of_retired_.loss_scale,
          .kept = progress_of_retired_.kept,
          .replay_step = progress_of_retired_.replay_step,
          .replays = progress_of_retired_.replays,
          .fp8_fallbacks = fallbacks_,
          .saturated_steps = saturations_.steps(),
          .kept_in_fp8 = saturations_.kept(),
          .recipe = recipe_json(plan_.recipe),
          .config = config_text_,
          .tokenizer = tokenizer_,
          .data = data_identity_,
          .compute = to_string(plan_.layout.compute),
          .optimizer = plan_.layout.optimizer->name(),
          .base = frozen_weights_,
          .base_model = frozen_weights_.empty() ? "" : absolute_path(plan_.model),
          .initial_validation_loss = result_.initial_validation_loss,
          .unfinished_evaluation = unfinished_evaluation_ ? report::to_json(*unfinished_evaluation_) : "",
          .validation = validation_identity_,
          .conversations = conversations_,
          .mixture = mixture_,
          .gemm_algorithms = ops::gemm_choices(session_->stream()),
          .tokenizer_files = tokenizer_files_};
}

std::optional<Displaced> FitRun::find_displaced() {
  auto found = displaced(plan_.files.folder, hold_);
  if (!found && watch_->metrics_displaced()) {
    const std::string &output = plan_.files.folder, &metrics = plan_.files.metrics;
    found = Displaced{output, "metrics.jsonl was moved or removed during the run"};
    if (io::exists(metrics)) {  // the run's own lines must not be lost
      int number = 1;
      const auto replaced = [&] { return cat(output, "/metrics.replaced-", number, ".jsonl"); };
      while (io::exists(replaced())) ++number;
      io::rename_path(metrics, replaced());
      found->what = cat("metrics.jsonl was replaced during the run; the other file is now ", replaced());
    }
  }
  if (!found) return found;
  const std::string metrics = found->folder + "/metrics.jsonl", recipe = found->folder + "/recipe.json";
  if (!io::exists(metrics)) watch_->copy_metrics(metrics);
  if (!io::exists(recipe)) io::write_text_atomically(recipe, recipe_json(plan_.recipe) + "\n");
  return found;
}

void FitRun::finish() {
  if (retired_ > 0) {
    phase(cat("saving step ", done_), "saving");
    saver_->save(done_);
  }
  result_.saving = saver_->times();
  result_.best_validation_loss = saver_->best_loss();
  if (plan_.layout.batch.context > 1 && retired_ > 0) result_.imbalance = imbalance_.value();
  if (counted_seconds_ > 0) result_.tokens_per_second = counted_tokens_ / counted_seconds_;
  phase("finishing", "ending");
  result_.diverged = !result_.interrupted && has_diverged();
  if (watch_) {
    watch_->finish(result_.interrupted ? report::Ending::interrupted
                   : result_.diverged  ? report::Ending::diverged
                                       : report::Ending::done);
  }
  if (progress_) progress_->finish();
}

FitResult fit(const FitRequest& request, comm::World* world) {
  auto fit = std::make_unique<FitRun>(request, world);
  try {
    return fit->run();
  } catch (...) {
    try {
      fit->end_progress();
    } catch (const std::exception&) {
      // Most likely the same cause as the first error, such as too little memory. Report only the first.
    }
    // Its streams may wait for communication with ranks that have stopped; destroying it would block before the error
    // is reported.
    if (world != nullptr) static_cast<void>(fit.release());
    throw;
  }
}

}  // namespace hawser::train
