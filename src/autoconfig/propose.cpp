#include "autoconfig/propose.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "autoconfig/explain_fit.h"
#include "autoconfig/fit_machine.h"
#include "autoconfig/requested.h"
#include "autoconfig/sample_data.h"
#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "batches/micro_batch.h"
#include "batches/sequence_packer.h"
#include "device/device.h"
#include "plan/context_form.h"
#include "plan/disk.h"
#include "plan/pipeline_form.h"
#include "plan/run_plan.h"
#include "prepare/sources.h"

namespace hawser::autoconfig {
namespace {

constexpr std::int64_t kUsualLength = 2048;   // default if nothing else is known, and the maximum on a CPU
constexpr std::int64_t kMinLength = 128;      // minimum when fitting
constexpr std::int64_t kUsualBatch = 8;       // sequences
constexpr std::int64_t kGpuTokens = 1 << 16;  // per step, on GPUs
constexpr std::int64_t kMaxBatch = 256;
constexpr double kStepsAnEpoch = 10;  // at least, if the data has that many sequences for each data rank
constexpr double kFewSteps = 20;      // fewer steps teach little: then more epochs, up to kMaxEpochs
constexpr double kMaxSteps = 1000;
constexpr double kMaxEpochs = 3;
constexpr double kEvaluations = 10;         // of a run, at most
constexpr double kFewEvaluated = 12;        // all held-out text if its batches are at most the steps / this
constexpr std::int64_t kMaxEvaluated = 32;  // batches of an evaluation; assumed for all held-out text
constexpr double kShareOfFree = 0.9;        // of free memory: other processes may need some

// "1 token", "2 tokens", "12.3K tokens".
std::string rounded_plural(double count, const std::string& what) {
  return tokens_text(count) + " " + what + (std::llround(count) == 1 ? "" : "s");
}

class Proposer {
 public:
  Proposer(Recipe recipe, std::string target) : recipe_(std::move(recipe)), target_(std::move(target)) {}

  Proposal run() {
    const engine::OpenModel open = open_model();
    const models::Model& model = *open.model;
    vocabulary_ = model.vocabulary();
    if (!recipe_.data.train.empty()) sample_ = sample_data(recipe_, vocabulary_);
    find_place();
    choose_data(model);
    choose_precision();
    choose_training(model);
    share_sequences(model);
    Problems layout;
    check_layout(recipe_, place_.world, layout);
    layout.throw_if_any();
    fit_or_reduce_batch(model);
    explain_long_documents();
    choose_schedule();
    return {recipe_, notes_, summary_, few_};
  }

 private:
  bool fixed(const std::string& key) const { return recipe_.places.contains(key); }
  void why(const std::string& key, const std::string& text) { notes_.why[key] = text; }
  bool one_document() const { return sample_.all && sample_.lengths.size() == 1; }
  bool fine_tuned() const { return !recipe_.model.path.empty(); }

  engine::OpenModel open_model() const {
    Problems problems;
    engine::OpenModel open = open_requested(recipe_, target_, problems);
    problems.throw_if_any();
    return open;
  }

  // Chooses the devices, their number, and the memory of each.
  void find_place() {
    const int gpus = usable_gpus(recipe_);
    place_.target = choose_target(recipe_, target_, gpus);
    const bool given = recipe_.run.ranks > 0;
    const bool cuda = place_.target.cuda;
    place_.world = choose_ranks(recipe_, place_.target, gpus);
    place_.machine = plan::planning_machine(place_.target, place_.world);
    if (!given && place_.world > 1) recipe_.run.ranks = place_.world;
    place_.threads = recipe_.run.threads > 0 ? recipe_.run.threads : std::max(1, place_.machine.cores / place_.world);
    if (given) {
      why("run.ranks", "set by you; data, batch and memory depend on it");
    } else if (place_.world > 1) {
      why("run.ranks", cat("one per GPU: this machine has ", gpus));
    } else if (!cuda) {
      why("run.ranks",
          cat("one rank uses all of this machine's ", plural(place_.machine.cores, "core"), " and all of its memory"));
    }
    if (!fixed("run.device")) {
      if (cuda) recipe_.run.device = DeviceChoice::cuda;
      if (!cuda && gpus > 0) recipe_.run.device = DeviceChoice::cpu;
    }
    why("run.device", cuda ? cat("planned for ", place_.target.about)
                           : cat("planned for this machine's CPU",
                                 gpus > 0 ? ", set by you" : ": it has no GPU that this build can use"));
    find_capacity(gpus);
  }

  void find_capacity(int gpus) {
    const plan::Target& target = place_.target;
    if (recipe_.memory.capacity) return;
    // `hawser plan` uses the shipped target of the device; differences must be in the recipe.
    const std::int64_t usual =
        plan::load_target(plan::target_of(target.cuda ? DeviceKind::cuda : DeviceKind::cpu)).capacity;
    if (target.capacity != usual && target.capacity > 0) {
      recipe_.memory.capacity = Bytes(target.capacity);
      why("memory.capacity", cat("memory of the ", target.name, " target"));
    }
    if (!target.cuda || gpus == 0) return;
    const std::int64_t total = make_cuda_device()->memory().total;
    if (total > 0 && double(total) < 0.98 * double(target.capacity)) {
      recipe_.memory.capacity = Bytes(total);
      why("memory.capacity", "memory of this machine's GPUs");
    }
  }

  void choose_data(const models::Model& model) {
    if (!sample_.empty()) {
      why("data.train",
          cat(sample_.all ? "" : "about ", rounded_plural(sample_.tokens, "token"), " in ",
              rounded_plural(sample_.documents, "document"), sample_.all ? "" : ", estimated from a sample",
              sample_.answers_only() ? "; only answers are learned" : "",
              one_document() ? "" : "; half of the documents have at most ",
              one_document() ? "" : rounded_plural(double(sample_.quantile(0.5)), "token")));
    }
    if (!sample_.chat_template.empty() && recipe_.data.chat_template.empty()) {
      recipe_.data.chat_template = sample_.chat_template;
      why("data.chat_template",
          cat(sample_.drops_calls ? "the tokenizer's own does not write the tool calls of the data"
                                  : "the tokenizer has none",
              "; this one uses its special tokens"));
    } else if (sample_.conversations && recipe_.data.chat_template.empty()) {
      why("data.chat_template", "the tokenizer's own, for conversations");
    }
    if (!fixed("data.validation_fraction")) choose_validation();
    if (!fixed("data.sequence_length")) choose_length(model);
    expect_sequences();
    if (!fixed("data.max_documents")) choose_max_documents();
  }

  bool packs() const { return !sample_.empty() && recipe_.data.pack == Packing::documents; }

  double sequences(std::int64_t max_documents) const {
    return sample_.sequences(recipe_.data.sequence_length, max_documents, recipe_.data.long_documents);
  }
  long long percent_filled(std::int64_t max_documents) const {
    return std::llround(100 * sample_.fill(recipe_.data.sequence_length, max_documents, recipe_.data.long_documents));
  }

  // More than the default where documents are so short that it would leave space in the sequences.
  void choose_max_documents() {
    if (!packs()) return;
    const std::int64_t usual = plan::packing_of(recipe_.data).max_documents;
    std::int64_t wanted = usual;
    while (wanted < recipe_.data.sequence_length && sequences(2 * wanted) < 0.98 * sequences(wanted)) wanted *= 2;
    if (wanted == usual) return;
    recipe_.data.max_documents = wanted;
    why("data.max_documents", cat("the documents are short: the default of ", usual, " would fill sequences to ",
                                  percent_filled(usual), "%, this one to ", percent_filled(wanted), "%"));
  }

  void expect_sequences() const {
    if (!packs() || sequences(1) > 0) return;
    throw UserError(batches::all_dropped("", "data.long_documents"));
  }

  void choose_validation() {
    double& fraction = recipe_.data.validation_fraction;
    if (!recipe_.data.validation.empty()) return;
    Problems ignored;
    const auto sources = prepare::find_sources(recipe_.data.train, recipe_.folder, "", ignored);
    const bool tokens = sources.size() == 1 && sources[0].kind == prepare::SourceKind::tokens;
    if (sample_.empty()) {
      fraction = 0.01;
    } else if (tokens || sample_.documents < 2) {
      fraction = 0;
      why("data.validation_fraction",
          tokens ? "a token file is not split: set data.validation to another" : "one document: none can be held out");
    } else {
      fraction = sample_.documents < 1000 ? 0.05 : 0.01;
      why("data.validation_fraction",
          cat("at least one of ", rounded_plural(sample_.documents, "document"), " measures the loss on unseen text"));
    }
  }

  void choose_length(const models::Model& model) {
    const std::int64_t made_for = model.description().max_position;
    const std::int64_t max = made_for > 1 ? made_for : kUsualLength;
    const std::string limit = made_for > 1 ? cat("the model's limit is ", made_for) : "the model has no limit";
    std::int64_t& length = recipe_.data.sequence_length;
    const std::int64_t device_max = place_.target.cuda ? max : std::min(max, kUsualLength);
    const char* slow = device_max < max ? "; longer is slow on a CPU" : "";
    if (sample_.empty()) {
      length = device_max;
      why("data.sequence_length", cat(limit, slow));
      return;
    }
    // Long enough for nearly all documents, but short enough to leave some steps in the data.
    const std::int64_t long_document = sample_.quantile(0.98);
    const std::int64_t usual = sample_.tokens < 5e5 ? 512 : sample_.tokens < 2e6 ? 1024 : kUsualLength;
    const auto wanted = static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(std::max({std::int64_t{2}, long_document, usual}))));
    length = std::min(wanted, device_max);
    const std::string tokens = rounded_plural(double(long_document), "token");
    const std::string documents =
        one_document() ? cat("the one document has ", tokens, long_document > length ? ": it is split" : "")
                       : cat("98% of documents have at most ", tokens,
                             long_document > length ? ": longer ones are split" : ", and several share a sequence");
    why("data.sequence_length", cat(documents, "; ", limit, length == device_max && wanted > device_max ? slow : ""));
  }

  // `auto` is float32 on every CPU, so that a run can continue on another one.
  void choose_precision() {
    if (fixed("precision.compute")) return;
    const bool bf16 = !place_.target.cuda && place_.machine.bf16_units;
    if (bf16) recipe_.precision.compute = ComputePrecision::bf16;
    why("precision.compute", bf16 ? "this CPU has bf16 units: faster than float32; master weights stay float32"
                             : place_.target.cuda ? "resolves to bf16 on a GPU, with float32 master weights"
                                                  : "resolves to float32 on a CPU; this one has no bf16 units");
  }

  void explain_long_documents() {
    const std::int64_t length = recipe_.data.sequence_length;
    if (sample_.empty() || one_document() || recipe_.data.pack == Packing::chunks) return;
    const auto count =
        std::ranges::count_if(sample_.lengths, [&](std::int64_t n) { return batches::is_long(n, length); });
    if (count == 0) return why("data.long_documents", "no document of the sample is longer than a sequence");
    const double percent = 100.0 * double(count) / double(sample_.lengths.size());
    std::array<char, 32> share{};
    std::snprintf(share.data(), share.size(), percent < 10 ? "%.2g%% of the" : "%.0f%% of the", percent);
    why("data.long_documents",
        cat(percent > 99.99 ? "all" : share.data(), " documents are longer than a sequence",
            sample_.answers_only() ? "; truncate keeps only their beginning, drop none of it" : ""));
  }

  // Sequences of one epoch of training, without the held-out part.
  double epoch_sequences() const { return autoconfig::epoch_sequences(recipe_, sample_); }

  void choose_batch(std::int64_t length) {
    const int stages = recipe_.parallel.pipeline_parallel_degree;
    // With stages, as many micro-batches as let them wait for less than a fifth of a step.
    const std::int64_t unit = stages > 1 ? recipe_.parallel.data_ranks(place_.world) * kMicroBatchesAStage * stages *
                                               recipe_.train.micro_batch_size
                                         : place_.world * recipe_.train.micro_batch_size;
    const std::int64_t usual =
        place_.target.cuda ? std::clamp(kGpuTokens / length, kUsualBatch, kMaxBatch) : kUsualBatch;
    std::int64_t& batch = recipe_.train.global_batch_size;
    batch = round_up(usual, unit);
    const auto most = sample_.empty() ? batch : static_cast<std::int64_t>(epoch_sequences() / kStepsAnEpoch);
    const bool capped = batch > most && batch > unit;
    if (capped) {
      const auto micro_batches = static_cast<std::uint64_t>(std::max<std::int64_t>(1, most / unit));
      batch = unit * static_cast<std::int64_t>(std::bit_floor(micro_batches));
    }
    why("train.global_batch_size",
        cat(tokens_text(double(batch * length)), " tokens per step",
            stages > 1         ? cat(", ", kMicroBatchesAStage, " micro-batches or more for each pipeline stage")
            : place_.world > 1 ? cat(", a multiple of the ", place_.world, " ranks")
                               : "",
            capped ? cat("; small, because an epoch has about ", plural(std::llround(epoch_sequences()), "sequence"))
                   : ""));
  }

  void choose_learning_rate(std::int64_t parameters) {
    if (fixed("optimizer.learning_rate")) return;
    const UsualRate usual = usual_learning_rate(recipe_, parameters);
    recipe_.optimizer.learning_rate = usual.rate;
    why("optimizer.learning_rate", usual.why);
  }

  void choose_training(const models::Model& model) {
    const std::int64_t length = recipe_.data.sequence_length;
    if (!fixed("train.global_batch_size")) choose_batch(length);
    choose_learning_rate(model.parameters());
    if (!fine_tuned() && !fixed("optimizer.minimum_learning_rate")) {
      recipe_.optimizer.minimum_learning_rate = recipe_.optimizer.learning_rate / 10;
      why("optimizer.minimum_learning_rate", "a tenth of the peak, common from scratch");
    }
  }

  // A batch of fewer sequences than ranks: context or tensor ranks share each one.
  void share_sequences(const models::Model& model) {
    ParallelRecipe& parallel = recipe_.parallel;
    const ParallelRecipe wanted = parallel;
    if (!may_share_sequences(recipe_, place_.world)) return;
    for (int ranks = 2; ranks <= place_.world; ++ranks) {
      for (const auto& [context, tensor] : {std::pair(ranks, 1), std::pair(1, ranks)}) {
        parallel.context_parallel_degree = context;
        parallel.tensor_parallel_degree = tensor;
        if (!laid_out(model)) continue;
        const std::string batch = plural(recipe_.train.global_batch_size, "sequence");
        why(context > 1 ? "parallel.context_parallel_degree" : "parallel.tensor_parallel_degree",
            cat("a step has ", batch, ", which ", place_.world / ranks, " data ranks divide and ", place_.world,
                " do not"));
        return;
      }
    }
    parallel = wanted;
  }

  bool laid_out(const models::Model& model) const {
    Problems problems;
    check_layout(recipe_, place_.world, problems);
    models::check_share(model.whole(), plan::share_of(recipe_.parallel, 0), {}, problems);
    plan::check_context_form(recipe_, model.whole(), problems);
    plan::check_pipeline(recipe_, model.blocks(), problems);
    return problems.empty();
  }

  // Where nothing fits because gradients are accumulated, the smallest batch may: one micro-batch per rank and step.
  void fit_or_reduce_batch(const models::Model& model) {
    wanted_batch_ = recipe_.train.global_batch_size;
    const std::int64_t smallest = recipe_.parallel.data_ranks(place_.world) * recipe_.train.micro_batch_size;
    if (fixed("train.global_batch_size") || smallest >= wanted_batch_) return fit_or_train_adapter(model);
    const Recipe wanted = recipe_;
    const RecipeNotes notes = notes_;
    try {
      return fit_or_train_adapter(model);
    } catch (const Error& error) {
      if (error.code() != ExitCode::does_not_fit) throw;
    }
    recipe_ = wanted;
    notes_ = notes;
    recipe_.train.global_batch_size = smallest;
    fit_or_train_adapter(model);
  }

  // Where training all weights does not fit, an adapter may.
  void fit_or_train_adapter(const models::Model& model) {
    if (!fine_tuned() || fixed("adapter.kind") || fixed("train.freeze")) return fit_or_use_float32(model);
    const Recipe all_weights = recipe_;
    try {
      return fit_or_use_float32(model);
    } catch (const Error& error) {
      if (error.code() != ExitCode::does_not_fit) throw;
    }
    recipe_ = all_weights;
    const RecipeNotes notes = notes_;
    const auto adapt = [&](AdapterKind kind, const char* reason) {
      recipe_.adapter.kind = kind;
      why("adapter.kind", reason);
      choose_learning_rate(model.parameters());
      const engine::OpenModel adapted = open_model();
      fit_or_use_float32(*adapted.model);
    };
    const bool may_quantize =
        recipe_.precision.compute != ComputePrecision::fp8 && !recipe_.adapter.dora && !fixed("adapter.base");
    try {
      return adapt(AdapterKind::lora, "training all weights does not fit in memory");
    } catch (const Error& error) {
      if (error.code() != ExitCode::does_not_fit || !may_quantize) throw;
    }
    recipe_ = all_weights;
    notes_ = notes;
    adapt(AdapterKind::qlora, "neither all weights nor an adapter beside frozen weights in bf16 fit in memory");
  }

  // The bf16 copies of trained weights are in addition to the float32 ones, so float32 may fit where bf16 does not.
  void fit_or_use_float32(const models::Model& model) {
    const bool may_be_float32 = !place_.target.cuda && recipe_.precision.compute == ComputePrecision::bf16 &&
                                recipe_.adapter.kind == AdapterKind::none;
    if (!may_be_float32 || fixed("precision.compute")) return fit(model);
    const Recipe in_bf16 = recipe_;
    try {
      fit(model);
    } catch (const Error& error) {
      if (error.code() != ExitCode::does_not_fit) throw;
      recipe_ = in_bf16;
      recipe_.precision.compute = ComputePrecision::automatic;
      why("precision.compute", "resolves to float32 on a CPU; bf16 does not fit here");
      fit(model);
    }
  }

  void fit(const models::Model& model) {
    Fitted fitted = fit_to(recipe_, model, place_, kMinLength);
    // The machine's memory may be in use: then only the free part counts.
    if (place_.target.capacity == 0 && !recipe_.memory.capacity) {
      const std::int64_t free = plan::free_host_memory();
      const auto space = static_cast<std::int64_t>(kShareOfFree * double(free)) / place_.world >> 20 << 20;
      if (fitted.forecast.needed() > space) {
        recipe_.memory.capacity = Bytes(space);
        why("memory.capacity", cat("90% of the free memory of this machine, which has ",
                                   format_bytes(Bytes(place_.machine.memory)), ", per rank"));
        fitted = fit_to(recipe_, model, place_, kMinLength);
      }
    }
    const Recipe before = recipe_;
    recipe_ = fitted.recipe;
    checkpoint_bytes_ = plan::checkpoint_bytes(model, fitted.forecast.layout);
    explain_fit({.before = before, .wanted_batch = wanted_batch_}, fitted, place_, notes_);
    summary_ = summary_of(fitted, place_);
    tokens_per_second_ = fitted.forecast.tokens_per_second;
  }

  // One epoch of text, three of answers; of little data up to three for kFewSteps. Steps in place of epochs if the data
  // are unknown, or more than kMaxSteps.
  void choose_length() {
    TrainRecipe& train = recipe_.train;
    train.steps = std::llround(kMaxSteps);
    if (sample_.empty()) return why("train.steps", "an example value; the data is unknown");
    const double epoch = epoch_sequences() / double(train.global_batch_size);  // in steps
    const bool answers = sample_.answers_only();
    const double tenths = std::ceil(10 * std::min(kFewSteps / epoch, kMaxEpochs));
    const double epochs = answers ? kMaxEpochs : std::max(1.0, tenths / 10);
    if (epochs * epoch > kMaxSteps) {
      const double read = kMaxSteps / epoch;
      return why("train.steps", cat("about ", format_count(read), read == 1 ? " epoch" : " epochs",
                                    " of the data; more steps read more of it"));
    }
    train.steps = 0;
    train.epochs = epochs;
    const auto steps = static_cast<double>(steps_of_epochs(recipe_, sample_));
    why("train.epochs", cat("about ", plural(std::llround(steps), "step"),
                            answers      ? "; two or three epochs are usual for conversations"
                            : epochs > 1 ? "; more than one, since the data are few"
                                         : "; text is usually read once"));
    if (steps < kFewSteps)
      few_ = cat(format_count(epochs), epochs == 1 ? " epoch of it is " : " epochs of it are ",
                 plural(std::llround(steps), "step"));
  }

  // Global batches of the held-out documents; 0: unknown.
  std::int64_t held_out_batches() const {
    if (sample_.empty()) return 0;
    const auto batches = [&](double sequences) {
      return std::llround(std::ceil(sequences / double(recipe_.train.global_batch_size)));
    };
    const double share = recipe_.data.validation_fraction;
    if (recipe_.data.validation.empty()) return batches(epoch_sequences() * share / (1 - share));
    std::int64_t sum = 0;
    for (const ValidationSetRecipe& set : recipe_.data.validation) {
      Recipe of_set = recipe_;
      of_set.data.train = set.paths;
      of_set.data.sets.clear();
      of_set.data.validation.clear();
      of_set.data.validation_fraction = 0;
      try {
        sum += batches(autoconfig::epoch_sequences(of_set, sample_data(of_set, vocabulary_)));
      } catch (const Error&) {
        return 0;  // `prepare` says what is wrong with it
      }
    }
    return sum;
  }

  // About ten evaluations in about a tenth of the time, with at least one batch each: a step costs three forward
  // passes, an evaluated batch one. Fewer if the user's batches would make them take more than about a quarter of the
  // time.
  void choose_evaluation(std::int64_t steps) {
    TrainRecipe& train = recipe_.train;
    if (recipe_.data.validation_fraction <= 0 && recipe_.data.validation.empty()) return;
    // Batches are counted for each set.
    const auto sets = std::max<std::int64_t>(1, static_cast<std::int64_t>(recipe_.data.validation.size()));
    const std::int64_t all = held_out_batches();
    if (!fixed("train.evaluate_batches")) {
      const std::int64_t few = std::llround(double(steps) / kFewEvaluated);
      train.evaluate_batches = std::clamp<std::int64_t>(
          std::llround(0.1 * 3 * double(steps) / kEvaluations / double(sets)), 1, kMaxEvaluated);
      const bool small = all > 0 && all <= std::max(sets * train.evaluate_batches, few);
      if (small) train.evaluate_batches = 0;
      why("train.evaluate_batches",
          small ? "0: all held-out text, which is little"
                : "ten evaluations take about a tenth of the time, or have one batch each; 0 uses all held-out text");
    }
    if (fixed("train.evaluate_every")) return;
    const std::int64_t batches = train.evaluate_batches > 0 ? sets * train.evaluate_batches
                                 : all > 0                  ? all
                                                            : sets * kMaxEvaluated;
    const double evaluations = std::min(kEvaluations, double(steps / batches));
    train.evaluate_every = evaluations < 2 ? 0 : std::max<std::int64_t>(1, std::llround(double(steps) / evaluations));
    why("train.evaluate_every", evaluations < 2
                                    ? "only before and after: the run is short for train.evaluate_batches"
                                    : "about ten evaluations or fewer; the best checkpoint is kept in OUTPUT/best");
  }

  // Steps, and the settings that depend on their number.
  void choose_schedule() {
    TrainRecipe& train = recipe_.train;
    const double step_tokens = double(train.global_batch_size) * double(recipe_.data.sequence_length);
    if (!fixed("train.steps") && !fixed("train.epochs")) choose_length();
    // What the epochs of unknown data are is unknown, too.
    const std::int64_t steps = train.epochs == 0 ? train.steps
                               : sample_.empty() ? std::llround(kMaxSteps)
                                                 : steps_of_epochs(recipe_, sample_);
    choose_evaluation(steps);
    if (!fixed("optimizer.warmup_steps") && !fixed("optimizer.warmup_ratio")) {
      recipe_.optimizer.warmup_steps = std::min<std::int64_t>(100, steps / 10);
    }
    if (!fixed("checkpoint.every_steps") && !fixed("checkpoint.every_minutes")) {
      const double minutes = recipe_.checkpoint.minutes_between();  // the default, written out
      recipe_.checkpoint.every_minutes = minutes;
      why("checkpoint.every_minutes", cat("a crash loses at most about ", minutes, " minutes"));
    }
    why("checkpoint.keep_last",
        cat("each takes about ", format_bytes(Bytes(checkpoint_bytes_)), " of disk, and so does OUTPUT/best"));
    const double seconds = double(steps) * step_tokens / std::max(1e-9, tokens_per_second_);
    notes_.head = cat("Fitted by the plan for ", summary_, "; ", steps, " steps take about ", format_estimate(seconds),
                      ".\n", place_.target.never_run ? cat("Hawser was ", plan::kNeverRun, ".\n") : "",
                      "Comments that begin with why: give the reason for a value.");
  }

  Recipe recipe_;
  std::string target_;
  DataSample sample_;
  std::int64_t vocabulary_ = 0;
  Place place_;
  RecipeNotes notes_;
  std::string summary_;
  std::int64_t wanted_batch_ = 0;  // before it was reduced to fit
  double tokens_per_second_ = 0;
  std::int64_t checkpoint_bytes_ = 0;
  std::string few_;
};

}  // namespace

Proposal propose(const Recipe& recipe, const std::string& target) {
  return Proposer(recipe, target).run();
}

}  // namespace hawser::autoconfig
