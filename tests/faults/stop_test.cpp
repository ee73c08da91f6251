// SIGINT and the like save and stop; a rank that hangs is found and named; only one run at a time writes an output.
#include <gtest/gtest.h>
#include <signal.h>
#include "base/testing/test_paths.h"

#include <cstdio>
#include <regex>
#include <sstream>

#include "harness.h"

namespace hawser::faults {
namespace stop_test {

constexpr std::int64_t kSteps = 300;

// Whether a rank is in a list of ranks such as "0, 2-3"; "0-2:2" has a stride.
bool listed(const std::string& text, int rank) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0, stride = 1;
    const int read = std::sscanf(part.c_str(), " %d-%d:%d", &first, &last, &stride);
    if (read < 2) last = first;
    if (read > 0 && first <= rank && rank <= last && (rank - first) % stride == 0) return true;
  }
  return false;
}

TEST(Stop, SavesAndContinuesBitwiseEqual) {
  const struct {
    const char* ranks;
    int signal;
    const char* every;
  } kCases[] = {{"1", SIGINT, "0"}, {"1", SIGTERM, "5"}, {"4", SIGINT, "0"}, {"2", SIGTERM, "5"}};
  for (const auto& [ranks, signal, every] : kCases) {
    SCOPED_TRACE(std::string(ranks) + " ranks, signal " + std::to_string(signal));
    const Workplace place;
    const std::vector<std::string> words = {"--ranks", ranks, std::string("checkpoint.every_steps=") + every};
    auto whole_words = words;
    whole_words.push_back("output=whole");
    const Ended whole = run(place, whole_words);
    ASSERT_EQ(whole.code, 0) << whole.err;

    Fit going(place, words);
    ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 7 || !going.going(); }));
    kill(going.pid(), signal);
    const Ended stopped = going.wait();
    EXPECT_EQ(stopped.code, 130) << stopped.err;
    EXPECT_LT(stopped.seconds, patient(10));
    const auto saved = verified_step(place.out());
    EXPECT_LT(saved, kSteps);
    EXPECT_EQ(static_cast<std::int64_t>(metrics(place.out()).size()), saved) << "steps that were done were not saved";
    EXPECT_NE(stopped.err.find("--resume"), std::string::npos) << stopped.err;

    auto resume_words = words;
    resume_words.push_back("--resume");
    const Ended resumed = run(place, resume_words);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    expect_equal_runs(place.out("whole"), place.out(), kSteps);
  }
}

TEST(Stop, TwiceEndsAtOnce) {
  const Workplace place;
  Fit going(place, {"--ranks", "2", "train.steps=100000", "checkpoint.every_steps=0"});
  ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 3 || !going.going(); }));
  const auto ranks = going.ranks();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks.at(1), SIGSTOP);  // so that it cannot save
  kill(going.pid(), SIGINT);
  ASSERT_TRUE(eventually([&] { return going.err().find("saving and stopping") != std::string::npos; }, 5));
  kill(going.pid(), SIGINT);
  const Ended ended = going.wait(20);
  EXPECT_EQ(ended.code, 130) << ended.err;
  EXPECT_LT(ended.seconds, patient(10));
}

TEST(Stop, ARankThatHangsIsNamed) {
  const Workplace place;
  Fit going(place, {"--ranks", "4", "train.steps=100000", "checkpoint.every_steps=0", "run.collective_timeout_s=3"});
  ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 20 || !going.going(); }));
  const auto ranks = going.ranks();
  ASSERT_EQ(ranks.size(), 4u);
  kill(ranks.at(2), SIGSTOP);
  const Ended ended = going.wait(30);
  EXPECT_EQ(ended.code, 3) << ended.err;
  EXPECT_LT(ended.seconds, patient(3 + 10));
  ASSERT_EQ(ended.lines().size(), 1u) << ended.err;
  const std::string line = ended.lines().front();
  // Other ranks that wait for it may be named too.
  const std::regex form(
      "hawser: rank \\d: [a-z_]+ on .* waited 3 s for ranks? ([-0-9:, ]+); phase: step .*; last done: .*");
  std::smatch match;
  ASSERT_TRUE(std::regex_match(line, match, form)) << line;
  EXPECT_TRUE(listed(match[1], 2)) << line;
  // Nothing is left of it, including the stopped rank.
  EXPECT_TRUE(eventually([&] { return kill(ranks.at(2), 0) != 0; }, 10));
}

TEST(Stop, OneRunAtATimeWritesAnOutput) {
  const Workplace place;
  Fit going(place, {"train.steps=100000", "checkpoint.every_steps=0"});
  ASSERT_TRUE(eventually([&] { return !metrics(place.out()).empty() || !going.going(); }));
  const Ended second = run(place, {"train.steps=6"});
  EXPECT_EQ(second.code, 2);
  ASSERT_EQ(second.lines().size(), 1u) << second.err;
  EXPECT_NE(second.err.find("another run is writing to this folder"), std::string::npos) << second.err;
  EXPECT_TRUE(going.going());
}

TEST(Stop, AReaderThatLeavesDoesNotEndTheRun) {
  const Workplace place;
  for (const char* ranks : {"1", "2"}) {
    const std::string command = std::string("cd ") + place.folder().string() + " && (" + testing::kHawser +
                                " fit recipe.yaml --ranks " + ranks +
                                " --set train.steps=30 --set checkpoint.every_steps=1; echo $? > code) 2>&1 | true";
    ASSERT_EQ(std::system(command.c_str()), 0);
    ASSERT_TRUE(eventually([&] { return fs::exists(place.folder() / "code"); }));
    EXPECT_EQ(verified_step(place.out()), 30);
    fs::remove(place.folder() / "code");
  }
}

}  // namespace stop_test
}  // namespace hawser::faults
