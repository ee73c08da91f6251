#include "evaluate/baseline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "evaluate/eval_data.h"
#include "evaluate/evaluate.h"
#include "prepare/prepare.h"
#include "prepare/testing/bytes_tokenizer.h"

namespace hawser::evaluate {
namespace baseline_test {

const std::string kSource = testing::kSourceFolder;

std::string write_tokens(const TemporaryFolder& folder, std::string_view name,
                         const std::vector<std::vector<std::int32_t>>& documents) {
  prepare::TokenFileWriter writer(folder.path(name), 4096);
  for (const auto& ids : documents) {
    writer.add_sequence(ids);
    writer.end_document();
  }
  writer.finish();
  return folder.path(name);
}

TEST(Baseline, BigramLossTakesTheFileAsRunningText) {
  const TemporaryFolder folder;
  const prepare::TokenFile train(write_tokens(folder, "train", {{0, 1, 0, 1}}));
  const prepare::TokenFile held_out(write_tokens(folder, "held_out", {{1, 0}, {1}}));
  // Of three ids: c(0) = c(1) = 2, N = 4, T = 2. c(h): 0 twice, followed by 1; 1 once, followed by 0.
  const double p1 = (2 + 2.0 / 3) / 6, p0 = p1;
  const double after_one = (1 + p0) / 2, after_zero = (2 + p1) / 3;
  EXPECT_NEAR(bigram_loss(train, held_out, 3, true), -(std::log(after_one) + std::log(after_zero)) / 2, 1e-12);
  EXPECT_THROW(bigram_loss(train, held_out, 1, true), UserError);
  // Documents apart: the only token of the second is the first of a document and not predicted.
  EXPECT_NEAR(bigram_loss(train, held_out, 3, false), -std::log(after_one), 1e-12);
}

TEST(Baseline, TextBytesCountsWhatIsPredicted) {
  const auto tokenizer = text::load_tokenizer(kSource + "/recipes/quickstart-tokenizer/tokenizer.json");
  const std::string first = "Anne Elliot, with all her claims of birth\n", second = " caf\xc3\xa9";
  std::vector<std::int32_t> ids, more;
  tokenizer->encode(first, ids, true);
  tokenizer->encode(second, more, true);
  ids.push_back(tokenizer->eos().value());
  const auto of_first_token = tokenizer->decode_bytes(std::span(ids).first(1)).size();
  const TemporaryFolder folder;
  const prepare::TokenFile file(write_tokens(folder, "text", {ids, more}));
  EXPECT_EQ(text_bytes(file, *tokenizer, true),
            static_cast<std::int64_t>(first.size() + second.size() - of_first_token));
  const auto of_second = tokenizer->decode_bytes(std::span(more).first(1)).size();
  EXPECT_EQ(text_bytes(file, *tokenizer, false),
            static_cast<std::int64_t>(first.size() + second.size() - of_first_token - of_second));
}

// More tokens than are decoded at a time; special tokens are no text.
TEST(Baseline, TextBytesAreCountedInBlocks) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 20;
  const TemporaryFolder folder;
  const auto tokenizer = text::load_tokenizer(folder.write("t.json", prepare::tokenizer_of_bytes({"<s>"})));
  std::vector<std::int32_t> ids(kBlock + 1, 256);
  ids.insert(ids.end(), {'a', 'b', 'c'});
  const prepare::TokenFile file(write_tokens(folder, "text", {ids}));
  EXPECT_EQ(text_bytes(file, *tokenizer, true), 3);
}

// A line with ids and a token file with the same ids give the same loss.
TEST(Baseline, EvaluationOfATokenFileEqualsThatOfItsIds) {
  const TemporaryFolder folder;
  const std::vector<std::int32_t> ids{5, 17, 3, 8, 9, 2, 11, 4, 7, 1, 1, 6};
  std::string line = "{\"input_ids\": [";
  for (const std::int32_t& id : ids) line += std::to_string(id) + (&id == &ids.back() ? "]}\n" : ", ");
  EvaluateRequest request{
      .model = kSource + "/tests/golden/tiny/gqa", .data = folder.write("line.jsonl", line), .sequence_length = 16};
  const Evaluation of_line = evaluate(request, nullptr);
  request.data = write_tokens(folder, "file", {{ids.begin(), ids.begin() + 5}, {ids.begin() + 5, ids.end()}});
  request.bigram = request.data;
  EXPECT_EQ(evaluate(request, nullptr).tokens, 10) << "the first token of each document is not predicted";
  request.across_documents = true;
  const Evaluation of_file = evaluate(request, nullptr);
  EXPECT_EQ(of_file.tokens, 11);
  EXPECT_EQ(of_file.loss, of_line.loss);
  EXPECT_TRUE(of_file.bigram_loss.has_value());
  EXPECT_FALSE(of_file.bits_per_byte.has_value());  // that model has no tokenizer
  // Split into shorter sequences, every token except the first is still predicted.
  request.sequence_length = 5;
  EXPECT_EQ(evaluate(request, nullptr).tokens, 11);
}

// Of a folder, what data.validation reads of it.
TEST(Baseline, AFolderIsItsValidationSplit) {
  const TemporaryFolder folder;
  folder.write("set/train.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
  EvaluateRequest request{
      .model = kSource + "/tests/golden/tiny/gqa", .data = folder.path("set"), .sequence_length = 16};
  EXPECT_THROW(evaluate(request, nullptr), UserError);  // only a train split
  folder.write("set/validation-00000-of-00002.jsonl", "{\"input_ids\": [1, 2, 3, 4]}\n");
  folder.write("set/validation-00001-of-00002.jsonl", "{\"input_ids\": [5, 6]}\n{\"input_ids\": [7, 8]}\n");
  EXPECT_EQ(evaluate(request, nullptr).tokens, 5);
}

TEST(Baseline, RejectsATokenFileOfAnotherTokenizer) {
  const TemporaryFolder folder;
  folder.write("a.jsonl", "{\"text\": \"x\"}\n");
  const std::string other = kSource + "/recipes/quickstart-tokenizer/tokenizer.json";
  prepare::prepare(
      {.train = {"a.jsonl"}, .folder = folder.path(""), .tokenizer = other, .output = folder.path("data")});
  const auto rejected = [&](const std::string& tokenizer) {
    Problems problems;
    open_eval_data(
        {.data = folder.path("data/train"), .tokenizer = tokenizer, .vocabulary = 100000, .max_documents = 4},
        {{.sequence_length = 16, .max_documents = 4}}, {}, problems);
    return problems.lines();
  };
  EXPECT_EQ(rejected(other), "");
  EXPECT_NE(rejected(folder.write("b/tokenizer.json", prepare::tokenizer_of_bytes({})))
                .find("token file of another tokenizer"),
            std::string::npos);
}

TEST(Baseline, RejectsWhatCannotBeScored) {
  const TemporaryFolder folder;
  EvaluateRequest request{.model = kSource + "/tests/golden/tiny/gqa",
                          .data = folder.write("line.jsonl", "{\"input_ids\": [1, 2, 3]}\n"),
                          .bigram = folder.path("none"),
                          .sequence_length = 16};
  EXPECT_THROW(evaluate(request, nullptr), UserError);
  request.data = write_tokens(folder, "file", {{1, 2, 3}});
  EXPECT_THROW(evaluate(request, nullptr), UserError);  // nothing at `none`
  request.bigram = request.data;
  EXPECT_NO_THROW(evaluate(request, nullptr));
  request.data = write_tokens(folder, "foreign", {{1, 4000, 3}});
  EXPECT_THROW(evaluate(request, nullptr), UserError);  // 4000 is no id of the model
}

}  // namespace baseline_test
}  // namespace hawser::evaluate
