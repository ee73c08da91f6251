// The commands of `hawser`: the options of each, and the function that runs it.
//
// A command is in src/cli/COMMAND.cpp. add_COMMAND declares its options. The function COMMAND does what any build can:
// it reads the recipe, checks the layout and starts ranks. Then it calls the body, COMMAND_here, the only place that
// uses the modules of lower layers. The body returns the exit code; errors are thrown.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "config/recipe.h"

namespace hawser::cli {

// Options that all commands share.
struct CommonOptions {
  int ranks = 0;                       // 0: not given
  std::vector<int> rank_counts;        // of plan's --ranks 8,16; empty: one number, or none
  std::vector<std::string> overrides;  // "KEY=VALUE"
  std::optional<Bytes> memory, host_memory;
  std::optional<DeviceChoice> device;
  bool json = false;
  bool offline = false;  // models by name are those of the cache
  // Wrong values of any options of the command, which it reports with its other problems, and the names of these
  // options ("--ranks"), which are as if not given. Checks of what depends on them are left out.
  Problems problems;
  std::set<std::string> rejected;
};

struct FitOptions {
  CommonOptions common;
  std::string recipe;
  bool resume = false;
  bool force = false;
};

struct PrepareOptions {
  CommonOptions common;
  std::string recipe;
};

struct PlanOptions {
  CommonOptions common;
  std::string recipe;
  std::string target;           // name in targets/; "": this machine
  std::string model;            // in place of a recipe
  std::optional<double> price;  // of a rank for an hour
  bool alternatives = false;    // compare what the recipe could say instead
  std::string timeline;         // file to write the predicted step to; "": none
};

struct EvalOptions {
  CommonOptions common;
  std::string model;
  std::string adapter;               // a folder of PEFT; "": none
  std::string data;                  // JSONL file, text file or token file
  std::string bigram;                // prefix of the token file for fitting a bigram model; "": none
  std::int64_t sequence_length = 0;  // 0: that of the checkpoint's run
  bool gradient_norms = false;
  bool across_documents = false;
  bool best = false;   // the run's best checkpoint, not its last one
  bool ema = false;    // the average of the run's weights
  bool table = false;  // print a table: set by the launcher, whose standard output is a terminal
};

struct GenerateOptions {
  CommonOptions common;
  std::string model;
  bool best = false;  // the run's best checkpoint, not its last one
  bool ema = false;   // the average of the run's weights
  std::vector<std::string> adapters;
  std::optional<std::string> prompt;  // exactly one of these four
  std::vector<std::int64_t> prompt_ids;
  std::string prompts;  // a file
  bool chat = false;
  std::string system, tools, chat_template;
  std::string output;  // of `prompts`; "": standard output
  std::optional<std::int64_t> max_tokens, batch, context;
  double temperature = 0, top_p = 1;
  std::optional<std::int64_t> top_k;
  std::uint64_t seed = 0;
  std::vector<std::string> stops;
};

struct PullOptions {
  CommonOptions common;
  std::string name;  // ORG/NAME or ORG/NAME@REVISION
  bool dataset = false;
  std::vector<std::string> include;  // patterns of files
};

struct ExportOptions {
  CommonOptions common;
  std::string source;  // run folder or checkpoint
  std::string model;   // or a model folder, with adapters
  std::vector<std::string> adapters;
  bool merge = false;
  std::string output;
  std::string dtype;  // bf16, float32 or float16; "": that of the run
  bool best = false;  // the run's best checkpoint, not its last one
  bool ema = false;   // the average of the run's weights
};

struct InspectOptions {
  CommonOptions common;
  std::string path;               // or "data" or "checkpoint", with the argument in `data`
  bool verify = false;            // checkpoint: verify all checksums
  std::string svg;                // trace: SVG file to write; "": none
  double from_ms = 0, to_ms = 0;  // trace: range to draw; equal: all
  std::string data;               // recipe or token file
  std::string tokenizer;          // for a token file without a recipe
  std::int64_t samples = 3, first = 0;
  bool validation = false;
  std::string validation_set;  // "": the only one
};

struct RecipeInitOptions {
  CommonOptions common;
  std::string model;              // model folder or config.json
  std::vector<std::string> data;  // files, folders or token files; empty: text/, if it has any
  std::string output;             // "": standard output
  std::string target;             // name in targets/ or file; "": this machine
  bool force = false;             // overwrite an existing output
  bool only_chosen = false;       // without the keys that have their defaults
};

struct RecipeConvertOptions {
  CommonOptions common;
  std::string file;    // of axolotl or LLaMA-Factory
  std::string from;    // "axolotl", "llama-factory"; "": recognized
  std::string output;  // "": standard output
  bool force = false;  // overwrite an existing output
};

struct BenchStepOptions {
  CommonOptions common;
  std::string model;                 // model folder or config.json
  std::int64_t sequence_length = 0;  // 0: not given
  std::string documents;             // "": one document per sequence
  std::int64_t steps = 0;            // 0: not given
  std::int64_t warmup = 1;
  int threads = 0;  // 0: not given
  bool profile = false;
  bool roofline = false;
  std::string trace;  // file to write; "": none
};

struct DoctorOptions {
  CommonOptions common;
  std::string output = ".";  // folder whose disk is measured
  bool as_rank = false;      // this is a rank started by doctor: measures all-reduces and prints them
};

// The functions that run the commands; tests replace them.
struct Commands {
  std::function<int(const FitOptions&)> fit;
  std::function<int(const PrepareOptions&)> prepare;
  std::function<int(const PlanOptions&)> plan;
  std::function<int(const EvalOptions&)> eval;
  std::function<int(const GenerateOptions&)> generate;
  std::function<int(const ExportOptions&)> export_model;
  std::function<int(const PullOptions&)> pull;
  std::function<int(const InspectOptions&)> inspect;
  std::function<int(const RecipeInitOptions&)> recipe_init;
  std::function<int(const RecipeConvertOptions&)> recipe_convert;
  std::function<int(const BenchStepOptions&)> bench_step;
  std::function<int(const DoctorOptions&)> doctor;
};
Commands built_in_commands();

// The main program: parses the command line and runs the command. Exceptions become `hawser: LINE` on standard error
// and an exit code.
int run(int argc, const char* const* argv, const Commands& commands);

// The commands of this build.
int fit(const FitOptions& options);
int prepare(const PrepareOptions& options);
int plan(const PlanOptions& options);
int eval(const EvalOptions& options);
int generate(const GenerateOptions& options);
int export_model(const ExportOptions& options);
int pull(const PullOptions& options);
int inspect(const InspectOptions& options);
int inspect_data(const InspectOptions& options);
int recipe_init(const RecipeInitOptions& options);
int recipe_convert(const RecipeConvertOptions& options);
int bench_step(const BenchStepOptions& options);
int doctor(const DoctorOptions& options);

}  // namespace hawser::cli
