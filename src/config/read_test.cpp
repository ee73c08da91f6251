#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/build.h"
#include "base/nearest.h"
#include "config/schema.h"
#include "config/testing/read_recipe.h"

namespace hawser {
namespace read_test {

namespace fs = std::filesystem;

TEST_F(ReadRecipe, ReadsACompleteRecipe) {
  const Recipe recipe = read(R"(
name: llama31-8b-16k
model: {path: models/Llama-3.1-8B}
data:
  train: [books/*.jsonl]                  # lines with text, or input_ids
  sequence_length: 16384
  pack: documents
  validation_fraction: 0.01
parallel: {hybrid_shard_degree: 0, context_parallel_degree: 4, context_comm: all_gather, tensor_parallel_degree: 1,
           pipeline_parallel_degree: 1, expert_parallel_degree: 1}
memory: {activation_checkpointing: none, activation_offload: false}
precision: {compute: bf16}
train: {steps: 1000, global_batch_size: 8, micro_batch_size: 1, seed: 7}
optimizer: {learning_rate: 2.0e-5, schedule: cosine, warmup_steps: 100, weight_decay: 0.1, gradient_clip: 1.0}
checkpoint: {every_steps: 200, keep_last: 3}
output: runs/llama31-8b-16k
)");
  EXPECT_EQ(recipe.name, "llama31-8b-16k");
  EXPECT_EQ(recipe.model.path, "models/Llama-3.1-8B");
  EXPECT_EQ(recipe.data.train, std::vector<std::string>{"books/*.jsonl"});
  EXPECT_EQ(recipe.data.sequence_length, 16384);
  EXPECT_EQ(recipe.parallel.context_parallel_degree, 4);
  EXPECT_EQ(recipe.precision.compute, ComputePrecision::bf16);
  EXPECT_EQ(recipe.train.seed, 7u);
  EXPECT_DOUBLE_EQ(recipe.optimizer.learning_rate, 2e-5);
  EXPECT_EQ(recipe.folder, folder_.path());
  EXPECT_EQ(key_place(recipe, "data.sequence_length"), "data.sequence_length, line 6");
  EXPECT_EQ(key_place(recipe, "run.threads"), "run.threads");
  EXPECT_EQ(resolve_path(recipe, "a/b"), folder_.path("a/b"));
  EXPECT_EQ(resolve_path(recipe, "/a/b"), "/a/b");
  EXPECT_EQ(resolve_path(recipe, ""), "");
}

TEST_F(ReadRecipe, FillsInDefaults) {
  const Recipe recipe = read(kSmallest);
  EXPECT_EQ(recipe.name, "r");
  EXPECT_EQ(recipe.train.global_batch_size, 1);
  EXPECT_EQ(recipe.optimizer.schedule, LearningRateSchedule::cosine);
  EXPECT_FALSE(recipe.memory.capacity);
}

TEST_F(ReadRecipe, ReportsEveryProblemAtOnceWithItsLine) {
  EXPECT_EQ(errors("modle: {path: x}\n"
                   "data:\n"
                   "  train: {a: b}\n"
                   "  sequence_lenght: 64\n"
                   "train: {steps: many, micro_batch_size: 0, seed: 1.5}\n"
                   "optimizer: {schedule: cosin, learning_rate: .nan, steps: 3}\n"
                   "run: {deterministic: 7}\n"),
            "r.yaml: unknown key at modle, line 1; try model\n"
            "r.yaml: unknown key at data.sequence_lenght, line 4; try data.sequence_length\n"
            "r.yaml: unknown key at optimizer.steps, line 6; try train.steps\n"
            "r.yaml: unknown key of a data set: a (expected a path, or {path: ..., weight: ...} or {path: ..., "
            "repeat: ...}, got a map) at data.train, line 3\n"
            "r.yaml: wrong type (expected a whole number of at least 1, got many) at train.steps, line 5\n"
            "r.yaml: wrong type (expected a number above 0, got .nan) at optimizer.learning_rate, line 6\n"
            "r.yaml: wrong type (expected auto, true or false, got 7) at run.deterministic, line 7\n"
            "r.yaml: out of range (expected a whole number of at least 1, got 0) at train.micro_batch_size, line 5\n"
            "r.yaml: not a whole number (expected a whole number of at least 0, got 1.5) at train.seed, line 5\n"
            "r.yaml: unknown value (expected cosine, linear, constant, wsd, inverse_sqrt or polynomial, got cosin) at "
            "optimizer.schedule, line 6; try cosine\n"
            "r.yaml: missing key at output; try output: runs/NAME");
}

TEST_F(ReadRecipe, ReadsKeysOfAGroupAsAMapOrByTheirDottedNames) {
  const std::string smallest = kSmallest;
  const Recipe nested = read(smallest + "precision: {compute: fp8, fp8: {amax_history: 4, exclude: [down_proj]}}\n");
  const Recipe dotted = read(smallest + "precision:\n  fp8.amax_history: 4\n  fp8.exclude: [down_proj]\n");
  for (const Recipe& recipe : {nested, dotted}) {
    EXPECT_EQ(recipe.precision.fp8.amax_history, 4);
    EXPECT_EQ(recipe.precision.fp8.exclude, std::vector<std::string>{"down_proj"});
  }
  EXPECT_EQ(read(smallest, {"precision.fp8={margin: 1}"}).precision.fp8.margin, 1);
  EXPECT_EQ(errors(smallest, {"precision.fp8.exclude=[\"\"]"}),
            "--set: an empty entry in a list (expected a list of names, got [\"\"]) at precision.fp8.exclude");
  EXPECT_EQ(errors(smallest + "precision: {compute: fp8, fp8: {layers: []}}\n"),
            "r.yaml: empty list (expected blocks in FP8) at precision.fp8.layers, line 6; try all, or "
            "precision.compute: auto");
  for (const char* good : {"all", "[0]", "[0, 2-29]", "[3-3]", "[all, 1]"}) {
    EXPECT_EQ(errors(smallest, {cat("precision.fp8.layers=", good)}), "") << good;
  }
  // With all other mistakes, and each entry that is one.
  EXPECT_EQ(
      errors(smallest + "precision: {compute: fp8, fp8: {margin: yes, layers: [x, 2, 5-3, '-1', 1-, 2147483647], "
                        "exclude: [down_proj, '(', '['], verify_every: -1}}\n"
                        "adapter: {targets: ['*']}\n"),
      "r.yaml: wrong type (expected a whole number of at least 0, got yes) at precision.fp8.margin, line 6\n"
      "r.yaml: out of range (expected a whole number of at least 0, got -1) at precision.fp8.verify_every, line 6\n"
      "r.yaml: not a block or a range of blocks (expected all, numbers from 0, or ranges such as 2-29, got x, 5-3, "
      "-1, 1-, 2147483647) at precision.fp8.layers, line 6\n"
      "r.yaml: not a regular expression (got (, [) at precision.fp8.exclude, line 6; try a name such as down_proj, "
      "or .*[.][01][.].*down_proj\n"
      "r.yaml: not a regular expression (got *) at adapter.targets, line 7; try a name such as q_proj, or "
      ".*[qv]_proj");
  EXPECT_EQ(errors(smallest + "precision: {fp8: true}\n"),
            "r.yaml: wrong type (expected a section of keys, got true) at precision.fp8, line 6");
  EXPECT_EQ(errors(smallest + "precision: {fp8: {margni: 1}, fp8.margin: 2, fp8: {}}\n"),
            "r.yaml: unknown key at precision.fp8.margni, line 6; try precision.fp8.margin\n"
            "r.yaml: section given twice at precision.fp8, line 6; try one section");
}

TEST_F(ReadRecipe, AcceptsServerAddressesWithoutCredentials) {
  const auto rejection = [&](const std::string& set) {
    const std::string line = errors(kSmallest, {set});
    return line.substr(0, line.find(" (expected"));
  };
  for (const char* good : {"http://127.0.0.1:5000", "https://host/a/b@c", "http://[::1]:5000"}) {
    EXPECT_EQ(read(kSmallest, {std::string("report.mlflow=") + good}).report.mlflow, good);
  }
  for (const char* bad :
       {"127.0.0.1:5000", "ftp://host", "http://", "http://:80", "http://host/?a=b", "'http://a b'"}) {
    EXPECT_EQ(rejection(std::string("report.mlflow=") + bad), "--set: not an HTTP address") << bad;
  }
  EXPECT_EQ(rejection("report.mlflow=http://me:secret@host"), "--set: credentials in an address");
  EXPECT_EQ(errors(kSmallest, {"report.mlflow=http://me:secret@host"}).find("secret"), std::string::npos);
  EXPECT_EQ(read(kSmallest, {"report.prometheus_address=::1"}).report.prometheus_address, "::1");
  EXPECT_EQ(rejection("report.prometheus_address=localhost"), "--set: not an IP address");
  EXPECT_EQ(rejection("report.prometheus_port=65536"), "--set: out of range");
}

TEST_F(ReadRecipe, ShowsEveryUnknownKeyWithItsHint) {
  std::string text = kSmallest;
  text += "run:\n";
  for (int i = 0; i < 9; ++i) text += cat("  zzqq", i, ": 1\n");
  const std::string lines = errors(text);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 8);
  EXPECT_NE(lines.find("run.zzqq8"), std::string::npos) << lines;
}

TEST_F(ReadRecipe, ReportsUnsupportedValues) {
  const std::string text = std::string(kSmallest) +
                           "parallel: {context_comm: tree, pipeline_schedule: 2f2b, expert_parallel_degree: 8}\n"
                           "precision: {compute: fp16}\n"
                           "memory: {activation_offload: maybe, activation_offload_window: 0}\n";
  const std::string lines = errors(text);
  EXPECT_NE(lines.find("r.yaml: unknown value (expected all_gather, ring, all_to_all, hybrid or auto, got tree) at "
                       "parallel.context_comm, line 6"),
            std::string::npos)
      << lines;
  EXPECT_NE(lines.find("(expected 1f1b, gpipe, interleaved or zero_bubble, got 2f2b) at parallel.pipeline_schedule"),
            std::string::npos)
      << lines;
  EXPECT_NE(lines.find("not supported yet (expected 1, got 8) at parallel.expert_parallel_degree"), std::string::npos);
  EXPECT_NE(lines.find("(expected auto, true or false, got maybe) at memory.activation_offload, line 8"),
            std::string::npos);
  EXPECT_NE(lines.find("(expected a whole number of at least 1, got 0) at"), std::string::npos);
  EXPECT_NE(lines.find("(expected auto, float32, bf16 or fp8, got fp16) at precision.compute, line 7"),
            std::string::npos)
      << lines;
  EXPECT_EQ(errors(std::string(kSmallest) + "run: {device: cuda}\n"),
            build().cuda
                ? ""
                : "r.yaml: this binary was built without CUDA (expected auto or cpu, got cuda) at run.device, line 6; "
                  "try run.device: cpu");
  EXPECT_EQ(errors(std::string(kSmallest) + "run: {device: cuda}\n", {}, Purpose::plan), "");
}

// Such a value says what to do without it.
TEST_F(ReadRecipe, UnsupportedValuesHaveARemedy) {
  const auto hint = [&](const std::string& set) {
    const std::string lines = errors(kSmallest, {set});
    const auto found = lines.find("; try ");
    return found == std::string::npos ? lines : lines.substr(found + 6);
  };
  EXPECT_EQ(hint("parallel.expert_parallel_degree=2"),
            "parallel.hybrid_shard_degree=0, which shards the experts over all ranks");
}

TEST_F(ReadRecipe, PartitionsOfPipelineStages) {
  const auto blocks = [&](const std::string& value) {
    return override_recipe(Recipe{}, {"parallel.pipeline_partition=" + value}).parallel.pipeline_partition;
  };
  EXPECT_EQ(blocks("auto"), std::vector<int>());
  EXPECT_EQ(blocks("[9, 8, 0, 7]"), (std::vector{9, 8, 0, 7}));
  EXPECT_EQ(blocks("[2*8, 3*1]"), (std::vector{8, 8, 1, 1, 1}));
  ParallelRecipe recipe;
  EXPECT_EQ(partition_text(recipe), "auto");
  recipe.pipeline_partition = blocks("[9,2*8,7]");
  EXPECT_EQ(partition_text(recipe), "[9,2*8,7]");
  for (const char* wrong : {"[]", "[8, -1]", "[8, x]", "[0*8]", "[8, , 8]", "{a: 1}", "even"}) {
    const std::string lines = errors(kSmallest, {cat("parallel.pipeline_partition=", wrong)});
    EXPECT_NE(lines.find("(expected auto, or the blocks of each model chunk, such as [9, 8, 8, 7] or [4*8]"),
              std::string::npos)
        << wrong << ": " << lines;
  }
}

TEST_F(ReadRecipe, SequenceLengthsMayHaveAUnit) {
  const auto length = [&](const char* text) {
    return read(kSmallest, {std::string("data.sequence_length=") + text}).data.sequence_length;
  };
  EXPECT_EQ(length("32K"), 32768);
  EXPECT_EQ(length("1M"), 1048576);
  EXPECT_EQ(length("8k"), 8192);
  for (const char* wrong : {"K", "1.5K", "-1K", "32KB", "32G", "9999999999999K"}) {
    EXPECT_NE(errors(kSmallest, {std::string("data.sequence_length=") + wrong}), "") << wrong;
  }
  EXPECT_NE(errors(kSmallest, {"train.steps=1K"}), "");
}

TEST_F(ReadRecipe, RejectsRepeatedKeys) {
  EXPECT_EQ(errors(std::string(kSmallest) + "train: {steps: 3}\n"),
            "r.yaml: section given twice at train, line 6; try one section\n"
            "r.yaml: key given twice at train.steps, line 6; try one of the two");
  EXPECT_EQ(errors("output: a\n" + std::string(kSmallest)),
            "r.yaml: key given twice at output, line 6; try one of the two");
}

TEST_F(ReadRecipe, NamesTheLineOfBrokenYaml) {
  EXPECT_EQ(errors("model: {path: x\ntrain: [\n").substr(0, 19), "r.yaml: broken YAML");
  EXPECT_NE(errors("a: 1\n b: 2\n").find("at line 2"), std::string::npos);
  EXPECT_EQ(errors("- a\n- b\n"), "r.yaml: not a recipe (expected keys and values, got [a, b]) at line 1");
  EXPECT_EQ(errors("a: 1\n---\nb: 1\n"), "r.yaml: more than one YAML document; try one recipe a file");
  EXPECT_NE(errors("? [a]\n: 1\n").find("expected a key, got [a]"), std::string::npos);
  EXPECT_NE(errors(std::string("\0\1\2\xff\xfe", 5)), "");
  EXPECT_NE(errors("a: &x [*x]\n"), "");
  EXPECT_NE(errors("").find("missing key at train.steps"), std::string::npos);
  EXPECT_NE(errors(std::string(3000, '[')), "");
}

TEST_F(ReadRecipe, ReportsTabsInTheIndentation) {
  EXPECT_EQ(errors("model: {path: m}\ntrain:\n\tsteps: 3\n"),
            "r.yaml: broken YAML: a tab in the indentation (expected spaces) at line 3");
  EXPECT_EQ(errors("train:\n  steps: 3\n \tseed: 4\n"),
            "r.yaml: broken YAML: a tab in the indentation (expected spaces) at line 3");
}

TEST_F(ReadRecipe, AcceptsAliasesOfAPrecision) {
  const auto compute = [&](const std::string& word) {
    return read(kSmallest, {"precision.compute=" + word}).precision.compute;
  };
  for (const char* word : {"bf16", "bfloat16"}) EXPECT_EQ(compute(word), ComputePrecision::bf16) << word;
  for (const char* word : {"float32", "fp32", "f32"}) EXPECT_EQ(compute(word), ComputePrecision::float32) << word;
  for (const char* word : {"fp16", "float16"}) {
    EXPECT_EQ(
        errors(kSmallest, {std::string("precision.compute=") + word}),
        cat("--set: not supported yet (expected auto, float32, bf16 or fp8, got ", word, ") at precision.compute"));
  }
}

TEST_F(ReadRecipe, RejectsNumbersWithALeadingZero) {
  EXPECT_EQ(errors(kSmallest, {"train.steps=010", "train.seed=00"}),
            "--set: a number with a leading zero (expected a whole number of at least 1, got 010) at train.steps; try "
            "10\n"
            "--set: a number with a leading zero (expected a whole number of at least 0, got 00) at train.seed; try 0");
  EXPECT_EQ(read(kSmallest, {"train.seed=0"}).train.seed, 0u);
  EXPECT_EQ(errors(kSmallest, {"train.seed=+0"}), "");
}

TEST_F(ReadRecipe, RejectsMissingFilesFoldersAndLargeFiles) {
  EXPECT_THROW(read_recipe(folder_.path("none.yaml"), {}), UserError);
  EXPECT_THROW(read_recipe(folder_.path(), {}), UserError);
  EXPECT_NE(errors(std::string(2 << 20, ' ')).find("too large"), std::string::npos);
}

TEST_F(ReadRecipe, OverridesReplaceKeys) {
  const Recipe recipe = read(kSmallest, {"train.steps=20", "train.steps=30", "data.train=[/x/a.txt, b.txt]",
                                         "output=elsewhere", "optimizer={beta1: 0.5, schedule: linear}",
                                         "memory.activation_checkpointing=[2*full, none]", "memory.capacity=24GB"});
  EXPECT_EQ(recipe.train.steps, 30);
  EXPECT_EQ(recipe.data.train, (std::vector<std::string>{"/x/a.txt", (fs::current_path() / "b.txt").string()}));
  EXPECT_EQ(recipe.output, (fs::current_path() / "elsewhere").string());
  EXPECT_DOUBLE_EQ(recipe.optimizer.beta1, 0.5);
  EXPECT_EQ(recipe.optimizer.schedule, LearningRateSchedule::linear);
  EXPECT_EQ(recipe.memory.per_layer,
            (std::vector<Checkpointing>{Checkpointing::full, Checkpointing::full, Checkpointing::none}));
  EXPECT_EQ(recipe.memory.capacity->value(), 24'000'000'000);
  EXPECT_EQ(key_place(recipe, "train.steps"), "train.steps, --set");
}

TEST_F(ReadRecipe, OffloadToHostMemory) {
  const MemoryRecipe unset = read(kSmallest).memory;
  EXPECT_EQ(unset.activation_offload, false);
  EXPECT_EQ(unset.optimizer_offload, false);
  const MemoryRecipe memory =
      read(kSmallest, {"memory={activation_checkpointing: auto, activation_offload: auto, optimizer_offload: auto, "
                       "weight_offload: true, activation_offload_window: 4, host_capacity: 512GB}"})
          .memory;
  EXPECT_FALSE(memory.activation_offload);
  EXPECT_FALSE(memory.optimizer_offload);
  EXPECT_TRUE(memory.weight_offload);
  EXPECT_EQ(memory.activation_offload_window, 4);
  EXPECT_EQ(memory.host_capacity->value(), 512'000'000'000);
  for (const char* zero : {"zero1", "zero2", "ZeRO-1", "ZeRO-2"}) {
    EXPECT_EQ(read(kSmallest, {cat("parallel.sharding=", zero)}).parallel.sharding, ShardPolicy::optimizer) << zero;
  }
  for (const char* zero : {"zero3", "ZeRO-3"}) {
    EXPECT_EQ(read(kSmallest, {cat("parallel.sharding=", zero)}).parallel.sharding, ShardPolicy::parameters) << zero;
  }
}

TEST_F(ReadRecipe, NumbersBeyondTheirTypeAreOutOfRange) {
  EXPECT_EQ(errors(kSmallest, {"checkpoint.keep_last=4294967296"}),
            "--set: out of range (expected at most 2147483647, got 4294967296) at checkpoint.keep_last");
  EXPECT_EQ(errors(kSmallest, {"train.steps=1e30"}),
            "--set: out of range (expected at most 9223372036854775807, got 1e30) at train.steps");
  EXPECT_EQ(errors(kSmallest, {"train.seed=18446744073709551616"}),
            "--set: out of range (expected at most 18446744073709551615, got 18446744073709551616) at train.seed");
  EXPECT_EQ(errors(kSmallest, {"optimizer.learning_rate=1e39"}),
            "--set: out of range (expected a number that float32 can represent, got 1e39) at optimizer.learning_rate");
  EXPECT_EQ(errors(kSmallest, {"optimizer.epsilon=1e-46"}),
            "--set: out of range (expected a number that float32 does not round to 0, got 1e-46) at optimizer.epsilon");
}

TEST_F(ReadRecipe, ListsOfAliasesAreRejectedAtOnce) {
  EXPECT_NE(errors("output: &a [*a]\n").find("wrong type (expected text, got [...]) at output, line 1"),
            std::string::npos);
  EXPECT_NE(errors("data: {train: &a [x, *a]}\n").find("(expected a list of paths, got [x, ...]) at data.train"),
            std::string::npos);
  std::string levels = "x0: &a0 [x, x, x, x, x, x, x, x, x]\n";
  for (int level = 1; level < 12; ++level) {  // 9^12 items in the last list
    levels += "x" + std::to_string(level) + ": &a" + std::to_string(level) + " [";
    for (int item = 0; item < 9; ++item) levels += "*a" + std::to_string(level - 1) + " ,";
    levels += "]\n";
  }
  for (const Key& key : schema()) {
    const bool section = key.name.find('.') != std::string::npos;
    const std::string name = section ? key.name.substr(key.name.find('.') + 1) : key.name;
    const std::string line =
        section ? key.name.substr(0, key.name.find('.')) + ": {" + name + ": *a11 }\n" : name + ": *a11 \n";
    EXPECT_NE(errors(levels + line).find(" at " + key.name + ", line 13"), std::string::npos) << errors(levels + line);
  }
}

// A shell has already parsed the value. YAML would drop comments, quotes, tags, anchors and surrounding spaces, and a
// run would start in another folder.
TEST_F(ReadRecipe, OverridesOfTextAndPathsAreLiteral) {
  const std::string here = fs::current_path().string() + "/";
  for (const std::string value :
       {"runs/a #keep", "%runs", "!!str a", "&a b", "*a",  "'quoted'", "\"q\"", "a: b", "- a", "{a}", " leading",
        "trailing ",    "null",  "true",    "012",  "[ab", "a\tb",     "@x",    "`x`",  "| x", "> x"}) {
    EXPECT_EQ(read(kSmallest, {"output=" + value}).output, here + value);
    EXPECT_EQ(read(kSmallest, {"name=" + value}).name, value);
    EXPECT_EQ(read(kSmallest, {"data.tokenizer=" + value}).data.tokenizer, here + value);
    EXPECT_EQ(read(kSmallest, {"data.train=" + value}).data.train, std::vector<std::string>{here + value});
  }
  EXPECT_EQ(read(kSmallest, {"data.train=['a #1', b]"}).data.train,
            (std::vector<std::string>{here + "a #1", here + "b"}));
  EXPECT_EQ(read(kSmallest, {"name=a", "name="}).name, "r");
}

// For every key that takes a path: --set paths start at the working directory, paths in the file at the file's folder.
TEST_F(ReadRecipe, RelativePathsDependOnWhereTheyAreSet) {
  int paths = 0;
  for (const Key& key : schema()) {
    if (!key.is_path) continue;
    ++paths;
    const auto value = [&](const Recipe& recipe) {
      const nlohmann::json json = key.write(recipe);
      return (json.is_array() ? json.at(0) : json).get<std::string>();
    };
    std::vector<std::string> sets{key.name + "=some/file"};
    if (key.name == "model.path") sets.emplace_back("model.config=");
    EXPECT_EQ(value(read(kSmallest, sets)), (fs::current_path() / "some/file").string()) << key.name;
  }
  EXPECT_EQ(paths, 8);
  EXPECT_EQ(read(kSmallest, {"data.chat_template=mine.jinja"}).data.chat_template,
            (fs::current_path() / "mine.jinja").string());
  EXPECT_EQ(read(kSmallest, {"data.chat_template=llama-3.1"}).data.chat_template, "llama-3.1");
  const auto written = [&](const std::string& value) {
    return read(
        "output: o\nmodel: {config: c}\ntrain: {steps: 1}\ndata: {train: a, sequence_length: 8, chat_template: " +
        value + "}\n");
  };
  EXPECT_EQ(written("mine.jinja").data.chat_template, "mine.jinja");
  EXPECT_EQ(written("chatml").data.chat_template, "chatml");
}

TEST_F(ReadRecipe, ExpandsTildeInEveryPath) {
  const char* const home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  ::setenv("HOME", "/home/user", 1);
  const std::string text =
      "model: {path: ~/m}\ndata: {train: [~/a.jsonl, ~/b/*.txt, ./~], validation: ~/v.txt, tokenizer: ~/t.json,\n"
      "  prepared: ~/p, chat_template: ~/c.jinja, sequence_length: 64}\ntrain: {steps: 10}\noutput: ~/x\n";
  const std::vector<std::string> sets = {"model.path=~/m",
                                         "data.train=[~/a.jsonl, '~/b/*.txt', ./~]",
                                         "data.validation=~/v.txt",
                                         "data.tokenizer=~/t.json",
                                         "data.prepared=~/p",
                                         "output=~/x",
                                         "data.chat_template=~/c.jinja"};
  for (const bool typed : {false, true}) {
    const Recipe recipe = typed ? read(kSmallest,
                                       [&] {
                                         auto all = sets;
                                         all.emplace_back("model.config=");
                                         return all;
                                       }())
                                : read(text);
    EXPECT_EQ(recipe.model.path, "/home/user/m");
    const std::string plain = typed ? (fs::current_path() / "~").string() : "./~";
    EXPECT_EQ(recipe.data.train, (std::vector<std::string>{"/home/user/a.jsonl", "/home/user/b/*.txt", plain}));
    ASSERT_EQ(recipe.data.validation.size(), 1u);
    EXPECT_EQ(recipe.data.validation[0].paths, (std::vector<std::string>{"/home/user/v.txt"}));
    EXPECT_EQ(recipe.data.tokenizer, "/home/user/t.json");
    EXPECT_EQ(recipe.data.prepared, "/home/user/p");
    EXPECT_EQ(recipe.data.chat_template, "/home/user/c.jinja");
    EXPECT_EQ(resolve_path(recipe, recipe.output), "/home/user/x");
  }
  EXPECT_EQ(read(kSmallest, {"model.config=~/config.json"}).model.config, "/home/user/config.json");
  const std::string no_home =
      "no home folder (expected ~ or ~NAME of an existing user, got ~no-such-user-here) at data.tokenizer";
  const std::string hint = "; try ./~no-such-user-here/t for a file of that name";
  EXPECT_EQ(errors(kSmallest, {"data.tokenizer=~no-such-user-here/t"}), "--set: " + no_home + hint);
  EXPECT_EQ(errors("output: o\n" + std::string("model: {config: c}\ntrain: {steps: 1}\n") +
                   "data: {train: a, sequence_length: 8, tokenizer: ~no-such-user-here/t}\n"),
            "r.yaml: " + no_home + ", line 4" + hint);
  ::setenv("HOME", before.c_str(), 1);
}

TEST_F(ReadRecipe, CheckpointingIsAChoiceOrAListOfRuns) {
  const auto memory = [&](const std::string& value) {
    return read(kSmallest, {"memory.activation_checkpointing=" + value}).memory;
  };
  EXPECT_TRUE(is_automatic(memory("auto")));
  EXPECT_EQ(checkpointing_text(memory("auto")), "auto");
  EXPECT_EQ(checkpointing_text(memory("gate_up")), "gate_up");
  EXPECT_FALSE(is_automatic(memory("none")));
  const std::string runs = "[3*full,2*projections,qkv,gate_up,4*selective,none]";
  EXPECT_EQ(checkpointing_text(memory(runs)), runs);
  // auto is not allowed in a list.
  EXPECT_NE(errors(std::string(kSmallest) + "memory: {activation_checkpointing: [auto, none]}\n")
                .find("unknown value (expected none, selective, gate_up, qkv, projections, full or block as number 0"),
            std::string::npos);
  for (const char* count : {"0*", "-1*", "1.5*", "2x*", "2 *"}) {
    EXPECT_NE(errors(std::string(kSmallest) + cat("memory: {activation_checkpointing: [", count, "full, none]}\n"))
                  .find("wrong count"),
              std::string::npos)
        << count;
  }
}

TEST_F(ReadRecipe, AnEmptyOverrideRestoresTheDefault) {
  const Recipe recipe = read(kSmallest, {"model.config=", "model.path=/m", "train.seed="});
  EXPECT_EQ(recipe.model.config, "");
  EXPECT_EQ(recipe.model.path, "/m");
  EXPECT_EQ(recipe.train.seed, Recipe{}.train.seed);
  EXPECT_NE(errors(kSmallest, {"train.steps="}).find("missing key at train.steps"), std::string::npos);
  EXPECT_NE(errors(kSmallest, {"output="}).find("missing key at output"), std::string::npos);
}

TEST_F(ReadRecipe, OverridesAreCheckedLikeTheFile) {
  EXPECT_EQ(errors(kSmallest, {"train.stepz=1", "steps", "train.steps=-1", "optimizer.beta1=[", "train=5"}),
            "--set: unknown key at train.stepz; try train.steps\n"
            "--set: not an assignment (expected KEY=VALUE, got steps); try train.steps=10\n"
            "--set: broken YAML: end of sequence flow not found (got [) at optimizer.beta1\n"
            "--set: wrong type (expected a section of keys, got 5) at train\n"
            "--set: out of range (expected a whole number of at least 1, got -1) at train.steps");
  // A bad value in the file that an override replaces is not an error.
  EXPECT_EQ(errors("train: {steps: many}\nmodel: {path: m}\ndata: {train: a, sequence_length: 8}\noutput: o\n",
                   {"train.steps=4"}),
            "");
}

// yaml-cpp alone uses all memory for these.
TEST_F(ReadRecipe, RejectsALineThatBeginsWithAComma) {
  for (const char* text : {", a: b\nmodel: {path: y}\n", "# x\n, on four\nname: q\n"}) {
    EXPECT_NE(errors(text).find("broken YAML: neither keys nor a list at line "), std::string::npos);
  }
  EXPECT_NE(errors(kSmallest, {"train.steps=, a: b\nc: d"}).find("broken YAML"), std::string::npos);
}

TEST(OverrideRecipe, NeedsNoKeys) {
  const Recipe recipe = override_recipe({}, {"parallel.context_parallel_degree=2", "precision.compute=bf16"});
  EXPECT_EQ(recipe.parallel.context_parallel_degree, 2);
  EXPECT_THROW(override_recipe({}, {"parallel.context=2"}), UserError);
}

// Five lines are the limit of other problems of one cause.
TEST(OverrideRecipe, NamesEveryWrongKey) {
  Problems problems;
  override_recipe({},
                  {"train.steps=-1", "train.save_every=-1", "train.log_every=-1", "train.validate_every=-1",
                   "train.warmup_steps=-1", "train.keep_last=-1", "data.sequence_length=-1"},
                  false, problems);
  const std::string lines = problems.lines();
  EXPECT_EQ(std::ranges::count(lines, '\n'), 6) << lines;
  EXPECT_EQ(lines.find("more: "), std::string::npos) << lines;
}

TEST_F(ReadRecipe, SuggestsTheNearestRecipeFile) {
  const std::string folder = folder_.path();
  folder_.write("novels.yaml", "name: n\n");
  folder_.write("novels.txt", "text\n");
  EXPECT_EQ(nearest_file(folder + "/novel.yaml"), folder + "/novels.yaml");
  EXPECT_EQ(nearest_file(folder + "/something-else"), "");
  EXPECT_EQ(nearest_file(folder + "/no/folder.yaml"), "");
  try {
    read_recipe(folder + "/novel.yaml", {});
    FAIL() << "no such file";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()), folder + "/novel.yaml: no such recipe; try " + folder + "/novels.yaml");
  }
  std::filesystem::remove(folder + "/novels.yaml");
  try {
    read_recipe(folder + "/novels.yaml", {});
    FAIL() << "no such file";
  } catch (const UserError& error) {  // files of other kinds are not suggested
    EXPECT_EQ(std::string(error.what()), folder + "/novels.yaml: no such recipe; try hawser recipe init");
  }
}

TEST_F(ReadRecipe, AnEmptyEntryOfAListIsNamed) {
  const auto error = [&](const std::string& set) { return errors(kSmallest, {set}); };
  const std::string what = "--set: an empty entry in a list (expected a list of names, got ";
  EXPECT_EQ(error("adapter.targets=[a,,b]"), what + "[a, , b]) at adapter.targets; try [a, b]");
  EXPECT_EQ(error("adapter.targets=[a, '']"), what + "[a, \"\"]) at adapter.targets; try [a]");
  EXPECT_EQ(error("adapter.targets=[,]"), what + "[]) at adapter.targets");
  EXPECT_EQ(error("adapter.modules_to_save=lm_head,"), what + "lm_head,) at adapter.modules_to_save; try [lm_head]");
  EXPECT_EQ(error("precision.fp8.exclude=,a,,b"), what + ",a,,b) at precision.fp8.exclude; try [a, b]");
  EXPECT_EQ(error("data.train=[a.txt,,b.txt]"),
            "--set: an empty entry in a list (expected a list of paths, got [a.txt, , b.txt]) at data.train");
  EXPECT_EQ(error("memory.activation_checkpointing=[full,,none]"),
            "--set: an empty entry in a list (expected a policy for each block, got [full, , none]) at "
            "memory.activation_checkpointing");
  EXPECT_EQ(error("adapter.targets=[a, [b]]"),
            "--set: wrong type (expected a list of names, got [a, ...]) at adapter.targets");
  EXPECT_EQ(error("data.train=a.txt,"), "") << "the name of a file may end with a comma";
  EXPECT_EQ(error("precision.fp8.exclude=.*[.][0-9]{1,2}[.].*"), "");
}

}  // namespace read_test
}  // namespace hawser
