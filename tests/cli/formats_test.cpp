// Formats of training data: the same conversations in every format give the same token files.
#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"
#include "prepare/testing/archives.h"

namespace hawser {
namespace formats_test {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class Formats : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    copy_of("tied", "model");
    write("model/tokenizer.json", testing::letters_tokenizer());
    write("model/tokenizer_config.json",
          "{\"eos_token\": \"~\", \"chat_template\": \"{% for m in messages %}{% if m.role == 'assistant' %}"
          "{{ m.content + eos_token }}{% else %}<{{ m.role }}:{{ m.content }}>{% endif %}{% endfor %}\"}");
  }
  static std::string recipe(const std::string& data, const std::string& output, int length = 32,
                            const std::string& model = "{path: model}") {
    return "model: " + model + "\ndata: {train: " + data + ", sequence_length: " + std::to_string(length) +
           "}\ntrain: {steps: 2, global_batch_size: 2}\nprecision: {compute: float32}\noutput: " + output + "\n";
  }
  // Bytes of the token files that `prepare` writes for a source.
  std::string prepared(const std::string& source, const std::string& model = "{path: model}",
                       const std::string& rest = "") {
    write("recipe.yaml", recipe(source + rest, "of-" + source, 32, model));
    const testing::Ran ran = hawser("prepare recipe.yaml");
    EXPECT_EQ(ran.code, 0) << source << "\n" << ran.err;
    std::string bytes;
    for (const char* name : {"train.bin", "train.idx", "train.labels.bin"}) {
      bytes += folder_.read("of-" + source + "/data/" + name);
    }
    return bytes;
  }
};

TEST_F(Formats, OneConversationInEveryForm) {
  const std::vector<std::array<std::string, 3>> turns = {
      {"What is \"a\"?", "", "It is, b."}, {"Sum", "1\n2, 3", "six\r\n"}, {"q", "x", "{\"y\": [1]}"}};
  std::string messages, sharegpt, alpaca, questions, csv = "id,instruction,input,output\r\n", tsv;
  Json array = Json::array();
  for (const auto& [instruction, input, output] : turns) {
    const std::string asked = instruction + (input.empty() ? "" : "\n\n" + input);
    messages +=
        Json{{"messages", {{{"role", "user"}, {"content", asked}}, {{"role", "assistant"}, {"content", output}}}}}
            .dump() +
        "\n";
    array.push_back({{"conversations", {{{"from", "human"}, {"value", asked}}, {{"from", "gpt"}, {"value", output}}}}});
    sharegpt += array.back().dump() + "\n";
    alpaca += Json{{"instruction", instruction}, {"input", input}, {"output", output}}.dump() + "\n";
    questions += Json{{"question", asked}, {"answer", output}}.dump() + "\n";
    const auto quoted = [](const std::string& text) {
      std::string out = "\"";
      for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
      return out + "\"";
    };
    csv += "7," + quoted(instruction) + "," + quoted(input) + "," + quoted(output) + "\r\n";
    tsv += quoted(output) + "\t" + quoted(asked) + "\n";
  }
  write("messages.jsonl", messages);
  write("sharegpt.jsonl", sharegpt);
  write("alpaca.jsonl", alpaca);
  write("questions.ndjson", questions);
  write("array.json", array.dump(2));
  write("lines.json", alpaca);
  write("array.json.gz", prepare::gzip(array.dump()));
  write("table.csv", "\xEF\xBB\xBF" + csv);
  write("table.csv.zst", prepare::zstd(csv));
  write("table.tsv", "response\tinstruction\n" + tsv);
  const std::string expected = prepared("messages.jsonl");
  EXPECT_GT(expected.size(), 100u);
  const double loss = json("eval --model model --data messages.jsonl --sequence-length 64")["loss"];
  for (const std::string name : {"sharegpt.jsonl", "alpaca.jsonl", "questions.ndjson", "array.json", "lines.json",
                                 "array.json.gz", "table.csv", "table.csv.zst", "table.tsv"}) {
    EXPECT_TRUE(prepared(name) == expected) << name;
    EXPECT_EQ(json("eval --model model --data " + name + " --sequence-length 64")["loss"], loss) << name;
    const testing::Ran made =
        hawser("recipe init --model model --data " + name + " --ranks 1 --output new.yaml --force");
    EXPECT_EQ(made.code, 0) << made.err;
    EXPECT_NE(folder_.read("new.yaml").find("tokens in 3 documents; only answers are learned"), std::string::npos)
        << name << "\n"
        << folder_.read("new.yaml");
  }
  write("recipe.yaml", recipe("table.csv", "run", 64));
  EXPECT_EQ(hawser("fit recipe.yaml").code, 0);
  const testing::Ran shown = hawser("inspect data recipe.yaml");
  EXPECT_NE(shown.out.find("[[<user:Sum"), std::string::npos) << shown.out;
}

// Tables and arrays of random texts, written and read by Python's csv and json.
TEST_F(Formats, EqualPythonsReading) {
  const testing::Ran made = shell(cat("python3 ", testing::kSourceFolder, "/tests/cli/make_tables.py ."));
  ASSERT_EQ(made.code, 0) << made.err;
  const std::vector<std::string> names = testing::lines_of(made.out);
  ASSERT_GT(names.size(), 8u);
  EXPECT_GT(fs::file_size(folder_ / "excel.csv"), std::size_t{1} << 20) << "several blocks";
  // A tokenizer that has every byte.
  const std::string root = cat(testing::kSourceFolder, "/recipes/quickstart-");
  const std::string rest = ", tokenizer: " + root + "tokenizer, chat_template: chatml";
  const std::string expected = prepared("expected.jsonl", "{config: " + root + "model.json}", rest);
  for (const std::string& name : names) {
    EXPECT_TRUE(prepared(name, "{config: " + root + "model.json}", rest) == expected) << name;
  }
}

TEST_F(Formats, PromptsOfGenerate) {
  write("p.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"c,d\"}\n");
  write("p.json", "[{\"prompt\": \"ab\"},\n {\"prompt\": \"c,d\"}]");
  write("p.tsv", "id\tprompt\n1\tab\n2\tc,d\n");
  const auto texts = [&](const std::string& name) {
    const testing::Ran ran = hawser("generate --model model --max-tokens 4 --temperature 0 --prompts " + name);
    EXPECT_EQ(ran.code, 0) << ran.err;
    std::string out;
    for (const std::string& line : testing::lines_of(ran.out)) out += nlohmann::json::parse(line)["text"].dump() + "\n";
    return out;
  };
  const std::string expected = texts("p.jsonl");
  EXPECT_EQ(texts("p.json"), expected);
  EXPECT_EQ(texts("p.tsv"), expected);
}

TEST_F(Formats, ErrorsNameThePlaceInTheFile) {
  write("a.json",
        "[{\"instruction\": \"a\", \"output\": \"b\"},\n\n {\"conversations\": [{\"from\": \"narrator\", \"value\": "
        "\"a\"}]}, {\"instruction\": \"a\"}]");
  write("a.csv", "instruction,output\n\"a\nb\",c\nd,\n");
  write("b.csv", "id,title\n1,2\n");
  write("recipe.yaml", recipe("[a.json, a.csv, b.csv]", "run"));
  rejected("prepare recipe.yaml",
           {folder_.path("a.json") + ": unknown role (expected system, user (human), assistant (gpt, bot, model, "
                                     "chatbot), tool, or a role that the chat template names, got narrator) at item 2",
            folder_.path("a.json") + ": item needs exactly one of these keys (expected text, input_ids, messages, "
                                     "conversations, prompt and completion, instruction and output, or question and "
                                     "answer, got instruction) at item 3",
            folder_.path("a.csv") + ": empty completion (expected text) at row 3, output",
            folder_.path("b.csv") + ": no column to train on (expected the columns text; prompt, completion; "
                                    "instruction, output; or question, answer, got id, title) at row 1; try columns "
                                    "with these names, or data.columns"});
  EXPECT_FALSE(fs::exists(folder_ / "run/data/train.idx"));
}

// A checkpoint is evaluated on data with the names of its run; --set gives the names of other data.
TEST_F(Formats, AnEvaluationReadsTheNamesOfTheRun) {
  const auto named = [](const std::string& asked, const std::string& said) {
    return Json{{asked, "ab"}, {said, "cde"}}.dump() + "\n";
  };
  write("usual.jsonl", named("instruction", "output"));
  write("mine.jsonl", named("ask", "reply"));
  write("other.jsonl", named("q", "a"));
  write("recipe.yaml", recipe("mine.jsonl, columns: {instruction: ask, output: reply}", "run"));
  ASSERT_EQ(hawser("fit recipe.yaml").code, 0);
  const double loss = json("eval --model run --data usual.jsonl")["loss"];
  EXPECT_EQ(json("eval --model run --data mine.jsonl")["loss"], loss);
  const std::string names = " --set 'data.columns={instruction: q, output: a}'";
  EXPECT_EQ(json("eval --model run --data other.jsonl" + names)["loss"], loss);
  EXPECT_EQ(hawser("eval --model run --data other.jsonl").code, 2) << "names of neither";
}

TEST_F(Formats, LongConversationsAreReported) {
  std::string lines;
  for (const int length : {3, 4, 40, 5, 60}) {
    lines += Json{{"question", "ab"}, {"answer", std::string(static_cast<std::size_t>(length), 'c')}}.dump() + "\n";
  }
  write("long.jsonl", lines);
  write("recipe.yaml", recipe("long.jsonl", "run", 24));
  const std::string found = "2 of 5 documents are longer than 24 tokens and are ";
  const std::string split = found + "split into 6 pieces, which do not attend to each other";
  const auto expect = [&](const std::string& command, const std::string& text) {
    const testing::Ran ran = hawser(command);
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_NE((ran.out + ran.err).find(text), std::string::npos) << command << "\n" << ran.out << ran.err;
  };
  expect("prepare recipe.yaml", "  long     " + split + " (data.long_documents)\n");
  expect("inspect data recipe.yaml", "  long     " + split);
  expect("fit recipe.yaml", "hawser: 2 of 5 training documents are longer than 24 tokens and are split");
  expect("eval --model model --data long.jsonl --sequence-length 24",
         "2 documents are longer than 24 tokens and split into pieces");
  expect("eval --model model --data run/data/train --sequence-length 24", split);
  // Other choices need no other token files.
  const std::string drop = " --set data.long_documents=drop", truncate = " --set data.long_documents=truncate";
  expect("prepare recipe.yaml" + drop, "already prepared");
  expect("prepare recipe.yaml" + drop, found + "dropped: 120 tokens (74.1%) left out, 102 of them learned");
  expect("prepare recipe.yaml" + truncate, found + "truncated: 70 tokens (43.2%) left out, 70 of them learned");
  EXPECT_EQ(json("prepare recipe.yaml --json" + drop)["train"]["long_documents"]["count"], 2);
  // A run is evaluated as it was trained.
  for (const auto& [set, output, tokens] :
       {std::tuple(truncate, "truncated", 4 + 5 + 6 + 2 * 16), std::tuple(drop, "dropped", 4 + 5 + 6)}) {
    write("valid.yaml", recipe("long.jsonl, validation: long.jsonl", output, 24));
    const nlohmann::json fit = json("fit valid.yaml --json" + set);
    const nlohmann::json eval = json(cat("eval --model ", output, " --data ", output, "/data/valid"));
    EXPECT_EQ(eval["tokens"], tokens) << output;
    EXPECT_NEAR(eval["loss"].get<double>(), fit["validation_loss"].get<double>(), 1e-5) << output;
  }
  const testing::Ran resumed = hawser("fit valid.yaml --resume --set train.steps=3");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("data.long_documents was \"drop\" and is \"split\""), std::string::npos) << resumed.err;
  rejected("prepare recipe.yaml --set data.pack=chunks" + drop,
           {"--set: data.pack: chunks has no long documents (expected split) at data.long_documents; try data.pack: "
            "documents"});
}

}  // namespace formats_test
}  // namespace hawser
