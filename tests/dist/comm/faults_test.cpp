// A rank that is absent, stops, dies or fails: every rank ends soon, and one line reports what happened.
// Argument: the comm_ranks_test binary.
#include <gtest/gtest.h>
#include <cstdio>

#include "faults_run.h"

namespace hawser {
namespace faults_test {

using namespace faults;  // NOLINT

constexpr double kTimeout = 2.0;  // as in faults.cpp

// All of three ranks end soon, with exit code 3, and the output has a text.
void expect_end(const std::string& fault, const std::string& text, int at_most) {
  const Outcome out = run(fault, 3);
  EXPECT_EQ(out.code, 3) << out.output;
  EXPECT_LT(out.seconds, kTimeout + 10);
  EXPECT_GE(count(out.output, text), 1) << out.output;
  EXPECT_LE(count(out.output, text), at_most) << out.output;
  expect_all_ended(out, 3);
}

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

TEST(Faults, ARankThatDoesNotStartEndsAll) {
  expect_end("unstarted", "MPI did not start within 2 s: a rank has not started, is stopped", 2);  // both others
}

TEST(Faults, AStoppedRankIsNamedAndEnded) {
  expect_end("stopped", "for rank 1; phase: step 12 backward", 1);
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

TEST(Faults, MismatchedOperationsAreReported) {
  const Outcome out = run("mismatch", 2);
  EXPECT_EQ(out.code, 3) << out.output;
  EXPECT_GE(count(out.output, "the ranks run different operations; phase: step 12 backward"), 1) << out.output;
  expect_all_ended(out, 2);
}

TEST(Faults, ControlOperationsHaveATimeLimit) {
  const Outcome out = run("control", 2);
  EXPECT_EQ(out.code, 3) << out.output;
  EXPECT_EQ(count(out.output, "rank 0: any on the run waited 2 s for rank 1"), 1) << out.output;
  expect_all_ended(out, 2);
}

}  // namespace faults_test
}  // namespace hawser

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: comm_faults_test COMM_RANKS_TEST\n");
    return 2;
  }
  hawser::faults::ranks_binary = argv[1];
  return RUN_ALL_TESTS();
}
