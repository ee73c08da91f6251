// faults_test.cpp on GPUs: a rank that is absent, stops, dies or leaves; every rank ends within the limit, and one line
// names the collective. Argument: the comm_nccl_test binary.
#include <cstdio>

#include "device/device.h"
#include "faults_run.h"

namespace hawser {
namespace nccl_faults_test {

using namespace faults;  // NOLINT

constexpr double kTimeout = 15.0;  // as in faults.cpp
constexpr double kStart = 25.0;    // max time to start a run and connect its communicators
constexpr int kRanks = 2;

void expect_named(const char* fault) {
  const Outcome out = run(fault, kRanks);
  EXPECT_EQ(out.code, 3) << out.output;
  EXPECT_LT(out.seconds, kStart + kTimeout + 10);
  EXPECT_EQ(count(out.output,
                  "rank 0: all_reduce on data:0-1 (64 bytes) waited 15 s for the other members (ranks 0-1); "
                  "phase: step 12 backward; last done: all_reduce on "),
            1)
      << out.output;
  expect_all_ended(out, kRanks);
}

TEST(NcclFaults, AMissingRankEndsAll) {
  expect_named("absent");
}

// The host itself blocks: members connect at their first collective.
TEST(NcclFaults, ARankMissingAtTheFirstCollectiveEndsAll) {
  expect_named("unconnected");
}

TEST(NcclFaults, AStoppedRankEndsAll) {
  expect_named("stopped");
}

TEST(NcclFaults, ARankThatDiesOrLeavesEndsAll) {
  for (const char* fault : {"killed", "leaves"}) {
    const Outcome out = run(fault, kRanks);
    EXPECT_NE(out.code, 0) << out.output;
    EXPECT_LT(out.seconds, kStart + kTimeout + 10);
    expect_all_ended(out, kRanks);
  }
}

TEST(NcclFaults, AFailureOnOneRankEndsAllWithItsCode) {
  const Outcome out = run("exception", kRanks);
  EXPECT_EQ(out.code, 4) << out.output;
  EXPECT_EQ(count(out.output, "rank 1: disk full"), 1) << out.output;
  expect_all_ended(out, kRanks);
}

TEST(NcclFaults, AWorldLeftByAnExceptionEndsAll) {
  const Outcome out = run("unwound", kRanks);
  EXPECT_EQ(out.code, 1) << out.output;
  EXPECT_LT(out.seconds, kStart + kTimeout + 10);
  expect_all_ended(out, kRanks);
}

}  // namespace nccl_faults_test
}  // namespace hawser

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: comm_nccl_faults_test COMM_NCCL_TEST\n");
    return 2;
  }
  if (const hawser::CudaInfo info = hawser::cuda_info(); info.devices < hawser::nccl_faults_test::kRanks) {
    std::printf("SKIPPED: these cases need %d GPUs: %s\n", hawser::nccl_faults_test::kRanks,
                info.problem.empty() ? "there is one" : info.problem.c_str());
    return 77;
  }
  hawser::faults::ranks_binary = argv[1];
  return RUN_ALL_TESTS();
}
