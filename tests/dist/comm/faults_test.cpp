// A rank that does not come, stops, dies or fails: every rank ends soon, and one line says what happened.
// Argument: the comm_ranks_test binary.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/cat.h"

namespace hawser {
namespace {

std::string ranks_binary;

struct Outcome {
  std::string output;
  int code = -1;
  double seconds = 0;
  std::vector<int> pids;
};

Outcome run(const std::string& fault, int ranks) {
  const auto start = std::chrono::steady_clock::now();
  const std::string command =
      cat("timeout -k 1 60 " HAWSER_MPIEXEC " -q -np ", ranks, " ", ranks_binary, " --fault ", fault, " 2>&1");
  Outcome out;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> buffer;
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) out.output += buffer.data();
  const int status = pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::istringstream words(out.output);
  for (std::string word; words >> word;) {
    int pid = 0;
    if (word == "pid" && words >> pid) out.pids.push_back(pid);
  }
  return out;
}

// A zombie that nobody reaps has ended too.
bool alive(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const char state = text[text.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

void expect_all_ended(const Outcome& out, int ranks) {
  EXPECT_EQ(static_cast<int>(out.pids.size()), ranks) << out.output;
  for (const int pid : out.pids) {
    for (int i = 0; i < 20 && alive(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(alive(pid)) << pid << '\n' << out.output;
  }
}

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

constexpr double kTimeout = 2.0;  // as in faults.cpp

TEST(Faults, AMissingRankIsNamed) {
  for (const int ranks : {2, 4}) {
    const Outcome out = run("absent", ranks);
    EXPECT_EQ(out.code, 3) << out.output;
    EXPECT_LT(out.seconds, kTimeout + 10);
    EXPECT_EQ(count(out.output, "rank 0: all_reduce on data:"), 1) << out.output;
    EXPECT_EQ(count(out.output, "for rank 1; phase: step 12 backward; last done: "), 1) << out.output;
    expect_all_ended(out, ranks);
  }
}

TEST(Faults, AStoppedRankIsNamedAndEnded) {
  const Outcome out = run("stopped", 3);
  EXPECT_EQ(out.code, 3) << out.output;
  EXPECT_LT(out.seconds, kTimeout + 10);
  EXPECT_EQ(count(out.output, "for rank 1; phase: step 12 backward"), 1) << out.output;
  expect_all_ended(out, 3);
}

TEST(Faults, AKilledRankEndsAll) {
  const Outcome out = run("killed", 3);
  EXPECT_NE(out.code, 0) << out.output;
  EXPECT_LT(out.seconds, kTimeout + 10);
  expect_all_ended(out, 3);
}

TEST(Faults, AFailureOnOneRankEndsAllWithItsCode) {
  const Outcome out = run("exception", 3);
  EXPECT_EQ(out.code, 4) << out.output;
  EXPECT_LT(out.seconds, kTimeout + 8);
  EXPECT_EQ(count(out.output, "rank 1: disk full"), 1) << out.output;
  expect_all_ended(out, 3);
}

TEST(Faults, AWorldLeftByAnExceptionEndsAll) {
  const Outcome out = run("unwound", 3);
  EXPECT_EQ(out.code, 1) << out.output;
  EXPECT_LT(out.seconds, kTimeout + 8);
  expect_all_ended(out, 3);
}

TEST(Faults, RanksThatAskForDifferentThingsAreTold) {
  const Outcome out = run("mismatch", 2);
  EXPECT_EQ(out.code, 3) << out.output;
  EXPECT_GE(count(out.output, "do not ask for the same operations; phase: step 12 backward"), 1) << out.output;
  expect_all_ended(out, 2);
}

TEST(Faults, ControlOperationsHaveTheirLimitToo) {
  const Outcome out = run("control", 2);
  EXPECT_EQ(out.code, 3) << out.output;
  EXPECT_EQ(count(out.output, "rank 0: any on the run waited 2 s for rank 1"), 1) << out.output;
  expect_all_ended(out, 2);
}

}  // namespace
}  // namespace hawser

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: comm_faults_test COMM_RANKS_TEST\n");
    return 2;
  }
  hawser::ranks_binary = argv[1];
  return RUN_ALL_TESTS();
}
