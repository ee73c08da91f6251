// hawser prepare: converts text to token files.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/printable.h"
#include "base/text.h"
#include "cli/command_support.h"
#include "cli/commands.h"
#include "cli/data_summary.h"
#include "cli/exit.h"
#include "cli/line.h"
#include "cli/progress_line.h"
#include "engine/model_changes.h"
#include "engine/output_place.h"
#include "io/files.h"
#include "models/families.h"
#include "plan/run_plan.h"
#include "prepare/prepare.h"
#include "prepare/sources.h"
#include "prepare/token_file.h"

namespace hawser::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

class PrepareLine {
 public:
  void show(const prepare::PrepareProgress& progress) {
    const auto now = Clock::now();
    if (progress.counting != counting_) {
      counting_ = progress.counting;
      start_ = now;
    }
    if (progress.bytes_before > 0 && !printed_) {
      printed_ = true;
      print("", cat("resuming an earlier prepare: ", static_cast<int>(100 * share_of(progress.bytes_before, progress)),
                    "% is done"));
    }
    const bool last = progress.bytes_done == progress.bytes_total;
    if (!line_.due(last)) return;
    const double share = share_of(progress.bytes_done, progress);
    std::string line = cat(progress.counting ? "counting documents " : "preparing text ", static_cast<int>(100 * share),
                           "% of ", format_bytes(Bytes(progress.bytes_total)));
    if (!progress.counting) line += cat("  ", format_count(static_cast<double>(progress.tokens)), " tokens");
    // The speed counts only what this process did.
    const double now_done = progress.counting ? share : share - share_of(progress.bytes_before, progress);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    if (now_done > 0 && !last) {
      line += cat("  ",
                  format_bytes(Bytes(static_cast<std::int64_t>(now_done * static_cast<double>(progress.bytes_total) /
                                                               std::max(1e-3, seconds)))),
                  "/s  ", format_seconds(seconds * (1 - share) / now_done), " left");
    }
    line_.show(line);
  }

 private:
  static double share_of(std::int64_t bytes, const prepare::PrepareProgress& progress) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<std::int64_t>(1, progress.bytes_total));
  }

  ProgressLine line_;
  Clock::time_point start_ = Clock::now();
  bool counting_ = false, printed_ = false;
};

// Summary of the folder of token files, whether made now or before.
void print_summary(const prepare::PrepareOptions& job, const DataRecipe& recipe,
                   const std::optional<prepare::Prepared>& made, bool as_json) {
  const prepare::TokenFiles files = prepare::token_files(job);
  const bool made_now = made && !files.in_place;
  const double source_bytes = made ? static_cast<double>(made->source_bytes) : 0.0;
  nlohmann::ordered_json json{{"output", job.output}, {"made_now", made_now}};
  std::string text = files.in_place
                         ? "already token files, read in place\n"
                         : cat(made_now ? "prepared " : "already prepared, nothing to do: ", job.output, "\n");
  std::int64_t tokens = 0;
  std::string lengths;  // of the training data
  std::vector<std::pair<std::string, std::string>> parts{{"train", files.train}};
  std::size_t width = 0;
  for (const auto& [set, prefix] : files.validation) parts.emplace_back(prepare::validation_stem(set), prefix);
  for (const auto& [name, prefix] : parts) width = std::max(width, name.size());
  for (const auto& [name, prefix] : parts) {
    const prepare::TokenFile file(prefix);
    tokens += file.tokens();
    json[name] = {{"documents", file.documents()},
                  {"sequences", file.sequences()},
                  {"tokens", file.tokens()},
                  {"files", {prefix + ".bin", prefix + ".idx"}}};
    if (file.has_labels()) json[name]["files"].push_back(prefix + ".labels.bin");
    text += cat("  ", name, std::string(width - name.size() + 2, ' '), plural(file.tokens(), "token"), " in ",
                plural(file.documents(), "document"), "  ", prefix,
                file.has_labels() ? ".{bin,idx,labels.bin}" : ".{bin,idx}", "\n");
    const bool train = name == "train";
    const std::string summary = data_summary(file, train ? &recipe : nullptr, job.seed, 80, json[name]);
    if (!train) continue;
    const auto shared = std::make_shared<const prepare::TokenFile>(prefix);
    lengths = summary + mixture_summary(shared, job, recipe, json[name]);
  }
  if (source_bytes > 0 && tokens > 0) {
    json["source_bytes"] = source_bytes;
    text += "  read " + format_bytes(Bytes(static_cast<std::int64_t>(source_bytes)));
    if (made->compressed) {
      text += ", compressed\n";  // the length of the text is unknown
    } else {
      json["bytes_per_token"] = source_bytes / static_cast<double>(tokens);
      char line[64];
      std::snprintf(line, sizeof line, ", %.2f bytes per token\n", source_bytes / static_cast<double>(tokens));
      text += line;
    }
  }
  if (made && job.deduplicate) {
    json["duplicates"] = made->duplicates;
    text += cat("  skipped ", plural(made->duplicates, "duplicate"), "\n");
  }
  text += lengths;
  std::fputs(as_json ? (json.dump() + "\n").c_str() : printable(text, Newlines::keep).c_str(), stdout);
}

}  // namespace

int prepare(const PrepareOptions& options) {
  Problems problems;
  const Recipe recipe = read_recipe_for(options.recipe, options.common, Purpose::prepare, problems);
  // A recipe that `fit` rejects is not worth hours of tokenizing. Without a number of ranks, `fit` takes that of the
  // machine or the launcher that it will run on.
  if (recipe.run.ranks > 0) check_layout(recipe, recipe.run.ranks, problems);
  prepare::PrepareOptions job = plan::resolve_data(recipe);
  if (recipe.run.threads > 0) job.threads = recipe.run.threads;
  const bool model_accepted = accepted(recipe, {"model.path", "model.config"});
  const std::string model = recipe.model.path.empty() ? recipe.model.config : recipe.model.path;
  if (model_accepted && !model.empty()) {
    // Only the model's description is needed: its weights may still be downloading.
    models::ModelDescription description = models::read_description(resolve_path(recipe, model), problems);
    job.vocab_size = description.embedding.vocabulary;
    if (!description.blocks.empty()) engine::changes_of(recipe).describe(description, problems);
  }
  // Without the place of the tokenizer, any text would be a problem.
  if (model_accepted && accepted(recipe, {"data.tokenizer", "data.chat_template", "data.train", "data.validation"})) {
    prepare::check_sources(job, problems);
  } else {
    prepare::find_sources(recipe.data.train, recipe.folder, "data.train", problems);
    prepare::find_validation(job.validation, recipe.folder, problems);
  }
  const bool output_accepted = accepted(recipe, {"output", "data.prepared"});
  const bool in_place = prepare::token_files(job).in_place;
  if (output_accepted && !in_place) engine::check_output(job.output, "data.prepared", {}, problems);
  if (problems.empty() && !in_place) {
    io::check_writable(job.output, problems);
  } else if (output_accepted) {
    io::check_may_write(job.output, problems);
  }
  problems = with_origins(recipe, problems, recipe.model.path.empty() ? "model.config" : "model.path",
                          resolve_path(recipe, model));
  problems = with_origins(recipe, problems, recipe.data.prepared.empty() ? "output" : "data.prepared", job.output);
  problems.throw_if_any();
  for (const std::string& note : prepare::source_notes(job)) print("", note);
  if (prepare::is_prepared(job)) {
    print_summary(job, recipe.data, std::nullopt, options.common.json);
    return 0;
  }
  prepare::Prepared prepared;
  {
    PrepareLine shown;
    job.progress = [&shown](const prepare::PrepareProgress& progress) { shown.show(progress); };
    prepared = prepare::prepare(job);
  }
  for (const std::string& note : prepare::notes_of(prepared, job)) print("", note);
  print_summary(job, recipe.data, prepared, options.common.json);
  return 0;
}

void add_prepare(CLI::App& app, const Commands& commands, Chosen& chosen) {
  const auto options = std::make_shared<PrepareOptions>();
  CLI::App* command = add_command(
      app,
      {.name = "prepare",
       .what = "convert the recipe's text to token files; fit does this too if they are missing",
       .examples = {"hawser prepare recipe.yaml", "hawser prepare recipe.yaml --set data.validation_fraction=0.01"}},
      options->common);
  add_positional(*command, "RECIPE", options->recipe, "YAML recipe; `hawser recipe init` writes one");
  on_chosen(*command, [options, &commands, &chosen] {
    need(options->common, {{options->recipe, "RECIPE"}}, "prepare");
    chosen = [options, &commands] { return commands.prepare(*options); };
  });
}

}  // namespace hawser::cli
