// hawser pull, and models that are named in commands, with a local server in place of the Hub.
#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"
#include "hub/testing/hub_server.h"

namespace hawser {
namespace pull_test {

namespace fs = std::filesystem;
using testing::Ran;

class PullCommand : public testing::Binary {
 protected:
  void SetUp() override {
    add_model("org/tiny");
    write("data.jsonl", testing::forty_documents());
    hub_ = fs::canonical(folder_.path()).string() + "/hub";
  }

  void add_model(const std::string& name) {
    for (const auto& file : fs::directory_iterator(testing::tiny("tied"))) {
      server_.add(cat("models/", name, "/", file.path().filename().string()), read_file(file.path()));
    }
    server_.add(cat("models/", name, "/tokenizer.json"), testing::letters_tokenizer());
  }

  Ran run(const std::string& arguments, const std::string& variables = "HF_TOKEN=secret") {
    return shell(cat("env -u HF_HOME HOME=home HF_HUB_CACHE=hub HF_HUB_OFFLINE=0 HF_ENDPOINT=", server_.url(), " ",
                     variables, " ", testing::kHawser, " ", arguments));
  }
  Ran goes(const std::string& arguments) {
    Ran ran = run(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
    return ran;
  }
  void fails(const std::string& arguments, const std::string& lines, const std::string& variables = "HF_TOKEN=secret") {
    const Ran ran = run(arguments, variables);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_EQ(ran.out, "") << arguments;
    EXPECT_EQ(ran.err, lines) << arguments;
  }

  hub::HubServer server_;
  std::string hub_;
};

TEST_F(PullCommand, PrintsTheFolder) {
  const Ran first = goes("pull org/tiny");
  const std::string folder = first.out.substr(0, first.out.find('\n'));
  EXPECT_EQ(first.out, folder + "\n");
  EXPECT_EQ(folder.find(hub_ + "/models--org--tiny/snapshots/"), 0u) << folder;
  const std::string commit = fs::path(folder).filename().string();
  const auto lines = testing::lines_of(first.err);
  ASSERT_EQ(lines.size(), 4u) << first.err;
  EXPECT_EQ(std::ranges::count(lines, "hawser: pulled org/tiny: config.json, 556 B"), 1) << first.err;
  EXPECT_EQ(lines[3].find("hawser: complete: org/tiny, commit " + commit + ": 3 files, "), 0u) << lines[3];
  const Ran second = goes("pull org/tiny@main");
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(second.err.find("hawser: already complete: org/tiny@main, commit " + commit + ": 3 files, "), 0u)
      << second.err;
  EXPECT_EQ(testing::lines_of(second.err).size(), 1u) << second.err;

  const auto result = nlohmann::json::parse(run("pull org/tiny --json").out);
  EXPECT_EQ(result["folder"], folder);
  EXPECT_EQ(result["commit"], commit);
  EXPECT_EQ(result["received_bytes"], 0);
  ASSERT_EQ(result["files"].size(), 3u);
  EXPECT_EQ(result["files"][0], (nlohmann::json{{"name", "config.json"}, {"bytes", 556}, {"transferred", false}}));
}

TEST_F(PullCommand, ReportsAllMistakes) {
  fails("pull tiny --include '*.json' --set train.steps=1",
        "hawser: --set: pull does not use this key at train.steps; try hawser pull --help\n"
        "hawser: tiny: not the name of a model or data set (expected ORG/NAME or ORG/NAME@REVISION)\n"
        "hawser: pull: --include without --dataset; try hawser pull tiny --dataset\n");
  fails("pull https://huggingface.co/datasets/org/chats",
        "hawser: https://huggingface.co/datasets/org/chats: not the name of a model or data set (expected ORG/NAME or "
        "ORG/NAME@REVISION); try hawser pull org/chats --dataset\n");
  fails("pull org/tiny --offline",
        "hawser: --offline: nothing can be pulled without requests; try hawser pull without it\n");
  fails("pull org/tiny", "hawser: HF_HUB_OFFLINE: nothing can be pulled without requests; try HF_HUB_OFFLINE=0\n",
        "HF_HUB_OFFLINE=1");
  fails("pull", "hawser: pull: REPO is missing; try hawser pull --help\n");
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(PullCommand, AGatedModelNamesItsPage) {
  server_.rules({{"gated", {"org/tiny"}}});
  const std::string page = server_.url() + "/org/tiny";
  fails("pull org/tiny",
        "hawser: org/tiny: a gated model, and there is no token; try its terms at " + page +
            ", then HF_TOKEN or `hf auth login`\n",
        "");
  folder_.write("home/.cache/huggingface/token", "secret\n");
  const std::string file = fs::canonical(folder_.path()).string() + "/home/.cache/huggingface/token";
  fails("pull org/tiny",
        "hawser: org/tiny: a gated model, and the token's user has no access to it (got the token of " + file +
            "); try its terms at " + page + "\n",
        "");
  write("r.yaml",
        "model: {path: org/tiny}\ndata: {train: gone.jsonl, sequence_length: 16}\ntrain: {steps: 1}\noutput: out\n");
  fails("fit r.yaml",
        "hawser: org/tiny: a gated model, and the token's user has no access to it (got the token "
        "of HF_TOKEN) at model.path, line 1 of r.yaml; try its terms at " +
            page +
            "\n"
            "hawser: gone.jsonl: no such file at data.train[0], line 2 of r.yaml\n");
}

TEST_F(PullCommand, ContinuesAfterAnInterruption) {
  std::string weights(3 << 20, '\0');
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<char>(i * 7 % 251);
  server_.add("models/org/tiny/model.safetensors", weights);
  server_.rules({{"stall", {{"model.safetensors", {2 << 20}}}}});
  const Ran ran = run("pull org/tiny", "HF_TOKEN=secret timeout --preserve-status -s INT 1.5");
  EXPECT_EQ(ran.code, 130) << ran.err;
  EXPECT_NE(ran.err.find("hawser: interrupted\n"), std::string::npos) << ran.err;
  std::size_t left = 0;
  for (const auto& blob : fs::directory_iterator(hub_ + "/models--org--tiny/blobs")) {
    if (blob.path().extension() == ".incomplete") left = blob.file_size();
  }
  EXPECT_GT(left, 0u);
  server_.forget();
  const Ran again = goes("pull org/tiny");
  EXPECT_EQ(read_file(again.out.substr(0, again.out.find('\n')) + "/model.safetensors"), weights);
  const auto sent = server_.requests("model.safetensors?");
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0]["range"], cat("bytes=", left, "-"));
}

TEST_F(PullCommand, CommandsPullWhatTheyNeed) {
  // No weights for a plan, whose --json is not disturbed.
  const Ran plan = goes("plan --model org/tiny --set data.sequence_length=16 --json");
  EXPECT_TRUE(nlohmann::json::parse(plan.out, nullptr, false).is_object()) << plan.out;
  EXPECT_EQ(server_.requests("model.safetensors").size(), 0u);
  EXPECT_NE(plan.err.find("hawser: pulled org/tiny: config.json, 556 B\n"), std::string::npos) << plan.err;
  server_.forget();
  goes("plan --model org/tiny --set data.sequence_length=16");
  EXPECT_TRUE(server_.requests().empty()) << "the cache has it";

  write("r.yaml",
        "model: {path: org/tiny}\ndata: {train: data.jsonl, sequence_length: 16}\n"
        "train: {steps: 1, global_batch_size: 2}\noutput: out\n");
  // The ranks of a run find the weights that the command pulled before it started them.
  const Ran fit = goes("fit r.yaml --ranks 2");
  EXPECT_EQ(server_.requests("/api/").size(), 1u);
  EXPECT_EQ(server_.requests("model.safetensors?").size(), 1u);
  EXPECT_EQ(fit.err.find("hawser: pulled org/tiny: model.safetensors, "), 0u) << fit.err;
  server_.forget();
  goes("generate --model org/tiny --prompt to --max-tokens 2");
  EXPECT_TRUE(server_.requests().empty());
  add_model("org/other");
  goes("eval --model org/other --data data.jsonl --sequence-length 16");
  EXPECT_EQ(server_.requests("/org/other/resolve/").size(), 3u);
  add_model("org/third");
  goes("recipe init --model org/third --data data.jsonl --output new.yaml --set train.steps=1");
  EXPECT_EQ(server_.requests("/org/third/resolve/").size(), 3u);
}

// Each rank of another launcher asks for the model; one of a host pulls it.
TEST_F(PullCommand, RanksOfAnotherLauncherPullOnce) {
  write("r.yaml",
        "model: {path: org/tiny}\ndata: {train: data.jsonl, sequence_length: 16}\n"
        "train: {steps: 1, global_batch_size: 3}\noutput: out\n");
  const Ran ran =
      shell(cat("HF_HUB_CACHE=hub HF_HUB_OFFLINE=0 HF_ENDPOINT=", server_.url(),
                " OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe -np 3 ",
                testing::kHawser, " fit r.yaml"));
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(server_.requests("/api/").size(), 1u) << ran.err;
  EXPECT_EQ(server_.requests("model.safetensors?").size(), 1u);
}

TEST_F(PullCommand, TwoCommandsPullOnce) {
  server_.rules({{"slow", 1}});
  const std::string generate = cat(testing::kHawser, " generate --model org/tiny --prompt to --max-tokens 2");
  const Ran ran = shell(cat("HF_HUB_CACHE=hub HF_HUB_OFFLINE=0 HF_ENDPOINT=", server_.url(), " sh -c '", generate,
                            " & ", generate, "; wait'"));
  EXPECT_EQ(server_.requests("/api/").size(), 1u) << ran.err;
  EXPECT_EQ(server_.requests("model.safetensors?").size(), 1u);
  EXPECT_NE(ran.err.find("hawser: another process pulls org/tiny: waiting for it\n"), std::string::npos) << ran.err;
  EXPECT_EQ(testing::lines_of(ran.out).size(), 2u) << ran.out << ran.err;
}

TEST_F(PullCommand, OfflineTheCacheIsAll) {
  const std::string missing =
      "hawser: org/tiny: no such folder, and no such model in the Hugging Face cache (expected " + hub_ +
      "/models--org--tiny); try hawser pull org/tiny\n";
  fails("inspect org/tiny --offline", missing);
  fails("inspect org/tiny", missing, "HF_HUB_OFFLINE=1");
  EXPECT_TRUE(server_.requests().empty());
  goes("pull org/tiny");
  server_.forget();
  EXPECT_EQ(run("generate --model org/tiny --prompt to --max-tokens 2 --offline").code, 0);
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(PullCommand, SaysWhyANamedModelIsMissing) {
  fails("inspect org/none",
        "hawser: org/none: no such folder, and no such model at " + server_.url() +
            ", or a private one (got the token of HF_TOKEN); try the name on its page; --dataset for a data set\n");
  // A mistyped path is no name.
  fs::create_directory(folder_ / "runs");
  server_.forget();
  EXPECT_EQ(run("inspect runs/gone").code, 2);
  EXPECT_TRUE(server_.requests().empty());
  // A snapshot of some files is used as it is, with a warning, if the Hub cannot be reached.
  goes("plan --model org/tiny --set data.sequence_length=16");
  const Ran ran = run("generate --model org/tiny --prompt to --max-tokens 2", "HF_ENDPOINT=http://127.0.0.1:1");
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err.find("hawser: warning: org/tiny: the Hub cannot be reached: "), 0u) << ran.err;
  EXPECT_NE(ran.err.find(": no weights in this folder (expected "), std::string::npos) << ran.err;
}

TEST_F(PullCommand, ADataSetCanBeTrainedOn) {
  server_.add("datasets/org/texts/README.md",
              "---\nconfigs:\n- config_name: en\n  data_files:\n  - {split: train, path: en/*.jsonl}\n---\n# Texts\n");
  server_.add("datasets/org/texts/en/a.jsonl", testing::forty_documents());
  server_.add("datasets/org/texts/fr/b.jsonl", "{\"text\": \"broken");
  server_.add("datasets/org/texts/LICENSE.txt", "MIT");
  const Ran pulled = goes("pull org/texts --dataset");
  const std::string folder = pulled.out.substr(0, pulled.out.find('\n'));
  EXPECT_EQ(folder.find(hub_ + "/datasets--org--texts/snapshots/"), 0u) << folder;
  EXPECT_EQ(pulled.err.find("LICENSE"), std::string::npos) << pulled.err;
  write("r.yaml", "model: {path: org/tiny}\ndata: {train: " + folder +
                      ", sequence_length: 16}\ntrain: {steps: 1, global_batch_size: 2}\noutput: out\n");
  goes("fit r.yaml");
}

TEST_F(PullCommand, ShowsProgressOnATerminal) {
  server_.rules({{"slow", 0.5}});
  ::setenv("HF_ENDPOINT", server_.url().c_str(), 1);
  ::setenv("HF_HUB_CACHE", "hub", 1);
  ::setenv("HF_HUB_OFFLINE", "0", 1);
  const Ran ran = on_terminal("pull org/tiny");
  for (const char* name : {"HF_ENDPOINT", "HF_HUB_CACHE"}) ::unsetenv(name);
  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_NE(ran.out.find("\033[Korg/tiny: 0 B of "), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find(" of 3 files"), std::string::npos) << ran.out;
  EXPECT_EQ(ran.out.find("pulled org/tiny"), std::string::npos) << ran.out;
}

}  // namespace pull_test
}  // namespace hawser
