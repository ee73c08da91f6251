// Models by name: ORG/NAME in a Hugging Face cache that each test builds.
#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace model_name_test {

namespace fs = std::filesystem;
using testing::Ran;

constexpr const char* kFirst = "1111111111111111111111111111111111111111";
constexpr const char* kSecond = "2222222222222222222222222222222222222222";

class ModelName : public testing::Binary {
 protected:
  // Adds a commit of org/tiny-1.0 to the cache, as a download leaves it, and points `main` at it.
  void download(const std::string& cache, const std::string& commit, const std::string& golden = "tied") {
    const fs::path model = folder_ / cache / "models--org--tiny-1.0";
    const fs::path blobs = model / "blobs", snapshot = model / "snapshots" / commit;
    for (const fs::path& folder : {blobs, snapshot}) fs::create_directories(folder);
    copy_of(golden, "source");
    write("source/tokenizer.json", testing::letters_tokenizer());
    for (const auto& file : fs::directory_iterator(folder_ / "source")) {
      const std::string name = file.path().filename().string(), blob = commit.substr(0, 4) + name;
      fs::copy_file(file, blobs / blob);
      fs::create_symlink("../../blobs/" + blob, snapshot / name);
    }
    fs::remove_all(folder_ / "source");
    write(cache + "/models--org--tiny-1.0/refs/main", commit);
  }
  std::string snapshot(const std::string& commit) {
    return fs::canonical(folder_.path()).string() + "/hub/models--org--tiny-1.0/snapshots/" + commit;
  }

  Ran named(const std::string& arguments, const std::string& variables = "HF_HUB_CACHE=hub") {
    return shell(variables + " " + testing::kHawser + " " + arguments);
  }
  void goes(const std::string& arguments) {
    const Ran ran = named(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
  }
  void misses(const std::string& arguments, const std::string& lines) {
    const Ran ran = named(arguments);
    EXPECT_EQ(ran.code, 2) << arguments;
    EXPECT_EQ(ran.err, lines) << arguments;
  }
};

TEST_F(ModelName, IsASnapshotOfTheCacheInEveryCommand) {
  download("hub", kFirst);
  write("text.jsonl", "{\"text\": \"to be or not to be\"}\n{\"text\": \"that is the question\"}\n");
  write("r.yaml",
        "model: {path: org/tiny-1.0}\ndata: {train: text.jsonl, sequence_length: 16}\n"
        "train: {steps: 1, global_batch_size: 2}\noutput: out\n");
  goes("plan r.yaml");
  goes("prepare r.yaml");
  const Ran fit = named("fit r.yaml --ranks 2");
  EXPECT_EQ(fit.code, 0) << fit.err;
  const std::string line = "hawser: model org/tiny-1.0: " + snapshot(kFirst) + "\n";
  EXPECT_EQ(fit.err.find(line), 0u) << fit.err;
  EXPECT_EQ(fit.err.find("hawser: model ", 1), std::string::npos) << "printed once, not by each rank\n" << fit.err;
  EXPECT_EQ(testing::json_of(folder_ / "out/recipe.json")["model"]["path"], snapshot(kFirst));
  goes("eval --model org/tiny-1.0 --data text.jsonl --sequence-length 16");
  goes("eval --model org/tiny-1.0 --data text.jsonl --sequence-length 16 --ranks 2");
  goes("generate --model org/tiny-1.0 --prompt to --max-tokens 2");
  goes("inspect org/tiny-1.0");
  goes("inspect data out/data/train --tokenizer org/tiny-1.0");
  goes("bench step --model org/tiny-1.0 --sequence-length 16 --steps 1");
  goes("plan r.yaml --set model.path= --set model.config=org/tiny-1.0");
  goes("prepare r.yaml --set model.path=org/tiny-1.0 --set data.tokenizer=org/tiny-1.0 --set output=other");
  EXPECT_EQ(read_file(folder_ / "other/data/train.bin"), read_file(folder_ / "out/data/train.bin"));
}

TEST_F(ModelName, ANewRecipeKeepsTheCommit) {
  download("hub", kFirst);
  write("data.jsonl", testing::forty_documents());
  goes("recipe init --model org/tiny-1.0 --data data.jsonl --set train.steps=1 --output r.yaml");
  const std::string text = folder_.read("r.yaml");
  EXPECT_NE(text.find("\noutput: runs/r\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  path: \"org/tiny-1.0@" + std::string(kFirst) + "\"\n"), std::string::npos) << text;
  // A later download moves main; the recipe does not follow it.
  download("hub", kSecond);
  goes("fit r.yaml");
  EXPECT_EQ(testing::json_of(folder_ / "runs/r/recipe.json")["model"]["path"], snapshot(kFirst));
  const Ran later = named("inspect org/tiny-1.0");
  EXPECT_EQ(later.err, "hawser: model org/tiny-1.0: " + snapshot(kSecond) + "\n");
  const Ran branch = named("inspect org/tiny-1.0@main --json");
  EXPECT_EQ(branch.err, "hawser: model org/tiny-1.0@main: " + snapshot(kSecond) + "\n");
}

TEST_F(ModelName, AResumedRunWarnsOfAnotherCommit) {
  download("hub", kFirst);
  write("data.jsonl", testing::forty_documents());
  write("r.yaml",
        "model: {path: org/tiny-1.0}\ndata: {train: data.jsonl, sequence_length: 16}\n"
        "train: {steps: 1, global_batch_size: 2}\noutput: out\n");
  goes("fit r.yaml");
  const auto warning = [&](const std::string& options) {
    const Ran ran = named("fit r.yaml --resume --set train.steps=2 " + options);
    EXPECT_EQ(ran.code, 0) << ran.err;
    const auto begin = ran.err.find("hawser: warning: ");
    return begin == std::string::npos ? "" : ran.err.substr(begin, ran.err.find('\n', begin) - begin);
  };
  EXPECT_EQ(warning("--set output=out"), "");
  download("hub", kSecond);
  EXPECT_EQ(warning("--ranks 2"), std::string("hawser: warning: the run began with org/tiny-1.0@") + kFirst +
                                      ", and the recipe's model is now commit " + kSecond +
                                      "; weights continue from the checkpoint, tokenizer and config are the new ones");
}

TEST_F(ModelName, VariablesNameTheCache) {
  download("home/.cache/huggingface/hub", kFirst);
  fs::copy(folder_ / "home/.cache", folder_ / "caches", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  fs::copy(folder_ / "caches/huggingface", folder_ / "hf",
           fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  const auto found_in = [&](const std::string& variables) {
    const Ran ran = named("inspect org/tiny-1.0", variables);
    EXPECT_EQ(ran.code, 0) << ran.err;
    const std::string before = "hawser: model org/tiny-1.0: " + fs::canonical(folder_.path()).string() + "/";
    EXPECT_EQ(ran.err.find(before), 0u) << ran.err;
    return ran.err.substr(before.size(), ran.err.find("/models--") - before.size());
  };
  const std::string none = "env -u HF_HUB_CACHE -u HF_HOME -u XDG_CACHE_HOME HOME=home ";
  EXPECT_EQ(found_in(none), "home/.cache/huggingface/hub");
  EXPECT_EQ(found_in(none + "XDG_CACHE_HOME=caches"), "caches/huggingface/hub");
  EXPECT_EQ(found_in(none + "XDG_CACHE_HOME=caches HF_HOME=hf"), "hf/hub");
  EXPECT_EQ(found_in(none + "HF_HOME=nowhere HF_HUB_CACHE=hf/hub/"), "hf/hub");
  EXPECT_EQ(found_in(none + "HF_HOME='~/../hf'"), "hf/hub");
}

TEST_F(ModelName, AFolderOfThatNameIsTakenFirst) {
  download("hub", kFirst);
  fs::create_directory(folder_ / "org");
  copy_of("gqa", "org/tiny-1.0");
  const Ran ran = named("inspect org/tiny-1.0");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out.find("model org/tiny-1.0\n"), 0u) << ran.out;
  // Relative to the recipe, as any path in it.
  fs::create_directory(folder_ / "sub");
  write("sub/r.yaml", "model: {path: org/tiny-1.0}\ndata: {sequence_length: 16}\n");
  EXPECT_NE(named("plan sub/r.yaml").err.find(snapshot(kFirst)), std::string::npos);
  // A name whose first part is a folder here is a mistyped path.
  misses("bench step --model org/tony",
         "hawser: org/tony: no such model (expected a Hugging Face folder or a config.json)\n");
}

TEST_F(ModelName, NamesTheDownloadOfWhatIsMissing) {
  const std::string hub = fs::canonical(folder_.path()).string() + "/hub";
  const auto named = [&](const std::string& at) {
    return "hawser: org/none: no such folder, and no such model in the Hugging Face cache (expected " + hub +
           "/models--org--none)" + at + "; try hawser pull org/none\n";
  };
  const std::string none = named(""), in_recipe = named(" at model.path, line 1 of r.yaml");
  write("data.jsonl", testing::forty_documents());
  write("r.yaml",
        "model: {path: org/none}\ndata: {train: gone.jsonl, sequence_length: 16}\ntrain: {steps: 1}\noutput: out\n");
  misses("recipe init --model org/none", named(" at --model"));
  misses("inspect org/none", none);
  misses("generate --model org/none --prompt x", none);
  misses("bench step --model org/none", none);
  misses("plan r.yaml", in_recipe);
  misses("plan r.yaml --set model.path=org/none", named(" at model.path, --set"));
  misses("fit r.yaml", in_recipe + "hawser: gone.jsonl: no such file at data.train[0], line 2 of r.yaml\n");
  misses("eval --model org/none@v2 --data data.jsonl --sequence-length 8",
         "hawser: org/none@v2: no such folder, and no such model in the Hugging Face cache (expected " + hub +
             "/models--org--none/snapshots/v2); try hawser pull org/none@v2\n");

  // Another revision, and snapshots without some of the files.
  download("hub", kFirst);
  misses("inspect org/tiny-1.0@v2",
         "hawser: org/tiny-1.0@v2: no such folder, and no such model in the Hugging Face cache (expected " + hub +
             "/models--org--tiny-1.0/snapshots/v2); try hawser pull org/tiny-1.0@v2\n");
  const std::string found = "hawser: model org/tiny-1.0: " + snapshot(kFirst) + "\n";
  const std::string command = std::string("try hawser pull org/tiny-1.0@") + kFirst + "\n";
  const std::string generate = "generate --model org/tiny-1.0 --prompt-ids 1 --max-tokens 1";
  fs::remove(snapshot(kFirst) + "/model.safetensors");
  misses(generate, found + "hawser: " + snapshot(kFirst) +
                       ": no weights in this folder (expected model.safetensors or model.safetensors.index.json); " +
                       command);
  write("r.yaml", "model: {path: org/tiny-1.0}\ndata: {sequence_length: 16}\n");
  goes("plan r.yaml");  // needs no weights
  std::ofstream(snapshot(kFirst) + "/model.safetensors.index.json")
      << R"({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})";
  fs::create_symlink("../../blobs/gone", snapshot(kFirst) + "/model-00002-of-00002.safetensors");
  std::string lines;
  for (const char* file : {"/model-00001-of-00002.safetensors", "/model-00002-of-00002.safetensors"}) {
    lines +=
        "hawser: " + snapshot(kFirst) + file + ": a file of the index is missing in the Hugging Face cache; " + command;
  }
  misses(generate, found + lines);
  fs::remove(snapshot(kFirst) + "/config.json");
  misses("plan r.yaml", found + "hawser: " + snapshot(kFirst) +
                            ": no config.json in this folder at model.path, line 1 of r.yaml; " + command);
}

}  // namespace model_name_test
}  // namespace hawser
