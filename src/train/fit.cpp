#include "train/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>

#include "base/units.h"
#include "checkpoint/storage/posix.h"
#include "config/config.h"
#include "data/batch_loader.h"
#include "data/identity.h"
#include "data/prepare.h"
#include "data/sources.h"
#include "data/token_file.h"
#include "models/families.h"
#include "models/weights.h"
#include "ops/gemm/gemm.h"
#include "optim/schedule.h"
#include "plan/forecast.h"
#include "train/checkpointing.h"
#include "train/evaluate.h"
#include "train/feed.h"
#include "train/open_model.h"
#include "train/products.h"
#include "train/run_facts.h"
#include "train/run_watch.h"
#include "train/saver.h"
#include "train/together.h"

namespace hawser::train {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

namespace {

// Token files are made by rank 0 while the others wait.
void prepare_data(const Recipe& recipe, std::int64_t vocabulary, comm::World* world, report::Progress* progress) {
  if (recipe.data.train.empty()) return;  // data.prepared was made elsewhere
  on_rank_zero(world, [&]() -> std::string {
    data::PrepareOptions options = data::prepare_options(recipe);
    options.vocab_size = vocabulary;
    if (progress != nullptr) {
      options.progress = [progress](const data::PrepareProgress& p) {
        progress->phase("preparing text, MiB", p.bytes_done >> 20, p.bytes_total >> 20);
      };
    }
    if (!data::is_prepared(options)) data::prepare(options);
    return "";
  });
}

std::shared_ptr<const data::SequenceSet> open_set(const Recipe& recipe, const std::string& prefix,
                                                  std::int64_t vocabulary) {
  auto file = std::make_shared<const data::TokenFile>(prefix);
  if (recipe.data.pack == Packing::chunks) {
    return data::chunked_sequences(std::move(file), recipe.data.sequence_length, vocabulary);
  }
  return data::packed_sequences(std::move(file), recipe.data.sequence_length, data::max_documents_of(recipe.data),
                                recipe.train.seed, vocabulary);
}

class Fit {
 public:
  Fit(const FitRequest& request, comm::World* world) : request_(request), recipe_(request.recipe), world_(world) {}

  FitResult run() {
    open();
    resume();
    train();
    finish();
    return result_;
  }

  // After an error: what is said next stands on a line of its own.
  void end_progress() {
    if (watch_) watch_->finish(report::Ending::failed);
    if (progress_) progress_->finish();
  }

 private:
  // A step on its way through the device.
  struct Flight {
    std::int64_t step = 0, targets = 0;
    double flops = 0;  // model FLOPs of this rank
    double learning_rate = 0;
    step::StepOutput output;
    data::MeanImbalance imbalance;
  };

  bool first_rank() const { return world_ == nullptr || world_->rank().value() == 0; }
  std::int64_t total_steps() const { return recipe_.train.steps; }

  void open() {
    if (first_rank()) {
      report::ProgressOptions options = request_.progress;
      options.total = total_steps();
      options.log_every = recipe_.train.log_every;
      progress_ = std::make_unique<report::Progress>(options);
    }
    Problems problems;
    open_ = open_model(recipe_.model, recipe_.folder, problems);
    problems.throw_if_any();
    const std::string beyond = models::beyond_positions(open_.model->description(), recipe_.data.sequence_length);
    if (!beyond.empty()) say("hawser: warning: " + beyond);
    // Read now: the file may change or go while the run lasts.
    const std::string& model = recipe_.model.path.empty() ? recipe_.model.config : recipe_.model.path;
    config_text_ = checkpoint::read_text(models::config_path(resolve_path(recipe_, model)), 1 << 20);
    tokenizer_ = data::prepare_options(recipe_).tokenizer;
    if (!tokenizer_.empty()) tokenizer_ = data::resolve_path(tokenizer_, recipe_.folder);
    phase("preparing text");
    on_rank_zero(world_, [&]() -> std::string {
      lock_ = hold_output(recipe_);
      if (!tokenizer_.empty()) tokenizer_files_ = models::tokenizer_files(tokenizer_);
      return "";
    });
    prepare_data(recipe_, open_.model->vocabulary(), world_, progress_.get());

    const int ranks = world_ != nullptr ? world_->size() : 1;
    layout_ = plan::make_layout(recipe_, *open_.model, ranks, compute_dtype(recipe_.precision, request_.device.kind),
                                request_.threads, request_.device.kind);
    const MeshPlace place = place_of(world_ != nullptr ? world_->rank().value() : 0, layout_.mesh);
    batch_layout_ = {.data_rank = place.shard + layout_.mesh.shard * place.replicate,
                     .data_ranks = layout_.data_ranks(),
                     .context_rank = place.context,
                     .context_ranks = layout_.mesh.context};
    open_data();
    device_ = make_device(request_.device, request_.threads);
    mesh_ = make_mesh(world_, layout_.mesh, recipe_.run.collective_timeout_s, *device_);
    choose_algorithms();
    const std::string chosen =
        choose_checkpointing(recipe_, layout_, *open_.model, *device_, world_, request_.ranks_here);
    if (!chosen.empty()) say(chosen);
    result_.checkpointing = checkpointing_text(recipe_.memory);
    std::vector<step::Purpose> purposes{step::Purpose::train};
    if (validation_) purposes.push_back(step::Purpose::loss);
    session_ = std::make_unique<Session>(*open_.model, layout_, *device_, *mesh_, purposes, recipe_.memory.capacity);
    for (const std::string& note : session_->notes()) remark(note);
    saver_ = std::make_unique<RunSaver>(
        recipe_, world_, *session_, request_.ranks_here,
        RunSaverHooks{.state = [this](std::int64_t step) { return state_of(step); },
                      .before =
                          [this] {
                            if (watch_) watch_->sync();  // a checkpoint's steps are in them, whatever happens
                          },
                      .say = [this](const std::string& line) { say(line); },
                      .saved =
                          [this](const std::string& folder) {
                            result_.checkpoint = folder;
                            say("saved " + folder);
                          }});
    if (world_ != nullptr) {
      session_->set_on_row([this](const program::Row& row) {
        std::string text = cat(stage_, " ", program::to_string(row.op));
        if (row.layer >= 0) text += cat(" layer ", row.layer);
        world_->set_phase(std::move(text));
      });
    }
  }

  // A run that must repeat to the bit takes no part in a measurement, which may turn out otherwise another time.
  void choose_algorithms() {
    if (device_->kind() != DeviceKind::cuda) return;
    phase("choosing algorithms for matrix products");
    const ChooseProducts how{.measure = !layout_.deterministic, .stored = [this] { return stored_choices(); }};
    const std::string choices =
        choose_products(*open_.model, layout_, *device_, world_, how, [this](const std::string& line) { say(line); });
    if (how.measure && first_rank()) checkpoint::write_text_atomically(products_path(recipe_), choices);
  }

  // Those of the run that goes on; else of an earlier one in this folder.
  StoredChoices stored_choices() const {
    if (request_.resume) {
      Problems ignored;  // said when it is read
      const auto found = checkpoint::Checkpoint::latest(checkpoints_folder(recipe_), ignored);
      if (found) return {run_state_of(found->meta()).products, found->folder()};
    }
    const std::string path = products_path(recipe_);
    std::error_code ignored;
    if (layout_.deterministic || !fs::exists(path, ignored)) return {};
    return {checkpoint::read_text(path, kMostChoices), path};
  }

  void open_data() {
    const data::TokenFiles files = data::token_files(data::prepare_options(recipe_));
    const std::int64_t vocabulary = open_.model->vocabulary();
    const auto set = open_set(recipe_, files.train, vocabulary);
    if (first_rank()) data_identity_ = data::to_json(data::identity_of(data::TokenFile(files.train)));
    sequences_ = set->size();
    if (sequences_ == 0) {
      throw UserError(Problem{
          .file = files.train + ".idx", .what = "no text to train on", .expected = "a document of two tokens or more"});
    }
    loader_ = std::make_shared<const data::BatchLoader>(
        set, layout_.batch, batch_layout_,
        data::BatchOrder{.global_batch_size = recipe_.train.global_batch_size, .seed = recipe_.train.seed});
    // A run that has nothing to learn from would end well. The first step of most runs has a target.
    std::int64_t targets = 0;
    const std::int64_t epoch = ceil_div(sequences_, recipe_.train.global_batch_size);
    for (std::int64_t s = 0; s < epoch && targets == 0; ++s) targets = loader_->step_targets(s);
    if (targets == 0) {
      throw UserError(Problem{.file = files.train + ".idx",
                              .what = "no token to predict",
                              .expected = "documents of two tokens or more, and labels that are not all -100"});
    }
    HAWSER_CHECK(loader_->micro_batches() == layout_.micro_batches, loader_->micro_batches(),
                 " micro-batches, planned ", layout_.micro_batches);
    std::error_code ignored;
    if (!fs::exists(files.validation + ".idx", ignored)) return;
    const auto held_out = open_set(recipe_, files.validation, vocabulary);
    if (held_out->size() == 0) return;
    const std::int64_t at_once = layout_.data_ranks() * layout_.batch.sequences;
    validation_ = std::make_shared<const data::BatchLoader>(
        held_out, layout_.batch, batch_layout_, data::BatchOrder{.global_batch_size = at_once, .shuffle = false});
  }

  void resume() {
    std::optional<checkpoint::Checkpoint> checkpoint;
    if (request_.resume) {
      phase("reading a checkpoint");
      checkpoint = load_newest(
          *session_, world_, checkpoints_folder(recipe_), [this](const auto& found) { check_position(found); },
          [this](const std::string& line) { say(line); });
    } else {
      const std::string earlier = on_rank_zero(world_, [&] { return set_aside_earlier(recipe_); });
      if (!earlier.empty()) say("kept what an earlier run saved here in " + earlier);
    }
    phase("reading weights");
    if (checkpoint) {
      done_ = checkpoint->step();
      saver_->resumed(done_);
      result_.checkpoint = checkpoint->folder();
      say(cat("going on from ", checkpoint->folder(), " (step ", done_, ")"));
    } else {
      take_time(world_, [&] {
        if (open_.weights) {
          session_->load(*open_.weights);
        } else {
          session_->initialise(recipe_.train.seed);
        }
      });
      if (request_.resume) say("no checkpoint to resume from: starting at the beginning");
    }
    result_.steps = done_;
    if (!first_rank()) return;
    checkpoint::write_text_atomically(output_folder(recipe_) + "/recipe.json", recipe_json(recipe_) + "\n");
    const int ranks = world_ != nullptr ? world_->size() : 1;
    peak_flops_ = peak_flops(device_->kind(), device_->kind() == DeviceKind::cuda ? cuda_info().name : "",
                             layout_.compute, ranks);
    watch_ = std::make_unique<RunWatch>(
        recipe_, run_facts({.recipe = recipe_, .session = *session_, .ranks = ranks, .sequences = sequences_}), done_,
        phases_, [this](const std::string& line) { say(line); });
  }

  // A batch is a function of its step: the run goes on with the data that follows only when steps are as large as
  // before.
  void check_position(const checkpoint::Checkpoint& checkpoint) {
    const RunState state = run_state_of(checkpoint.meta());
    if (state.step > 0 && state.sequences != state.step * recipe_.train.global_batch_size) {
      throw UserError(Problem{.file = checkpoint.folder(),
                              .what = "the checkpoint is of a run with another batch size",
                              .expected = cat(state.sequences / state.step),
                              .got = cat(recipe_.train.global_batch_size),
                              .at = "train.global_batch_size"});
    }
    const std::string changes = data_order_changes(state, recipe_json(recipe_));
    if (!changes.empty()) say("hawser: the data come in another order than before: " + changes);
    const std::string others = data_changes(state, data_identity_);
    if (!others.empty()) say("hawser: " + others);
  }

  // What this rank does from now on, for the line about a time limit that passed.
  void phase(const std::string& text, const char* kind = "starting") {
    stage_ = text;
    phases_.enter(kind, text);
    if (world_ != nullptr) world_->set_phase(text);
  }

  void say(const std::string& line) {
    if (progress_) progress_->message(line);
  }

  // The same, and in the result.
  void remark(const std::string& line) {
    say("hawser: " + line);
    result_.notes.push_back(line);
  }

  void train() {
    if (done_ >= total_steps()) {
      say(cat("nothing to do: ", done_, " of ", total_steps(), " steps are done"));
      evaluate();
      return;
    }
    data::Prefetcher prefetcher(loader_, done_, total_steps());
    last_end_ = Clock::now();
    while (done_ < total_steps()) {
      if (asked_to_stop()) {
        result_.interrupted = true;
        while (!flights_.empty()) land(false);
        return;
      }
      const std::int64_t step = ++done_;
      flights_.push_back(enqueue(step, prefetcher));
      const bool last = step == total_steps();
      const bool evaluate = validation_ && (last || on_beat(recipe_.train.evaluate_every));
      const bool due = !last && saver_->due(step), between = due && !saver_->asynchronous();
      if (due && !between) {
        saver_->take(step, flights_.back().output.end, [this] {
          while (flights_.size() > 1) land(false);
        });
      }
      const bool pause = evaluate || between || last;
      while (flights_.size() > (pause ? 0u : kInFlight)) land(evaluate);
      if (between) {
        phase(cat("saving step ", done_), "saving");
        saver_->save(done_);
      }
      if (pause) last_end_ = Clock::now();
    }
  }

  bool on_beat(std::int64_t every) const { return every > 0 && done_ % every == 0; }

  // The ranks' meeting before each step: what any of them has to say, all hear.
  bool asked_to_stop() {
    constexpr std::uint64_t kStop = 1;
    const std::uint64_t mine = (request_.stop_requested() ? kStop : 0) | saver_->says();
    const std::uint64_t all = world_ != nullptr ? world_->any_of(mine) : mine;
    saver_->heard(all);
    return (all & kStop) != 0;
  }

  Flight enqueue(std::int64_t step, data::Prefetcher& prefetcher) {
    phase(cat("step ", step), kTraining);
    Flight flight{.step = step};
    step::StepInput input;
    for (int m = 0; m < layout_.micro_batches; ++m) {
      const data::MicroBatch batch = prefetcher.next();
      flight.targets = batch.step_targets;
      flight.imbalance.add(batch.imbalance, batch.pairs);
      flight.flops += open_.model->training_flops(layout_.bounds.rows, visible_pairs(batch));
      input.batches.push_back(to_host_batch(batch, layout_.batch));
    }
    const ops::AdamHyper hyper = optim::adam_hyper(recipe_.optimizer, recipe_.train, step);
    flight.learning_rate = hyper.learning_rate;
    input.record = {.learning_rate = hyper.learning_rate,
                    .bias_correction1 = hyper.bias_correction1,
                    .bias_correction2 = hyper.bias_correction2,
                    .loss_scale = flight.targets > 0 ? 1.0f / static_cast<float>(flight.targets) : 0.0f};
    input.skip = flight.targets == 0;
    flight.output = session_->enqueue(step::Purpose::train, input);
    return flight;
  }

  // Waits for the oldest step on its way and reports it; the newest one may be followed by an evaluation.
  void land(bool evaluate_behind) {
    Flight flight = std::move(flights_.front());
    flights_.pop_front();
    host_wait(flight.output.end);
    session_->check();
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_end_).count();
    last_end_ = now;
    const step::StepResult& r = *flight.output.result;
    const int ranks = world_ != nullptr ? world_->size() : 1;
    const double tokens =
        static_cast<double>(recipe_.train.global_batch_size) * static_cast<double>(recipe_.data.sequence_length);
    report::StepMetrics metrics{
        .step = flight.step,
        .loss = flight.targets > 0 ? r.loss_sum / static_cast<double>(flight.targets) : 0.0,
        .gradient_norm = r.gradient_norm,
        .learning_rate = flight.learning_rate,
        .tokens_per_second = tokens / seconds,
        .model_flops_per_second = flight.flops * ranks / seconds,
        .step_seconds = seconds,
        .targets = flight.targets,
        .peak_arena_bytes = session_->planned_bytes(),
        .attention_imbalance = flight.imbalance.value(),
        .data_position = {.sequences = flight.step * recipe_.train.global_batch_size,
                          .epoch = static_cast<double>(flight.step * recipe_.train.global_batch_size) /
                                   static_cast<double>(sequences_)}};
    if (landed_ == 0) metrics.checkpointing = result_.checkpointing;
    if (peak_flops_) metrics.model_flops_utilization = metrics.model_flops_per_second / *peak_flops_;
    if (flight.targets == 0) say(cat("step ", flight.step, " has no token to predict: skipped"));
    if (!std::isfinite(metrics.loss) || !std::isfinite(metrics.gradient_norm)) diverged(metrics);
    if (evaluate_behind && flights_.empty()) metrics.validation_loss = evaluate();
    result_.train_loss = metrics.loss;
    result_.steps = flight.step;
    if (landed_ == 0) {
      for (const std::string& line : slow_products(session_->stream())) remark(line);
    }
    imbalance_.add(metrics.attention_imbalance, flight.imbalance.work());
    if (landed_++ > 0) {
      counted_tokens_ += tokens;
      counted_seconds_ += seconds;
    }
    if (watch_) watch_->step(metrics);
    if (progress_) progress_->step(metrics);
    saver_->landed(flight.step, flight.output.end);
  }

  // The weights are spoilt from this step on: nothing is saved, and what was saved before stays.
  [[noreturn]] void diverged(const report::StepMetrics& metrics) {
    if (watch_) {
      watch_->step(metrics);
      watch_->finish(report::Ending::diverged);
    }
    saver_->settle();  // an earlier step's checkpoint is sound
    const bool saved = saver_->saved_step() > 0;
    throw Error(ExitCode::internal,
                cat("step ", metrics.step, ": loss ", fmt::format("{:.4g}", metrics.loss), ", gradient norm ",
                    fmt::format("{:.4g}", metrics.gradient_norm), ": not finite, so the run ends and is not saved",
                    saved ? cat("; the last checkpoint is of step ", saver_->saved_step()) : "",
                    "; try a lower optimizer.learning_rate or a longer optimizer.warmup_steps",
                    metrics.step == 1 ? ", and look whether the weights it began with are sound" : ""));
  }

  std::optional<double> evaluate() {
    if (!validation_) return std::nullopt;
    std::int64_t steps = validation_->steps();
    if (recipe_.train.evaluate_batches > 0) steps = std::min(steps, recipe_.train.evaluate_batches);
    phase(cat("evaluation after step ", done_), "evaluating");
    const auto [sum, tokens] = evaluate_loss(*session_, *validation_, steps, [&](std::int64_t s) {
      if (progress_) progress_->phase("evaluating", s, steps);
    });
    if (tokens == 0) return std::nullopt;
    result_.validation_loss = sum / static_cast<double>(tokens);
    if (!std::isfinite(*result_.validation_loss)) {
      saver_->settle();
      throw Error(ExitCode::internal,
                  cat("after step ", done_, ": the validation loss is not finite, so the run ends and ",
                      "is not saved; try a lower optimizer.learning_rate"));
    }
    say(fmt::format("step {}: validation loss {:.4f} over {} tokens", done_, *result_.validation_loss, tokens));
    saver_->evaluated(done_, *result_.validation_loss);
    return result_.validation_loss;
  }

  RunState state_of(std::int64_t step) {
    return {.step = step,
            .sequences = step * recipe_.train.global_batch_size,
            .recipe = recipe_json(recipe_),
            .config = config_text_,
            .tokenizer = tokenizer_,
            .data = data_identity_,
            .products = ops::gemm_choices(session_->stream()),
            .tokenizer_files = tokenizer_files_};
  }

  void finish() {
    if (landed_ > 0) {
      phase(cat("saving step ", done_), "saving");
      saver_->save(done_);
    }
    result_.saving = saver_->times();
    if (layout_.batch.context > 1 && landed_ > 0) result_.imbalance = imbalance_.value();
    if (counted_seconds_ > 0) result_.tokens_per_second = counted_tokens_ / counted_seconds_;
    phase("ending", "ending");
    if (watch_) watch_->finish(result_.interrupted ? report::Ending::interrupted : report::Ending::done);
    if (progress_) progress_->finish();
  }

  static constexpr std::int64_t kMostChoices = 16 << 20;  // bytes of a text of choices that is read
  static constexpr std::size_t kInFlight = 2;             // steps enqueued before the oldest is waited for

  const FitRequest& request_;
  Recipe recipe_;  // the request's; auto becomes what it stands for
  comm::World* world_;
  std::string stage_;
  checkpoint::File lock_;
  OpenModel open_;
  std::string config_text_;    // of the model's config.json
  std::string tokenizer_;      // where it lies; "": there is none
  std::string data_identity_;  // rank 0's
  std::vector<checkpoint::Attachment> tokenizer_files_;
  plan::Layout layout_;
  data::BatchLayout batch_layout_;
  std::shared_ptr<const data::BatchLoader> loader_, validation_;
  std::int64_t sequences_ = 0;
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<report::Progress> progress_;
  report::PhaseClock phases_;
  std::optional<double> peak_flops_;  // of all ranks
  std::unique_ptr<RunWatch> watch_;   // rank 0's
  std::unique_ptr<RunSaver> saver_;   // ends before what it reads and says
  std::deque<Flight> flights_;
  std::int64_t done_ = 0, landed_ = 0;
  double counted_tokens_ = 0, counted_seconds_ = 0;
  data::MeanImbalance imbalance_;
  Clock::time_point last_end_;
  FitResult result_;
};

}  // namespace

FitResult fit(const FitRequest& request, comm::World* world) {
  auto fit = std::make_unique<Fit>(request, world);
  try {
    return fit->run();
  } catch (...) {
    fit->end_progress();
    // Its streams may wait for messages that other ranks will never send, and would wait here before the error is said.
    if (world != nullptr) static_cast<void>(fit.release());
    throw;
  }
}

}  // namespace hawser::train
