#include "train/run_saver.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/format_apart.h"
#include "engine/rank_sync.h"
#include "engine/session.h"
#include "plan/host_memory.h"
#include "plan/target.h"
#include "train/run_folder.h"

namespace hawser::train {

RunSaver::RunSaver(const plan::RunPlan& plan, comm::World* world, engine::Session& session, int ranks_here,
                   RunSaverHooks hooks)
    : plan_(plan),
      world_(world),
      session_(&session),
      ranks_here_(ranks_here),
      hooks_(std::move(hooks)),
      keeps_best_(plan.saves.keep_best),
      last_save_(Clock::now()) {
  reserve();
}

void RunSaver::reserve() {
  if (!plan_.saves.asynchronous) return;
  const bool cpu = session_->device().kind() == DeviceKind::cpu;
  std::vector<engine::StatePart> parts = engine::state_parts(*session_, kSavedByRun);
  const std::int64_t bytes = session_->owns_states() ? engine::place_copies(parts, nullptr) : 0;
  std::int64_t space = 0;
  if (cpu) {
    plan::Machine machine = plan::this_machine();
    machine.ranks = ranks_here_;
    const plan::Target target = plan::load_target(plan::target_of(DeviceKind::cpu));
    const comm::MeshSizes& mesh = session_->layout().mesh;
    space = plan::snapshot_memory_cpu(plan::capacity_of(plan_.recipe, target, machine, mesh.world()),
                                      session_->planned_bytes() + session_->pinned_bytes() +
                                          plan::overhead_of(target, mesh, session_->mesh().coordinate().pipeline));
  } else {
    space = plan::snapshot_memory_host(ranks_here_);
  }
  std::string rejected;
  if (bytes > space) {
    const auto [has, needs] = format_apart(space, bytes);
    rejected = cat("expected at most ", has, " per rank, got ", needs);
  }
  // All ranks check the available memory before any of them allocates.
  bool all_fit = !(world_ != nullptr ? world_->any(!rejected.empty()) : !rejected.empty());
  if (all_fit) {
    auto channel = world_ != nullptr ? world_->open_channel("checkpoints") : nullptr;
    try {
      background_ = std::make_unique<BackgroundSaver>(*session_, std::move(channel));
    } catch (const Error& error) {
      rejected = error.what();
    }
    all_fit = !(world_ != nullptr ? world_->any(!rejected.empty()) : !rejected.empty());
  }
  if (all_fit) return;
  background_.reset();
  if (std::exchange(warned_, true)) return;  // of an earlier session
  hooks_.log(cat("hawser: host memory is too small for a snapshot",
                 rejected.empty() ? std::string(" on every rank") : cat(" (", rejected, ")"),
                 ": steps wait until checkpoints are written"));
}

std::uint64_t RunSaver::requests() const {
  std::uint64_t bits = background_ && background_->failed() ? kFailed : 0;
  const bool first = world_ == nullptr || world_->rank().value() == 0;
  const std::optional<double>& every = plan_.saves.every_minutes;
  if (first && every && seconds_since(last_save_) >= 60 * *every) bits |= kDue;
  return bits;
}

void RunSaver::apply(std::uint64_t bits) {
  if ((bits & kFailed) != 0) settle();
  due_by_time_ = (bits & kDue) != 0;
  if (!background_) return;
  if (const auto saved = background_->collect()) note(*saved);
}

bool RunSaver::due(std::int64_t step) const {
  const std::optional<std::int64_t>& every = plan_.saves.every_steps;
  return due_by_time_ || (every && step % *every == 0);
}

void RunSaver::take(std::int64_t step, const Event& step_end, const std::function<void()>& retire_earlier) {
  if (taken_step_ >= 0) retire_earlier();  // the loop waits for computation here, not for the save
  const Clock::time_point begin = Clock::now();
  HAWSER_CHECK(taken_step_ < 0, "step ", taken_step_, " was copied and is not retired");
  if (background_->under_way()) {
    settle();
    const double waited = seconds_since(begin);
    if (waited > 1 && !reported_slow_) {
      reported_slow_ = true;
      hooks_.log(
          fmt::format("step {} waited {:.1f} s for the checkpoint of step {}: checkpoints are due faster than the disk "
                      "writes them",
                      step, waited, saved_step_));
    }
  }
  background_->take(step_end);
  taken_step_ = step;
  last_save_before_ = std::exchange(last_save_, Clock::now());
  due_by_time_ = false;
  times_.waited_s += seconds_since(begin);
}

void RunSaver::discard(std::int64_t step) {
  if (taken_step_ <= step) return;
  taken_step_ = -1;
  last_save_ = last_save_before_;
}

void RunSaver::evaluated(std::int64_t step, const ValidationLosses& losses, bool diverged) {
  evaluated_step_ = step;
  evaluated_losses_ = losses;
  const auto loss = loss_of(losses, hooks_.validation.metric);
  if (!keeps_best_ || diverged || !loss || *loss >= best_loss_) return;
  best_loss_ = *loss;
  best_step_ = step;
}

void RunSaver::resumed(std::int64_t step, bool evaluates, bool trains) {
  saved_step_ = step;
  keeps_best_ = keeps_best_ || evaluates;
  if (!keeps_best_) return;
  const std::string text = engine::on_rank_zero(world_, [&]() -> std::string {
    const auto loss = restore_best(plan_.files, hooks_.validation, trains, hooks_.log);
    return loss ? fmt::format("{:a}", *loss) : "";
  });
  if (!text.empty()) best_loss_ = std::stod(text);
}

void RunSaver::retired(std::int64_t step, const Event& step_end) {
  const bool best = best_step_ == step && plan_.steps > step;  // the last step is saved at the end
  if (best && taken_step_ != step) {
    if (!background_) return save(step);
    take(step, step_end, [] {});
  }
  if (taken_step_ == step) start(step);
}

SaveTo RunSaver::destination(std::int64_t step, const std::string& folder) {
  return {.root = folder + "/checkpoints",
          .keep = plan_.saves.keep_last,
          .best = best_step_ == step ? folder + "/best" : "",
          .not_removed = [this](const std::string& line) { not_removed_ = line; }};
}

std::optional<Displaced> RunSaver::find_displaced() {
  const std::string text = engine::on_rank_zero(world_, [&]() -> std::string {
    const auto found = hooks_.displaced();
    return found ? found->folder + "\n" + found->what : "";
  });
  if (text.empty()) return std::nullopt;
  const std::size_t end = text.find('\n');
  return Displaced{text.substr(0, end), text.substr(end + 1)};
}

void RunSaver::stop(const Displaced& displaced, std::int64_t step) {
  throw UserError(Problem{.file = plan_.files.folder,
                          .what = cat(displaced.what, "; saved step ", step, " in ", displaced.folder, " and stopped"),
                          .hint = cat("--resume --set output=", displaced.folder)});
}

engine::RunState RunSaver::state_of(std::int64_t step) const {
  engine::RunState state = hooks_.state(step);
  if (evaluated_step_ == step) state.validation_loss = evaluated_losses_;
  return state;
}

void RunSaver::start(std::int64_t step) {
  started_ = Clock::now();
  hooks_.before();
  const auto displaced = find_displaced();
  write(step, displaced ? displaced->folder : plan_.files.folder);
  taken_step_ = -1;
  if (displaced) {
    settle();
    stop(*displaced, step);
  }
  times_.waited_s += seconds_since(started_);
}

void RunSaver::write(std::int64_t step, const std::string& folder) {
  background_->start(destination(step, folder), state_of(step));
  writing_step_ = step;
}

void RunSaver::note(const BackgroundSaver::Saved& saved) {
  saved_step_ = saved.step;
  ++times_.saves;
  times_.writing_s += saved.seconds;
  hooks_.saved(saved.folder);
  if (not_removed_.empty() || reported_not_removed_) return;
  reported_not_removed_ = true;
  hooks_.log(cat("hawser: warning: an older checkpoint stays: ", not_removed_));
}

void RunSaver::settle() {
  if (!background_) return;
  try {
    if (const auto saved = background_->finish()) note(*saved);
  } catch (const Error& error) {  // on many ranks no UserError: rank_sync.h
    if (error.code() != ExitCode::bad_input) throw;
    // The folder may have been moved during the save; the snapshot still holds the step.
    const auto displaced = find_displaced();
    if (!displaced) throw;
    write(writing_step_, displaced->folder);
    note(*background_->finish());
    stop(*displaced, writing_step_);
  }
}

void RunSaver::close_session() {
  settle();
  background_.reset();
  session_ = nullptr;
}

void RunSaver::open_session(engine::Session& session) {
  session_ = &session;
  reserve();
}

void RunSaver::save(std::int64_t step) {
  const Clock::time_point begin = Clock::now();
  settle();
  if (saved_step_ == step) return;
  hooks_.before();
  const auto save_in = [&](const std::string& folder) {
    const std::string saved = train::save(*session_, world_, destination(step, folder), state_of(step), kSavedByRun);
    last_save_ = Clock::now();
    due_by_time_ = false;
    times_.waited_s += seconds_since(begin);
    note({.folder = saved, .step = step, .seconds = seconds_since(begin)});
  };
  auto displaced = find_displaced();
  try {
    save_in(displaced ? displaced->folder : plan_.files.folder);
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_input || displaced) throw;
    displaced = find_displaced();
    if (!displaced) throw;
    save_in(displaced->folder);
  }
  if (displaced) stop(*displaced, step);
}

void RunSaver::save_again(std::int64_t step) {
  settle();  // before saved_step_ is reset: the running save may be of the same step
  saved_step_ = -1;
  save(step);
}

}  // namespace hawser::train
