// hawser bench step: the speed of one training step on this machine.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/paths.h"
#include "base/printable.h"
#include "base/text.h"
#include "base/units.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/model_name.h"
#include "cli/power_json.h"
#include "cli/ranks.h"
#include "cli/roofline_json.h"
#include "cli/timeline_file.h"
#include "cli/timeline_json.h"
#include "device/cuda/activities.h"
#include "engine/model_changes.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "io/result_file.h"
#include "launch/launcher_environment.h"
#include "plan/forecast.h"
#include "plan/run_plan.h"
#include "profile/bench_step.h"
#include "profile/timeline_summary.h"

namespace hawser::cli {
namespace {

void print_json(const profile::BenchResult& result, const profile::DocumentMix& documents) {
  nlohmann::ordered_json json{{"tokens_per_second", result.tokens_per_second},
                              {"step_seconds", result.step_seconds},
                              {"steps", result.steps},
                              {"model_flops_per_second", result.model_flops_per_second},
                              {"planned_bytes", result.planned_bytes},
                              {"activation_checkpointing", result.checkpointing},
                              {"mlp_tile_rows", result.mlp_tile_rows},
                              {"offload", result.offload},
                              {"attention_imbalance", result.imbalance},
                              {"loss", result.loss}};
  if (documents.kind != profile::DocumentMix::Kind::one) {
    json["documents"] = {{"kind", documents.text()},
                         {"a_sequence", result.documents},
                         {"equivalent_sequence_length", result.equivalent_length}};
  }
  if (!result.context.empty()) json["context_comm"] = result.context;
  if (!result.pipeline.empty()) json["pipeline"] = result.pipeline;
  if (result.after.total > 0) {
    json["driver_bytes"] = {{"before", result.before.used}, {"after", result.after.used}};
    json["allocations_in_steps"] = result.allocations;
  }
  if (nlohmann::ordered_json power = power_json(result.power); !power.is_null()) json["power"] = std::move(power);
  if (!result.families.empty()) {
    auto& families = json["seconds_by_family"] = nlohmann::ordered_json::object();
    for (const auto& [family, seconds] : result.families) families[family] = seconds;
  }
  if (!result.notes.empty()) json["notes"] = result.notes;
  if (result.roofline && result.mix)
    json["roofline"] = roofline_json(*result.roofline, *result.mix, result.step_seconds);
  if (!result.timelines.empty()) {
    json["trace"] = {{"step_seconds", result.traced_seconds}};
    if (result.idle) {
      json["trace"]["idle"] = result.idle->measured;
      json["trace"]["predicted_idle"] = result.idle->predicted;
    }
    for (const profile::RankTimeline& rank : result.timelines) {
      json["trace"]["ranks"].push_back(timeline_json(profile::summarize(rank)));
    }
  }
  std::puts(json.dump().c_str());
}

void print_timelines(const profile::BenchResult& result, const std::string& file) {
  std::vector<profile::TimelineSummary> summaries;
  summaries.reserve(result.timelines.size());
  for (const profile::RankTimeline& rank : result.timelines) summaries.push_back(profile::summarize(rank));
  std::printf("\ntraced step          %s; wrote %s\n", format_seconds(result.traced_seconds).c_str(), file.c_str());
  if (result.idle) {
    std::printf(
        "idle stages          %.1f%% of the step without computation, the mean of the stages; predicted %.1f%%\n",
        100 * result.idle->measured, 100 * result.idle->predicted);
  }
  std::fputs(profile::summary_text(summaries).c_str(), stdout);
}

void check_trace(const std::string& path, const std::string& model, DeviceKind kind, Problems& problems) {
  check_timeline_file(path, "--trace", model, problems);
  if (kind != DeviceKind::cuda) return;
  if (const std::string why = cuda::activities_problem(); !why.empty()) {
    problems.add({.what = "the GPU cannot be traced: " + why, .at = "--trace", .hint = "without --trace"});
  }
}

void print_table(const profile::BenchResult& result, const Recipe& recipe, const profile::DocumentMix& documents,
                 int world, int threads) {
  const auto row = [](const char* what, const std::string& value) {
    std::printf("%-20s %s\n", what, printable(value).c_str());
  };
  row("model", cat(recipe.model.path.empty() ? recipe.model.config : recipe.model.path, ", ",
                   format_count(static_cast<double>(result.parameters)), " parameters",
                   recipe.model.path.empty() ? ", random weights" : ""));
  row("step", cat(recipe.train.global_batch_size, " x ", recipe.data.sequence_length, " tokens, ",
                  plural(world, "rank"), " x ", plural(threads, "thread")));
  char text[96];
  if (documents.kind != profile::DocumentMix::Kind::one) {
    std::snprintf(text, sizeof text, "%s, %.1f per sequence, synthetic; attention FLOPs per token of",
                  documents.text().c_str(), result.documents);
    row("documents", cat(text, " unpacked sequences of ", std::llround(result.equivalent_length), " tokens"));
  }
  if (!result.pipeline.empty()) row("pipeline", result.pipeline);
  if (recipe.parallel.context_parallel_degree > 1) {
    std::snprintf(text, sizeof text, "%.3f (maximum work of a rank / mean)", result.imbalance);
    row("attention imbalance", text);
    row("context parallelism", cat(recipe.parallel.context_parallel_degree, " ranks by ", result.context));
  }
  row("seconds per step", cat(format_seconds(result.step_seconds), " (median of ", result.steps.size(), ": ",
                              format_seconds(*std::ranges::min_element(result.steps)), " to ",
                              format_seconds(*std::ranges::max_element(result.steps)), ")"));
  std::snprintf(text, sizeof text, "%.1f", result.tokens_per_second);
  row("tokens/s", text);
  row("model FLOP/s", cat(format_flops(result.model_flops_per_second), "/s", world > 1 ? " per rank" : ""));
  row("checkpointing", cat(result.checkpointing, result.tiles.empty() ? "" : ", " + result.tiles));
  if (!result.offload.empty()) row("offload", result.offload);
  row("planned memory", cat(format_bytes(Bytes(result.planned_bytes)), world > 1 ? " per rank" : ""));
  if (result.after.total > 0) {
    row("driver memory", cat(format_bytes(Bytes(result.after.used)), " of ", format_bytes(Bytes(result.after.total)),
                             " after the steps, ", format_bytes(Bytes(result.before.used)),
                             " before (all processes on the GPU, cudaMemGetInfo)"));
    if (world > 1) {
      std::snprintf(text, sizeof text, "%.1f", result.tokens_per_second / world);
      row("tokens/s per GPU", text);
    }
  }
  for (const auto& [name, value] : power_rows(result.power)) row(name, value);
  if (result.roofline && result.mix)
    std::fputs(roofline_text(*result.roofline, *result.mix, result.step_seconds).c_str(), stdout);
  if (result.families.empty()) return;
  double total = 0;
  for (const auto& [family, seconds] : result.families) total += seconds;
  std::puts("\ntime by family of ops");
  for (const auto& [family, seconds] : result.families) {
    if (seconds < 0.001 * total) continue;
    std::printf("  %-18s %5.1f%%  %s\n", family.c_str(), 100 * seconds / total, format_seconds(seconds).c_str());
  }
}

// Keys of --set that a step on synthetic data does not use.
Problems take_unused(CommonOptions& common, bool packs) {
  std::vector<std::string> used = {"data.sequence_length",
                                   "train.steps",
                                   "train.epochs",  // has its own message
                                   "train.global_batch_size",
                                   "train.micro_batch_size",
                                   "train.seed",
                                   "train.freeze",
                                   "parallel.",
                                   "memory.",
                                   "precision.",
                                   "moe.",
                                   "adapter.",
                                   "optimizer.",
                                   "run."};
  if (packs) used.emplace_back("data.max_documents");
  return take_unused_keys(common, "bench step", used,
                          {{"model.path", "--model"},
                           {"model.config", "--model"},
                           {"data.pack", "--documents MIX"},
                           {"data.max_documents", "--documents MIX"}});
}

// Options that --set gives, too.
void reject_both(const BenchStepOptions& options, const Recipe& recipe, Problems& problems) {
  const auto check = [&](bool given, const std::string& option, const std::string& key) {
    if (!given || !recipe.places.contains(key)) return;
    problems.add({.what = cat("bench step: both ", option, " and --set ", key), .expected = "one of them"});
  };
  check(options.sequence_length > 0, "--sequence-length", "data.sequence_length");
  check(options.steps > 0, "--steps", "train.steps");
  check(options.threads > 0, "--threads", "run.threads");
}

}  // namespace

int bench_step(const BenchStepOptions& options) {
  Recipe base;
  (options.model.ends_with(".json") ? base.model.config : base.model.path) =
      find_model(options.model, options.common, hub::Parts::all);
  base.data.sequence_length = options.sequence_length;
  base.train.steps = options.steps;
  base.run.threads = options.threads;
  Problems of_recipe;  // and of the options and the device; reported with those of the layout and the model
  CommonOptions common = options.common;
  const Problems unused = take_unused(common, !options.documents.empty());
  Recipe recipe = recipe_without_file(base, common, /*runs=*/true, /*keep_relative=*/false, of_recipe);
  of_recipe.add(unused);
  reject_both(options, recipe, of_recipe);
  if (recipe.data.sequence_length == 0) recipe.data.sequence_length = 1024;
  if (recipe.train.steps == 0) recipe.train.steps = 5;
  for (const auto& [option, key] : {std::pair{"--sequence-length", "data.sequence_length"},
                                    std::pair{"--steps", "train.steps"}, std::pair{"--threads", "run.threads"}}) {
    if (options.common.rejected.contains(option)) recipe.rejected.insert(key);
  }
  if (recipe.train.epochs > 0) {
    of_recipe.add(
        {.file = "--set", .what = "bench step has no data to repeat", .at = "train.epochs", .hint = "--steps N"});
  }
  if (options.roofline && recipe.parallel.pipeline_parallel_degree > 1) {
    of_recipe.add({.what = "no roofline of a step with pipeline stages",
                   .expected = "one stage",
                   .got = cat(recipe.parallel.pipeline_parallel_degree),
                   .at = "--roofline",
                   .hint = "--trace, which shows what stages wait for"});
  }
  profile::DocumentMix documents;
  collect(of_recipe, [&] {
    if (!options.documents.empty()) documents = profile::parse_documents(options.documents);
    profile::set_packing(recipe, documents);
    if (!accepted(recipe, {"data.sequence_length"})) return;
    profile::document_lengths(documents, recipe.data.sequence_length, plan::packing_of(recipe.data).max_documents, 0);
  });
  const int world = world_size(options.common, default_ranks(recipe, DeviceChoice::cpu, 0));
  if (!recipe.places.contains("train.global_batch_size"))
    recipe.train.global_batch_size =
        recipe.parallel.data_ranks(world) * recipe.train.micro_batch_size * recipe.parallel.micro_batches_to_try();
  engine::RankDevice device;
  if (accepted(recipe, {"run.device"})) collect(of_recipe, [&] { device = device_of(recipe, world); });
  engine::OpenModel model;
  const auto check = [&](const RankPlace& place, Problems& problems) {
    problems.add(of_recipe);
    check_layout(recipe, world, problems);
    if (!options.trace.empty() && place.rank == 0)
      check_trace(options.trace, plan::model_of(recipe), device.kind, problems);
    model = engine::open_model(plan::model_of(recipe), recipe.model.path.empty(), problems,
                               engine::changes_of(recipe, place.rank));
    if (!problems.empty()) return;
    plan::Machine machine = plan::this_machine();
    machine.ranks = must_launch(world) ? world : launched_as().local_ranks;
    plan::check_capacity(recipe, *model.model, world, threads_of(recipe), machine, plan::target_of(device.kind));
  };
  if (must_launch(world)) {
    Problems problems;
    check({}, problems);
    problems.throw_if_any();
    return launch_ranks({.ranks = world, .threads = recipe.run.threads});
  }
  const int threads = threads_of(recipe);
  return run_on_ranks(world, recipe, {.check = check, .run = [&](comm::World* ranks) {
                                        const auto result =
                                            profile::bench_step({.recipe = recipe,
                                                                 .documents = documents,
                                                                 .threads = threads,
                                                                 .ranks_here = launched_as().local_ranks,
                                                                 .warmup = options.warmup,
                                                                 .device = device,
                                                                 .profile = options.profile,
                                                                 .roofline = options.roofline,
                                                                 .trace = !options.trace.empty()},
                                                                model, ranks);
                                        if (ranks != nullptr && ranks->rank().value() > 0) return 0;
                                        if (!options.trace.empty()) write_timeline(options.trace, result.timelines);
                                        for (const std::string& note : result.notes) print("", note);
                                        if (options.common.json) {
                                          print_json(result, documents);
                                        } else {
                                          print_table(result, recipe, documents, world, threads);
                                          if (!options.trace.empty()) print_timelines(result, options.trace);
                                        }
                                        return 0;
                                      }});
}

void add_bench(CLI::App& app, const Commands& commands, Chosen& chosen) {
  CLI::App* bench = add_family(app, "bench", "measure this machine: bench step");
  const auto options = std::make_shared<BenchStepOptions>();
  CLI::App* command =
      add_command(*bench,
                  {.name = "step",
                   .what = "time training steps of a model on synthetic tokens",
                   .examples = {"hawser bench step --model models/SmolLM2-135M --sequence-length 1024 --threads 2",
                                "hawser bench step --model config.json --sequence-length 4096 --steps 3 --json",
                                "hawser bench step --model config.json --sequence-length 16384 --documents mean=1024"}},
                  options->common);
  add_text(*command, "--model", "PATH", options->model,
           "model folder, ORG/NAME in the Hugging Face cache, or config.json for random weights");
  set_completions(*command, "--model", {"models"});
  add_number(*command, options->common, "--sequence-length", 2, kMaxTokens, "tokens per sequence; default 1024",
             [options](std::int64_t value) { options->sequence_length = value; });
  add_text(
      *command, "--documents", "MIX", options->documents,
      "packed documents: mean=TOKENS, or long=TOKENS for one among documents of about 1,024; default: one document");
  add_number(*command, options->common, "--steps", 1, 1'000'000, "steps to time, after those of --warmup; default 5",
             [options](std::int64_t value) { options->steps = value; });
  add_number(*command, options->common, "--warmup", 0, 1000,
             "steps before those that are timed, with one-time work; default 1, 0 where a step takes minutes",
             [options](std::int64_t value) { options->warmup = value; });
  add_number(*command, options->common, "--threads", 1, 1024, "CPU threads per rank; default: cores / ranks",
             [options](std::int64_t value) { options->threads = static_cast<int>(value); });
  add_switch(*command, "--profile", options->profile, "time by family of ops; always on for the CPU, slows down a GPU");
  add_switch(*command, "--roofline", options->roofline, "GPU only: three lower bounds of the step time");
  add_text(*command, "--trace", "FILE", options->trace,
           "write a timeline of one more step of all ranks, for Perfetto (ui.perfetto.dev); FILE.svg: as a picture");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->model, "--model"}}, "bench step");
    chosen = [options, &commands] { return commands.bench_step(*options); };
  });
}

}  // namespace hawser::cli
