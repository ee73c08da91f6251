// hawser inspect: contents of a checkpoint, a model or adapter folder, a token file or a trace.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/hub_name.h"
#include "base/paths.h"
#include "base/printable.h"
#include "base/text.h"
#include "batches/statistics.h"
#include "checkpoint/root.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/inspect_report.h"
#include "cli/line.h"
#include "cli/model_name.h"
#include "cli/timeline_json.h"
#include "engine/find_checkpoint.h"
#include "engine/open_model.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "io/result_file.h"
#include "models/expert_keys.h"
#include "models/families.h"
#include "models/param_names.h"
#include "models/peft_config.h"
#include "prepare/token_file.h"
#include "profile/timeline_summary.h"
#include "profile/timeline_svg.h"

namespace hawser::cli {

void describe_model(const models::Model& model, Report& report) {
  const models::ModelDescription& d = model.description();
  nlohmann::ordered_json& json = report.json["model"];
  json = {{"family", d.family},         {"parameters", model.parameters()},     {"layers", d.blocks.size()},
          {"width", d.embedding.width}, {"vocabulary", d.embedding.vocabulary}, {"max_position", d.max_position},
          {"tied_head", d.head.tied}};
  report.row("family", d.family);
  report.row("parameters", cat(format_count(static_cast<double>(model.parameters())), " (", model.parameters(), ")"));
  std::string sizes = cat(d.blocks.size(), " blocks, width ", d.embedding.width);
  if (!d.blocks.empty()) {
    const nn::AttentionConfig& attention = d.blocks[0].attention;
    json["heads"] = attention.heads;
    json["kv_heads"] = attention.kv_heads;
    json["head_dim"] = attention.head_dim;
    sizes += cat(", ", attention.heads, " heads of ", attention.head_dim, " over ", attention.kv_heads,
                 " key-value heads, ");
    if (const nn::MoeConfig* experts = models::experts_of(d)) {
      json["experts"] = experts->experts;
      json["experts_per_token"] = experts->top_k;
      json["inner"] = experts->inner;
      sizes += cat("experts ", experts->top_k, " of ", experts->experts, ", ", experts->inner);
    } else {
      json["inner"] = d.blocks[0].mlp.inner;
      sizes += cat("MLP ", d.blocks[0].mlp.inner);
    }
  }
  report.row("sizes", sizes);
  report.row("vocabulary", cat(d.embedding.vocabulary, d.head.tied ? ", tied head" : ""));
  report.row("positions", cat(d.max_position));
}

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// "model.layers.{0-29}.mlp.up_proj.weight": tensors whose names differ in numbers alone, in one line.
void list_names(const models::Model& model, Report& report) {
  struct Range {
    std::int64_t first, last;
  };
  std::vector<std::string> forms;                    // "model.layers.#.mlp.up_proj.weight"
  std::map<std::string, std::vector<Range>> ranges;  // by form: of each number
  Json& list = report.json["parameter_names"] = Json::array();
  for (const models::NamedParam& named : models::named_params(model)) {
    list.push_back(named.tensor);
    std::string form;
    std::vector<std::int64_t> numbers;
    std::istringstream parts(named.tensor);
    for (std::string part; std::getline(parts, part, '.');) {
      const bool number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
      if (number) numbers.push_back(std::stoll(part));
      form += cat(form.empty() ? "" : ".", number ? "#" : part);
    }
    const auto [at, is_new] = ranges.try_emplace(form);
    if (is_new) forms.push_back(form);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (is_new) at->second.push_back({numbers[i], numbers[i]});
      Range& range = at->second[i];
      range = {std::min(range.first, numbers[i]), std::max(range.last, numbers[i])};
    }
  }
  report.text += "  names\n";
  for (const std::string& form : forms) {
    std::string line = form;
    for (const Range& range : ranges.at(form)) {
      const std::string text =
          range.first == range.last ? cat(range.first) : cat("{", range.first, "-", range.last, "}");
      line.replace(line.find('#'), 1, text);
    }
    report.text += cat("    ", line, "\n");
  }
}

void describe_folder_model(const std::string& path, Report& report) {
  Problems problems;
  const engine::OpenModel open = engine::open_model(path, false, problems);
  problems.throw_if_any();
  report.title("model", path);
  describe_model(*open.model, report);
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> types;  // tensors and bytes
  std::int64_t bytes = 0;
  for (const std::string& name : open.weights->names()) {
    const checkpoint::TensorInfo& info = *open.weights->find(name);
    auto& [count, size] = types[info.type->name];
    ++count, size += info.bytes, bytes += info.bytes;
  }
  Json& json = report.json["weights"] = {{"bytes", bytes}};
  std::string text;
  for (const auto& [type, sums] : types) {
    json["dtypes"][type] = {{"tensors", sums.first}, {"bytes", sums.second}};
    text += cat(text.empty() ? "" : ", ", sums.first, " tensors ", type, " ", with_unit(sums.second));
  }
  report.row("weights", text);
  try {
    const auto tokenizer = engine::tokenizer_of_model(path);
    report.json["tokenizer"] = tokenizer ? Json{{"entries", tokenizer->vocab_size()}} : Json();
    report.row("tokenizer", tokenizer ? cat(tokenizer->vocab_size(), " entries") : "none");
  } catch (const UserError& error) {
    report.json["tokenizer"] = {{"problem", error.what()}};
    report.row("tokenizer", cat("not readable: ", error.what()));
  }
  list_names(*open.model, report);
}

void describe_adapter(const std::string& path, Report& report) {
  Problems problems;
  const std::vector<engine::OpenAdapter> opened = engine::open_adapters({path}, problems);
  problems.throw_if_any();
  const engine::OpenAdapter& adapter = opened.front();
  const models::LoraConfig& lora = adapter.lora;
  report.title("adapter", path);
  std::string targets, saved;
  for (const std::string& target : lora.targets) targets += cat(targets.empty() ? "" : ", ", target);
  for (const std::string& module : lora.modules_to_save) saved += cat(saved.empty() ? "" : ", ", module);
  std::int64_t parameters = 0, bytes = 0;
  for (const std::string& name : adapter.weights.names()) {
    const checkpoint::TensorInfo& info = *adapter.weights.find(name);
    parameters += info.shape.elements(), bytes += info.bytes;
  }
  report.json["adapter"] = {{"kind", "lora"},           {"rank", lora.rank},
                            {"alpha", lora.alpha},      {"dropout", lora.dropout},
                            {"rslora", lora.rslora},    {"dora", lora.dora},
                            {"targets", lora.targets},  {"modules_to_save", lora.modules_to_save},
                            {"parameters", parameters}, {"bytes", bytes}};
  report.row("kind", cat(lora.dora ? "DoRA" : "LoRA", lora.rslora ? ", rsLoRA scaling" : "", ", rank ", lora.rank,
                         ", alpha ", lora.alpha));
  report.row("targets", targets);
  if (!saved.empty()) report.row("in full", saved);
  report.row("parameters", cat(format_count(static_cast<double>(parameters)), " in ", adapter.weights.names().size(),
                               " tensors, ", with_unit(bytes)));
}

void describe_tokens(const std::string& prefix, Report& report) {
  const prepare::TokenFile file(prefix);
  report.title("token file", prefix);
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < file.sequences(); ++i) lengths.push_back(file.length(i));
  std::sort(lengths.begin(), lengths.end());
  const auto at = [&](double share) {
    return lengths.empty() ? 0 : lengths[static_cast<std::size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  const std::int64_t bytes = static_cast<std::int64_t>(fs::file_size(prefix + ".bin"));
  report.json["documents"] = file.documents();
  report.json["sequences"] = file.sequences();
  report.json["tokens"] = file.tokens();
  report.json["labels"] = file.has_labels();
  report.json["bytes"] = bytes;
  report.json["lengths"] = {{"min", at(0)}, {"median", at(0.5)}, {"p90", at(0.9)}, {"max", at(1)}};
  report.row("documents",
             cat(file.documents(),
                 file.documents() == file.sequences() ? "" : "; training separates sequences, as Megatron-LM"));
  report.row("sequences", cat(file.sequences()));
  report.row("tokens", cat(file.tokens(), file.has_labels() ? ", with labels" : ""));
  report.row("lengths", cat(at(0), " to ", at(1), ", median ", at(0.5), ", 90% within ", at(0.9)));
  report.row("bytes", with_unit(bytes));
  report.text += batches::histogram(batches::length_statistics(file), 80);
}

// A trace of `bench step --trace`, and its SVG if requested.
void describe_trace(const InspectOptions& options, Report& report) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  const auto ranks = profile::read_chrome_trace(io::read_text(options.path, kLargest), options.path);
  report.title("trace", options.path);
  std::vector<profile::TimelineSummary> summaries;
  summaries.reserve(ranks.size());
  for (const profile::RankTimeline& rank : ranks) {
    summaries.push_back(profile::summarize(rank));
    report.json["ranks"].push_back(timeline_json(summaries.back()));
  }
  report.text += profile::summary_text(summaries);
  if (options.svg.empty()) return;
  io::write_result(options.svg,
                   profile::to_svg(ranks, {.begin_s = 1e-3 * options.from_ms, .end_s = 1e-3 * options.to_ms}));
  report.json["svg"] = options.svg;
  report.text += cat("wrote ", options.svg, "\n");
}

// "runs/x/data/train" of "runs/x/data/train.bin", as typed. Unlike prepare::token_prefix, which accepts what a recipe
// may train on, this accepts an index alone: TokenFile reports what is missing.
std::optional<std::string> prefix_to_show(const std::string& path) {
  for (const char* suffix : {"", ".bin", ".idx", ".labels.bin"}) {
    if (!path.ends_with(suffix)) continue;
    const std::string prefix = path.substr(0, path.size() - std::string(suffix).size());
    if (io::exists(prefix + ".idx") && !io::is_folder(prefix + ".idx")) return prefix;
  }
  return std::nullopt;
}

}  // namespace

int inspect(const InspectOptions& options) {
  const bool named = options.path == "checkpoint" && !options.data.empty();
  if (!options.data.empty() && !named) {
    if (options.path == "data") return inspect_data(options);
    throw UserError(Problem{.what = "inspect expects one path",
                            .got = options.data,
                            .hint = "hawser inspect data RECIPE, or hawser inspect checkpoint DIR"});
  }
  recipe_without_file({}, options.common);  // rejects invalid common options
  const bool word = options.data.empty() && (options.path == "data" || options.path == "checkpoint");
  if (word && !io::exists(options.path)) {
    const bool data = options.path == "data";
    throw UserError(Problem{.what = data ? "inspect data: RECIPE is missing" : "inspect checkpoint: DIR is missing",
                            .hint = data ? "hawser inspect data RECIPE" : "hawser inspect checkpoint DIR"});
  }
  const std::string path = find_model(named ? options.data : options.path, options.common, hub::Parts::all);
  if (const auto hub = hub_name_of(path); hub && !io::exists(path)) {
    throw UserError(not_downloaded(*hub, path));
  }
  const auto has = [&](const char* name) { return io::exists((fs::path(path) / name).string()); };
  Report report;
  const bool is_file = io::exists(path) && !io::is_folder(path);
  if (!options.svg.empty() && !(is_file && path.ends_with(".json"))) {
    throw UserError(Problem{.file = path, .what = "not a trace", .at = "--svg"});
  }
  std::error_code absent;
  if (!options.svg.empty()) {
    const std::string folder = folder_of(options.svg);
    std::vector<engine::Input> inputs;
    if (io::exists(folder + "/config.json")) inputs.push_back({"a model", folder});
    Problems problems;
    engine::check_output(options.svg, "--svg", inputs, problems);
    problems.throw_if_any();
  }
  if (!options.svg.empty() && fs::equivalent(path, options.svg, absent)) {
    throw UserError(
        Problem{.file = options.svg, .what = "the same file as the trace", .expected = "another file", .at = "--svg"});
  }
  const bool is_checkpoint = engine::looks_like_checkpoint(path);
  const auto run = is_checkpoint || is_file ? std::nullopt : engine::checkpoints_below(path);
  if (!is_checkpoint && !run && !has("config.json")) {
    if (const auto other = engine::other_folder(path)) throw UserError(*other);
  }
  if ((named || options.verify) && !is_checkpoint && !run && io::exists(path)) {
    throw UserError(Problem{.file = path,
                            .what = "not a checkpoint",
                            .expected = "a folder with a manifest.json, or a run's folder",
                            .at = options.verify ? "--verify" : ""});
  }
  if (is_file && path.ends_with(".json")) {
    describe_trace(options, report);
  } else if (const auto prefix = prefix_to_show(path)) {
    describe_tokens(*prefix, report);
  } else if (is_checkpoint) {
    auto checkpoint = checkpoint::Checkpoint::open(path);
    describe_checkpoint(checkpoint, report);
    list_tensors(checkpoint, report);
    if (options.verify) verify_checkpoint(checkpoint, report, options.common.json);
  } else if (run) {
    describe_run(path, *run, options.verify, options.common.json, report);
  } else if (has("config.json")) {
    describe_folder_model(path, report);
  } else if (models::is_adapter_folder(path)) {
    describe_adapter(path, report);
  } else {
    throw UserError(Problem{.file = path,
                            .what = io::exists(path) ? "unknown kind of file or folder" : "no such file or folder",
                            .expected = "a run, a checkpoint, a model or adapter folder, a token file or a trace"});
  }
  std::fputs(options.common.json ? (report.json.dump() + "\n").c_str() : printable(report.text, Newlines::keep).c_str(),
             stdout);
  return 0;
}

void add_inspect(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<InspectOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "inspect",
       .what = "show what a checkpoint, model, token file or trace contains, or training samples",
       .examples = {"hawser inspect checkpoint runs/novels/best --verify",
                    "hawser inspect runs/novels/data/train.bin --json", "hawser inspect data recipe.yaml --samples 5"}},
      options->common);
  add_positional(*command, "PATH", options->path,
                 "checkpoint, model folder, token file or trace; or `data`, followed by RECIPE; or `checkpoint`, "
                 "followed by a folder");
  set_completions(*command, "PATH", {"data", "checkpoint", "models"});
  add_positional(*command, "[RECIPE]", options->data,
                 "after `data`: recipe with prepared data, or token file; after `checkpoint`: its folder");
  add_number(*command, options->common, "--samples", 0, 1 << 20, "data: number of sequences to show; default 3",
             [options](std::int64_t value) { options->samples = value; });
  add_number(*command, options->common, "--first", 0, std::int64_t{1} << 40,
             "data: first sequence to show, counted from 0 in training order",
             [options](std::int64_t value) { options->first = value; });
  add_switch(*command, "--validation", options->validation, "data: show the recipe's held-out data");
  add_text(*command, "--validation-set", "NAME", options->validation_set,
           "data: show this set of the recipe's held-out data");
  add_text(*command, "--tokenizer", "FILE", options->tokenizer,
           "data: tokenizer.json for a token file without a recipe");
  add_switch(*command, "--verify", options->verify, "checkpoint: read all of it and verify its checksums");
  add_text(*command, "--svg", "FILE", options->svg, "trace: write it as an SVG with one lane per stream");
  const auto milliseconds = [](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !std::isfinite(value) || value < 0)
      throw UserError(
          Problem{.what = "wrong value", .expected = "milliseconds", .got = cat("'", text, "'"), .at = "--window"});
    return value;
  };
  add_parsed(
      *command, options->common, "--window", "FROM:TO", "trace: range to draw in milliseconds; default: all",
      [options, milliseconds](const std::string& text) {
        const std::size_t colon = std::min(text.find(':'), text.size());
        options->from_ms = milliseconds(text.substr(0, colon));
        options->to_ms = milliseconds(text.substr(std::min(colon + 1, text.size())));
        if (options->to_ms <= options->from_ms)
          throw UserError(Problem{.what = "wrong value", .expected = "FROM below TO", .got = text, .at = "--window"});
      });
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->path, "PATH"}}, "inspect");
    options->common.problems.throw_if_any();
    chosen = [options, &commands] { return commands.inspect(*options); };
  });
}

}  // namespace hawser::cli
