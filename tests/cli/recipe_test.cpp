// hawser recipe init: its recipes work with plan, prepare and fit unchanged, and fit the available memory.
#include <regex>

#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "prepare/testing/bytes_tokenizer.h"
#include "recipe_init.h"

namespace hawser {
namespace recipe_test {

namespace fs = std::filesystem;
using testing::RecipeInit;

TEST_F(RecipeInit, WorksWithPlanPrepareAndFitUnchanged) {
  write("data.jsonl", testing::forty_documents());
  for (const std::string model : {"gqa", "tied", "rope_llama3"}) {
    for (const std::string how : {"", "--ranks 2", "--ranks 4 --memory 64MiB", "--memory 1GiB"}) {
      init("--model " + tiny(model) + " --data data.jsonl --set train.steps=2 " + how);
      goes("plan recipe.yaml");
      goes("prepare recipe.yaml");
      if (model == "gqa") goes("fit recipe.yaml");
      fs::remove_all(folder_ / "runs");
    }
  }
}

// The short recipe plans, prepares and trains like the long one. Its report tells defaults by their values, also those
// that the long recipe has.
TEST_F(RecipeInit, TheShortRecipeIsTheSameRun) {
  write("data.jsonl", testing::forty_documents());
  const std::string options = "--model " + tiny("gqa") + " --data data.jsonl --set train.steps=2 --set output=runs/a";
  init(options);
  const std::string complete = text();
  goes("fit recipe.yaml");
  const std::string weights = folder_.read("runs/a/checkpoints/step-00000002/rank-00000.bin");
  const std::string page = folder_.read("runs/a/report.html");
  EXPECT_NE(page.find("<tr class=\"default\"><td>seed</td>"), std::string::npos);
  EXPECT_NE(page.find("<tr><td>steps</td>"), std::string::npos);
  init(options + " --short");
  EXPECT_LT(text().size(), complete.size() / 2) << text();
  EXPECT_EQ(text().find("seed:"), std::string::npos) << text();
  goes("plan recipe.yaml");
  goes("fit recipe.yaml");
  EXPECT_EQ(folder_.read("runs/a/checkpoints/step-00000002/rank-00000.bin"), weights);
}

TEST_F(RecipeInit, ReportsWhyAndWhatIsPlanned) {
  write("data.jsonl", testing::forty_documents());
  const auto recipe = init("--model " + tiny("gqa") + " --data data.jsonl --ranks 2 --memory 100MiB");
  EXPECT_EQ(recipe["run"]["ranks"], 2);
  EXPECT_EQ(recipe["memory"]["capacity"], 100 << 20);
  EXPECT_LE(recipe["data"]["sequence_length"], 128) << "the model's maximum";
  EXPECT_EQ(recipe["train"]["global_batch_size"].get<int>() % 2, 0);
  EXPECT_EQ(recipe["optimizer"]["learning_rate"], 2e-4);
  for (const char* part : {"\n# Fitted by the plan for 2 ranks of cpu", "a rank needs ", " of 100.0 MiB",
                           "# why: 98% of documents", "# why: fine-tuning"}) {
    EXPECT_NE(text().find(part), std::string::npos) << part << "\n" << text();
  }
  EXPECT_NE(text().find(" in 40 documents"), std::string::npos) << text();
  for (const std::string& line : testing::lines_of(text())) {
    if (line.find('/') != std::string::npos) continue;
    EXPECT_LE(line.size(), 120u) << line;
  }
  // The comment agrees with the plan.
  const auto plan = json("plan recipe.yaml --json");
  EXPECT_TRUE(plan.value("fits", false)) << plan.dump();
  // From scratch the learning rate differs.
  const auto scratch = init("--model " + tiny("gqa") + "/config.json --data data.jsonl");
  EXPECT_EQ(scratch["optimizer"]["learning_rate"], 1e-3);
  EXPECT_EQ(scratch["name"], "gqa-scratch");
  // One of the two lengths of the warm-up.
  EXPECT_TRUE(recipe["optimizer"]["warmup_steps"].is_number());
  EXPECT_TRUE(recipe["optimizer"]["warmup_ratio"].is_null());
  const auto ratio = init("--model " + tiny("gqa") + " --data data.jsonl --set optimizer.warmup_ratio=0.1");
  EXPECT_TRUE(ratio["optimizer"]["warmup_steps"].is_null());
  EXPECT_EQ(ratio["optimizer"]["warmup_ratio"], 0.1);
}

TEST_F(RecipeInit, RejectsWhatPlanWould) {
  write("data.jsonl", testing::forty_documents());
  const std::string config = tiny("gqa") + "/config.json";
  const auto rejected = [&](const std::string& arguments, const std::string& line) {
    for (const char* where : {"--output r.yaml", ""}) {
      const testing::Ran ran = hawser("recipe init " + arguments + " " + where);
      EXPECT_EQ(ran.code, 2) << arguments << ran.out;
      EXPECT_NE(ran.err.find(line), std::string::npos) << ran.err;
      EXPECT_EQ(ran.out, "");
      EXPECT_FALSE(fs::exists(folder_ / "r.yaml"));
    }
  };
  const std::string model = "--model " + config + " --data data.jsonl ";
  rejected(model + "--set output=/", "--set: the root folder (expected a folder of its own, got /) at output");
  rejected(model + "--set output=", "--set: missing key at output; try output: runs/NAME");
  rejected(model + "--set model.path=" + tiny("gqa"), "both model.path and model.config (expected one of the two)");
  rejected(model + "--set train.steps=1 --set optimizer.warmup_steps=2", "warm-up is longer than the run");
  const std::string odd = "odd\xff.jsonl";
  write(odd, testing::forty_documents());
  rejected("--model " + config + " --data " + odd,
           "a path that cannot be written into a recipe (expected UTF-8) at data.train");
  rejected("--json --model " + config + " --data " + odd,
           "a path that cannot be written into a recipe (expected UTF-8) at data.train");
}

TEST_F(RecipeInit, WarnsOfLittleData) {
  write("one.jsonl", "{\"input_ids\": [1, 2]}\n");
  const testing::Ran ran = hawser("recipe init --model " + tiny("gqa") + " --data one.jsonl --output recipe.yaml");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_NE(ran.err.find("warning: little data: 3 epochs of it are 3 steps, which teach little; try more data or --set "
                         "train.steps=20"),
            std::string::npos)
      << ran.err;
  EXPECT_NE(text().find("# why: the one document has 2 tokens"), std::string::npos) << text();
  EXPECT_EQ(text().find("98%"), std::string::npos) << text();
  EXPECT_EQ(text().find("half of the documents"), std::string::npos) << text();
  // Values that the user chose cause no warning.
  const testing::Ran set =
      hawser("recipe init --model " + tiny("gqa") + " --data one.jsonl --set train.steps=9 --set name=few");
  EXPECT_EQ(set.err, "");
}

// An epoch has ten steps or more, and the run one to three epochs, on one rank and on many.
TEST_F(RecipeInit, TheBatchLeavesStepsInTheData) {
  std::string lines;
  for (int document = 0; document < 300; ++document) {
    nlohmann::json ids = nlohmann::json::array();
    for (int i = 0; i < 60; ++i) ids.push_back(i % 30 + 2);
    lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
  }
  write("data.jsonl", lines);  // 18,000 tokens
  for (const auto& [ranks, batch] : std::vector<std::pair<int, int>>{{1, 8}, {4, 8}, {16, 16}}) {
    const auto recipe = init("--model " + tiny("gqa") + " --data data.jsonl --target h200 --ranks " +
                             std::to_string(ranks) + " --set data.sequence_length=128");
    EXPECT_EQ(recipe["train"]["global_batch_size"], batch) << text();
    EXPECT_TRUE(recipe["train"]["steps"].is_null()) << text();
    std::smatch head;
    const std::string written = text();
    ASSERT_TRUE(std::regex_search(written, head, std::regex("; ([0-9]+) steps take about"))) << written;
    const double steps = std::stod(head[1]), epoch = 300 * 60 * 0.95 / 128 / batch;
    const double epochs = recipe["train"]["epochs"];
    EXPECT_GE(steps, 20) << ranks;
    EXPECT_LE(steps, 3 * epoch + 1) << ranks;
    EXPECT_GE(epochs, 1) << ranks;
    EXPECT_LE(epochs, 3) << ranks;
    EXPECT_NE(text().find("  # why: about "), std::string::npos) << text();
    EXPECT_GE(recipe["train"]["evaluate_every"], 1);
    EXPECT_LE(recipe["train"]["evaluate_every"], steps / 8) << ranks;
  }
  const auto by_steps =
      init("--model " + tiny("gqa") + " --data data.jsonl --set train.evaluate_every=7 --set checkpoint.every_steps=9");
  EXPECT_TRUE(by_steps["checkpoint"]["every_minutes"].is_null()) << "off with every_steps";
}

// The plan estimates the steps of epochs from a sample of the data, as the recipe's head does; `fit` counts them.
TEST_F(RecipeInit, PlansEpochsFromASample) {
  write("data.jsonl", testing::forty_documents());
  goes("recipe init --model " + tiny("gqa") + " --data data.jsonl --set train.epochs=4 --output r.yaml");
  const testing::Ran planned = hawser("plan r.yaml --json");
  ASSERT_EQ(planned.code, 0) << planned.err;
  const auto plan = nlohmann::json::parse(planned.out);
  EXPECT_EQ(plan["steps_estimated"], true) << planned.out;
  const std::string steps = plan["steps"].dump();
  EXPECT_NE(folder_.read("r.yaml").find("; " + steps + " steps take about"), std::string::npos);
  EXPECT_NE(hawser("plan r.yaml").out.find("4 epochs, estimated from a sample of the data"), std::string::npos);
  const testing::Ran ran = hawser("fit r.yaml --json");
  ASSERT_EQ(ran.code, 0) << ran.err;
  EXPECT_NEAR(nlohmann::json::parse(ran.out)["steps"].get<double>(), plan["steps"].get<double>(), 1);
  // Data that is not here leaves the steps open.
  fs::remove(folder_ / "data.jsonl");
  const testing::Ran without = hawser("plan r.yaml --json");
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_FALSE(nlohmann::json::parse(without.out).contains("steps"));
}

// Only the first 256 KiB are looked at; held-out documents are not trained on.
TEST_F(RecipeInit, EstimatesAnEpochOfALargeFile) {
  constexpr int kDocuments = 4000, kIds = 60, kLength = 128, kBatch = 8;
  nlohmann::json ids = nlohmann::json::array();
  for (int i = 0; i < kIds; ++i) ids.push_back(20 + i % 70);
  const std::string line = nlohmann::json{{"input_ids", ids}}.dump() + "\n";
  std::string lines;
  for (int i = 0; i < kDocuments; ++i) lines += line;
  ASSERT_GT(lines.size(), std::size_t{512} << 10);
  write("data.jsonl", lines);
  write("r.yaml",
        cat("model: {path: ", tiny("gqa"), "}\ndata: {train: data.jsonl, sequence_length: ", kLength,
            ", validation_fraction: 0.2}\ntrain: {epochs: 1, global_batch_size: ", kBatch, "}\noutput: run\n"));
  const testing::Ran planned = hawser("plan r.yaml --json");
  ASSERT_EQ(planned.code, 0) << planned.err;
  const double sequences = 0.8 * kDocuments / (kLength / kIds);
  EXPECT_NEAR(nlohmann::json::parse(planned.out)["steps"].get<double>(), sequences / kBatch, 3) << planned.out;
}

// Batches that the user set make evaluations dear in a short run.
TEST_F(RecipeInit, EvaluationsCostAPartOfTheTime) {
  write("data.jsonl", testing::forty_documents());
  const std::string base = "--model " + tiny("gqa") + " --data data.jsonl --set train.steps=";
  for (const auto& [set, every, batches] :
       std::vector<std::tuple<std::string, int, int>>{{"10 --set train.evaluate_batches=8", 0, 8},
                                                      {"100 --set train.evaluate_batches=8", 10, 8},
                                                      {"100 --set train.evaluate_batches=0", 10, 0},
                                                      {"24", 2, 0},
                                                      {"1000 --set train.evaluate_every=7", 7, 0}}) {
    const auto recipe = init(base + set);
    EXPECT_EQ(recipe["train"]["evaluate_every"], every) << set;
    EXPECT_EQ(recipe["train"]["evaluate_batches"], batches) << set;
  }
  // Of much held-out text, evaluations read a part.
  std::string much;
  for (int i = 0; i < 20; ++i) much += testing::forty_documents();
  write("much.jsonl", much);
  for (const auto& [set, every, batches] :
       std::vector<std::tuple<std::string, int, int>>{{"24", 2, 1}, {"100", 10, 3}, {"1000", 100, 30}}) {
    const auto recipe = init(base + set + " --set data.validation=much.jsonl --set data.sequence_length=32");
    EXPECT_EQ(recipe["train"]["evaluate_every"], every) << set;
    EXPECT_EQ(recipe["train"]["evaluate_batches"], batches) << set;
  }
}

// The data are looked at in pieces of 256 KiB.
TEST_F(RecipeInit, ReadsALineOfSeveralPieces) {
  std::string line = "{\"input_ids\": [5";
  for (int i = 0; i < 150'000; ++i) line += cat(", ", 10 + i % 80);
  ASSERT_GT(line.size(), std::size_t{512} << 10);
  write("data.jsonl", line + "]}\n" + line + "]}\n");
  init("--model " + tiny("gqa") + " --data data.jsonl --set train.steps=2");
}

TEST_F(RecipeInit, FindsTextInTheWorkingDirectory) {
  write("text/data.jsonl", testing::forty_documents());
  fs::create_directory(folder_ / "sub");
  const std::string model = "recipe init --model " + tiny("gqa") + " --set train.steps=2 ";
  for (const char* where : {"--output sub/r.yaml", "> sub/r.yaml", "--output r.yaml", "> r.yaml"}) {
    const testing::Ran ran = hawser(model + where);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_EQ(ran.err.find("no training data"), std::string::npos) << ran.err;
    const std::string path = fs::exists(folder_ / "r.yaml") ? "r.yaml" : "sub/r.yaml";
    goes("prepare " + path);
    // In the folder of text/ the recipe names it relative to itself, so that both can be moved.
    const std::string all = folder_.read(path);
    const bool stays = std::string(where).ends_with(" r.yaml");
    EXPECT_EQ(all.find("train: [text/*.jsonl]") != std::string::npos, stays) << all;
    for (const char* written : {"r.yaml", "sub/r.yaml"}) fs::remove(folder_ / written);
    for (const char* run : {"runs", "sub/runs"}) fs::remove_all(folder_ / run);
  }
}

// A recipe in the working directory has the paths as they were typed; one elsewhere has absolute paths.
TEST_F(RecipeInit, KeepsRelativePaths) {
  write("books/data.jsonl", testing::forty_documents());
  write("heldout.jsonl", testing::forty_documents());
  copy_of("gqa", "model");
  fs::create_directory(folder_ / "sub");
  const std::string start =
      "recipe init --model model --data ./books --set train.steps=1 --set data.validation=heldout.jsonl ";
  for (const char* where : {"--output r.yaml", "> r.yaml", "--output sub/r.yaml", "> sub/r.yaml"}) {
    const testing::Ran ran = hawser(start + where);
    EXPECT_EQ(ran.code, 0) << ran.err;
    const std::string path = fs::exists(folder_ / "r.yaml") ? "r.yaml" : "sub/r.yaml";
    const std::string all = folder_.read(path);
    const std::string folder = std::string(where).ends_with("sub/r.yaml") ? folder_.path() + "/" : "";
    for (const std::string& line : {"path: " + folder + "model", "validation: [" + folder + "heldout.jsonl]",
                                    "train: [" + folder + (folder.empty() ? "./books]" : "books]")}) {
      EXPECT_NE(all.find("\n  " + line), std::string::npos) << line << " of " << where << "\n" << all;
    }
    goes("fit " + path);
    fs::remove(folder_ / path);
    for (const char* run : {"runs", "sub/runs"}) fs::remove_all(folder_ / run);
  }
}

TEST_F(RecipeInit, NeedsNoWorkingDirectory) {
  const std::string gone = cat("(mkdir gone && cd gone && rmdir ../gone && ", testing::kHawser, " recipe init ");
  const std::string at = folder_.path("");
  write("data.jsonl", testing::forty_documents());
  const testing::Ran ran =
      shell(gone + "--model " + tiny("gqa") + " --data " + at + "data.jsonl --output " + at + "r.yaml)");
  EXPECT_EQ(ran.code, 0) << ran.err;
  goes("prepare r.yaml");
  const testing::Ran plain = shell(gone + "--model " + tiny("gqa") + ")");
  EXPECT_EQ(plain.code, 0) << plain.err;
  const testing::Ran relative = shell(gone + "--model ./some/model)");
  EXPECT_EQ(relative.code, 2);
  EXPECT_EQ(relative.err, "hawser: ./some/model: the working directory does not exist any more\n");
}

TEST_F(RecipeInit, ATildeIsTheHomeFolder) {
  write("data.jsonl", testing::forty_documents());
  copy_of("gqa", "model");
  const std::string home = "(mkdir -p here && cd here && HOME=" + folder_.path() + " " + testing::kHawser + " ";
  const auto goes_home = [&](const std::string& arguments) {
    const testing::Ran ran = shell(home + arguments + ")");
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
  };
  // Quoted, so that the shell does not expand it.
  goes_home(
      "recipe init --model '~/model' --data '~/data.jsonl' --output '~/r.yaml' --set 'output=~/run' "
      "--set train.steps=2");
  goes_home("plan '~/r.yaml'");
  goes_home("fit '~/r.yaml' --set 'output=~/other' --set 'data.train=[~/data.jsonl]'");
  goes_home("inspect checkpoint '~/other'");
  goes_home("generate --model '~/other' --prompt-ids 1,2 --max-tokens 1");
  for (const char* made : {"run", "other"})
    EXPECT_EQ(fs::exists(folder_ / made / "recipe.json"), std::string(made) == "other");
  EXPECT_TRUE(fs::exists(folder_ / "other/data/train.bin"));
  EXPECT_TRUE(fs::is_empty(folder_ / "here"));
  const testing::Ran no_home = hawser("plan '~no-such-user-here/r.yaml'");
  EXPECT_EQ(no_home.code, 2);
  EXPECT_NE(no_home.err.find("no home folder"), std::string::npos) << no_home.err;
}

TEST_F(RecipeInit, SetsUpConversationsTextAndTokens) {
  copy_of("tied", "mine");
  write("mine/tokenizer.json", testing::letters_tokenizer());
  write("chats.jsonl", chats(30));
  // No template, and a tokenizer with none of the known tokens: reported, not guessed.
  const testing::Ran none = hawser("recipe init --model mine --data chats.jsonl");
  EXPECT_EQ(none.code, 2) << none.out;
  EXPECT_NE(none.err.find("chats.jsonl"), std::string::npos) << none.err;
  const auto named = init(
      "--model mine --data chats.jsonl --set data.chat_template=chatml --set train.steps=2 --set "
      "train.global_batch_size=2");
  EXPECT_EQ(named["data"]["chat_template"], "chatml");
  EXPECT_NE(text().find("only answers are learned"), std::string::npos) << text();
  goes("plan recipe.yaml");
  // The tokenizer's own.
  write("mine/tokenizer_config.json",
        nlohmann::json{{"chat_template", "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"}}.dump());
  init("--model mine --data chats.jsonl --set train.steps=2 --set train.global_batch_size=2");
  EXPECT_NE(text().find("the tokenizer's own"), std::string::npos) << text();
  goes("prepare recipe.yaml");
  goes("fit recipe.yaml");

  write("answers.jsonl",
        "{\"prompt\": \"One?\", \"completion\": \" Two.\"}\n{\"prompt\": \"Two?\", \"completion\": \" Three.\"}\n");
  init("--model mine --data answers.jsonl --data chats.jsonl --set train.steps=1");
  EXPECT_NE(text().find(" in 32 documents; only answers are learned"), std::string::npos) << text();

  // Token files of prepare, and a single text.
  const auto tokens = init("--model mine --data runs/mine-tuned/data/train --set train.steps=1");
  EXPECT_EQ(tokens["data"]["validation_fraction"], 0.0);
  goes("plan recipe.yaml");
  write("one.txt", std::string(2000, 'x'));
  EXPECT_EQ(init("--model mine --data one.txt")["data"]["validation_fraction"], 0.0);
}

// Where the data have tool calls and the tokenizer's template leaves them out, the recipe has a built-in template.
TEST_F(RecipeInit, SetsATemplateThatWritesToolCalls) {
  write_config("mine/config.json", {{"vocab_size", 300}});
  const auto tokenizer = [&](const std::string& token, const nlohmann::json& chat_template) {
    write("mine/tokenizer.json", prepare::tokenizer_of_bytes({token, "<|im_end|>", "<|eot_id|>"}));
    write("mine/tokenizer_config.json", nlohmann::json{{"chat_template", chat_template}}.dump());
  };
  const nlohmann::json call = {{"function", {{"name", "look"}, {"arguments", {{"up", "it"}}}}}};
  const nlohmann::json messages = {{{"role", "user"}, {"content", "Where?"}},
                                   {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {call}}},
                                   {{"role", "tool"}, {"content", "There."}},
                                   {{"role", "assistant"}, {"content", "It is there."}}};
  write("calls.jsonl", chats(20) + nlohmann::json{{"messages", messages}}.dump() + "\n" + chats(20));
  write("chats.jsonl", chats(40));
  const std::string all = "--model mine/config.json --set data.tokenizer=mine/tokenizer.json --set train.steps=2 ";
  const nlohmann::json own = "{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}";

  tokenizer("<|im_start|>", own);
  EXPECT_EQ(init(all + "--data calls.jsonl")["data"]["chat_template"], "chatml");
  EXPECT_NE(text().find("# why: the tokenizer's own does not write the tool calls of the data; this one uses its "
                        "special tokens"),
            std::string::npos)
      << text();
  goes("prepare recipe.yaml");
  EXPECT_TRUE(init(all + "--data chats.jsonl")["data"]["chat_template"].is_null()) << "there are no calls";
  // A template that the user sets is not replaced.
  const testing::Ran set = hawser("recipe init --data calls.jsonl --set data.chat_template=smollm2 " + all);
  EXPECT_EQ(set.code, 2);
  EXPECT_NE(set.err.find("the chat template does not write the tool calls of messages[1] at line 21; try a "
                         "data.chat_template that writes them: chatml, "),
            std::string::npos)
      << set.err;

  // No template of its own: of those with the tokenizer's tokens, the one that writes calls.
  tokenizer("<|start_header_id|>", nullptr);
  EXPECT_EQ(init(all + "--data calls.jsonl")["data"]["chat_template"], "llama-3.1");
  EXPECT_NE(text().find("# why: the tokenizer has none; this one uses its special tokens"), std::string::npos)
      << text();
  EXPECT_EQ(init(all + "--data chats.jsonl")["data"]["chat_template"], "llama-3");

  // No known token: the error stays.
  tokenizer("<a>", own);
  EXPECT_EQ(hawser("recipe init --data calls.jsonl " + all).code, 2);
}

TEST_F(RecipeInit, NamesTheOutputAfterTheRun) {
  write("data.jsonl", testing::forty_documents());
  const std::string both = "--model " + tiny("gqa") + " --data data.jsonl ";
  EXPECT_EQ(init(both)["output"], "runs/gqa-tuned");
  EXPECT_EQ(init(both + "--set name=mine")["output"], "runs/mine");
  EXPECT_EQ(init(both + "--set name=mine --set output=there")["output"], folder_.path("there"));
}

TEST_F(RecipeInit, NamesWhatIsWrong) {
  copy_of("gqa", "model");
  write("words.jsonl", "{\"text\": \"some words\"}\n");
  write("broken.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2}\n");
  rejected("recipe init --model model --data nowhere --data never.txt",
           {"nowhere: no such file at --data", "never.txt: no such file at --data"});
  const testing::Ran text = hawser("recipe init --model model --data words.jsonl");
  EXPECT_EQ(text.code, 2);
  EXPECT_NE(text.err.find("text needs a tokenizer, and the model has none; try --set data.tokenizer=FILE"),
            std::string::npos)
      << text.err;
  const testing::Ran broken = hawser("recipe init --model model --data broken.jsonl");
  EXPECT_EQ(broken.code, 2);
  EXPECT_NE(broken.err.find("broken.jsonl"), std::string::npos) << broken.err;
  EXPECT_NE(broken.err.find("line 2"), std::string::npos) << broken.err;
  rejected(
      "recipe init --model model --ranks 4 --set train.global_batch_size=6",
      {"--set: batch does not divide over the ranks (expected a multiple of 4: 4 data ranks x micro_batch_size 1, got "
       "6) at train.global_batch_size; try train.global_batch_size: 4 or 8"});
  write("mine.yaml", "mine");
  rejected("recipe init --model model --output mine.yaml",
           {"mine.yaml: already exists; try another --output, or --force to overwrite it"});
  EXPECT_EQ(folder_.read("mine.yaml"), "mine");
  EXPECT_EQ(hawser("recipe init --model model --output mine.yaml --force").code, 0);
  EXPECT_NE(folder_.read("mine.yaml"), "mine");
}

}  // namespace recipe_test
}  // namespace hawser
