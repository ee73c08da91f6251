// data.train with several data sets: shares, ranks, resume.
#include <sstream>

#include "base/cat.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace mixture_test {

class MixtureRun : public testing::Binary {
 protected:
  void SetUp() override {
    Binary::SetUp();
    std::string small, large;
    // The ids of the small set are below 40.
    for (int i = 0; i < 12; ++i) small += cat("{\"input_ids\": [1, 2, 3, ", 4 + i, ", 7, 8, 9, 3, 2]}\n");
    for (int i = 0; i < 200; ++i) large += cat("{\"input_ids\": [40, 41, ", 42 + i % 40, ", 43, 50, 61, 52]}\n");
    write("small.jsonl", small);
    write("large.jsonl", large);
    write("recipe.yaml", recipe("[{path: small.jsonl, weight: 0.25}, {path: [large.jsonl], weight: 0.75}]"));
  }
  static std::string recipe(const std::string& train) {
    return "model: {path: " + testing::tiny("tied").string() + "}\ndata: {train: " + train +
           ", sequence_length: 24}\ntrain: {steps: 8, global_batch_size: 4}\nprecision: {compute: float32}\n"
           "output: run\n";
  }
  std::vector<double> losses(const std::string& run) const {
    std::vector<double> out;
    std::istringstream lines(folder_.read(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line)["loss"]);
    return out;
  }
  // Shares of the tokens of small.jsonl in the first sequences, as `inspect data` shows them.
  double share_of_small(int sequences) {
    const nlohmann::json shown = json(cat("inspect data recipe.yaml --json --samples ", sequences));
    double small = 0, all = 0;
    for (const auto& sample : shown["samples"]) {
      for (const auto& document : sample["documents"]) {
        const double tokens = document["tokens"];
        const std::string ids = document["parts"][0]["text"];
        small += std::stoi(ids) < 40 ? tokens : 0.0;
        all += tokens;
      }
    }
    return small / all;
  }
};

TEST_F(MixtureRun, SharesRanksAndResume) {
  const nlohmann::json sets = json("prepare recipe.yaml --json")["train"]["data_sets"];
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_NEAR(sets[0]["token_share"].get<double>(), 0.25, 1e-9);
  EXPECT_GT(sets[0]["times_an_epoch"].get<double>(), 1.5) << "a small set is read several times";
  EXPECT_NEAR(share_of_small(80), 0.25, 0.02);
  ASSERT_EQ(hawser("fit recipe.yaml").code, 0);
  const std::vector<double> one = losses("run");
  ASSERT_EQ(one.size(), 8u);
  for (const char* ranks : {"2", "4"}) {
    ASSERT_EQ(hawser(cat("fit recipe.yaml --set output=more", ranks, " --ranks ", ranks)).code, 0);
    const std::vector<double> more = losses(cat("more", ranks));
    ASSERT_EQ(more.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], more[i], 1e-5) << ranks;
  }
  // Stopped and resumed, the run reads the same.
  const std::string half = " --set output=half --set optimizer.schedule=constant";
  ASSERT_EQ(hawser("fit recipe.yaml" + half + " --set train.steps=3").code, 0);
  ASSERT_EQ(hawser("fit recipe.yaml --resume" + half).code, 0);
  ASSERT_EQ(hawser("fit recipe.yaml --set output=whole --set optimizer.schedule=constant").code, 0);
  EXPECT_EQ(losses("half"), losses("whole"));
}

TEST_F(MixtureRun, AResumeMayHaveOtherWeights) {
  ASSERT_EQ(hawser("fit recipe.yaml --set train.steps=3").code, 0);
  write("recipe.yaml", recipe("[{path: small.jsonl, weight: 0.9}, {path: large.jsonl, weight: 0.1}]"));
  const testing::Ran resumed = hawser("fit recipe.yaml --resume");
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("data.train has other weights from step 4 on"), std::string::npos) << resumed.err;
  const testing::Ran again = hawser("fit recipe.yaml --resume --set train.steps=9");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.err.find("other weights"), std::string::npos) << again.err;
}

TEST_F(MixtureRun, MistakesAreReported) {
  const auto wrong = [&](const std::string& train) {
    write("bad.yaml", recipe(train));
    const testing::Ran ran = hawser("prepare bad.yaml");
    EXPECT_EQ(ran.code, 2) << train;
    return ran.err;
  };
  EXPECT_NE(wrong("[{path: small.jsonl, weight: 1}, large.jsonl]").find("weights of some data sets only"),
            std::string::npos);
  EXPECT_NE(wrong("[{path: small.jsonl, wait: 1}]").find("unknown key of a data set: wait"), std::string::npos);
  EXPECT_NE(wrong("[{path: small.jsonl, weight: -1}]").find("weight of a data set"), std::string::npos);
  EXPECT_NE(wrong("[{path: small.jsonl, weight: 1, repeat: 2}]").find("a data set with weight and repeat"),
            std::string::npos);
  EXPECT_NE(wrong("[{weight: 1}]").find("a data set without a path"), std::string::npos);
}

}  // namespace mixture_test
}  // namespace hawser
