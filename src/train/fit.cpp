#include "train/fit.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <filesystem>
#include <thread>

#include "checkpoint/root.h"
#include "checkpoint/storage/posix.h"
#include "config/config.h"
#include "data/batch_loader.h"
#include "data/prepare.h"
#include "data/token_file.h"
#include "models/families.h"
#include "optim/schedule.h"
#include "report/metrics.h"
#include "train/evaluate.h"
#include "train/feed.h"
#include "train/open_model.h"
#include "train/saver.h"

namespace hawser::train {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string checkpoints_folder(const Recipe& recipe) {
  return (fs::path(resolve_path(recipe, recipe.output)) / "checkpoints").string();
}

std::string data_folder(const Recipe& recipe) { return data::prepare_options(recipe).output; }

void check_fit(const Recipe& recipe, int, Problems& problems) {
  open_model(recipe.model, recipe.folder, problems);
  checkpoint::check_writable(resolve_path(recipe, recipe.output), problems);
}

namespace {

// Token files are made by rank 0 while the others wait; however long it takes, nobody's time limit passes.
void prepare_data(const Recipe& recipe, std::int64_t vocabulary, comm::World* world, report::Progress* progress) {
  if (recipe.data.train.empty()) return;  // data.prepared was made elsewhere
  data::PrepareOptions options = data::prepare_options(recipe);
  options.vocab_size = vocabulary;
  std::atomic<bool> done = false;
  std::exception_ptr error;
  std::thread worker;
  if (progress != nullptr) {
    options.progress = [progress](const data::PrepareProgress& p) {
      progress->phase("preparing text", p.bytes_done, p.bytes_total);
    };
  }
  if (world == nullptr || world->rank().value() == 0) {
    worker = std::thread([&] {
      try {
        if (!data::is_prepared(options)) data::prepare(options);
      } catch (...) {
        error = std::current_exception();
      }
      done = true;
    });
  }
  if (world != nullptr) {
    while (!world->any(done)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (worker.joinable()) worker.join();
  if (error) std::rethrow_exception(error);
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

double visible_pairs(const data::MicroBatch& batch) {
  double pairs = 0;
  for (const auto& s : batch.squares) pairs += 0.5 * s.q_count * (s.q_count + 1.0);
  for (const auto& s : batch.rectangles) pairs += static_cast<double>(s.q_count) * s.k_count;
  return pairs;
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

 private:
  // A step on its way through the device.
  struct Flight {
    std::int64_t step = 0, targets = 0;
    double flops = 0;  // model FLOPs of this rank
    double learning_rate = 0;
    step::StepOutput output;
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
    prepare_data(recipe_, open_.model->vocabulary(), world_, progress_.get());

    const int ranks = world_ != nullptr ? world_->size() : 1;
    layout_ = plan::make_layout(recipe_, *open_.model, ranks, compute_dtype(recipe_.precision, DeviceKind::cpu),
                                request_.threads);
    const MeshPlace place = place_of(world_ != nullptr ? world_->rank().value() : 0, layout_.mesh);
    batch_layout_ = {.data_rank = place.shard + layout_.mesh.shard * place.replicate,
                     .data_ranks = layout_.data_ranks(),
                     .context_rank = place.context,
                     .context_ranks = layout_.mesh.context};
    open_data();
    mesh_ = world_ != nullptr ? comm::make_mpi_mesh(*world_, layout_.mesh, recipe_.run.collective_timeout_s)
                              : comm::make_self_mesh();
    device_ = make_cpu_device({.threads = request_.threads});
    std::vector<step::Purpose> purposes{step::Purpose::train};
    if (validation_) purposes.push_back(step::Purpose::loss);
    session_ = std::make_unique<Session>(*open_.model, layout_, *device_, *mesh_, purposes, recipe_.memory.capacity);
    if (world_ != nullptr) {
      session_->set_on_row([this](const program::Row& row) {
        std::string phase = cat("step ", enqueueing_, " ", program::to_string(row.op));
        if (row.layer >= 0) phase += cat(" layer ", row.layer);
        world_->set_phase(std::move(phase));
      });
    }
  }

  void open_data() {
    const std::string folder = data_folder(recipe_);
    const std::int64_t vocabulary = open_.model->vocabulary();
    const auto set = open_set(recipe_, folder + "/train", vocabulary);
    sequences_ = set->size();
    loader_ = std::make_shared<const data::BatchLoader>(
        set, layout_.batch, batch_layout_,
        data::BatchOrder{.global_batch_size = recipe_.train.global_batch_size, .seed = recipe_.train.seed});
    HAWSER_CHECK(loader_->micro_batches() == layout_.micro_batches, loader_->micro_batches(), " micro-batches, planned ",
                 layout_.micro_batches);
    std::error_code ignored;
    if (!fs::exists(folder + "/valid.idx", ignored)) return;
    const auto held_out = open_set(recipe_, folder + "/valid", vocabulary);
    const std::int64_t at_once = layout_.data_ranks() * layout_.batch.sequences;
    validation_ = std::make_shared<const data::BatchLoader>(
        held_out, layout_.batch, batch_layout_, data::BatchOrder{.global_batch_size = at_once, .shuffle = false});
  }

  void resume() {
    std::optional<checkpoint::Checkpoint> checkpoint;
    if (request_.resume) {
      Problems skipped;
      checkpoint = checkpoint::Checkpoint::latest(checkpoints_folder(recipe_), skipped);
      if (progress_ && !skipped.empty()) progress_->message(skipped.lines());
    }
    if (checkpoint) {
      load(*session_, *checkpoint, true);
      done_ = run_state_of(checkpoint->meta()).step;
      result_.checkpoint = checkpoint->folder();
      say(cat("going on from ", checkpoint->folder(), " (step ", done_, ")"));
    } else if (open_.weights) {
      session_->load(*open_.weights);
      if (request_.resume) say("no checkpoint to resume from: starting at the beginning");
    } else {
      session_->initialise(recipe_.train.seed);
    }
    result_.steps = done_;
    if (!first_rank()) return;
    checkpoint::write_text_atomically((fs::path(resolve_path(recipe_, recipe_.output)) / "recipe.json").string(),
                                      recipe_json(recipe_) + "\n");
    metrics_ = std::make_unique<report::MetricsWriter>(
        (fs::path(resolve_path(recipe_, recipe_.output)) / "metrics.jsonl").string(), done_);
  }

  void say(const std::string& line) {
    if (progress_) progress_->message(line);
  }

  void train() {
    if (done_ >= total_steps()) return say(cat("nothing to do: ", done_, " of ", total_steps(), " steps are done"));
    data::Prefetcher prefetcher(loader_, done_, total_steps());
    last_end_ = Clock::now();
    for (std::int64_t step = done_ + 1; step <= total_steps(); ++step) {
      flights_.push_back(enqueue(step, prefetcher));
      done_ = step;
      const bool stop = asked_to_stop();
      const bool evaluate = validation_ && recipe_.train.evaluate_every > 0 && step % recipe_.train.evaluate_every == 0;
      const bool save = recipe_.checkpoint.every_steps > 0 && step % recipe_.checkpoint.every_steps == 0;
      const bool pause = stop || evaluate || save || step == total_steps();
      while (flights_.size() > (pause ? 0u : kInFlight)) land(evaluate || step == total_steps());
      if (save || (stop && step < total_steps())) save_checkpoint();
      if (pause) last_end_ = Clock::now();
      if (stop && step < total_steps()) {
        result_.interrupted = true;
        return;
      }
    }
  }

  bool asked_to_stop() {
    const bool mine = request_.stop_requested();
    return world_ != nullptr ? world_->any(mine) : mine;
  }

  Flight enqueue(std::int64_t step, data::Prefetcher& prefetcher) {
    enqueueing_ = step;
    Flight flight{.step = step};
    step::StepInput input;
    for (int m = 0; m < layout_.micro_batches; ++m) {
      const data::MicroBatch batch = prefetcher.next();
      flight.targets = batch.step_targets;
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
        .peak_arena_bytes = session_->planned_bytes(),
        .data_position = {.sequences = flight.step * recipe_.train.global_batch_size,
                          .epoch = static_cast<double>(flight.step * recipe_.train.global_batch_size) /
                                   static_cast<double>(sequences_)}};
    if (flight.targets == 0) say(cat("step ", flight.step, " has no token to predict: skipped"));
    if (evaluate_behind && flights_.empty()) metrics.validation_loss = evaluate();
    result_.train_loss = metrics.loss;
    result_.steps = flight.step;
    if (landed_++ > 0) {
      counted_tokens_ += tokens;
      counted_seconds_ += seconds;
    }
    if (metrics_) metrics_->write(metrics);
    if (progress_) progress_->step(metrics);
  }

  std::optional<double> evaluate() {
    if (!validation_) return std::nullopt;
    std::int64_t steps = validation_->steps();
    if (recipe_.train.evaluate_batches > 0) steps = std::min(steps, recipe_.train.evaluate_batches);
    const auto [sum, tokens] = evaluate_loss(*session_, *validation_, steps, [&](std::int64_t s) {
      if (progress_) progress_->phase("evaluating", s, steps);
    });
    if (tokens > 0) result_.validation_loss = sum / static_cast<double>(tokens);
    if (result_.validation_loss) say(cat("validation loss ", *result_.validation_loss, " over ", tokens, " tokens"));
    last_end_ = Clock::now();
    return result_.validation_loss;
  }

  void save_checkpoint() {
    if (saved_step_ == done_) return;
    const std::string config_file =
        models::config_path(resolve_path(recipe_, recipe_.model.path.empty() ? recipe_.model.config : recipe_.model.path));
    result_.checkpoint = save(*session_, world_, checkpoints_folder(recipe_),
                              {.step = done_,
                               .sequences = done_ * recipe_.train.global_batch_size,
                               .recipe = recipe_json(recipe_),
                               .config = checkpoint::read_text(config_file, 1 << 20),
                               .tokenizer = data::prepare_options(recipe_).tokenizer},
                              recipe_.checkpoint.keep_last);
    saved_step_ = done_;
    if (metrics_) metrics_->sync();
    say(cat("saved ", result_.checkpoint));
  }

  void finish() {
    if (!result_.interrupted && done_ > 0 && landed_ > 0) save_checkpoint();
    if (counted_seconds_ > 0) result_.tokens_per_second = counted_tokens_ / counted_seconds_;
    if (progress_) progress_->finish();
  }

  static constexpr std::size_t kInFlight = 2;  // steps enqueued before the oldest is waited for

  const FitRequest& request_;
  const Recipe& recipe_;
  comm::World* world_;
  OpenModel open_;
  plan::Layout layout_;
  data::BatchLayout batch_layout_;
  std::shared_ptr<const data::BatchLoader> loader_, validation_;
  std::int64_t sequences_ = 0;
  std::unique_ptr<comm::Mesh> mesh_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<report::Progress> progress_;
  std::unique_ptr<report::MetricsWriter> metrics_;
  std::deque<Flight> flights_;
  std::int64_t done_ = 0, enqueueing_ = 0, landed_ = 0, saved_step_ = -1;
  double counted_tokens_ = 0, counted_seconds_ = 0;
  Clock::time_point last_end_;
  FitResult result_;
};

}  // namespace

FitResult fit(const FitRequest& request, comm::World* world) { return Fit(request, world).run(); }

}  // namespace hawser::train
