// Setup of a run before its first step: data, plan, session, weights, and the checkpoint to resume from.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "batches/statistics.h"
#include "config/config.h"
#include "engine/load_state.h"
#include "engine/memory_choice.h"
#include "engine/model_changes.h"
#include "engine/parallel_choice.h"
#include "engine/rank_sync.h"
#include "io/files.h"
#include "io/json.h"
#include "models/families.h"
#include "models/weights.h"
#include "plan/context_form.h"
#include "plan/forecast.h"
#include "plan/offload_text.h"
#include "prepare/identity.h"
#include "prepare/prepare.h"
#include "prepare/sources.h"
#include "prepare/token_file.h"
#include "text/chat/chat_template.h"
#include "train/check_resume.h"
#include "train/collect_facts.h"
#include "train/fit_run.h"
#include "train/restore_files.h"
#include "train/turns.h"

namespace hawser::train {

namespace fs = std::filesystem;

namespace {

// Rank 0 prepares the token files while the other ranks wait. Returns prepare::prepared_manifest on rank 0.
std::string prepare_data(const FitRequest& request, std::int64_t vocabulary, comm::World* world,
                         report::Progress* progress) {
  if (!request.plan.prepares) return "";  // data.prepared exists already
  std::string manifest;
  engine::on_rank_zero(world, [&]() -> std::string {
    prepare::PrepareOptions options = request.plan.data;
    options.vocab_size = vocabulary;
    options.stop = request.stop_requested;
    if (progress != nullptr) {
      options.progress = [progress](const prepare::PrepareProgress& p) {
        progress->phase("preparing text, MiB", p.bytes_done >> 20, p.bytes_total >> 20);
      };
    }
    manifest = prepare::prepared_manifest(options);
    if (!manifest.empty()) return "";
    if (progress != nullptr) {
      for (const std::string& note : prepare::source_notes(options)) progress->message(note);
    }
    const prepare::Prepared prepared = prepare::prepare(options);
    if (progress != nullptr) {
      for (const std::string& note : prepare::notes_of(prepared, options)) progress->message(note);
    }
    manifest = prepare::prepared_manifest(options);
    return "";
  });
  return manifest;
}

// A note on the documents that do not fit in a sequence; "" if there are none, or if splitting them loses no context of
// an answer: plain text, for which run_summary says it.
std::string long_documents_note(const batches::PackingPlan& packing, const prepare::TokenFile& file,
                                const std::string& what) {
  const LongDocuments action = packing.long_documents;
  if (packing.pack == Packing::chunks || (action == LongDocuments::split && !file.has_labels())) return "";
  const std::int64_t length = packing.sequence_length;
  return batches::describe(batches::long_statistics(file, length, action), file, length, action, what);
}

bool has_chat_template(const std::vector<checkpoint::Attachment>& tokenizer_files) {
  return std::ranges::any_of(tokenizer_files, [](const checkpoint::Attachment& file) {
    return models::is_chat_template_file(file.name) ||
           (file.name == "tokenizer_config.json" && file.text.find("\"chat_template\"") != std::string::npos);
  });
}

using NamedFile = std::pair<std::string, std::shared_ptr<const prepare::TokenFile>>;

// What a validation loss is the mean of.
std::string validation_identity(const plan::RunPlan& plan, const std::vector<NamedFile>& sets) {
  if (sets.empty()) return "";
  const batches::PackingPlan& packing = plan.packing;
  nlohmann::ordered_json json;
  for (const auto& [name, file] : sets) {
    const auto identity = io::parse_own_json<io::OrderedJson>(prepare::to_json(prepare::identity_of(*file)));
    (name.empty() ? json["data"] : json["sets"][name]) = identity;
  }
  json["sequences"] = plan.evaluate_sequences.value_or(0);  // 0: all
  json["sequence_length"] = packing.sequence_length;
  json["max_documents"] = packing.max_documents;
  if (packing.long_documents == LongDocuments::truncate) json["long_documents"] = "truncate";
  if (packing.long_documents == LongDocuments::drop) json["long_documents"] = "drop";
  json["chunks"] = packing.pack == Packing::chunks;
  json["seed"] = packing.seed;
  return json.dump();
}

}  // namespace

// Each rank reads recipe and config.json itself, and either may be saved again while the ranks start. Paths may differ
// by host; what they lead to is compared: the model here, token files in open_data().
void FitRun::expect_equal_recipes() const {
  if (world_ == nullptr) return;
  const auto keys_of = [](const std::string& recipe) {
    io::OrderedJson keys = io::parse_own_json<io::OrderedJson>(recipe).flatten();
    for (auto& [key, value] : keys.items()) {
      if (value.is_string() && value.get<std::string>().starts_with('/')) value = nullptr;
    }
    return keys;
  };
  const std::vector<std::string> recipes = world_->all_gather_strings(recipe_json(plan_.recipe));
  const std::vector<std::string> configs = world_->all_gather_strings(config_text_);
  const io::OrderedJson first = keys_of(recipes.front());
  for (std::size_t rank = 1; rank < recipes.size(); ++rank) {
    const io::OrderedJson own = keys_of(recipes[rank]);
    for (const io::OrderedJson& keys : {first, own}) {  // a list may be longer in either
      for (const auto& item : keys.items()) {
        const io::OrderedJson expected = first.value(item.key(), io::OrderedJson()),
                              got = own.value(item.key(), io::OrderedJson());
        if (expected == got) continue;
        std::string at = item.key().substr(1);
        std::ranges::replace(at, '/', '.');
        throw UserError(
            Problem{.file = plan_.recipe.file,
                    .what = cat("ranks read different recipes: rank ", rank, " has another value than rank 0"),
                    .expected = expected.dump(),
                    .got = got.dump(),
                    .at = at,
                    .hint = "the same command again, without a change of the recipe during the start"});
      }
    }
    if (configs[rank] != configs.front()) {
      throw UserError(
          Problem{.file = models::config_path(plan_.model),
                  .what = cat("ranks read different models: rank ", rank, " has another config.json than rank 0"),
                  .hint = "one model for all ranks, which does not change during the start"});
    }
  }
}

void FitRun::open() {
  if (first_rank()) {
    report::ProgressOptions options = request_.progress;
    options.total = plan_.epochs ? 0 : total_steps();  // set again when the data are open
    options.log_every = plan_.log_every;
    options.stop_requested = request_.stop_requested;
    progress_ = std::make_unique<report::Progress>(options);
  }
  Problems problems;
  open_ = engine::open_model(plan_.model, plan_.random_weights, problems, engine::changes_of(plan_.recipe, rank()));
  frozen_weights_ = engine::frozen_identity(open_);
  problems.throw_if_any();
  const std::string beyond = models::beyond_positions(open_.model->description(), plan_.packing.sequence_length);
  if (!beyond.empty()) log("hawser: warning: " + beyond);
  const std::string high = high_learning_rate(plan_.recipe);
  if (!high.empty()) log("hawser: warning: " + high);
  const std::string experts = engine::experts_without_adapter(plan_.recipe, *open_.model);
  if (!experts.empty()) log("hawser: " + experts);
  const std::string useless = engine::useless_fp8(plan_.recipe, *open_.model);
  if (!useless.empty()) log("hawser: warning: " + useless);
  const std::string tiles = plan::useless_tiles(plan_.recipe, *open_.model);
  if (!tiles.empty()) log("hawser: warning: " + tiles);
  const std::string offload = plan::useless_offload(plan_.recipe, request_.device.kind);
  if (!offload.empty()) log("hawser: warning: " + offload);
  // Read now, since the file may change during the run.
  config_text_ = io::read_text(models::config_path(plan_.model), 1 << 20);
  expect_equal_recipes();
  tokenizer_ = plan_.data.tokenizer;
  phase("preparing text");
  engine::on_rank_zero(world_, [&]() -> std::string {
    hold_ = hold_output(plan_.files.folder);
    undo_interrupted_move(plan_.files.folder);
    if (!hold_.locked) {
      log(cat("hawser: warning: the file system of ", plan_.files.folder,
              " has no locks; a second run in this folder would not be detected"));
    }
    tokenizer_files_ = tokenizer_files_of(plan_);
    if (request_.resume) {
      Problems changes;
      check_resume(resumed_run(), changes);
      changes.throw_if_any();
    }
    return "";
  });
  const std::string manifest = prepare_data(request_, open_.model->vocabulary(), world_, progress_.get());

  fallbacks_ = resumed_fallbacks();
  if (!fallbacks_.empty()) rebuild_model();
  lay_out();
  const comm::MeshCoordinate place = comm::coordinate_of(rank(), plan_.layout.mesh);
  batch_layout_ = {.data_rank = place.shard + plan_.layout.mesh.shard * place.replicate,
                   .data_ranks = plan_.layout.data_ranks(),
                   .context_rank = place.context,
                   .context_ranks = plan_.layout.mesh.context};
  open_data();
  engine::on_rank_zero(world_, [&]() -> std::string {
    prepare::expect_still_prepared(plan_.data, manifest);
    return "";
  });
  device_ = engine::make_device(request_.device, request_.threads);
  power_ = std::make_unique<PowerWatch>(*device_, world_);
  mesh_ = engine::make_mesh(world_, plan_.layout.mesh, plan_.collective_timeout_s, *device_);
  open_session();
  if (first_rank()) log(run_summary(run_place(), request_.resume));
  for (const std::string& note : session_->notes()) remark(note);
  saver_ = std::make_unique<RunSaver>(
      plan_, world_, *session_, request_.ranks_here,
      RunSaverHooks{.state = [this](std::int64_t step) { return state_of(step); },
                    .before =
                        [this] {
                          expect_unchanged_data();
                          if (watch_) watch_->sync();  // metrics of a checkpoint's steps are on disk before it
                        },
                    .displaced = [this] { return find_displaced(); },
                    .log = [this](const std::string& line) { log(line); },
                    .saved =
                        [this](const std::string& folder) {
                          result_.checkpoint = folder;
                          log("saved " + folder);
                        },
                    .validation = {validation_identity_, plan_.recipe.train.early_stopping_metric}});
}

void FitRun::lay_out() {
  const int ranks = world_ != nullptr ? world_->size() : 1;
  for (const std::string& chosen : engine::choose_parallelism(plan_, *open_.model, request_.device.kind, world_,
                                                              request_.ranks_here, request_.threads)) {
    log(chosen);
  }
  plan::lay_out(plan_, *open_.model, ranks, request_.threads, request_.device.kind);
}

void FitRun::open_session() {
  choose_algorithms();
  const std::string chosen = engine::choose_memory(plan_, *open_.model, *device_, world_, request_.ranks_here);
  if (!chosen.empty()) log(chosen);
  result_.checkpointing = checkpointing_text(plan_.recipe.memory);
  result_.offload = plan::offload_text(plan_.layout, *open_.model);
  if (plan_.layout.mesh.context > 1) result_.context_comm = plan::context_text(plan::form_of(plan_.layout));
  if (plan_.layout.mesh.pipeline > 1) result_.pipeline_schedule = plan_.layout.schedule.name;
  std::vector<step::Purpose> purposes{step::Purpose::train};
  if (!validation_.empty()) purposes.push_back(step::Purpose::loss);
  session_ = std::make_unique<engine::Session>(*open_.model, plan_.layout, *device_, *mesh_, purposes, plan_.capacity,
                                               engine::SessionChecks{.host_capacity = plan_.host_capacity});
  if (world_ != nullptr) {
    const comm::MeshSizes& mesh = plan_.layout.mesh;
    const int stage = comm::coordinate_of(rank(), mesh).pipeline;
    const std::string of_stage = mesh.pipeline > 1 ? cat(" of pipeline stage ", stage) : "";
    session_->set_on_instruction([this, of_stage](const program::Instruction& instruction) {
      std::string text = cat(stage_, " ", program::to_string(instruction.op));
      if (instruction.layer >= 0) text += cat(" layer ", instruction.layer);
      if (!of_stage.empty() && instruction.micro_batch >= 0) text += cat(" micro-batch ", instruction.micro_batch);
      text += of_stage;
      world_->set_phase(std::move(text));
    });
  }
}

RunPlace FitRun::run_place() const {
  return {.plan = plan_,
          .session = *session_,
          .ranks = world_ != nullptr ? world_->size() : 1,
          .sequences = sequences_,
          .validation_sequences = validation_sequences_,
          .held_out_sequences = held_out_sequences_};
}

void FitRun::choose_algorithms() {
  if (device_->kind() != DeviceKind::cuda) return;
  phase("choosing GEMM algorithms");
  const engine::GemmAlgorithmOptions how{.measure = !plan_.layout.deterministic,
                                         .stored = [this] { return stored_choices(); }};
  const std::string choices = engine::choose_gemm_algorithms(*open_.model, plan_.layout, *device_, world_, how,
                                                             [this](const std::string& line) { log(line); });
  if (how.measure && first_rank()) io::write_text_atomically(plan_.files.gemm_algorithms, choices);
}

std::vector<engine::StoredChoices> FitRun::stored_choices() const {
  std::vector<engine::StoredChoices> all;
  if (request_.resume || !fallbacks_.empty()) {
    Problems ignored;  // reported when it is loaded
    const auto found = checkpoint::Checkpoint::latest(plan_.files.checkpoints, ignored);
    if (found) all.push_back({engine::run_state_of(found->metadata()).gemm_algorithms, found->folder()});
  }
  const std::string path = stored_gemm_algorithms_path(plan_.files);
  if (!plan_.layout.deterministic && !path.empty()) all.push_back({io::read_text(path, kMaxChoices), path});
  return all;
}

void FitRun::expect_equal_on_ranks(const std::string& identity, const std::string& prefix) {
  if (world_ == nullptr) return;
  const std::vector<std::string> all = world_->all_gather_strings(identity);
  if (std::ranges::all_of(all, [&](const std::string& other) { return other == all.front(); })) return;
  throw UserError(Problem{.file = prefix + ".idx",
                          .what = "ranks read different tokens: the file was replaced during the start",
                          .hint = "the same command again, without another `hawser prepare` at the same time"});
}

void FitRun::expect_unchanged_data() {
  std::string mine;
  try {
    for (const auto& file : token_files_) file->expect_unchanged();
  } catch (const UserError& error) {
    mine = error.what();
  }
  const std::vector<std::string> all =
      world_ != nullptr ? world_->all_gather_strings(mine) : std::vector<std::string>{mine};
  const auto changed = std::ranges::find_if(all, [](const std::string& line) { return !line.empty(); });
  if (changed == all.end()) return;
  saver_->settle();
  throw UserError(*changed);
}

void FitRun::note_long_documents(const prepare::TokenFile& file, const std::string& what) {
  const std::string note = first_rank() ? long_documents_note(plan_.packing, file, what) : std::string();
  if (!note.empty()) log(cat("hawser: ", note, " (data.long_documents)"));
}

void FitRun::open_data() {
  const prepare::TokenFiles files = prepare::token_files(plan_.data);
  const std::int64_t vocabulary = open_.model->vocabulary();
  const auto file = std::make_shared<const prepare::TokenFile>(files.train);
  token_files_.push_back(file);
  data_identity_ = prepare::to_json(prepare::identity_of(*file));
  expect_equal_on_ranks(data_identity_, files.train);
  note_long_documents(*file, "training document");
  training_ = batches::open_training(file, plan_.packing, vocabulary, plan_.data_sets, prepare::set_begins(plan_.data));
  sequences_ = training_.epoch;
  if (!training_.shares.empty()) mixture_ = {{.from = 0, .of_sets = training_.shares}};
  using Prompt = FitResult::Prompt;
  result_.prompt = tokenizer_.empty()                                          ? Prompt::ids
                   : file->has_labels() && has_chat_template(tokenizer_files_) ? Prompt::chat
                                                                               : Prompt::text;
  if (first_rank()) {
    conversations_ = has_chat_template(tokenizer_files_) ? has_turns(*file, plan_.data) : std::optional(false);
  }
  if (sequences_ == 0) {
    throw UserError(Problem{
        .file = files.train + ".idx", .what = "no text to train on", .expected = "a document of two tokens or more"});
  }
  plan::resolve_steps(plan_, sequences_);
  if (progress_) progress_->set_total(total_steps());
  open_loader();
  // Without a token to predict a run would succeed and learn nothing. The first step of most runs has one.
  std::int64_t targets = 0;
  const std::int64_t epoch = ceil_div(sequences_, plan_.global_batch_size);
  for (std::int64_t s = 0; s < epoch && targets == 0; ++s) targets = loader_->step_targets(s);
  if (targets == 0) {
    throw UserError(Problem{.file = files.train + ".idx",
                            .what = "no token to predict",
                            .expected = "documents of two tokens or more, and labels that are not all -100"});
  }
  HAWSER_CHECK(loader_->micro_batches() == plan_.layout.micro_batches, loader_->micro_batches(),
               " micro-batches, planned ", plan_.layout.micro_batches);
  open_validation(files.validation);
}

void FitRun::open_validation(const std::vector<prepare::TokenFiles::Validation>& files) {
  std::vector<NamedFile> sets;
  for (const auto& [name, prefix] : files) {
    sets.emplace_back(name, std::make_shared<const prepare::TokenFile>(prefix));
    token_files_.push_back(sets.back().second);
  }
  validation_identity_ = validation_identity(plan_, sets);
  expect_equal_on_ranks(validation_identity_, files.empty() ? plan_.data.output + "/valid" : files.front().prefix);
  // The number of sequences evaluated at once depends on the layout; the total does not.
  const std::int64_t at_once =
      plan_.layout.data_ranks() * plan_.layout.batch.sequences * plan_.layout.forward_micro_batches;
  const std::optional<std::int64_t>& evaluated = plan_.evaluate_sequences;
  Problems problems;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const auto& [name, file] = sets[i];
    note_long_documents(*file, name.empty() ? "validation document" : cat("validation document of ", name));
    const std::shared_ptr<const batches::SequenceSet> held_out =
        batches::open_sequences(file, plan_.packing, open_.model->vocabulary());
    held_out_sequences_ += held_out->size();
    validation_sequences_ += evaluated ? std::min(*evaluated, held_out->size()) : held_out->size();
    const auto loader = std::make_shared<const batches::BatchLoader>(
        held_out, plan_.layout.batch, batch_layout_,
        batches::BatchOrder{.global_batch_size = at_once, .shuffle = false, .first = evaluated.value_or(0)});
    validation_.push_back({name, loader});
    std::int64_t targets = 0;
    for (std::int64_t s = 0; held_out->size() > 0 && s < loader->steps() && targets == 0; ++s)
      targets = loader->step_targets(s);
    if (targets > 0) continue;
    problems.add(
        {.file = files[i].prefix + ".idx",
         .what = "no token to predict in the validation data",
         .expected = "documents of two tokens or more, and labels that are not all -100",
         .hint = cat("other ", prepare::validation_key(name), name.empty() ? ", or data.validation_fraction: 0" : "")});
  }
  problems.throw_if_any();
}

void FitRun::open_loader() {
  loader_ = std::make_shared<const batches::BatchLoader>(
      training_.set, plan_.layout.batch, batch_layout_,
      batches::BatchOrder{.global_batch_size = plan_.global_batch_size,
                          .seed = plan_.seed,
                          .mixture = training_.mixture(mixture_, plan_.seed)});
}

// Continues each data set where the checkpoint's run was, with the shares of this recipe from here on.
void FitRun::set_mixture(const engine::RunState& state) {
  if (training_.shares.empty() || state.mixture.empty()) return;
  if (state.mixture.back().of_sets.size() != training_.shares.size()) {
    log("hawser: data.train has another number of data sets than the checkpoint's run: each begins anew");
    return;
  }
  mixture_ = state.mixture;
  if (mixture_.back().of_sets != training_.shares) {
    std::erase_if(mixture_, [&](const batches::Mixture::Shares& shares) { return shares.from >= state.sequences; });
    mixture_.push_back({mixture_.empty() ? 0 : state.sequences, training_.shares});
    log(cat("hawser: data.train has other weights from step ", state.step + 1, " on"));
  }
  open_loader();
}

std::optional<checkpoint::Checkpoint> FitRun::load_checkpoint() {
  phase("reading a checkpoint");
  return load_newest(
      *session_, world_, plan_.files.checkpoints, [this](const auto& found) { check_position(found); },
      [this](const std::string& line) { log(line); });
}

void FitRun::set_progress(const engine::RunState& state) {
  done_ = state.step;
  if (state.conversations.value_or(false)) conversations_ = true;
  progress_of_retired_ = {.step = static_cast<std::int32_t>(done_ - state.skipped),
                          .good_steps = static_cast<std::int32_t>(state.good_steps),
                          .loss_scale = state.loss_scale,
                          .kept = state.kept,
                          .replay_step = static_cast<std::int32_t>(state.replay_step),
                          .replays = static_cast<std::int32_t>(state.replays)};
  const std::vector<step::ScaledSite>& sites = session_->state().options().scaled_sites;
  step::OptimizerProgress progress = progress_of_retired_;
  if (sites.empty()) {  // nothing can saturate, and no Quantizer::judge() would count the step as replayed
    progress.replay_step = -1;
    progress.replays = 0;
  }
  session_->set_progress(progress);
  std::vector<engine::SaturatedStep> saturated = state.saturated_steps;
  std::erase_if(saturated, [&](const engine::SaturatedStep& step) {
    return std::ranges::none_of(
        sites, [&](const step::ScaledSite& site) { return site.layer == step.layer && site.site == step.site; });
  });
  saturations_.set_steps(std::move(saturated));
  saturations_.set_kept(state.kept_in_fp8);
}

void FitRun::resume() {
  const bool has_frozen = !frozen_weights_.empty();
  if (has_frozen) load_initial();  // a checkpoint has the others only
  std::optional<checkpoint::Checkpoint> checkpoint;
  if (request_.resume) checkpoint = load_checkpoint();
  if (checkpoint) {
    // Of an older checkpoint, if the newest is corrupt.
    const std::vector<engine::Fp8Fallback> fallbacks = engine::run_state_of(checkpoint->metadata()).fp8_fallbacks;
    if (fallbacks != fallbacks_) {
      reopen(fallbacks);
      checkpoint = load_checkpoint();
    }
  }
  if (!checkpoint) {  // with --resume, too: `best` may exist without other checkpoints
    const std::string earlier =
        engine::on_rank_zero(world_, [&] { return set_aside_earlier(plan_.files, recipe_json(plan_.recipe) + "\n"); });
    if (!earlier.empty()) {
      const bool resumable = io::exists(earlier + "/checkpoints");
      log(cat("moved the files of an earlier run to ", earlier,
              resumable ? cat("; to continue that run instead: --set output=", earlier, " --resume") : ""));
    }
  }
  if (checkpoint) {
    const engine::RunState state = engine::run_state_of(checkpoint->metadata());
    set_progress(state);
    set_mixture(state);
    if (!validation_.empty()) unfinished_evaluation_ = report::from_json(state.unfinished_evaluation);
    if (unfinished_evaluation_ && unfinished_evaluation_->step != done_) unfinished_evaluation_.reset();
    nothing_to_do_ = done_ >= total_steps() && !unfinished_evaluation_;
    evaluated_ = done_;
    saver_->resumed(done_, unfinished_evaluation_.has_value(), !nothing_to_do_);
    result_.checkpoint = checkpoint->folder();
    if (engine::same_validation(state.validation, validation_identity_)) {
      result_.initial_validation_loss = state.initial_validation_loss;
    }
    log(cat("resuming from ", checkpoint->folder(), " (step ", done_, ")",
            !unfinished_evaluation_ ? "" : ", with the evaluation that the stop interrupted"));
  } else {
    if (!has_frozen) load_initial();
    progress_of_retired_.loss_scale = static_cast<float>(plan_.layout.loss_scaling.initial);
    if (request_.resume) log("no checkpoint to resume from; starting from step 0");
  }
  result_.steps = done_;
  result_.metric = plan_.recipe.train.early_stopping_metric;
  result_.output = plan_.files.folder;
  result_.adapter = plan_.recipe.adapter.kind != AdapterKind::none;
  if (!first_rank()) return;
  if (nothing_to_do_) {
    restore_files(run_place(), engine::run_state_of(checkpoint->metadata()), phases_,
                  [this](const std::string& line) { log(line); });
    return;
  }
  io::write_text_atomically(plan_.files.recipe, recipe_json(plan_.recipe) + "\n");
  const int ranks = world_ != nullptr ? world_->size() : 1;
  peak_flops_ = peak_flops(device_->kind(), device_->kind() == DeviceKind::cuda ? cuda_info().name : "",
                           plan_.layout.compute, ranks);
  const std::int64_t reported = unfinished_evaluation_ ? done_ - 1 : done_;
  watch_ = std::make_unique<RunWatch>(
      plan_, run_facts(run_place()), Resumed{reported, result_.initial_validation_loss.has_value()},
      open_.model->vocabulary(), phases_, [this](const std::string& line) { log(line); });
  if (plan_.report.rules) {
    const plan::StepTime step = predicted_step(*session_);
    const auto sent = step.busy.find("communication");
    slow_steps_.emplace(SlowStepsOptions{.predicted = step.seconds,
                                         .communication = sent == step.busy.end() ? 0 : sent->second,
                                         .steps = plan_.steps - done_,
                                         .own_threads = request_.threads * request_.ranks_here,
                                         .prediction_of = plan::load_target(plan::target_of(device_->kind())).about});
  }
}

void FitRun::load_initial() {
  phase("reading weights");
  engine::take_time(world_, [&] {
    if (!plan_.random_weights) {
      HAWSER_CHECK(open_.weights, "model.path without open weights");
      session_->load(*open_.weights, plan_.seed);
    } else {
      session_->initialise(plan_.seed);
    }
  });
}

ResumedRun FitRun::resumed_run() const {
  return {.plan = plan_,
          .open = open_,
          .device = request_.device.kind,
          .frozen_weights = frozen_weights_,
          .tokenizer_files = tokenizer_files_};
}

void FitRun::check_position(const checkpoint::Checkpoint& checkpoint) {
  const engine::RunState state = engine::run_state_of(checkpoint.metadata());
  const std::string recipe = recipe_json(plan_.recipe);
  Problems problems = resume_changes(resumed_run(), checkpoint);
  if (engine::fp8_changes(state, recipe, open_.model->blocks(), checkpoint.folder()).empty()) {
    problems.add(engine::missing_scales(*session_, checkpoint, plan_.recipe.precision.fp8.exclude));
  }
  problems.throw_if_any();
  const std::string changes = engine::data_order_changes(state, recipe);
  if (!changes.empty()) log("hawser: the data order has changed: " + changes);
  const std::string training = engine::training_changes(state, recipe);
  if (!training.empty()) log("training has changed: " + training);
  const std::string routers = engine::router_changes(state, open_.model->description(), plan_.layout.micro_batches);
  if (!routers.empty()) log("hawser: the loss of routers has changed: " + routers);
  const std::string others = engine::data_changes(state, data_identity_);
  if (!others.empty()) log("hawser: " + others);
}

}  // namespace hawser::train
