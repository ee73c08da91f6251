// Output files that the user names: their kind is kept, and they are complete or unchanged.
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace output_test {

namespace fs = std::filesystem;
using testing::lines_of;
using testing::Ran;

class Output : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    copy_of("tied", "model");
    write("model/tokenizer.json", testing::letters_tokenizer());
    write("prompts.jsonl", "{\"prompt\": \"to be\"}\n{\"prompt\": \"or not\"}\n");
  }
  // More than a machine answers during the test.
  void write_many(int prompts) {
    std::string lines;
    for (int i = 0; i < prompts; ++i) lines += "{\"prompt\": \"to be\"}\n";
    write("many.jsonl", lines);
  }
  std::vector<std::string> names_with(const std::string& part) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().find(part) != std::string::npos) {
        names.push_back(entry.path().filename().string());
      }
    }
    return names;
  }
  // Runs until `file` (a shell pattern) has a line, then sends SIGINT.
  Ran interrupted(const std::string& arguments, const std::string& file) {
    return shell("( " + std::string(testing::kHawser) + " " + arguments +
                 " & p=$!; i=0; while [ $i -lt 1200 ] && ! grep -qs . " + file +
                 "; do sleep 0.05; i=$((i+1)); done; kill -INT $p; wait $p )");
  }
  static void expect_whole_lines(const std::string& text, std::size_t min, std::size_t max) {
    EXPECT_TRUE(text.ends_with('\n')) << text;
    EXPECT_GE(lines_of(text).size(), min);
    EXPECT_LE(lines_of(text).size(), max);
    for (const std::string& line : lines_of(text)) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }

  const std::string generate_ = "generate --model model --prompts prompts.jsonl --max-tokens 5 ";
};

TEST_F(Output, LinksRightsPipesAndDevicesStay) {
  const std::string answers = hawser(generate_).out;
  ASSERT_EQ(lines_of(answers).size(), 2u);
  write("far/private", "old\n");
  ::chmod((folder_ / "far/private").c_str(), 0600);
  fs::create_symlink("far/private", folder_ / "link");
  EXPECT_EQ(hawser(generate_ + "--output link").code, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(folder_.read("far/private"), answers);
  EXPECT_EQ(fs::status(folder_ / "far/private").permissions(), fs::perms::owner_read | fs::perms::owner_write);

  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  const Ran piped = shell("( cat pipe & " + std::string(testing::kHawser) + " " + generate_ + "--output pipe; wait )");
  EXPECT_EQ(piped.out, answers) << piped.err;
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  const Ran substituted = shell("bash -c '" + std::string(testing::kHawser) + " " + generate_ +
                                "--output >(cat > got; mv got done); code=$?; i=0; "
                                "while [ $i -lt 600 ] && ! [ -e done ]; do sleep 0.05; i=$((i+1)); done; exit $code'");
  EXPECT_EQ(substituted.code, 0) << substituted.err;
  EXPECT_EQ(folder_.read("done"), answers);
  EXPECT_EQ(hawser(generate_ + "--output /dev/stdout").out, answers);

  // A device node with the numbers of /dev/null, if the test may create one.
  if (::mknod((folder_ / "null").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0 &&
      std::ofstream(folder_ / "null").good()) {
    EXPECT_EQ(hawser(generate_ + "--output null").code, 0);
    EXPECT_TRUE(fs::is_character_file(folder_ / "null"));
  }
  EXPECT_TRUE(names_with(".tmp").empty());
}

TEST_F(Output, TracesAndPicturesGoWhereLinksAndPipesLead) {
  fs::create_directories(folder_ / "far");
  fs::create_symlink("far/trace.json", folder_ / "trace.json");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(hawser("bench step --model model --sequence-length 16 --steps 1 --trace trace.json").code, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "trace.json"));
  EXPECT_TRUE(testing::json_of(folder_ / "far/trace.json").contains("traceEvents"));
  const Ran picture =
      shell("( cat pipe > drawn & " + std::string(testing::kHawser) + " inspect trace.json --svg pipe; wait )");
  EXPECT_TRUE(picture.out.ends_with("wrote pipe\n")) << picture.out << picture.err;
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  EXPECT_TRUE(folder_.read("drawn").starts_with("<svg")) << folder_.read("drawn").substr(0, 80);
}

TEST_F(Output, AClosedStandardOutputIsAnError) {
  write("data.jsonl", testing::forty_documents());
  const std::string eval = std::string(testing::kHawser) + " eval --model model --data data.jsonl --sequence-length 32";
  for (const std::string ranks : {" --ranks 1", " --ranks 2"}) {
    const Ran ran = shell(eval + ranks + " >&-");
    EXPECT_EQ(ran.code, 1) << ranks;
    EXPECT_EQ(ran.err, "hawser: standard output: cannot be written: Bad file descriptor\n") << ranks;
  }
}

// The first files that a program opens would take their numbers, and what is printed would land in them.
TEST_F(Output, ClosedStandardStreamsTakeNoFilesNumber) {
  write("data.jsonl", testing::forty_documents());
  write("r.yaml",
        "model: {path: model}\noutput: out\ndata: {train: [data.jsonl], sequence_length: 16}\ntrain: {steps: 6}\n");
  for (const std::string closed : {"<&- >&- 2>&-", ">&- 2>&-"}) {
    const Ran ran = shell("sh -c 'exec " + std::string(testing::kHawser) + " fit r.yaml --ranks 1 " + closed + "'");
    EXPECT_EQ(ran.code, 0) << closed;
    const auto lines = testing::lines_of(folder_.read("out/metrics.jsonl"));
    EXPECT_EQ(lines.size(), 6u) << closed;
    for (const std::string& line : lines) EXPECT_TRUE(line.starts_with('{')) << closed << ": " << line;
  }
}

TEST_F(Output, TwoAtOnceDoNotMix) {
  const std::string binary = testing::kHawser;
  const std::string a = generate_, b = generate_ + "--json ";
  const Ran both = shell("( " + binary + " " + a + "--output both.jsonl & p=$!; " + binary + " " + b +
                         "--output both.jsonl; c=$?; wait $p && exit $c )");
  EXPECT_EQ(both.code, 0) << both.err;
  const std::string got = folder_.read("both.jsonl");
  EXPECT_TRUE(got == hawser(a).out || got == hawser(b).out) << got;
  EXPECT_TRUE(names_with(".tmp").empty());
}

TEST_F(Output, CtrlCLeavesTheAnswersSoFar) {
  write_many(3000);
  write("out.jsonl", "old\n");
  const std::string many = "generate --model model --prompts many.jsonl --max-tokens 60 --batch 2 ";
  const Ran ran = interrupted(many + "--output out.jsonl", "out.jsonl.tmp-*");
  EXPECT_EQ(ran.code, 130) << ran.err;
  EXPECT_EQ(folder_.read("out.jsonl"), "old\n");
  const std::string part = folder_.read("out.jsonl.part");
  expect_whole_lines(part, 1, 2999);
  EXPECT_NE(ran.err.find("hawser: stopped: out.jsonl.part holds " + std::to_string(lines_of(part).size()) +
                         " of 3000 answers\n"),
            std::string::npos)
      << ran.err;
  EXPECT_TRUE(names_with(".tmp").empty());
  const Ran again = interrupted(many + "--output out.jsonl", "out.jsonl.tmp-*");
  EXPECT_NE(again.err.find("out.jsonl.part-2 holds "), std::string::npos) << again.err;
  EXPECT_EQ(folder_.read("out.jsonl.part"), part) << "answers of the first interruption stay";
  // Standard output gets each line as soon as it is complete.
  const Ran shown = interrupted(many + "> shown", "shown");
  EXPECT_EQ(shown.code, 130) << shown.err;
  expect_whole_lines(folder_.read("shown"), 1, 2999);
}

// All ranks stop after the same pass, and the first one keeps the answers.
TEST_F(Output, CtrlCLeavesTheAnswersOfTensorRanks) {
  write_many(3000);
  const std::string many = "generate --model model --prompts many.jsonl --max-tokens 60 --batch 2 --ranks 2 ";
  const Ran ran = interrupted(many + "--output out.jsonl", "out.jsonl.tmp-*");
  EXPECT_EQ(ran.code, 130) << ran.err;
  const std::string part = folder_.read("out.jsonl.part");
  expect_whole_lines(part, 1, 2999);
  EXPECT_NE(ran.err.find("stopped: out.jsonl.part holds " + std::to_string(lines_of(part).size()) + " of 3000 answers"),
            std::string::npos)
      << ran.err;
  EXPECT_TRUE(names_with(".tmp").empty());
}

// The second answer has no end; those after it end before the first one, which is in the file when the signal comes.
TEST_F(Output, CtrlCKeepsAnswersAfterAMissingOne) {
  nlohmann::json config = testing::json_of(folder_ / "model/config.json");
  config["eos_token_id"] = nullptr;
  write("model/config.json", config.dump());
  write("four.jsonl",
        "{\"prompt\": \"or not\"}\n{\"prompt\": \"x\"}\n{\"prompt\": \"that is\"}\n{\"prompt\": \"a\"}\n");
  const std::string four = "generate --model model --prompts four.jsonl --batch 4 --max-tokens ";
  const std::vector<std::string> whole = lines_of(hawser(four + "60").out);
  ASSERT_EQ(whole.size(), 4u);
  std::string stops;
  for (const auto& [i, end] : {std::pair(0, 50u), std::pair(2, 20u), std::pair(3, 20u)}) {
    const std::string text = nlohmann::json::parse(whole[static_cast<std::size_t>(i)])["text"];
    ASSERT_GT(text.size(), end);
    stops += " --stop '" + text.substr(end - 10, 10) + "'";
  }
  const Ran ran = interrupted(four + "20000" + stops + " --output out.jsonl", "out.jsonl.tmp-*");
  EXPECT_EQ(ran.code, 130) << ran.err;
  EXPECT_NE(ran.err.find("out.jsonl.part holds 3 of 4 answers\n"), std::string::npos) << ran.err;
  std::vector<int> numbers;
  for (const std::string& line : lines_of(folder_.read("out.jsonl.part"))) {
    numbers.push_back(nlohmann::json::parse(line)["line"]);
  }
  EXPECT_EQ(numbers, (std::vector{1, 3, 4}));
}

TEST_F(Output, AnswersDoNotReplaceTheirPrompts) {
  fs::create_hard_link(folder_ / "prompts.jsonl", folder_ / "same.jsonl");
  const std::string before = folder_.read("prompts.jsonl");
  for (const std::string name : {"prompts.jsonl", "./prompts.jsonl", "same.jsonl"}) {
    rejected(generate_ + "--output " + name,
             {name + ": the same file as --prompts (expected another file) at --output"});
  }
  EXPECT_EQ(folder_.read("prompts.jsonl"), before);
}

TEST_F(Output, NoCommandReplacesItsInput) {
  const std::string weights = folder_.read("model/model.safetensors");
  for (const std::string name : {"model/model.safetensors", "model/config.json"}) {
    rejected(generate_ + "--output " + name, {name + ": a file of --model (expected another file) at --output"});
    rejected("bench step --model model --sequence-length 16 --steps 1 --trace " + name,
             {name + ": a file of --model (expected another file) at --trace"});
  }
  ASSERT_EQ(hawser("bench step --model model --sequence-length 16 --steps 1 --trace trace.json").code, 0);
  rejected("inspect trace.json --svg model/model.safetensors",
           {"model/model.safetensors: a file of a model (expected another file) at --svg"});
  EXPECT_EQ(folder_.read("model/model.safetensors"), weights);
  const std::string data = folder_.read("prompts.jsonl");
  rejected("recipe init --model model --data prompts.jsonl --output prompts.jsonl --force",
           {"prompts.jsonl: the same file as --data (expected another file) at --output"});
  EXPECT_EQ(folder_.read("prompts.jsonl"), data);
}

TEST_F(Output, ARecipeThatCannotBeWrittenLeavesTheOldOne) {
  const std::string init = " recipe init --model model --output recipe.yaml --force";
  const std::string limited = "( ulimit -f 1; " + std::string(testing::kHawser) + init + " )";
  const std::string line = "hawser: recipe.yaml: cannot write: File too large\n";
  Ran ran = shell(limited);
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find(line), std::string::npos) << ran.err;
  EXPECT_FALSE(fs::exists(folder_ / "recipe.yaml"));
  write("recipe.yaml", "name: mine\n");
  ran = shell(limited);
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find(line), std::string::npos) << ran.err;
  EXPECT_EQ(folder_.read("recipe.yaml"), "name: mine\n");
  EXPECT_TRUE(names_with(".tmp").empty());
  EXPECT_EQ(hawser(init).code, 0);
  EXPECT_NE(folder_.read("recipe.yaml"), "name: mine\n");
}

// Their results are JSON with --json, and the help states where it is printed.
TEST_F(Output, JsonGoesWhereTheResultGoes) {
  Ran ran = hawser("recipe init --model model --output recipe.json --json");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_TRUE(testing::json_of(folder_ / "recipe.json").is_object());
  ran = hawser(generate_ + "--json --output out.jsonl");
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(folder_.read("out.jsonl"), hawser(generate_ + "--json").out);
  const auto help = [&](const std::string& command) {
    std::string words;  // wrapped in any way
    std::istringstream in(hawser(command + " --help").out);
    for (std::string word; in >> word;) words += word + " ";
    return words;
  };
  EXPECT_NE(help("recipe init").find("write the recipe as one JSON object, to --output or standard output"),
            std::string::npos);
  EXPECT_NE(help("generate").find("print the answer as one JSON object; with --prompts, include the token ids"),
            std::string::npos);
  EXPECT_NE(help("plan").find("print the result as one JSON object"), std::string::npos);
}

}  // namespace output_test
}  // namespace hawser
