#include "plan/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format_apart.h"
#include "base/text.h"
#include "base/units.h"
#include "config/config.h"
#include "models/linear_names.h"
#include "plan/context_form.h"
#include "plan/host_memory.h"
#include "plan/make_optimizer.h"
#include "plan/offload_text.h"
#include "plan/pipeline_form.h"
#include "plan/run_cost.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::plan {

namespace {

std::string bytes_text(double bytes) {
  return format_bytes(Bytes(static_cast<std::int64_t>(std::min(bytes, 9.2e18))));
}

std::string plural(std::int64_t count, const char* one, const char* many) {
  return cat(with_commas(count), " ", count == 1 ? one : many);
}

// "  name          value  remark": values end at a fixed column.
std::string row(const std::string& name, const std::string& value, const std::string& remark = "") {
  constexpr std::size_t kName = 30, kValue = 14;
  std::string out = "  " + name;
  if (out.size() < kName) out.resize(kName, ' ');
  out += std::string(value.size() < kValue ? kValue - value.size() : 1, ' ') + value;
  return out + (remark.empty() ? "" : "  " + remark) + "\n";
}

std::string percent(double part, double whole) {
  if (whole <= 0) return "";
  const long rounded = std::lround(100 * part / whole);
  return rounded == 0 && part > 0 ? "<1%" : cat(rounded, "%");
}

struct LinearCounts {
  std::int64_t in_fp8 = 0, all = 0;
};

LinearCounts linears_of(const Layout& layout, const models::Model& model) {
  LinearCounts counts;
  for (int layer = 0; layer < model.layers(); ++layer) {
    for (int s = 0; s < nn::kSites; ++s) {
      const auto linears = std::ssize(models::modules_at(model, layer, static_cast<nn::Site>(s)));
      const nn::SavePolicy& policy = layout.policies[static_cast<std::size_t>(layer)];
      counts.all += linears;
      if (policy.formats[static_cast<std::size_t>(s)] != LinearFormat::compute) counts.in_fp8 += linears;
    }
  }
  return counts;
}

// "; frozen weights in NF4 with double quantization", or "".
std::string nf4_text(const models::Model& model) {
  for (const nn::Flat& flat : model.flats()) {
    if (!flat.spec().packed()) continue;
    return cat("; frozen weights in NF4", flat.spec().double_quantized() ? " with double quantization" : "");
  }
  return "";
}

std::string precision_text(const Recipe& recipe, const models::Model& model, const Layout& layout) {
  const std::string fp8 =
      recipe.precision.compute == ComputePrecision::fp8 ? cat("; ", fp8_text(layout, model)) : nf4_text(model);
  if (by_float(layout.compute, true, false)) return "float32" + fp8;
  const bool sent =
      layout.reduce_dtype == DType::bf16 && layout.parts() > 1 && layout.accumulation == GradientAccumulation::sharded;
  // The line of the optimizer says what other states are.
  const bool weights = recipe.optimizer.master_dtype == StateDType::f32,
             moments = recipe.optimizer.kind == OptimizerKind::adamw && recipe.optimizer.state_dtype == StateDType::f32;
  const char* const kept = weights && moments ? "master weights, moments and "
                           : weights          ? "master weights and "
                           : moments          ? "moments and "
                                              : "";
  return cat("bfloat16, float32 ", kept, "gradients", sent ? ", reduced in bfloat16" : "", fp8);
}

// "auto: 20*gate_up,12*none", "32*none".
std::string checkpointing_text(const Forecast& forecast) {
  MemoryRecipe memory;
  memory.per_layer = forecast.checkpointing();
  const std::string runs = hawser::checkpointing_text(memory);
  return (forecast.chosen ? "auto: " : "") + runs.substr(1, runs.size() - 2);
}

std::string devices_text(int world, const Target& target) {
  const std::string ranks = plural(world, "rank", "ranks"), assumed = target.assumed_rates(world);
  if (!target.is_this_cpu()) {
    const std::string measured = target.never_run  ? kNeverRun
                                 : assumed.empty() ? ""
                                                   : "assumed, not measured: " + assumed;
    return cat("on ", ranks, ", one ", target.name, " each (", target.about, ")\n", measured,
               measured.empty() ? "" : "\n");
  }
  const std::string model = cpu_model();
  return cat("on ", ranks, " of this machine's CPU", model.empty() ? "" : ": " + model, ", ",
             plural(this_machine().cores, "core", "cores"), "\ntarget: ", target.name, " (", target.about, ")\n");
}

std::string disk_summary(const DiskUse& disk, std::optional<std::int64_t> free) {
  const bool fits = !free || disk.total() <= *free;
  return cat("disk: ", fits ? "" : "does not fit: ", format_bytes(Bytes(disk.total())), ", ",
             plural(disk.checkpoints(), "checkpoint", "checkpoints"), " of ", format_bytes(Bytes(disk.checkpoint)),
             free ? cat("; ", format_bytes(Bytes(*free)), " free") : "", "\n");
}

std::string disk_table(const Recipe& recipe, const models::Model& model, const PlanFacts& facts) {
  const DiskUse& disk = facts.disk;
  const auto bytes = [](std::int64_t count) { return format_bytes(Bytes(count)); };
  std::string out = "\ndisk, at most\n";
  const std::int64_t trained = model.trainable_parameters();
  const bool adamw = optimizer_text(recipe.optimizer).empty() && disk.checkpoint == 12 * trained;
  out += row("one checkpoint", bytes(disk.checkpoint),
             cat(adamw ? "float32 weights and two moments" : "weights and the optimizer's state",
                 trained < model.parameters() ? " of what trains" : ""));
  const int kept = disk.kept + (disk.writing ? 1 : 0);
  out += row("checkpoints", bytes(kept * disk.checkpoint),
             cat(kept, disk.writing ? cat(": checkpoint.keep_last ", recipe.checkpoint.keep_last, ", one being written")
                                    : cat(" of checkpoint.keep_last ", recipe.checkpoint.keep_last)));
  if (disk.best) out += row("best", bytes(disk.checkpoint), "OUTPUT/best, if its checkpoint is no longer kept");
  if (disk.prepared > 0) out += row("prepared data", bytes(disk.prepared), "estimated from the size of the files");
  out += row("total", bytes(disk.total()),
             facts.free_disk ? cat(disk.total() <= *facts.free_disk ? "of " : "does not fit: ", bytes(*facts.free_disk),
                                   " free for OUTPUT")
                             : "");
  const std::int64_t exported = recipe.adapter.kind == AdapterKind::none ? model.parameters() : trained;
  return out + row("an export, in addition", bytes(4 * exported), "in float32, with `hawser export`");
}

// "embedding, 8 blocks": what a stage computes.
std::string stage_contents(const models::Model& model, const models::PipelinePartition& partition, int stage) {
  int blocks = 0;
  for (const int model_chunk : partition.chunks_of(stage)) {
    const int end = partition.ends.empty() ? model.blocks() : partition.ends[static_cast<std::size_t>(model_chunk)];
    blocks += end - (model_chunk == 0 ? 0 : partition.ends[static_cast<std::size_t>(model_chunk) - 1]);
  }
  std::string out = stage == 0 ? "embedding" : "";
  if (blocks > 0) out += (out.empty() ? "" : ", ") + plural(blocks, "block", "blocks");
  if (partition.stage_of(partition.model_chunks() - 1) == stage) out += out.empty() ? "head" : ", head";
  return out;
}

std::string largest_ranks(const Forecast& forecast) {
  if (forecast.stages.size() > 1) return cat("each rank of stage ", forecast.largest_stage());
  const RankClass all = rank_classes(forecast.layout.mesh).front();
  return all.first == all.last ? all.text() : "each of " + all.text();
}

// Of all stages, without repeats.
std::vector<std::string> slow_kernels(const Forecast& forecast) {
  std::vector<std::string> out;
  for (const StageForecast& stage : forecast.stages) {
    for (const std::string& line : stage.costs.slow_kernels) {
      if (std::ranges::find(out, line) == out.end()) out.push_back(line);
    }
  }
  return out;
}

// "pipeline: 1f1b, blocks [17,15], auto (equal cuts +3.8%); bubble 9%".
std::string pipeline_line(const Forecast& forecast) {
  const std::string equal =
      forecast.equal_cuts ? cat(", auto (equal cuts ", signed_percent(*forecast.equal_cuts), ")") : "";
  return cat("pipeline: ", schedule_text(forecast.layout), equal, "; bubble ", percent(forecast.bubble(), 1), "\n");
}

std::string stage_table(const models::Model& model, const Forecast& forecast) {
  std::string out = "\nby pipeline stage and rank: memory, time of computing in a step\n";
  const std::vector<RankClass> classes = rank_classes(forecast.layout.mesh);
  for (std::size_t s = 0; s < classes.size(); ++s) {
    const double busy = forecast.stages[s].computing();
    out += row(cat(s, ": ", classes[s].text()), format_bytes(Bytes(forecast.needed(forecast.stages[s]))),
               cat(format_seconds(busy), ", ", percent(busy, forecast.seconds), "; ",
                   stage_contents(model, forecast.layout.partition, static_cast<int>(s))));
  }
  return out;
}

RunCost cost_of(const Recipe& recipe, const Target& target, const Forecast& forecast, const PlanFacts& facts) {
  const std::int64_t tokens = recipe.train.global_batch_size * recipe.data.sequence_length;
  return cost_of_run(forecast, target, tokens, facts.steps.count, facts.price);
}

// "3 epochs".
std::string epochs_text(const Recipe& recipe) {
  return cat(format_count(recipe.train.epochs), recipe.train.epochs == 1 ? " epoch" : " epochs");
}

// What the run takes, or 10^9 tokens if its steps are not known.
std::string cost_table(const Recipe& recipe, const Target& target, const RunCost& cost, const PlanFacts& facts) {
  std::string out = facts.steps.count ? "\nthe run\n" : "\nper 1B tokens\n";
  if (facts.steps.count) {
    std::string about = facts.steps.estimated ? cat(epochs_text(recipe), ", estimated from a sample of the data") : "";
    if (recipe.train.early_stopping_patience > 0) about += cat(about.empty() ? "" : "; ", "at most: early stopping");
    out += row("steps", with_commas(*facts.steps.count), about);
    out += row("tokens", format_count(static_cast<double>(*cost.tokens)),
               cat(with_commas(cost.tokens_per_step), " a step, padding included"));
    out += row("time", format_estimate(*cost.seconds), "without evaluations, checkpoints and the start");
  }
  out +=
      row(target.cuda ? "GPU-hours" : "rank-hours", hours_text(cost.rank_hours.value_or(cost.rank_hours_per_billion)));
  if (cost.price) out += row("price", price_text(*cost.price), cat("at ", price_text(*facts.price), " an hour of one"));
  return out;
}

// "of 1.82 TiB per machine: fits, 1.78 TiB left"
std::string host_remark(const Forecast& forecast) {
  const HostMemory& host = forecast.host;
  if (host.capacity == 0) return "per machine, whose memory is not known";
  const std::int64_t left = host.capacity - forecast.host_needed();
  return cat("of ", format_bytes(Bytes(host.capacity)), " per machine: ",
             left >= 0 ? cat("fits, ", format_bytes(Bytes(left)), " left")
                       : cat("does not fit, ", format_bytes(Bytes(-left)), " over"));
}

nlohmann::ordered_json host_json(const Forecast& forecast) {
  nlohmann::ordered_json host{
      {"needed", forecast.host_needed()}, {"ranks", forecast.host.ranks}, {"process", forecast.host.process}};
  if (forecast.host.capacity > 0) host["capacity"] = forecast.host.capacity;
  return host;
}

nlohmann::ordered_json memory_json(const Recipe& recipe, const Forecast& forecast, const StageForecast& stage) {
  const Costs& costs = stage.costs;
  nlohmann::ordered_json memory{{"by_purpose", costs.peak_bytes_by_category},
                                {"plan", costs.total_bytes},
                                {"live", costs.peak_bytes},
                                {"overhead", stage.overhead},
                                {"needed", forecast.needed(stage)},
                                {"capacity", forecast.capacity},
                                {"pinned", costs.pinned_bytes},
                                {"peak", costs.peak_instruction}};
  // Of a rank that owns its states; its replicas have no snapshot.
  if (saves_asynchronously(recipe)) memory["host_snapshot"] = costs.saved_bytes;
  return memory;
}

}  // namespace

std::string fp8_text(const Layout& layout, const models::Model& model) {
  const LinearCounts counts = linears_of(layout, model);
  return cat(counts.in_fp8, " of ", counts.all, " Linears of the blocks in FP8");
}

std::string headline(const Forecast& forecast, const PlanFacts& facts) {
  if (!forecast.fits()) {
    const std::vector<Suggestion>& suggestions = facts.alternatives.suggestions;
    const std::optional<FittingRanks>& ranks = facts.alternatives.ranks;
    const bool of_rank = forecast.needed() > forecast.capacity;
    const auto [has, needs] = of_rank ? format_apart(forecast.capacity, forecast.needed())
                                      : format_apart(forecast.host.capacity, forecast.host_needed());
    std::string out =
        cat("does not fit: needs ", needs,
            of_rank ? cat(" per rank", forecast.of_largest_stage()) : std::string(" of host memory per machine"),
            ", has ", has);
    if (!suggestions.empty()) out += "; fits with " + suggestions.front().flags();
    if (ranks && (suggestions.empty() || ranks->changes.empty()))
      out += (suggestions.empty() ? "; fits from " : ", or from ") + ranks->flags();
    return out;
  }
  std::string out = cat("fits; ", format_estimate(forecast.seconds), " a step");
  if (facts.steps.count) {
    out += cat("; ", facts.steps.estimated ? "about " : "", plural(*facts.steps.count, "step", "steps"), " about ",
               format_estimate(static_cast<double>(*facts.steps.count) * forecast.seconds));
  }
  return out;
}

std::string plan_text(const Recipe& recipe, const models::Model& model, const Target& target, const Forecast& forecast,
                      const PlanFacts& facts) {
  const Layout& layout = forecast.layout;
  const StageForecast& stage = forecast.largest();
  const Costs& costs = stage.costs;
  const int world = layout.mesh.world();
  std::string out = cat(recipe.name.empty() ? "plan" : recipe.name, ": ", headline(forecast, facts), "\n",
                        disk_summary(facts.disk, facts.free_disk), "\n");
  out += cat(format_count(static_cast<double>(model.parameters())), " parameters, ",
             model.trainable_parameters() < model.parameters()
                 ? cat(format_count(static_cast<double>(model.trainable_parameters())), " of them trained, ")
                 : std::string(),
             plural(recipe.train.global_batch_size, "sequence", "sequences"), " of ",
             with_commas(recipe.data.sequence_length), " tokens per step\n");
  out += devices_text(world, target);
  const std::string tensor = tensor_text(layout);
  const int copies = layout.shards() ? layout.mesh.shard_ranks(Domain::replicated) : 1;
  out += cat("layout: ", tensor, tensor.empty() ? "" : ", ", "context ", layout.mesh.context, by_form(layout), ", ",
             layout.shard_policy == ShardPolicy::parameters ? "parameters " : "optimizer state ",
             layout.parts() > 1 ? cat("sharded over ", layout.parts()) : std::string("unsharded"), ", ",
             copies > layout.parts() ? cat("copies on tensor ranks over ", copies, ", ") : "",
             layout.mesh.replicas() > 1 ? cat(layout.mesh.replicas(), " replicas, ") : "",
             layout.mesh.pipeline > 1 ? cat(layout.mesh.pipeline, " pipeline stages, ") : "",
             plural(layout.micro_batches, "micro-batch", "micro-batches"), " of ",
             plural(layout.batch.sequences, "sequence", "sequences"), "\n");
  if (layout.mesh.pipeline > 1) out += pipeline_line(forecast);
  if (!forecast.context_forms.empty())
    out += cat("context_comm: auto is ", context_choice_text(forecast.context_forms), "\n");
  const std::string offload = offload_text(layout, model);
  const std::string tiles = tiles_text(layout, model), optimizer = optimizer_text(recipe.optimizer);
  out += cat("checkpointing: ", checkpointing_text(forecast), tiles.empty() ? "" : ", " + tiles, "\n",
             offload.empty() ? "" : "offload: " + offload + "\n",
             optimizer.empty() ? "" : "optimizer: " + optimizer + "\n",
             "precision: ", precision_text(recipe, model, layout), "\n\n");

  out += cat("peak memory of ", largest_ranks(forecast), " (at ", costs.peak_instruction, ")\n");
  std::vector<std::pair<std::string, std::int64_t>> parts(costs.peak_bytes_by_category.begin(),
                                                          costs.peak_bytes_by_category.end());
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [category, bytes] : parts) {
    out += row(category, format_bytes(Bytes(bytes)), percent(double(bytes), double(forecast.needed())));
  }
  if (!target.cuda) {
    out += row("host buffers", format_bytes(Bytes(costs.pinned_bytes)),
               percent(double(costs.pinned_bytes), double(forecast.needed())));
  }
  out += row("context and communicators", format_bytes(Bytes(stage.overhead)),
             percent(double(stage.overhead), double(forecast.needed())));
  const std::int64_t left = forecast.capacity - forecast.needed();
  out += row("needed", format_bytes(Bytes(forecast.needed())),
             cat("of ", format_bytes(Bytes(forecast.capacity)), ": ",
                 left >= 0 ? cat("fits, ", format_bytes(Bytes(left)), " left")
                           : cat("does not fit, ", format_bytes(Bytes(-left)), " over")));

  if (target.cuda) {
    out += row("host memory, buffers", format_bytes(Bytes(costs.pinned_bytes)), "pinned, in addition");
    out += row(cat("host memory, ", plural(forecast.host.ranks, "rank", "ranks")),
               format_bytes(Bytes(forecast.host_needed())), host_remark(forecast));
  }
  if (saves_asynchronously(recipe)) {
    const std::int64_t snapshot = costs.saved_bytes;
    const bool fits = target.cuda || snapshot <= snapshot_memory_cpu(forecast.capacity, forecast.needed());
    out += row("host memory, snapshot", format_bytes(Bytes(snapshot)),
               target.cuda ? "pinned, in addition: saves run alongside steps"
               : fits      ? "in addition: saves run alongside steps"
                           : "does not fit: steps wait for saves");
  }

  if (forecast.stages.size() > 1) out += stage_table(model, forecast);
  out += cat("\nper step and rank", forecast.of_largest_stage(), "\n");
  out += row("FLOPs", format_flops(costs.flops), "GEMMs and attention, including recompute");
  out += row("model FLOPs", format_flops(costs.model_flops), "forward and backward without recompute");
  for (const auto& [group, bytes] : costs.traffic) out += row("sent, " + group, bytes_text(bytes));
  for (const auto& [what, seconds] : stage.time.busy) out += row("busy, " + what, format_seconds(seconds));
  for (const std::string& line : slow_kernels(forecast)) out += cat("  warning: slow kernel: ", line, "\n");
  out += row("predicted time", format_seconds(forecast.seconds));
  out += row("predicted tokens/s", format_count(forecast.tokens_per_second),
             cat(format_count(forecast.tokens_per_second / world), " per rank"));
  const RunCost cost = cost_of(recipe, target, forecast, facts);
  if (cost.utilization) {
    out += row("utilization (MFU)", utilization_text(cost),
               cat("of ", format_flops(target.peak), "/s, the peak of dense bf16 GEMMs"));
  }
  out += cost_table(recipe, target, cost, facts);
  out += disk_table(recipe, model, facts);
  return out;
}

std::string plan_json(const Recipe& recipe, const models::Model& model, const Target& target, const Forecast& forecast,
                      const PlanFacts& facts) {
  const Layout& layout = forecast.layout;
  const StageForecast& stage = forecast.largest();
  const Costs& costs = stage.costs;
  nlohmann::ordered_json out{
      {"name", recipe.name},
      {"target", target.name},
      {"never_run", target.never_run},
      {"parameters", model.parameters()},
      {"trainable_parameters", model.trainable_parameters()},
      {"mesh",
       {{"ranks", layout.mesh.world()},
        {"tensor", layout.mesh.tensor},
        {"sequence_parallel", layout.sequence_parallel},
        {"context", layout.mesh.context},
        {"context_comm", context_text(form_of(layout))},
        {"shard", layout.parts()},
        {"sharding", layout.shard_policy == ShardPolicy::parameters ? "parameters" : "optimizer"},
        {"replicas", layout.mesh.replicas()}}},
      {"micro_batches", layout.micro_batches},
      {"checkpointing", checkpointing_text(forecast)},
      {"offload", offload_text(layout, model)},
      {"mlp_tile_rows", recipe.memory.mlp_tile_rows},
      {"optimizer",
       {{"kind", kind_name(recipe.optimizer.kind)},
        {"state_dtype", dtype_name(recipe.optimizer.state_dtype)},
        {"master_dtype", dtype_name(recipe.optimizer.master_dtype)},
        {"ema", recipe.optimizer.ema}}},
      {"compute", by_float(layout.compute, "float32", "bf16")}};
  if (recipe.adapter.in_nf4()) {
    out["base"] = {{"form", "nf4"}, {"double_quantization", recipe.adapter.double_quantization}};
  }
  if (recipe.precision.compute == ComputePrecision::fp8) {
    const LinearCounts counts = linears_of(layout, model);
    out["linears"] = {{"fp8", counts.in_fp8}, {"all", counts.all}};
  }
  const std::vector<RankClass> classes = rank_classes(layout.mesh);
  for (std::size_t s = 0; s < classes.size(); ++s) {
    nlohmann::ordered_json memory = memory_json(recipe, forecast, forecast.stages[s]);
    memory["ranks"] = cat(classes[s].first, "-", classes[s].last);
    if (classes.size() > 1) {
      memory["stage"] = s;
      memory["computing_seconds"] = forecast.stages[s].computing();
    }
    out["memory"].push_back(memory);
  }
  if (layout.mesh.pipeline > 1) {
    out["pipeline"] = {{"stages", layout.mesh.pipeline},
                       {"schedule", layout.schedule.name},
                       {"partition", blocks_of(layout.partition)},
                       {"bubble", forecast.bubble()}};
    if (forecast.equal_cuts) out["pipeline"]["equal_cuts"] = *forecast.equal_cuts;
  }
  if (target.cuda) out["host_memory"] = host_json(forecast);
  if (classes.size() > 1) out["stage"] = forecast.largest_stage();  // of the figures of one rank below
  out["flops"] = costs.flops;
  out["model_flops"] = costs.model_flops;
  out["bytes_sent"] = costs.traffic;
  out["seconds"] = forecast.seconds;
  if (facts.steps.count) {
    out["steps"] = *facts.steps.count;
    if (facts.steps.estimated) out["steps_estimated"] = true;
    out["run_seconds"] = static_cast<double>(*facts.steps.count) * forecast.seconds;
  }
  out["busy_seconds"] = stage.time.busy;
  for (const ContextForecast& other : forecast.context_forms) {
    out["context_forms"].push_back({{"context_comm", context_text(other.form)},
                                    {"seconds", other.seconds},
                                    {"needed", other.needed},
                                    {"fits", other.fits}});
  }
  out["tokens_per_second"] = forecast.tokens_per_second;
  out["cost"] = cost_json(cost_of(recipe, target, forecast, facts));
  if (const std::string assumed = target.assumed_rates(layout.mesh.world()); !assumed.empty()) out["assumed"] = assumed;
  out["disk"] = {{"checkpoint", facts.disk.checkpoint},
                 {"checkpoints", facts.disk.checkpoints()},
                 {"prepared", facts.disk.prepared},
                 {"total", facts.disk.total()}};
  if (facts.free_disk) out["disk"]["free"] = *facts.free_disk;
  out["fits"] = forecast.fits();
  const auto set_of = [](const std::vector<Change>& changes) {
    nlohmann::ordered_json set = nlohmann::ordered_json::array();
    for (const Change& change : changes) set.push_back(change.key + "=" + change.value);
    return set;
  };
  if (!forecast.fits()) {
    out["suggestions"] = nlohmann::ordered_json::array();
    for (const Suggestion& suggestion : facts.alternatives.suggestions) {
      out["suggestions"].push_back({{"set", set_of(suggestion.changes)},
                                    {"needed", suggestion.needed},
                                    {"tokens_per_second", suggestion.tokens_per_second}});
    }
    if (const auto& ranks = facts.alternatives.ranks) {
      out["fits_from"] = {{"ranks", ranks->ranks}, {"set", set_of(ranks->changes)}, {"needed", ranks->needed}};
    }
  }
  out["planning_seconds"] = forecast.planning_seconds;
  return out.dump();
}

}  // namespace hawser::plan
