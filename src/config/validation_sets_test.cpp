// data.validation as a map of named sets, and train.early_stopping.metric.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "config/testing/read_recipe.h"

namespace hawser {
namespace validation_sets_test {

namespace fs = std::filesystem;
using Sets = std::vector<ValidationSetRecipe>;

class ValidationSets : public ReadRecipe {
 protected:
  static std::string with(const std::string& validation, const std::string& train = "{steps: 2}") {
    return "model: {config: c}\ndata:\n  train: a\n  sequence_length: 8\n  validation: " + validation +
           "\ntrain: " + train + "\noutput: o\n";
  }
};

TEST_F(ValidationSets, AreAListOrAMap) {
  EXPECT_EQ(read(with("v.txt")).data.validation, (Sets{{.name = "", .paths = {"v.txt"}}}));
  EXPECT_EQ(read(with("[v.txt, w.txt]")).data.validation, (Sets{{.name = "", .paths = {"v.txt", "w.txt"}}}));
  EXPECT_TRUE(read(with("[]")).data.validation.empty());
  const Recipe recipe = read(with("{support: [a.jsonl, b.jsonl], novels-2_x: books.txt}"));
  const Sets sets{{.name = "novels-2_x", .paths = {"books.txt"}}, {.name = "support", .paths = {"a.jsonl", "b.jsonl"}}};
  EXPECT_EQ(recipe.data.validation, sets) << "sorted by name";
  const auto json = nlohmann::json::parse(recipe_json(recipe));
  EXPECT_EQ(json["data"]["validation"].dump(), R"({"novels-2_x":"books.txt","support":["a.jsonl","b.jsonl"]})");
  EXPECT_EQ(read(recipe_json(recipe)).data.validation, sets);
  EXPECT_EQ(read(commented_recipe(recipe)).data.validation, sets);
}

TEST_F(ValidationSets, AreSetOnTheCommandLine) {
  const auto validation = [&](const std::string& value) {
    return read(kSmallest, {"data.validation=" + value}).data.validation;
  };
  const std::string here = fs::current_path().string() + "/";
  EXPECT_EQ(validation("{support: [a.jsonl, /b.jsonl], novels: books/*.txt}"),
            (Sets{{.name = "novels", .paths = {here + "books/*.txt"}},
                  {.name = "support", .paths = {here + "a.jsonl", "/b.jsonl"}}}));
  EXPECT_EQ(validation("{a,b}.txt"), (Sets{{.name = "", .paths = {here + "{a,b}.txt"}}})) << "a glob";
  EXPECT_EQ(validation("books/{a,b}"), (Sets{{.name = "", .paths = {here + "books/{a,b}"}}}));
  EXPECT_EQ(errors(kSmallest, {"data.validation={}"}),
            "--set: no validation set (expected a map of names to lists of paths, got a map) at data.validation");
}

TEST_F(ValidationSets, RejectsWhatNamesNoSets) {
  const auto lines = [&](const std::string& validation) { return errors(with(validation)); };
  const auto problem = [](const std::string& what) { return "r.yaml: " + what + " at data.validation, line 5"; };
  EXPECT_EQ(lines("{}"), problem("no validation set (expected a map of names to lists of paths, got a map)"));
  EXPECT_EQ(lines("{a b: x, 'c/d': y, ok: z}"),
            problem("bad name of a validation set (expected 1 to 64 letters, digits, '-' and '_', got a b, c/d)"));
  EXPECT_EQ(lines("{" + std::string(65, 'n') + ": x}").find("r.yaml: bad name of a validation set"), 0u);
  EXPECT_EQ(lines("{" + std::string(64, 'n') + ": x}"), "");
  EXPECT_EQ(lines("{a: x, b: []}"), problem("a validation set without files (expected a path or more, got b)"));
  EXPECT_EQ(lines("{a: x, b: y, a: z}"), problem("name given twice (expected once, got a)"));
  EXPECT_EQ(
      lines("{validation: x}"),
      problem("the name of all validation sets together (expected another name for one of them, got validation)"));
  for (const char* wrong : {"{a: {b: x}}", "{a: [[x]]}", "[{a: x}]"}) {
    EXPECT_EQ(lines(wrong).find("r.yaml: wrong type (expected a list of paths, or a map of names to lists of paths"),
              0u)
        << wrong << "\n"
        << lines(wrong);
  }
}

TEST_F(ValidationSets, AreMetricsOfEarlyStopping) {
  const std::string sets = "{support: a, novels: b}";
  EXPECT_EQ(read(with(sets)).train.early_stopping_metric, "validation");
  const auto metric = [](const std::string& name) {
    return "{steps: 2, evaluate_every: 1, early_stopping: {metric: " + name + "}}";
  };
  EXPECT_EQ(read(with(sets, metric("support"))).train.early_stopping_metric, "support");
  EXPECT_EQ(read(with("a", metric("validation"))).train.early_stopping_metric, "validation");
  EXPECT_EQ(errors(with(sets, metric("suport"))),
            "r.yaml: no validation set of this name (expected validation or novels or support, got suport) at "
            "train.early_stopping.metric, line 6; try support");
  EXPECT_EQ(errors(with("a", metric("poems"))),
            "r.yaml: no validation set of this name (expected validation, got poems) at train.early_stopping.metric, "
            "line 6");
  EXPECT_EQ(errors(with(sets, "{steps: 2, early_stopping: {metric: novels}}")),
            "r.yaml: the metric of early stopping and OUTPUT/best without evaluations (expected train.evaluate_every) "
            "at train.early_stopping.metric, line 6; try train.evaluate_every: N, in steps");
}

// The place of a file's problem: the set's, with the line of the key.
TEST_F(ValidationSets, HavePlaces) {
  const Recipe recipe = read(with("{support: [a.jsonl, b.jsonl]}"));
  Problems found;
  found.add({.file = "b.jsonl", .what = "no such file", .at = "data.validation.support[1]"});
  found.add({.file = "x", .what = "of two", .at = "data.validation.support"});
  found.add({.file = "y", .what = "no key", .at = "data.tokenizer.support"});
  EXPECT_EQ(with_origins(recipe, found).lines(), "b.jsonl: no such file at data.validation.support[1], line 5 of " +
                                                     recipe.file +
                                                     "\nx: of two at data.validation.support, line 5 of " +
                                                     recipe.file + "\ny: no key at data.tokenizer.support");
}

}  // namespace validation_sets_test
}  // namespace hawser
