// kill -9 at random moments, mostly during a save: the newest complete checkpoint always loads, and the pieces together
// equal a run that was never killed.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <thread>

#include "harness.h"

namespace hawser::faults {
namespace kill_test {

using Words = std::vector<std::string>;

// A constant learning rate, so that the steps do not depend on their total number.
const Words kEndless = {"--ranks",
                        "2",
                        "checkpoint.every_steps=1",
                        "optimizer.schedule=constant",
                        "optimizer.warmup_steps=0",
                        "run.collective_timeout_s=20"};

int kills() {
  const char* wanted = std::getenv("HAWSER_TEST_KILLS");
  return wanted != nullptr ? std::atoi(wanted) : 8;
}

Words words(const Words& more) {
  Words all = kEndless;
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void kill_again_and_again(bool all) {
  const Workplace place;
  std::mt19937 random(all ? 11 : 12);
  std::int64_t last = 0;
  int during_save = 0;
  for (int k = 0; k < kills(); ++k) {
    SCOPED_TRACE(k);
    Fit going(place, words({"train.steps=100000", "--resume"}));
    // Resumes from the last save (nothing of it is lost), and saves.
    ASSERT_TRUE(eventually([&] { return newest_step(place.out()) > last || !going.going(); })) << going.err();
    const auto ranks = going.ranks();
    ASSERT_EQ(ranks.size(), 2u) << going.err();
    const auto everybody = going.all();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 40000));
    const int rank = static_cast<int>(random() % 2);
    // Three of every four kills are during a save, one is anywhere. What is killed is stopped first, or the save may end
    // before the kill on a busy machine.
    if (k % 4 > 0) {
      const auto stopped = all ? everybody : std::vector<pid_t>{ranks.at(rank)};
      ASSERT_TRUE(eventually(
          [&] {
            if (!saving(place.out())) return false;
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
            for (const pid_t pid : stopped) kill(pid, SIGSTOP);
            if (saving(place.out())) return true;
            for (const pid_t pid : stopped) kill(pid, SIGCONT);
            return false;
          },
          20));
    }
    if (all) {
      kill_at_once(everybody);
    } else {
      kill(ranks.at(rank), SIGKILL);
    }
    const Ended ended = going.wait(30);
    if (!all) {
      EXPECT_EQ(ended.code, 3) << ended.err;
      EXPECT_LT(ended.seconds, patient(10));
      ASSERT_EQ(ended.lines().size(), 1u) << ended.err;
      EXPECT_NE(ended.err.find("hawser: rank " + std::to_string(rank) + " was killed by signal 9"), std::string::npos)
          << ended.err;
    }
    during_save += saving(place.out()) ? 1 : 0;  // what it wrote is still there
    const std::int64_t step = verified_step(place.out());
    EXPECT_GT(step, last);
    last = step;
  }
  std::cout << during_save << " of " << kills() << " kills hit a save; " << last << " steps in all\n";
  EXPECT_GE(during_save, kills() / 4) << "too few of the kills were where they hurt";

  const std::string steps = "train.steps=" + std::to_string(last + 3);
  const Ended resumed = run(place, words({steps, "--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_FALSE(saving(place.out())) << "a killed save's folder is still there";
  const Ended whole = run(place, words({steps, "output=whole", "checkpoint.every_steps=0"}));
  ASSERT_EQ(whole.code, 0) << whole.err;
  expect_equal_runs(place.out("whole"), place.out(), last + 3);
}

TEST(Kill, OneRank) {
  kill_again_and_again(false);
}

TEST(Kill, AllAtOnce) {
  kill_again_and_again(true);
}

}  // namespace kill_test
}  // namespace hawser::faults
