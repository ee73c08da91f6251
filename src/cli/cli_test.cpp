// Command lines: parsed into options in this process, and run through the binary.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/build.h"
#include "base/cat.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/progress_line.h"
#include "cli/testing/binary.h"
#include "config/config.h"

namespace hawser::cli {
namespace cli_test {

namespace fs = std::filesystem;

int run_words(std::vector<const char*> words, const Commands& commands) {
  words.insert(words.begin(), "hawser");
  return run(static_cast<int>(words.size()), words.data(), commands);
}

// Standard error of a test is a file or a pipe, as that of a job is.
TEST(ProgressLine, IsPlainLinesAtIntervalsWithoutATerminal) {
  ::testing::internal::CaptureStderr();
  ProgressLine seldom, often(std::chrono::milliseconds(0));
  EXPECT_FALSE(seldom.due());
  EXPECT_TRUE(often.due());
  EXPECT_FALSE(often.due(/*last=*/true));
  often.show("evaluating 50%");
  often.show("evaluating 75%");
  often.erase();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "evaluating 50%\nevaluating 75%\n");
}

TEST(CommandLine, FillsInTheOptionsOfEachCommand) {
  Commands commands;
  commands.fit = [](const FitOptions& options) {
    EXPECT_EQ(options.recipe, "r.yaml");
    EXPECT_TRUE(options.resume);
    EXPECT_EQ(options.common.ranks, 4);
    EXPECT_EQ(options.common.overrides, (std::vector<std::string>{"a.b=[1, 2]", "c=--d"}));
    EXPECT_EQ(options.common.memory->value(), 24'000'000'000);
    EXPECT_EQ(options.common.device, DeviceChoice::cpu);
    EXPECT_TRUE(options.common.json);
    return 11;
  };
  EXPECT_EQ(run_words({"fit", "--set", "a.b=[1, 2]", "r.yaml", "--ranks", "4", "--set=c=--d", "--memory", "24GB",
                       "--device", "cpu", "--json", "--resume"},
                      commands),
            11);
  commands.eval = [](const EvalOptions& options) {
    EXPECT_EQ(options.model, "m");
    EXPECT_EQ(options.data, "d.jsonl");
    EXPECT_EQ(options.sequence_length, 37);
    EXPECT_TRUE(options.gradient_norms);
    return 12;
  };
  EXPECT_EQ(
      run_words({"eval", "--model", "m", "--data", "d.jsonl", "--sequence-length", "37", "--gradient-norms"}, commands),
      12);
  commands.generate = [](const GenerateOptions& options) {
    EXPECT_EQ(options.prompt.value_or("-- a, [b]"), "-- a, [b]");
    EXPECT_EQ(options.prompt_ids, options.prompt ? std::vector<std::int64_t>{} : (std::vector<std::int64_t>{1, 2, 30}));
    EXPECT_FALSE(options.max_tokens);
    return 13;
  };
  EXPECT_EQ(run_words({"generate", "--model", "m", "--prompt=-- a, [b]"}, commands), 13);
  EXPECT_EQ(run_words({"generate", "--model", "m", "--prompt-ids", "1, 2,30"}, commands), 13);
  commands.plan = [](const PlanOptions& options) { return options.target == "h200" ? 14 : 0; };
  EXPECT_EQ(run_words({"plan", "r.yaml", "--target", "h200"}, commands), 14);
  commands.export_model = [](const ExportOptions& options) { return options.source + options.output == "ab" ? 15 : 0; };
  EXPECT_EQ(run_words({"export", "a", "b"}, commands), 15);
  commands.inspect = [](const InspectOptions& options) { return options.path == "p" ? 16 : 0; };
  EXPECT_EQ(run_words({"inspect", "p"}, commands), 16);
  commands.recipe_init = [](const RecipeInitOptions& options) {
    EXPECT_EQ(options.data, (std::vector<std::string>{"a", "b"}));
    return options.model == "m" && options.force ? 17 : 0;
  };
  EXPECT_EQ(run_words({"recipe", "init", "--model", "m", "--data", "a", "--force", "--data=b"}, commands), 17);
  commands.bench_step = [](const BenchStepOptions& options) { return options.threads == 2 ? 18 : 0; };
  EXPECT_EQ(run_words({"bench", "step", "--model", "m", "--threads", "2"}, commands), 18);
  commands.doctor = [](const DoctorOptions& options) { return options.output == "o" && !options.as_rank ? 20 : 0; };
  EXPECT_EQ(run_words({"doctor", "--output", "o"}, commands), 20);
  commands.prepare = [](const PrepareOptions& options) { return options.recipe == "r" ? 19 : 0; };
  EXPECT_EQ(run_words({"prepare", "r"}, commands), 19);
}

TEST(CommandLine, TurnsExceptionsIntoExitCodes) {
  Commands commands;
  commands.prepare = [](const PrepareOptions&) -> int { throw Error(ExitCode::does_not_fit, "one\ntwo"); };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_words({"prepare", "r"}, commands), 4);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "hawser: one\nhawser: two\n");
  commands.prepare = [](const PrepareOptions&) -> int { throw std::runtime_error("odd"); };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(run_words({"prepare", "r"}, commands), 1);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "hawser: internal error: odd\n");
}

using testing::Binary;
using testing::Ran;

const std::vector<std::string> kCommands = {"fit",    "prepare", "plan",        "eval",           "generate",
                                            "export", "inspect", "recipe init", "recipe convert", "bench step",
                                            "doctor"};

TEST_F(Binary, HelpOfEachCommandFitsAHundredColumns) {
  for (const std::string& command : kCommands) {
    const Ran ran = hawser(command + " --help");
    EXPECT_EQ(ran.code, 0) << command;
    EXPECT_EQ(ran.err, "");
    for (const char* word :
         {"--ranks N", "--set KEY=VALUE", "--memory BYTES", "--device DEVICE", "--json", "-h, --help"})
      EXPECT_NE(ran.out.find(word), std::string::npos) << command << " " << word;
    const auto examples = ran.out.find("\nExamples:\n");
    ASSERT_NE(examples, std::string::npos) << command;
    std::istringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
    std::istringstream last(ran.out.substr(examples + 11));
    int count = 0;
    for (std::string line; std::getline(last, line); ++count)
      EXPECT_TRUE(line.starts_with("  hawser " + command + " ")) << line;
    EXPECT_GE(count, 2) << command;
  }
  const Ran ran = hawser("--help");
  EXPECT_EQ(ran.code, 0);
  for (const char* word : {"Usage: hawser COMMAND", "fit ", "bench ", "--version"})
    EXPECT_NE(ran.out.find(word), std::string::npos) << word;
  EXPECT_EQ(hawser("bench --help").code, 0);
}

// On a terminal, no word is broken, and every word of the wide help is there.
TEST_F(Binary, HelpFitsTheTerminal) {
  std::vector<std::string> commands = kCommands;
  commands.insert(commands.end(), {"", "recipe", "bench", "completion"});
  const auto words_of = [](const std::string& text) {
    std::vector<std::string> words;
    std::istringstream in(text);
    for (std::string word; in >> word;) {
      if (word != "\\" && word != "#") words.push_back(word);
    }
    std::sort(words.begin(), words.end());
    return words;
  };
  for (const std::string& command : commands) {
    const auto words = words_of(hawser(command + " --help").out);
    for (const int columns : {50, 60, 80, 100, 200}) {
      const Ran ran = on_terminal(command + " --help", columns);
      EXPECT_EQ(words_of(ran.out), words) << command << " in " << columns << " columns\n" << ran.out;
      std::istringstream lines(ran.out);
      for (std::string line; std::getline(lines, line);)
        EXPECT_LE(line.size(), static_cast<std::size_t>(std::min(columns, 100))) << line;
    }
  }
}

TEST_F(Binary, ReportsItsVersion) {
  const Ran ran = hawser("--version");
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(ran.out.starts_with(cat("hawser ", build().version, "\nbuild: "))) << ran.out;
  EXPECT_NE(ran.out.find("\ndevices: cpu"), std::string::npos) << ran.out;
}

TEST_F(Binary, RejectsAWrongCommandLineWithOneLine) {
  rejected("fti r.yaml", {"unknown command fti; try hawser fit"});
  rejected("train r.yaml", {"unknown command train; try hawser fit"});
  rejected("version", {"unknown command version; try hawser --version"});
  rejected("init", {"unknown command init; try hawser recipe init"});
  write("here.yaml", "");
  rejected("here.yaml --ranks 2", {"unknown command here.yaml; try hawser fit here.yaml"});
  rejected("--ranks 2 fit r.yaml", {"--ranks must follow the command; try hawser COMMAND --ranks"});
  rejected("fit r.yaml --steps 5", {"unknown option --steps; try --set train.steps=VALUE"});
  rejected("fit r.yaml --data.pack=chunks", {"unknown option --data.pack; try --set data.pack=VALUE"});
  rejected("fit r.yaml ---", {"unknown option ---; try hawser fit --help"});
  rejected("fit r.yaml --=3", {"unknown option --; try hawser fit --help"});
  rejected("xyzzy", {"unknown command xyzzy; try hawser --help"});
  rejected("recipe inti", {"unknown command recipe inti; try hawser recipe init"});
  rejected("recipe", {"no command (expected one of init, convert); try hawser recipe --help"});
  rejected("fit --rnaks 4 r.yaml", {"unknown option --rnaks; try --ranks"});
  rejected("fit --zzzzzzzz r.yaml", {"unknown option --zzzzzzzz; try hawser fit --help"});
  rejected("fit", {"fit: RECIPE is missing; try hawser fit --help"});
  rejected("fit a.yaml b.yaml", {"unexpected argument b.yaml; try hawser fit --help"});
  rejected("fit a.yaml -x", {"unexpected argument -x; try hawser fit --help"});
  rejected("fit a.yaml --ranks", {"--ranks needs a value; try hawser fit --help"});
  rejected("export a b --ranks 0", {"wrong value (expected a whole number of at least 1, got 0) at --ranks"});
  rejected("export a b --ranks 010",
           {"a number with a leading zero (expected a whole number of at least 1, got 010) at --ranks; try 10"});
  rejected("export a b --ranks 00",
           {"a number with a leading zero (expected a whole number of at least 1, got 00) at --ranks; try 0"});
  rejected("export a b --ranks 2x", {"wrong value (expected a whole number of at least 1, got 2x) at --ranks"});
  rejected("export a b --memory lots",
           {"wrong value (expected bytes with a unit, got lots) at --memory; try --memory 24GB"});
  rejected("export a b --device gpu", {"wrong value (expected auto, cpu or cuda, got gpu) at --device"});
  rejected("export --ranks 0 --dtype x", {"wrong value (expected a whole number of at least 1, got 0) at --ranks",
                                          "wrong value (expected bf16, float32 or float16, got x) at --dtype",
                                          "export: SOURCE is missing; try hawser export --help",
                                          "export: OUT_DIR is missing; try hawser export --help"});
  rejected("generate --model m",
           {"generate: a prompt is missing (expected --prompt, --prompt-ids, --prompts or --chat); try hawser generate "
            "--help"});
  rejected("generate --model m --prompt a --prompt-ids 1",
           {"generate: both --prompt and --prompt-ids (expected one of --prompt, --prompt-ids, --prompts or --chat)"});
  rejected("generate --model m --prompt-ids 1,x",
           {"wrong value (expected token ids, got 1,x) at --prompt-ids; try --prompt-ids 1,2,3"});
  rejected("eval --model m --data d",
           {"m: no such model (expected a folder with weights)", "d: cannot read: No such file or directory"});
  rejected("inspect x --set nonsense",
           {"--set: not an assignment (expected KEY=VALUE, got nonsense); try train.steps=10"});
}

TEST_F(Binary, HelpWithoutACommand) {
  const Ran help = hawser("--help");
  for (const char* words : {"", "help", "-h"}) {
    const Ran ran = hawser(words);
    EXPECT_EQ(ran.code, 0) << words;
    EXPECT_EQ(ran.out, help.out) << words;
  }
  EXPECT_EQ(hawser("help recipe init").out, hawser("recipe init --help").out);
  EXPECT_NE(hawser("recipe init --help").out.find("\nChooses ranks, sequence length"), std::string::npos);
  rejected("help fti", {"unknown command fti; try hawser fit"});
}

TEST_F(Binary, SuggestsSimilarPaths) {
  write("novels.yaml", "");
  rejected("fit novel.yaml", {"novel.yaml: no such recipe; try novels.yaml"});
  rejected("plan runs/novel.yaml", {"runs/novel.yaml: no such recipe; try hawser recipe init"});
  write("models/SmolLM2/config.json", "{}");
  write("books/a.txt", "one");
  rejected("recipe init --model models/SmolLM",
           {"models/SmolLM: no such model (expected a model folder or a config.json) at --model; try models/SmolLM2"});
  const std::string err = hawser("recipe init --model models/SmolLM2 --data boks").err;
  EXPECT_TRUE(err.starts_with("hawser: boks: no such file at --data; try books\n")) << err;
}

TEST_F(Binary, RejectsAWrongRecipeBeforeAnythingStarts) {
  rejected("fit none.yaml", {"none.yaml: no such recipe; try hawser recipe init"});
  write("r.yaml", "model: {path: m}\ndata: {train: a, sequence_length: 64}\ntrain: {steps: 3}\noutput: o\n");
  rejected("fit r.yaml --ranks 3 --set train.global_batch_size=4",
           {"--set: batch does not divide over the ranks (expected a multiple of 3: 3 data ranks x micro_batch_size 1, "
            "got 4) at train.global_batch_size; try train.global_batch_size: 3 or 6",
            "m: no such model (expected a Hugging Face folder or a config.json) at model.path, line 1 of r.yaml",
            "a: no such file at data.train[0], line 2 of r.yaml"});
  rejected("plan r.yaml --ranks 4 --set parallel.hybrid_shard_degree=3 --set train.global_batch_size=4",
           {"--set: degrees do not divide (expected a divisor of 4 ranks, got 3) at parallel.hybrid_shard_degree; "
            "try parallel.hybrid_shard_degree: 1, 2 or 4",
            "m: no such model (expected a Hugging Face folder or a config.json) at model.path, line 1 of r.yaml"});
  if (!build().cuda) {
    rejected("fit r.yaml --device cuda",
             {"this binary was built without CUDA (expected auto or cpu, got cuda) at --device; try --device cpu",
              "m: no such model (expected a Hugging Face folder or a config.json) at model.path, line 1 of r.yaml",
              "a: no such file at data.train[0], line 2 of r.yaml"});
  }
  rejected("eval --model m --data d --sequence-length 8 --ranks 1 --set parallel.context_parallel_degree=2",
           {"--set: ranks do not divide by the degrees (expected ranks a multiple of 2, got 1 rank) at "
            "parallel.context_parallel_degree; try --ranks 2",
            "m: no such model (expected a folder with weights)", "d: cannot read: No such file or directory"});
}

TEST_F(Binary, WritesARecipeThatReadsBack) {
  fs::create_directories(folder_ / "models");
  fs::copy(testing::tiny("gqa"), folder_ / "models/tiny", fs::copy_options::recursive);
  write("books/a.jsonl", "{\"input_ids\": [1, 2, 3, 4]}\n{\"input_ids\": [5, 6, 7]}\n");
  const Ran ran = hawser("recipe init --model models/tiny --data books --set train.steps=7");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.out.find("sequence_length: 128"), std::string::npos) << ran.out;
  write("r.yaml", ran.out);
  const Recipe recipe = read_recipe(folder_.path("r.yaml"), {});
  EXPECT_EQ(recipe.train.steps, 7);
  EXPECT_EQ(recipe.name, "tiny-tuned");
  EXPECT_EQ(recipe.data.train, std::vector<std::string>{folder_.path("books")});
  EXPECT_GT(recipe.data.validation_fraction, 0);
  rejected("recipe init --model models/tiny --data none", {"none: no such file at --data"});

  // Without --data: the files in text/, else a commented example and a warning.
  const Ran bare = hawser("recipe init --model models/tiny");
  EXPECT_NE(bare.out.find("\n  # train: [text/*.jsonl]\n"), std::string::npos) << bare.out;
  EXPECT_EQ(bare.err, "hawser: warning: no training data: put text into text/, or set data.train\n");
  write("text/lines.jsonl", "{\"input_ids\": [1, 2, 3, 4]}\n");
  const Ran found = hawser("recipe init --model models/tiny");
  // Standard output may be redirected anywhere.
  EXPECT_NE(found.out.find("\n  train: [" + folder_.path("text/*.jsonl") + "]"), std::string::npos) << found.out;
  EXPECT_NE(found.out.find("validation_fraction: 0.0 "), std::string::npos) << "one document, nothing to hold out";
  EXPECT_EQ(hawser("recipe init --model models/tiny --output new.yaml").code, 0);
  rejected("recipe init --model models/tiny --output new.yaml",
           {"new.yaml: already exists; try another --output, or --force to overwrite it"});
  rejected("recipe init --model models/none",
           {"models/none: no such model (expected a model folder or a config.json) at --model"});
}

}  // namespace cli_test
}  // namespace hawser::cli
