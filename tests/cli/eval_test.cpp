// hawser eval: the same numbers as transformers on any number of ranks, and one JSON object on standard output.
#include <cmath>

#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace eval_test {

using testing::tiny;

class Eval : public testing::Binary {
 protected:
  void equals_golden(const std::string& name, const std::string& options) {
    const nlohmann::json expected = testing::json_of(tiny(name) / "expected.json");
    const nlohmann::json got =
        json("eval --model " + tiny(name).string() + " --data " + (tiny(name) / "data.jsonl").string() +
             " --sequence-length " + expected["sequence_length"].dump() + " " + options);
    ASSERT_TRUE(got.is_object() && got.contains("loss")) << name << " " << options;
    const double loss = expected["loss"];
    EXPECT_NEAR(got["loss"].get<double>(), loss, 1e-5 * loss) << name << " " << options;
    EXPECT_EQ(got["tokens"], expected["tokens"]) << name << " " << options;
    if (options.find("--gradient-norms") == std::string::npos) {
      EXPECT_EQ(got.size(), 2u);
      return;
    }
    ASSERT_EQ(got["gradient_norms"].size(), expected["gradient_norms"].size());
    for (const auto& [parameter, norm] : expected["gradient_norms"].items()) {
      const double value = norm;
      EXPECT_NEAR(got["gradient_norms"].value(parameter, -1.0), value, 1e-4 * value + 1e-8) << parameter;
    }
  }
};

TEST_F(Eval, PrintsATableOnATerminal) {
  const std::string model = tiny("gqa").string(), data = (tiny("gqa") / "data.jsonl").string();
  const std::string eval = "eval --model " + model + " --data " + data + " --sequence-length 30 --gradient-norms";
  const double loss = json(eval)["loss"];
  char rows[2][40];
  std::snprintf(rows[0], sizeof rows[0], "\nloss          %.4f\n", loss);
  std::snprintf(rows[1], sizeof rows[1], "\nperplexity    %.4g\n", std::exp(loss));
  for (const char* ranks : {"", " --ranks 2"}) {
    const std::string out = on_terminal(eval + ranks).out;
    EXPECT_EQ(out.find("model         " + model + "\ndata          " + data + "\ntokens        "), 0u) << out;
    for (const char* row : rows) EXPECT_NE(out.find(row), std::string::npos) << row << out;
    EXPECT_NE(out.find("\ngradient norms\n"), std::string::npos) << out;
    EXPECT_NE(out.find("  model.embed_tokens.weight\n"), std::string::npos) << out;
    const std::string json = on_terminal(eval + " --json" + ranks).out;
    EXPECT_NE(nlohmann::json::parse(json)["loss"], nullptr) << json;
  }
}

// A line that is drawn over: what is left at the end is the result.
TEST_F(Eval, ShowsItsProgress) {
  const std::string eval = "eval --model " + tiny("gqa").string() + " --data " + (tiny("gqa") / "data.jsonl").string() +
                           " --sequence-length 10";
  const std::string out = on_terminal(eval).out;
  const auto first = out.find("\033[Kevaluating "), last = out.rfind("\033[K");
  EXPECT_NE(first, std::string::npos) << out;
  EXPECT_LT(first, last) << out;
  EXPECT_EQ(out.find("\033[Kmodel         "), last) << out;
  // Lines of several ranks, or without a terminal, are seconds apart.
  EXPECT_EQ(on_terminal(eval + " --ranks 2").out.find("evaluating"), std::string::npos);
  EXPECT_EQ(hawser(eval).err.find("evaluating"), std::string::npos);
}

TEST_F(Eval, OnOneRankEqualsTransformers) {
  for (const auto& entry : std::filesystem::directory_iterator(tiny(""))) {
    equals_golden(entry.path().filename().string(), "--gradient-norms --set run.threads=1");
  }
}

TEST_F(Eval, OnSeveralRanksEqualsTransformers) {
  equals_golden("packed", "--ranks 2");
  equals_golden("packed", "--ranks 2 --set parallel.context_parallel_degree=2 --gradient-norms");
  equals_golden("everything", "--ranks 4 --set parallel.context_parallel_degree=2 --gradient-norms");
  equals_golden("cut", "--ranks 4 --set parallel.context_parallel_degree=4");
  equals_golden("sharded", "--ranks 4 --set parallel.hybrid_shard_degree=2 --set run.threads=1");
  equals_golden("tied", "--ranks 2 --set parallel.hybrid_shard_degree=1 --gradient-norms");
}

// Loss and every gradient, with tokens of the residual on each rank or divided.
TEST_F(Eval, OnTensorRanksEqualsTransformers) {
  const std::string tensor2 = "--gradient-norms --set run.threads=1 --set parallel.tensor_parallel_degree=2 --ranks ";
  for (const char* name : {"gqa", "tied", "attention_bias", "rope_llama3"}) equals_golden(name, tensor2 + "2");
  for (const char* name : {"mqa", "mlp_bias"}) {
    equals_golden(name, tensor2 + "2 --set parallel.sequence_parallel=false");
  }
  equals_golden("packed", tensor2 + "4 --set parallel.context_parallel_degree=2");
  equals_golden("everything", tensor2 + "2 --set parallel.tensor_parallel_modules=[attention,vocabulary]");
  // Two copies of each key-value head; sharded over two ranks besides.
  equals_golden("head_dim", "--gradient-norms --ranks 4 --set run.threads=1 --set parallel.tensor_parallel_degree=4");
  equals_golden("sharded", tensor2 + "4");
}

TEST_F(Eval, RejectsTensorRanksThatDoNotDivideTheModel) {
  const auto eval = [&](const std::string& name, const std::string& degree, const std::string& ranks) {
    return "eval --model " + tiny(name).string() + " --data " + (tiny(name) / "data.jsonl").string() +
           " --sequence-length 30 --ranks " + ranks + " --set parallel.tensor_parallel_degree=" + degree;
  };
  rejected(eval("gqa", "3", "3"),
           {"--set: tensor ranks do not divide the attention heads (expected a divisor of 4 heads, got 3) at "
            "parallel.tensor_parallel_degree; try parallel.tensor_parallel_degree: 2 or 4"});
  rejected(eval("everything", "2", "2"),
           {"--set: tensor ranks do not divide the inner width of the MLP (expected a divisor of 29, got 2) at "
            "parallel.tensor_parallel_degree; try parallel.tensor_parallel_degree: 1"});
  rejected(eval("gqa", "4", "6"),
           {"--set: ranks do not divide by the degrees (expected ranks a multiple of 4, got 6 ranks) at "
            "parallel.tensor_parallel_degree; try --ranks 4 or 8, or parallel.tensor_parallel_degree: 2"});
  rejected(eval("gqa", "2", "2") + " --set parallel.tensor_parallel_modules=[heads]",
           {"--set: unknown value (expected attention, mlp or vocabulary, got heads) at "
            "parallel.tensor_parallel_modules"});
}

TEST_F(Eval, WithFewerLinesThanRanksEqualsOneRank) {
  write("one.jsonl", "{\"input_ids\": [5, 9, 40, 3, 77, 12, 30]}\n");
  const std::string arguments =
      "eval --model " + tiny("gqa").string() + " --data one.jsonl --sequence-length 64 --gradient-norms";
  const nlohmann::json one = json(arguments), four = json(arguments + " --ranks 4");
  EXPECT_EQ(one["tokens"], 6);
  EXPECT_EQ(four["tokens"], 6);
  EXPECT_NEAR(four["loss"].get<double>(), one["loss"].get<double>(), 1e-5);
  for (const auto& [name, norm] : one["gradient_norms"].items()) {
    const double value = norm;
    EXPECT_NEAR(four["gradient_norms"].value(name, -1.0), value, 1e-5 * value + 1e-8) << name;
  }
}

TEST_F(Eval, StartedByMpirunItselfPrintsOneObject) {
  const testing::Ran ran =
      shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe -np 2 " +
            std::string(testing::kHawser) + " eval --model " + tiny("gqa").string() + " --data " +
            (tiny("gqa") / "data.jsonl").string() + " --sequence-length 30");
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_TRUE(nlohmann::json::accept(ran.out)) << ran.out;
}

// Hosts may have copies of the data that differ, and a file may be replaced while the ranks start.
TEST_F(Eval, RanksWithDifferentInputsAreRejected) {
  write("one.jsonl", "{\"input_ids\": [51, 78, 94, 65, 68]}\n{\"input_ids\": [78, 81, 3, 4, 5]}\n");
  write("other.jsonl", "{\"input_ids\": [51, 78, 94, 65, 68]}\n{\"input_ids\": [78, 81, 3, 4, 6]}\n");
  const auto together = [&](const std::string& first, const std::string& second) {
    const std::string eval = std::string(testing::kHawser) + " eval --model " + tiny("gqa").string() + " --data ";
    return shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -q --oversubscribe -np 1 " + eval +
                 first + " : -np 1 " + eval + second);
  };
  const auto expect = [](const testing::Ran& ran, const std::string& line) {
    EXPECT_EQ(ran.code, 2) << ran.err;
    EXPECT_NE(ran.err.find(line), std::string::npos) << ran.err;
  };
  const std::string length = " --sequence-length 16";
  EXPECT_EQ(together("one.jsonl" + length, "one.jsonl" + length).code, 0);
  expect(together("one.jsonl" + length, "other.jsonl" + length), "ranks read different data");
  expect(together("one.jsonl" + length, "one.jsonl" + length + " --gradient-norms"),
         "eval: ranks have different options");
  // What one rank alone cannot read ends all, whichever rank it is.
  for (const auto& [first, second] : {std::pair("none.jsonl", "one.jsonl"), std::pair("one.jsonl", "none.jsonl")}) {
    expect(together(first + length, second + length), "none.jsonl");
  }
}

TEST_F(Eval, TextIsEncodedByTheTokenizerBesideTheModel) {
  copy_of("gqa", "model");
  write("model/tokenizer.json", testing::letters_tokenizer());
  write("text.jsonl", "{\"text\": \"To be\"}\n\n{\"text\": \"or\"}\n");
  write("ids.jsonl", "{\"input_ids\": [51, 78, 94, 65, 68]}\n{\"input_ids\": [78, 81]}\n");
  const nlohmann::json text = json("eval --model model --data text.jsonl --sequence-length 16");
  EXPECT_EQ(text["tokens"], 5);
  EXPECT_EQ(text, json("eval --model model --data ids.jsonl --sequence-length 16"));

  // generate uses the same tokenizer: ids and text of a prompt agree.
  const nlohmann::json by_ids = json("generate --model model --prompt-ids 51,78,94 --max-tokens 40 --json");
  const nlohmann::json by_text = json("generate --model model --prompt 'To ' --max-tokens 40 --json");
  EXPECT_EQ(by_ids["ids"], by_text["ids"]);
  const testing::Ran shown = hawser("generate --model model --prompt 'To ' --max-tokens 40");
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_EQ(shown.out, "To " + by_text["text"].get<std::string>() + "\n");
}

}  // namespace eval_test
}  // namespace hawser
