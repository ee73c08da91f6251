// hawser inspect: checkpoints and runs.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "checkpoint/root.h"
#include "cli/exit.h"
#include "cli/inspect_report.h"
#include "cli/line.h"
#include "engine/find_checkpoint.h"
#include "engine/model_changes.h"
#include "engine/open_model.h"
#include "engine/run_state.h"
#include "io/files.h"
#include "io/json.h"
#include "launch/launcher_environment.h"
#include "models/linear_names.h"
#include "optim/ema_optimizer.h"

namespace hawser::cli {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const std::string kOptimizer = optim::kStatePrefix;

// Scales of weights, and scales and histories of their inputs and gradients.
bool is_of_fp8(const std::string& tensor) {
  return tensor.starts_with("scale/") || tensor.starts_with("quantization/");
}

// The model of a checkpoint, if its metadata names it.
void describe_metadata(const checkpoint::Checkpoint& checkpoint, Report& report) {
  engine::CheckpointMetadata metadata;
  try {
    metadata = engine::read_metadata(checkpoint);
  } catch (const UserError&) {
    report.row("model", "unknown: this checkpoint is not of a run");
    return;
  }
  const auto recipe = io::json_or_null(metadata.recipe);
  const auto number = [&](const char* pointer) {
    const nlohmann::json::json_pointer place(pointer);
    return recipe.contains(place) && recipe[place].is_number_integer() ? recipe[place].get<std::int64_t>() : 0;
  };
  const std::int64_t steps = number("/train/steps"), sequences = metadata.step * number("/train/global_batch_size");
  report.json["data_position"] = {
      {"steps", metadata.step}, {"sequences", sequences}, {"tokens", sequences * number("/data/sequence_length")}};
  report.row("data", cat("after step ", metadata.step, steps > 0 ? cat(" of ", steps) : "", ": ", sequences,
                         " sequences of ", number("/data/sequence_length"), " tokens"));
  const auto word = [&](const char* at) { return recipe.is_object() ? recipe.value(Json::json_pointer(at), "") : ""; };
  if (const std::string kind = word("/optimizer/kind"); !kind.empty()) {  // earlier versions have AdamW in float32
    const std::string state = word("/optimizer/state_dtype"), master = word("/optimizer/master_dtype");
    report.json["optimizer"] = {{"kind", kind}, {"state_dtype", state}, {"master_dtype", master}};
    const auto decay = recipe.value(Json::json_pointer("/optimizer/ema"), nlohmann::json());
    if (decay.is_number()) report.json["optimizer"]["ema"] = decay;
    report.row("optimizer", cat(kind, ", state in ", state, ", weights in ", master,
                                decay.is_number() ? cat(", average of the weights with decay ", decay.dump()) : ""));
  }
  if (const std::string scaling = word("/precision/fp8.scaling"); word("/precision/compute") == "fp8") {
    report.json["precision"] = {{"compute", "fp8"}, {"scaling", scaling}};
    report.row("precision", cat("FP8, ", scaling, " scaling"));
  }
  if (const std::string kind = word("/adapter/kind"); !kind.empty() && kind != "none") {
    const bool nf4 = kind == "qlora" || word("/adapter/base") == "nf4";
    report.json["adapter"] = {{"kind", kind}, {"rank", number("/adapter/rank")}, {"weights", metadata.base_model}};
    if (nf4) report.json["adapter"]["base"] = "nf4";
    report.row("adapter", cat(nf4 ? "QLoRA" : "LoRA", " of rank ", number("/adapter/rank"),
                              "; the frozen weights are in ", metadata.base_model));
  }
  if (const std::vector<std::string> frozen = engine::frozen_of(metadata.recipe); !frozen.empty()) {
    report.json["frozen"] = {{"parameters", frozen}, {"weights", metadata.base_model}};
    report.row("frozen", cat(models::joined(frozen), "; their weights are in ", metadata.base_model));
  }
  Problems problems;
  models::ModelDescription description = engine::describe_checkpoint(checkpoint, metadata.config, problems);
  if (problems.empty()) describe_model(models::Model(std::move(description)), report);
  report.json["tokenizer"] = metadata.tokenizer.empty() ? Json() : Json(metadata.tokenizer);
  if (!metadata.tokenizer.empty()) report.row("tokenizer", metadata.tokenizer);
}

// The layout that saved it, from its recipe; any other layout can load it.
std::string saved_layout(const checkpoint::Checkpoint& checkpoint, Report& report) {
  const auto metadata = io::json_or_null(checkpoint.metadata());
  const auto parallel = metadata.value("/recipe/parallel"_json_pointer, nlohmann::json());
  std::string text = plural(checkpoint.world(), "rank");
  const auto memory = metadata.value("/recipe/memory"_json_pointer, nlohmann::json());
  for (const char* key :
       {"activation_checkpointing", "activation_offload", "optimizer_offload", "weight_offload", "mlp_tile_rows"}) {
    const auto value = memory.is_object() ? memory.find(key) : memory.end();
    if (value == memory.end() || *value == false || *value == 0 || *value == "none") continue;
    text += cat(", ", key, " ", value->is_string() ? value->get<std::string>() : value->dump());
    (std::string(key).ends_with("offload") ? report.json["offload"][key] : report.json[key]) = *value;
  }
  if (!parallel.is_object()) return text;
  report.json["parallel"] = parallel;
  for (const char* key : {"context_parallel_degree", "hybrid_shard_degree", "tensor_parallel_degree",
                          "pipeline_parallel_degree", "expert_parallel_degree"}) {
    const auto value = parallel.find(key);
    if (value == parallel.end() || !value->is_number_integer()) continue;
    const bool shard = key == std::string("hybrid_shard_degree");
    if (*value != (shard ? 0 : 1)) text += cat(", ", key, " ", value->get<std::int64_t>());
  }
  const auto degree = parallel.find("context_parallel_degree"), comm = parallel.find("context_comm");
  const bool has_both = degree != parallel.end() && degree->is_number_integer() && comm != parallel.end();
  if (has_both && *degree != 1 && comm->is_string() && *comm != "all_gather") {
    text += cat(", context_comm ", comm->get<std::string>());
  }
  return text;
}

}  // namespace

// One line per parameter; its optimizer moments have the same shape.
void list_tensors(const checkpoint::Checkpoint& checkpoint, Report& report) {
  struct Line {
    std::string name, shape;
    std::int64_t bytes = 0, boxes = 0, moments = 0;
    bool averaged = false;
  };
  std::vector<std::pair<Line, std::string>> lines;
  std::size_t widest = 0, longest = 0;
  std::map<std::string, std::int64_t> moments;  // by tensor: the optimizer's, named optimizer/SLOT/TENSOR
  std::set<std::string> averaged;               // tensors of which there is optimizer/ema/TENSOR
  const std::string average = cat(kOptimizer, optim::kEmaSlot, "/");
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
    if (!tensor.name.starts_with(kOptimizer)) continue;
    if (tensor.name.starts_with(average)) {
      averaged.insert(tensor.name.substr(average.size()));
      continue;
    }
    ++moments[tensor.name.substr(tensor.name.find('/', kOptimizer.size()) + 1)];
  }
  Json& list = report.json["tensor_list"] = Json::array();
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
    std::int64_t bytes = 0;
    for (const checkpoint::SavedBox& box : tensor.boxes) bytes += box.bytes;
    list.push_back({{"name", tensor.name},
                    {"dtype", to_string(tensor.dtype)},
                    {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
                    {"bytes", bytes},
                    {"boxes", tensor.boxes.size()}});
    if (tensor.name.starts_with(kOptimizer)) continue;
    Line line{.name = tensor.name,
              .shape = cat(to_string(tensor.dtype), " ", tensor.shape.text()),
              .bytes = bytes,
              .boxes = static_cast<std::int64_t>(tensor.boxes.size())};
    line.moments = moments[tensor.name];
    line.averaged = averaged.contains(tensor.name);
    widest = std::max(widest, line.name.size());
    longest = std::max(longest, line.shape.size());
    lines.emplace_back(std::move(line), "");
  }
  for (auto& [line, ignored] : lines) {
    line.name.resize(widest + 2, ' ');
    line.shape.resize(longest + 2, ' ');
    report.text +=
        cat("    ", line.name, line.shape, with_unit(line.bytes), " in ", line.boxes,
            line.boxes == 1 ? " box" : " boxes", line.moments > 0 ? ", and " + plural(line.moments, "moment") : "",
            line.averaged ? ", and its average" : "", "\n");
  }
}

namespace {

void list_files(const checkpoint::Checkpoint& checkpoint, Report& report) {
  Json& list = report.json["files"] = Json::array();
  std::int64_t bytes = 0, count = 0;
  const auto add = [&](const std::string& name, std::int64_t size) {
    list.push_back({{"name", name}, {"bytes", size}});
    bytes += size, ++count;
  };
  const auto size_of_file = [&](const std::string& name) {
    std::error_code gone;
    const auto size = fs::file_size(fs::path(checkpoint.folder()) / name, gone);
    return gone ? std::int64_t{0} : static_cast<std::int64_t>(size);
  };
  for (const checkpoint::ObjectSize& file : checkpoint.files()) add(file.name, file.bytes);
  for (const std::string& name : checkpoint.attached()) add(name, size_of_file(name));
  add(checkpoint::kManifestName, size_of_file(checkpoint::kManifestName));
  report.json["disk_bytes"] = bytes;
  report.row("on disk", cat(with_unit(bytes), " in ", count, " files"));
}

}  // namespace

// Reads all of it and verifies the checksums.
void verify_checkpoint(checkpoint::Checkpoint& checkpoint, Report& report, bool quiet) {
  const Terminal terminal = user_terminal();
  const bool shown = terminal.is_terminal && !quiet;
  std::int64_t percent = -1;
  Problems problems;
  checkpoint.verify(problems, [&](std::int64_t done, std::int64_t total) {
    const std::int64_t now = total > 0 ? 100 * done / total : 100;
    if (!shown || now == percent) return;
    percent = now;
    std::fprintf(stderr, "\rverifying %3lld%% of %s", static_cast<long long>(now), with_unit(total).c_str());
  });
  if (shown) std::fputs("\r\033[K", stderr);
  if (!problems.empty()) {
    const std::string before = checkpoint::complete_before(checkpoint.folder());
    throw checkpoint::CorruptCheckpoint(
        problems.lines() + (before.empty() ? "" : cat("\nprevious checkpoint: hawser inspect ", before, " --verify")));
  }
  report.json["verified"] = true;
  report.row("verified", cat(with_unit(checkpoint.data_bytes()), " of tensors, padding and attached files"));
}

void describe_checkpoint(const checkpoint::Checkpoint& checkpoint, Report& report) {
  report.title("checkpoint", checkpoint.folder());
  std::int64_t parameters = 0, others = 0, of_fp8 = 0, bytes = 0;
  std::map<std::string, std::int64_t> dtypes;
  for (const checkpoint::SavedTensor& tensor : checkpoint.tensors()) {
    ++(tensor.name.starts_with(kOptimizer) ? others : is_of_fp8(tensor.name) ? of_fp8 : parameters);
    for (const checkpoint::SavedBox& box : tensor.boxes)
      bytes += box.bytes, dtypes[to_string(tensor.dtype)] += box.bytes;
  }
  report.json["step"] = checkpoint.step();
  report.json["world"] = checkpoint.world();
  report.json["tensors"] = {{"parameters", parameters}, {"optimizer", others}};
  if (of_fp8 > 0) report.json["tensors"]["fp8"] = of_fp8;
  report.json["bytes"] = bytes;
  report.json["bytes_by_dtype"] = dtypes;
  report.row("step", cat(checkpoint.step(), ", saved by ", saved_layout(checkpoint, report)));
  report.row("tensors", cat(parameters, " of parameters, ", others, " of the optimizer",
                            of_fp8 > 0 ? cat(", ", of_fp8, " of FP8 scales and amaxes") : std::string()));
  std::string types;
  for (const auto& [name, size] : dtypes) types += cat(types.empty() ? "" : ", ", name, " ", with_unit(size));
  report.row("bytes", cat(with_unit(bytes),
                          dtypes.size() > 1 ? cat(" (", types, ")") : cat(" of ", types.substr(0, types.find(' ')))));
  list_files(checkpoint, report);
  describe_metadata(checkpoint, report);
}

void describe_run(const std::string& path, const std::string& root, bool verify, bool quiet, Report& report) {
  Problems skipped;
  const auto whole = checkpoint::complete_checkpoints(root, skipped);
  if (verify && whole.empty()) {
    skipped.add({.file = root, .what = "no complete checkpoint"});
    throw UserError(skipped.lines());
  }
  if (!skipped.empty()) print("incomplete: ", skipped.lines());
  report.title("run", path);
  report.json["checkpoints"] = whole;
  std::string names;
  for (auto it = whole.rbegin(); it != whole.rend(); ++it)
    names += cat(names.empty() ? "" : ", ", fs::path(*it).filename().string());
  report.row("checkpoints", names.empty() ? "none" : names);
  if (whole.empty()) return;
  const std::string best = (fs::path(path) / "best").string();
  if (io::exists(best)) {
    const auto metadata = engine::run_state_of(checkpoint::Checkpoint::open(best).metadata());
    report.json["best"] = {{"path", best}, {"step", metadata.step}};
    std::string losses;
    if (const auto& found = metadata.validation_loss) {
      report.json["best"]["validation_loss"] = found->all;
      losses = cat(", validation loss ", found->all);
      if (!found->sets.empty()) {
        report.json["best"]["validation_losses"] = found->sets;
        losses += cat(" (", set_losses_text(*found), ")");
      }
    }
    report.row("best", cat("step ", metadata.step, losses));
  }
  Report newest;
  auto checkpoint = checkpoint::Checkpoint::open(whole.front());
  describe_checkpoint(checkpoint, newest);
  if (verify) verify_checkpoint(checkpoint, newest, quiet);
  report.json["newest"] = newest.json;
  report.text += newest.text;
}

}  // namespace hawser::cli
