// hawser completion: the scripts, run in their shells.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"
#include "config/choices.h"

namespace hawser {
namespace completion_test {

namespace fs = std::filesystem;

class Completion : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    ::setenv("HF_HUB_CACHE", "/no/cache", 1);
    write("recipe.yaml", "");
    write("other.yml", "");
    write("my model/config.json", "{}");
    // Readline splits a line into words, with "=" as a word of its own.
    write("complete.bash", R"sh(
source <("$1" completion bash)
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_hawser_complete
((${#COMPREPLY[@]} == 0)) || printf '%s\n' "${COMPREPLY[@]}"
)sh");
    // Zsh completes only on a terminal: the test creates one, and a stub prints the line after a tab.
    write("complete.zsh", R"sh(
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1=; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -u -D; source <('$1' completion zsh)'
zpty -w shell 'hawser() { print -r -- "L""INE[$*]"; }; print -r -- "RE""ADY"'
zpty -r shell out '*READY*'
zpty -w -n shell "$2"$'\t\n'
zpty -r shell out '*LINE\[*\]*'
print -r -- ${${out##*LINE\[}%%\]*}
zpty -d shell
)sh");
  }

  // Bash's completions of the last of these words.
  std::vector<std::string> bash(const std::string& words) {
    const testing::Ran ran = shell(cat("bash --norc complete.bash ", testing::kHawser, " hawser ") + words);
    EXPECT_EQ(ran.err, "") << words;
    return testing::lines_of(ran.out);
  }
  static std::vector<std::string> sorted(std::vector<std::string> words) {
    std::sort(words.begin(), words.end());
    return words;
  }
  bool suggestions(const std::string& words, const std::string& candidate) {
    const auto all = bash(words);
    return std::find(all.begin(), all.end(), candidate) != all.end();
  }
  // Zsh's line after a tab.
  std::string zsh(const std::string& line) {
    const testing::Ran ran = shell(cat("timeout 60 zsh -f complete.zsh ", testing::kHawser, " '") + line + "'");
    auto lines = testing::lines_of(ran.out);
    return lines.empty() ? ran.err : lines.back();
  }

  using Words = std::vector<std::string>;
};

TEST_F(Completion, CommandsAndOptionsInBash) {
  EXPECT_TRUE(suggestions("''", "fit"));
  EXPECT_TRUE(suggestions("''", "completion"));
  EXPECT_EQ(bash("gen"), Words{"generate"});
  EXPECT_EQ(bash("recipe ''"), (Words{"init", "convert"}));
  EXPECT_EQ(bash("fit --res"), Words{"--resume"});
  EXPECT_EQ(bash("recipe init --fo"), Words{"--force"});
  EXPECT_EQ(bash("prepare --fo"), Words{}) << "another command's option";
  EXPECT_TRUE(suggestions("fit --resume --", "--memory")) << "a switch takes no value";
  EXPECT_EQ(bash("fit --ranks ''"), Words{}) << "any number";
  // Every option of --help is offered, so the script contains the complete tree.
  for (const std::string command : {"fit", "plan", "recipe init", "recipe convert", "inspect", "bench step"}) {
    std::istringstream help(hawser(command + " --help").out);
    for (std::string word; help >> word;) {
      if (word.starts_with("--") && word.size() > 2 && word.find_first_of("=.,;:)") == std::string::npos) {
        EXPECT_TRUE(suggestions(command + " --", word)) << command << " " << word;
      }
    }
  }
}

TEST_F(Completion, ValuesInBash) {
  EXPECT_EQ(bash("fit --device ''"), (Words{"auto", "cpu", "cuda"}));
  EXPECT_EQ(bash("fit --device = c"), (Words{"cpu", "cuda"}));
  EXPECT_EQ(bash("plan --target h"), (Words{"h100", "h100-pcie", "h200"}));
  EXPECT_EQ(bash("fit rec"), Words{"recipe.yaml"});
  EXPECT_EQ(sorted(bash("fit ''")), (Words{"my model", "other.yml", "recipe.yaml"})) << "recipes and folders";
  EXPECT_EQ(bash("export ''"), Words{"my model"}) << "folders";
  EXPECT_EQ(bash("plan --target rec"), Words{"recipe.yaml"});
  EXPECT_EQ(bash("eval --model my"), Words{"my model"});
  EXPECT_EQ(sorted(bash("inspect ''")), (Words{"checkpoint", "complete.bash", "complete.zsh", "data", "err", "my model",
                                               "other.yml", "recipe.yaml"}));
  EXPECT_EQ(bash("inspect data oth"), Words{"other.yml"});
  EXPECT_EQ(bash("fit recipe.yaml rec"), Words{}) << "one recipe is all";
  EXPECT_EQ(bash("completion z"), Words{"zsh"});
}

TEST_F(Completion, RecipeKeysInBash) {
  EXPECT_EQ(bash("fit --set optimizer.sch"), Words{"optimizer.schedule="});
  EXPECT_EQ(bash("fit --set = optimizer.sch"), Words{"optimizer.schedule="});
  EXPECT_EQ(bash("fit --set optimizer.schedule ="),
            (Words{"cosine", "linear", "constant", "wsd", "inverse_sqrt", "polynomial"}));
  EXPECT_EQ(bash("fit --set optimizer.schedule = l"), Words{"linear"});
  EXPECT_EQ(bash("fit --set model.config = rec"), Words{"recipe.yaml"});
  EXPECT_EQ(bash("fit --set data.chat_template = qwen"), (Words{"qwen-2.5", "qwen-3"}));
  EXPECT_EQ(bash("fit --set data.chat_template = rec"), Words{"recipe.yaml"});
  EXPECT_EQ(bash("fit --set train.steps = ''"), Words{});
  const auto completed = bash("fit --set ''");
  const auto keys = key_choices();
  ASSERT_EQ(completed.size(), keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(completed[i], keys[i].name + "=");
  // The schema accepts every completed value: of a model with experts, of an adapter, and of a schedule. NF4 is of wider
  // matrices.
  const fs::path golden = fs::path(testing::kSourceFolder) / "tests/golden", mixtral = golden / "families/mixtral";
  write("r.yaml", "data: {sequence_length: 8}\nmodel: {path: " + mixtral.string() + "}\n");
  for (const KeyChoices& key : keys) {
    if (key.name == "run.device") continue;  // cuda needs a build with CUDA
    for (const std::string& value : key.values) {
      const bool nf4 = value == "nf4" || value == "qlora" || key.name == "adapter.double_quantization";
      const std::string wide = nf4 ? " --set model.path=" + (golden / "nf4/base").string() : "";
      const std::string needed = key.name == "adapter.double_quantization" ? " --set adapter.kind=qlora"
                                 : key.name == "adapter.kind"              ? ""
                                 : value == "fp8" && key.name == "adapter.base"
                                     ? " --set adapter.kind=lora --set precision.compute=fp8 --set model.path=" +
                                           (golden / "tiny/gqa").string()
                                 : key.name.starts_with("adapter.")   ? " --set adapter.kind=lora"
                                 : key.name == "optimizer.decay_type" ? " --set optimizer.schedule=wsd"
                                 : key.name == "optimizer.nesterov"   ? " --set optimizer.kind=sgd"
                                 : key.name == "optimizer.scale_parameter" || key.name == "optimizer.relative_step"
                                     ? " --set optimizer.kind=adafactor"
                                     : "";
      const testing::Ran ran = hawser("plan r.yaml" + needed + " --set " + key.name + "=" + value + wide);
      EXPECT_EQ(ran.code, 0) << key.name << "=" << value << "\n" << ran.err;
    }
  }
}

TEST_F(Completion, ModelsOfTheHuggingFaceCache) {
  for (const char* model : {"models--org--tiny-1.0", "models--some-org--model", "datasets--org--data", ".locks"}) {
    fs::create_directories(folder_ / "hub" / model);
  }
  fs::remove_all(folder_ / "my model");
  const std::string cache = folder_.path("hub");
  ::setenv("HF_HUB_CACHE", cache.c_str(), 1);
  EXPECT_EQ(sorted(bash("eval --model ''")), (Words{"hub", "org/tiny-1.0", "some-org/model"}));
  EXPECT_EQ(bash("recipe init --model = so"), Words{"some-org/model"});
  EXPECT_EQ(bash("fit --set model.path = org"), Words{"org/tiny-1.0"});
  EXPECT_EQ(zsh("hawser generate --model some"), "generate --model some-org/model");
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("HF_HOME", folder_.path().c_str(), 1);
  EXPECT_EQ(bash("inspect some"), Words{"some-org/model"});
  ::unsetenv("HF_HOME");
}

TEST_F(Completion, InZsh) {
  ASSERT_EQ(shell("command -v zsh").code, 0) << "no zsh: its package is zsh (scripts/install-packages --for tests)";
  EXPECT_EQ(shell(cat(testing::kHawser, " completion zsh > script && zsh -n script")).code, 0);
  EXPECT_EQ(zsh("hawser gen"), "generate");
  EXPECT_EQ(zsh("hawser recipe in"), "recipe init");
  EXPECT_EQ(zsh("hawser fit --resu"), "fit --resume");
  EXPECT_EQ(zsh("hawser fit --device cu"), "fit --device cuda");
  EXPECT_EQ(zsh("hawser fit --device=cu"), "fit --device=cuda");
  EXPECT_EQ(zsh("hawser fit rec"), "fit recipe.yaml");
  EXPECT_EQ(zsh("hawser fit --set optimizer.sch"), "fit --set optimizer.schedule=");
  EXPECT_EQ(zsh("hawser fit --set optimizer.schedule=li"), "fit --set optimizer.schedule=linear");
  EXPECT_EQ(zsh("hawser plan --target h2"), "plan --target h200");
}

TEST_F(Completion, InFish) {
  ASSERT_EQ(shell("command -v fish").code, 0) << "no fish: its package is fish (scripts/install-packages --for tests)";
  EXPECT_EQ(shell(cat(testing::kHawser, " completion fish > script && fish -n script")).code, 0);
  // Fish's candidates for the last word of a line, without their help.
  const auto fish = [&](const std::string& line) {
    const testing::Ran ran = shell("fish --no-config -c 'source script; complete -C \"" + line + "\"'");
    EXPECT_EQ(ran.err, "") << line;
    std::vector<std::string> words;
    for (const std::string& one : testing::lines_of(ran.out)) words.push_back(one.substr(0, one.find('\t')));
    return sorted(words);
  };
  EXPECT_EQ(fish("hawser gen"), Words{"generate"});
  EXPECT_EQ(fish("hawser recipe in"), Words{"init"});
  EXPECT_EQ(fish("hawser fit --resu"), Words{"--resume"});
  EXPECT_EQ(fish("hawser fit --device cu"), Words{"cuda"});
  EXPECT_EQ(fish("hawser fit --device=cu"), Words{"--device=cuda"});
  EXPECT_EQ(fish("hawser fit rec"), Words{"recipe.yaml"});
  EXPECT_EQ(fish("hawser fit recipe.yaml rec"), Words{}) << "one recipe is all";
  EXPECT_EQ(fish("hawser fit --set optimizer.sch"), Words{"optimizer.schedule="});
  EXPECT_EQ(fish("hawser fit --set optimizer.schedule=li"), Words{"optimizer.schedule=linear"});
  EXPECT_EQ(fish("hawser plan --target h2"), Words{"h200"});
  EXPECT_EQ(fish("hawser export my"), Words{"my model/"});
  EXPECT_EQ(fish("hawser completion f"), Words{"fish"});
  const std::string cache = folder_.path("hub");
  fs::create_directories(folder_ / "hub/models--some-org--model");
  ::setenv("HF_HUB_CACHE", cache.c_str(), 1);
  EXPECT_EQ(fish("hawser generate --model some"), Words{"some-org/model"});
}

TEST_F(Completion, AnotherShellIsRejected) {
  rejected("completion", {"completion: SHELL is missing; try hawser completion --help"});
  rejected("completion basj", {"unknown shell (expected bash, zsh or fish, got basj); try hawser completion bash"});
  const testing::Ran help = hawser("completion --help");
  EXPECT_EQ(help.code, 0);
  EXPECT_NE(help.out.find("source <(hawser completion bash)"), std::string::npos) << help.out;
}

}  // namespace completion_test
}  // namespace hawser
