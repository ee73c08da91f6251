#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "base/text.h"
#include "base/units.h"
#include "base/validation_metric.h"
#include "batches/statistics.h"
#include "config/config.h"
#include "optim/lr_schedule.h"
#include "plan/context_form.h"
#include "plan/cost_model.h"
#include "plan/disk.h"
#include "plan/make_optimizer.h"
#include "plan/pipeline_form.h"
#include "plan/report.h"
#include "plan/target.h"
#include "prepare/sources.h"
#include "prepare/token_file.h"
#include "train/collect_facts.h"
#include "train/run_folder.h"

namespace hawser::train {
namespace {

std::string count(std::int64_t number) {
  return number < 10000 ? cat(number) : format_count(static_cast<double>(number));
}

// "all trained", or how many train, and the adapter.
std::string trained_words(const RunPlace& place) {
  const models::Model& model = place.session.model();
  const std::int64_t trained = model.trainable_parameters();
  if (trained == model.parameters()) return "all trained";
  const AdapterRecipe& adapter = place.plan.recipe.adapter;
  const double percent = 100.0 * static_cast<double>(trained) / static_cast<double>(model.parameters());
  const std::string share =
      fmt::format("{} ({:.{}g}%) trained", format_count(static_cast<double>(trained)), percent, percent < 10 ? 2 : 3);
  if (adapter.kind == AdapterKind::none) return share;
  const char* const kind = adapter.dora ? "DoRA" : adapter.in_nf4() ? "QLoRA" : "LoRA";
  return cat(share, ": ", kind, " of rank ", adapter.rank);
}

std::string model_line(const RunPlace& place) {
  const std::filesystem::path path = place.plan.model;
  const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
  return cat(name, place.plan.random_weights ? " with random weights: " : ": ",
             place.session.model().description().family, ", ",
             format_count(static_cast<double>(place.session.model().parameters())), " parameters, ",
             trained_words(place), "; computes in ", to_string(place.session.layout().compute),
             place.plan.recipe.precision.compute == ComputePrecision::fp8
                 ? cat(", ", plan::fp8_text(place.session.layout(), place.session.model()))
                 : std::string());
}

std::string data_line(const RunPlace& place) {
  const batches::PackingPlan& packing = place.plan.packing;
  const prepare::TokenFiles files = prepare::token_files(place.plan.data);
  const prepare::TokenFile file(files.train);
  std::vector<std::string> sets;
  for (const auto& [name, prefix] : files.validation) {
    if (!name.empty()) sets.push_back(name);
  }
  const std::int64_t length = packing.sequence_length;
  const batches::LongStatistics found = batches::long_statistics(file, length, packing.long_documents);
  const std::int64_t tokens = file.tokens() - found.tokens;
  const bool split = packing.pack == Packing::documents && packing.long_documents == LongDocuments::split;
  const double filled = static_cast<double>(tokens) / static_cast<double>(place.sequences * length);
  return cat(
      count(tokens), " tokens in ", count(place.sequences), place.sequences == 1 ? " sequence" : " sequences", " of ",
      length, fmt::format(" (packing efficiency {:.0f}%)", 100 * filled),
      split && found.count > 0
          ? cat("; ", count(found.count), " of ", plural(file.sequences(), "document"), " are longer and split")
          : std::string(),
      place.validation_sequences > 0
          ? cat("; evaluations of ",
                place.validation_sequences < place.held_out_sequences ? cat(place.validation_sequences, " of ") : "",
                plural(place.held_out_sequences, "held-out sequence"),
                sets.empty() ? "" : cat(" (", joined(sets, ", "), ")"))
          : std::string("; no validation data"));
}

// ", cosine decay to 0"; "" if the learning rate is constant after the warm-up.
std::string decay_words(const optim::LearningRatePlan& rate) {
  const std::string low = fmt::format(" decay to {:.3g}", rate.minimum_learning_rate);
  switch (rate.schedule) {
    case LearningRateSchedule::constant:
      return "";
    case LearningRateSchedule::linear:
      return ", linear" + low;
    case LearningRateSchedule::cosine:
      return ", cosine" + low;
    case LearningRateSchedule::polynomial:
      return fmt::format(", polynomial{} with power {:.3g}", low, rate.power);
    case LearningRateSchedule::inverse_sqrt:
      return ", inverse square root decay";
    case LearningRateSchedule::wsd:
      break;
  }
  constexpr std::array kTypes = {", linear", ", cosine", ", 1-sqrt"};  // by DecayType
  return cat(kTypes[static_cast<std::size_t>(rate.decay_type)], low, " in the last ", plural(rate.decay_steps, "step"));
}

std::string steps_line(const RunPlace& place) {
  const plan::RunPlan& plan = place.plan;
  const optim::LearningRatePlan& optimizer = plan.learning_rate;
  const double epochs = static_cast<double>(plan.steps) * static_cast<double>(plan.global_batch_size) /
                        static_cast<double>(place.sequences);
  const std::string kind = plan::optimizer_text(plan.recipe.optimizer);
  std::string line =
      cat(plan.steps, " of ", plural(plan.global_batch_size, "sequence"), " (",
          count(plan.global_batch_size * plan.packing.sequence_length), " tokens), ",
          epochs < 1000 ? fmt::format("{:.3g}", epochs) : format_count(epochs), epochs == 1 ? " epoch" : " epochs",
          "; ", kind.empty() ? "" : kind + ", ", "learning rate ", fmt::format("{:.3g}", optimizer.learning_rate));
  if (optimizer.warmup_steps > 0) line += cat(" after ", plural(optimizer.warmup_steps, "warm-up step"));
  line += decay_words(optimizer);
  if (const std::int64_t patience = plan.recipe.train.early_stopping_patience; patience > 0) {
    line += cat("; early stopping after ", plural(patience, "evaluation"), " without a lower ",
                metric_words(plan.recipe.train.early_stopping_metric));
  }
  std::string of_groups;
  for (const double factor : plan.group_factors) {
    of_groups += fmt::format("{}{:.3g}", of_groups.empty() ? "" : ", ", factor * optimizer.learning_rate);
  }
  return of_groups.empty() ? line : cat(line, "; learning rates of groups ", of_groups);
}

// ", in 12% of it stages wait for each other".
std::string bubble_words(const engine::Session& session) {
  if (session.stages().empty()) return "";
  return fmt::format(", in {:.0f}% of it stages wait for each other", 100 * plan::bubble_of(session.stage_times()));
}

std::string ranks_line(const RunPlace& place) {
  const plan::Layout& layout = place.session.layout();
  const bool cuda = layout.device == DeviceKind::cuda;
  std::string line = cuda
                         ? cat(place.ranks, " x ", cuda_info().name)
                         : cat(plural(place.ranks, "rank"), " on the CPU, ", plural(layout.threads, "thread"), " each");
  if (layout.mesh.tensor > 1) line += ", " + plan::tensor_text(layout);
  if (layout.mesh.context > 1) line += cat(", context parallel over ", layout.mesh.context, plan::by_form(layout));
  if (layout.parts() > 1) line += cat(", state sharded over ", layout.parts());
  if (layout.mesh.replicas() > 1) line += cat(", ", layout.mesh.replicas(), " replicas");
  if (layout.mesh.pipeline > 1) line += ", " + plan::pipeline_text(layout);
  if (layout.micro_batches > 1) line += cat(", ", layout.micro_batches, " micro-batches per step");
  if (place.session.stages().empty()) {
    return line + cat("; ", format_bytes(Bytes(place.session.planned_bytes())), " planned per rank");
  }
  return cat(line, "; planned per rank, by stage: ", bytes_by_stage(place.session));
}

std::string output_line(const RunPlace& place) {
  const plan::SavePlan& saves = place.plan.saves;
  std::string when;
  if (saves.every_steps) when = cat("every ", plural(*saves.every_steps, "step"), " and ");
  if (saves.every_minutes) {
    when += cat("every ", fmt::format("{:.3g}", *saves.every_minutes), " minutes and ");
  }
  const std::int64_t bytes = plan::checkpoint_bytes(place.session.model(), place.session.layout());
  const std::string& metric = place.plan.recipe.train.early_stopping_metric;
  return cat(
      place.plan.files.folder, "; a checkpoint of ", format_bytes(Bytes(bytes)), " ", when, "at the end",
      place.validation_sequences > 0 && place.plan.saves.keep_best
          ? cat("; best/ when an evaluation improves", metric == kAllSets ? "" : cat(" the ", metric_words(metric)))
          : std::string());
}

// Of the steps alone, without evaluations and saves.
std::string time_line(const RunPlace& place, const plan::StepTime& step, bool resumes) {
  const std::string all = format_seconds(step.seconds * static_cast<double>(place.plan.steps));
  const auto slow = step.busy.find(plan::kSlowAttention);
  return cat("about ", format_seconds(step.seconds), " per step", bubble_words(place.session),
             resumes ? "" : cat(", ", all, " for all steps"),
             slow == step.busy.end() ? "" : cat("; ", format_seconds(slow->second), " of a step in slow kernels"),
             " (predicted)");
}

}  // namespace

std::string bytes_by_stage(const engine::Session& session) {
  std::string out;
  for (const engine::Session::Stage& stage : session.stages()) {
    out += cat(out.empty() ? "" : ", ", format_bytes(Bytes(stage.planned_bytes)));
  }
  return out;
}

plan::StepTime predicted_step(const engine::Session& session) {
  if (!session.stages().empty()) {
    plan::StepTime step = session.stages().front().time;
    step.seconds = plan::seconds_of(session.stage_times());
    return step;
  }
  const plan::Layout& layout = session.layout();
  const plan::Target target = plan::load_target(plan::target_of(layout.device));
  return plan::step_time(session.plan(step::Purpose::train).trace, target, layout.compute,
                         plan::rate_scale_of(target, layout.threads));
}

std::string run_summary(const RunPlace& place, bool resumes) {
  std::string out;
  const auto line = [&](const char* name, const std::string& text) { out += fmt::format("{:<8}{}\n", name, text); };
  line("model", model_line(place));
  line("data", data_line(place));
  line("steps", steps_line(place));
  line("ranks", ranks_line(place));
  line("output", output_line(place));
  line("time", time_line(place, predicted_step(place.session), resumes));
  for (const std::string& kernel : plan::slow_kernels(place.session.plan(step::Purpose::train))) line("slow", kernel);
  return out;
}

}  // namespace hawser::train
