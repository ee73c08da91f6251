// The commands of `hawser`: what each is told on the command line, and the function that does it.
//
// A command lives in src/cli/COMMAND.cpp: add_COMMAND describes its options, the function of its name prepares what
// any build can (reads the recipe, checks the layout, starts ranks) and calls the body, COMMAND_here, the one place
// that reaches into the rooms below. A body's return value is the process's exit code; errors are thrown.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "base/units.h"

namespace hawser::cli {

// Options that mean the same on every command.
struct CommonOptions {
  int ranks = 0;                       // 0: not said
  std::vector<std::string> overrides;  // "KEY=VALUE"
  std::optional<Bytes> memory;
  std::optional<DeviceChoice> device;
  bool json = false;
};

struct FitOptions {
  CommonOptions common;
  std::string recipe;
  bool resume = false;
};

struct PrepareOptions {
  CommonOptions common;
  std::string recipe;
};

struct PlanOptions {
  CommonOptions common;
  std::string recipe;
  std::string target;  // a name of targets/; "": this machine
};

struct EvalOptions {
  CommonOptions common;
  std::string model;
  std::string data;                  // a JSONL or text file, or a token file
  std::string bigram;                // prefix of the token file that a bigram model is fitted on; "": none
  std::int64_t sequence_length = 0;  // 0: that of the checkpoint's run
  bool gradient_norms = false;
  bool across_documents = false;
};

struct GenerateOptions {
  CommonOptions common;
  std::string model;
  std::optional<std::string> prompt;  // one of these four
  std::vector<std::int64_t> prompt_ids;
  std::string prompts;  // a file
  bool chat = false;
  std::string system, chat_template;
  std::string output;  // of `prompts`; "": standard output
  std::int64_t max_tokens = 64;
  std::int64_t batch = 0, context = 0;  // 0: not said
  double temperature = 0, top_p = 1;
  std::int64_t top_k = 0;
  std::uint64_t seed = 0;
  std::vector<std::string> stops;
};

struct ExportOptions {
  CommonOptions common;
  std::string source;  // a run's folder or a checkpoint
  std::string output;
};

struct InspectOptions {
  CommonOptions common;
  std::string path;               // or the word "data", with `data`, or "checkpoint", with its folder in `data`
  bool verify = false;            // of a checkpoint: hold all of it against its checksums
  std::string svg;                // of a trace: a file to draw it into; "": none
  double from_ms = 0, to_ms = 0;  // what of it to draw; equal: all
  std::string data;               // a recipe or a token file
  std::string tokenizer;          // of a bare token file
  std::int64_t samples = 3, first = 0;
  bool validation = false;
};

struct RecipeInitOptions {
  CommonOptions common;
  std::string model;              // a model folder or a config.json
  std::vector<std::string> data;  // files, folders or token files; none: what lies in text/, if anything
  std::string output;             // "": standard output
  std::string target;             // a name of targets/ or a file; "": this machine
  bool force = false;             // an output that is there is written over
};

struct BenchStepOptions {
  CommonOptions common;
  std::string model;  // a model folder or a config.json
  std::int64_t sequence_length = 1024;
  std::string documents;  // "": a sequence is one
  std::int64_t steps = 5;
  int threads = 0;  // 0: all cores
  bool profile = false;
  bool roofline = false;
  std::string trace;  // a file to write; "": none
};

struct DoctorOptions {
  CommonOptions common;
  std::string output = ".";  // the folder whose disk is looked at
  bool as_rank = false;      // a rank that doctor has started: measures sums and prints them
};

// What runs when a command was chosen; tests put their own in.
struct Commands {
  std::function<int(const FitOptions&)> fit;
  std::function<int(const PrepareOptions&)> prepare;
  std::function<int(const PlanOptions&)> plan;
  std::function<int(const EvalOptions&)> eval;
  std::function<int(const GenerateOptions&)> generate;
  std::function<int(const ExportOptions&)> export_model;
  std::function<int(const InspectOptions&)> inspect;
  std::function<int(const RecipeInitOptions&)> recipe_init;
  std::function<int(const BenchStepOptions&)> bench_step;
  std::function<int(const DoctorOptions&)> doctor;
};
Commands built_in_commands();

// The whole program: reads the command line, runs the command, turns exceptions into `hawser: LINE` on standard error
// and an exit code.
int run(int argc, const char* const* argv, const Commands& commands);

// The commands of this build.
int fit(const FitOptions& options);
int prepare(const PrepareOptions& options);
int plan(const PlanOptions& options);
int eval(const EvalOptions& options);
int generate(const GenerateOptions& options);
int export_model(const ExportOptions& options);
int inspect(const InspectOptions& options);
int inspect_data(const InspectOptions& options);
int recipe_init(const RecipeInitOptions& options);
int bench_step(const BenchStepOptions& options);
int doctor(const DoctorOptions& options);

}  // namespace hawser::cli
