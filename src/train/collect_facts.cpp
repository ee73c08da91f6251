#include "train/collect_facts.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/build.h"
#include "base/paths.h"
#include "base/units.h"
#include "batches/statistics.h"
#include "config/config.h"
#include "io/files.h"
#include "io/json.h"
#include "plan/context_form.h"
#include "plan/pipeline_form.h"
#include "plan/target.h"
#include "prepare/sources.h"
#include "prepare/token_file.h"
#include "train/run_folder.h"

namespace hawser::train {
namespace {

using nlohmann::ordered_json;

std::string text_of(const ordered_json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string out;
  for (const ordered_json& one : value) out += (out.empty() ? "" : ", ") + text_of(one);
  return out;
}

std::vector<report::RecipeEntry> entries(const Recipe& recipe) {
  std::vector<report::RecipeEntry> out;
  const ordered_json json = io::parse_own_json<io::OrderedJson>(recipe_json(recipe)),
                     defaults = io::parse_own_json<io::OrderedJson>(recipe_json(Recipe()));
  const auto add = [&](const std::string& key, const ordered_json& value) {
    const auto dot = key.find('.');
    const ordered_json& standard =
        dot == std::string::npos ? defaults.at(key) : defaults.at(key.substr(0, dot)).at(key.substr(dot + 1));
    if (!value.is_null()) out.push_back({key, text_of(value), value != standard});
  };
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object()) {
      add(name, value);
      continue;
    }
    for (const auto& [leaf, inner] : value.items()) add(name + "." + leaf, inner);
  }
  return out;
}

std::string mesh_text(const plan::Layout& layout) {
  const comm::MeshSizes& mesh = layout.mesh;
  const std::string tensor = mesh.tensor > 1 ? fmt::format(", each over {} tensor-parallel ranks", mesh.tensor) : "";
  const std::string stages = mesh.pipeline > 1 ? ", in each of " + plan::pipeline_text(layout) : "";
  return fmt::format("{} x {} ranks that shard, in context-parallel groups of {}{}{}{}", mesh.replicate,
                     mesh.shard * mesh.context, mesh.context, plan::by_form(layout), tensor, stages);
}

report::Table environment(const RunPlace& place) {
  const plan::Layout& layout = place.session.layout();
  const plan::Machine machine = plan::this_machine();
  report::Table out;
  utsname system{};
  if (uname(&system) == 0) {
    out.emplace_back("host", system.nodename);
    out.emplace_back("system", cat(system.sysname, " ", system.release, " ", system.machine));
  }
  if (const std::string model = plan::cpu_model(); !model.empty()) out.emplace_back("CPU", model);
  out.emplace_back("cores", cat(machine.cores));
  out.emplace_back("memory", format_bytes(Bytes(machine.memory)));
  if (layout.device == DeviceKind::cuda) {
    out.emplace_back("GPU", cuda_info().name);
    if (build().cuda) out.emplace_back("CUDA", build().cuda_version);
  }
  out.emplace_back("ranks", cat(place.ranks, ": ", mesh_text(layout)));
  if (!place.session.stages().empty()) {
    out.emplace_back("memory planned per rank, by pipeline stage", bytes_by_stage(place.session));
    out.emplace_back("pipeline stages wait (predicted)",
                     fmt::format("{:.0f}% of a step", 100 * plan::bubble_of(place.session.stage_times())));
  }
  out.emplace_back("threads per rank", cat(layout.threads));
  out.emplace_back("compute dtype", to_string(layout.compute));
  out.emplace_back("deterministic", layout.deterministic ? "yes" : "no");
  out.emplace_back("hawser", build().version);
  out.emplace_back("compiled with", cat("g++ ", __VERSION__));
  return out;
}

void add_file(report::Table& out, const std::string& name, const prepare::TokenFile& file) {
  out.push_back(report::count_fact(name + " documents", file.documents()));
  out.push_back(report::count_fact(name + " tokens", file.tokens()));
  if (file.documents() > 0) {
    const double mean = static_cast<double>(file.tokens()) / static_cast<double>(file.documents());
    out.emplace_back(name + " tokens per document", fmt::format("{:.1f}", mean));
  }
}

report::Table data_table(const RunPlace& place) {
  const batches::PackingPlan& packing = place.plan.packing;
  const prepare::TokenFiles files = prepare::token_files(place.plan.data);
  report::Table out;
  const prepare::TokenFile train(files.train);
  add_file(out, "training", train);
  const std::int64_t length = packing.sequence_length, space = place.sequences * length;
  batches::LongStatistics found;
  if (packing.pack == Packing::documents) {
    found = batches::long_statistics(train, length, packing.long_documents);
    const std::string text = batches::describe(found, train, length, packing.long_documents);
    if (!text.empty()) out.emplace_back("long training documents", text);
  }
  out.push_back(report::count_fact("training sequences", place.sequences));
  out.emplace_back(
      "packing efficiency",
      fmt::format("{:.1f} %", 100 * static_cast<double>(train.tokens() - found.tokens) / static_cast<double>(space)));
  out.emplace_back("steps per epoch", cat(ceil_div(place.sequences, place.plan.global_batch_size)));
  for (const auto& [name, prefix] : files.validation) {
    add_file(out, name.empty() ? "validation" : cat("validation ", name), prepare::TokenFile(prefix));
  }
  return out;
}

}  // namespace

report::RunFacts run_facts(const RunPlace& place) {
  const plan::RunPlan& plan = place.plan;
  report::RunFacts facts{.name = plan.recipe.name,
                         .version = build().version,
                         .folder = absolute_path(plan.files.folder),
                         .steps = plan.steps,
                         .recipe = entries(plan.recipe),
                         .environment = environment(place),
                         .data = data_table(place)};
  facts.memory = memory_facts(place.session);
  return facts;
}

std::vector<std::pair<std::string, std::int64_t>> memory_facts(const engine::Session& session) {
  const std::map<std::string, std::int64_t> by_purpose = session.largest_costs().peak_bytes_by_category;
  return {by_purpose.begin(), by_purpose.end()};
}

std::optional<double> peak_flops(DeviceKind device, const std::string& name, DType compute, int ranks) {
  if (device != DeviceKind::cuda || compute != DType::bf16) return std::nullopt;
  if (name.find("H100 NVL") != std::string::npos)
    return 835e12 * ranks;  // the one with a rate of its own but no target
  const std::string target = plan::target_of_gpu(name);
  if (!target.empty()) return plan::load_target(target).peak * ranks;
  return std::nullopt;
}

}  // namespace hawser::train
