// Common to all ways of starting: waiting threads do not spin, and a lack of memory ends in a line.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <sstream>

#include "base/testing/address_limit.h"
#include "base/testing/temporary_folder.h"
#include "harness.h"

namespace hawser::faults {
namespace {

// The environment as the process's libraries found it.
std::string variable(pid_t pid, const std::string& name) {
  std::istringstream all(read_file("/proc/" + std::to_string(pid) + "/environ"));
  for (std::string one; std::getline(all, one, '\0');) {
    if (one.starts_with(name + "=")) return one.substr(name.size() + 1);
  }
  return "";
}

TEST(Start, WaitingThreadsDoNotSpin) {
  for (const char* ranks : {"1", "2"}) {
    const Workplace place;
    Fit going(place, {"--ranks", ranks, "train.steps=100000000", "run.threads=2"});
    ASSERT_TRUE(eventually([&] { return !metrics(place.out()).empty() || !going.going(); })) << going.err();
    for (const auto& [rank, pid] : going.ranks()) {
      EXPECT_EQ(variable(pid, "OMP_WAIT_POLICY"), "passive");
      EXPECT_EQ(read_file("/proc/" + std::to_string(pid) + "/comm"), "hawser\n") << "by its own name";
    }
  }
}

TEST(Start, TheUsersWaitPolicyIsKept) {
  for (const auto& [name, value] : {std::pair{"OMP_WAIT_POLICY", "active"}, std::pair{"GOMP_SPINCOUNT", "1000"}}) {
    const Workplace place;
    setenv(name, value, 1);
    Fit going(place, {"train.steps=100000000"});
    unsetenv(name);
    ASSERT_TRUE(eventually([&] { return !metrics(place.out()).empty() || !going.going(); })) << going.err();
    EXPECT_EQ(variable(going.pid(), "OMP_WAIT_POLICY"), std::string(name) == "OMP_WAIT_POLICY" ? "active" : "");
    EXPECT_EQ(variable(going.pid(), name), value);
  }
}

// Runs with limits of `mib`; returns how many lacked memory.
int expect_a_line(const std::string& ranks, const std::string& threads, const std::vector<rlim_t>& limits) {
  const Workplace place;
  int rejected = 0;
  for (const rlim_t mib : limits) {
    SCOPED_TRACE(ranks + " ranks, " + threads + " threads, " + std::to_string(mib) + " MiB");
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    const rlimit limit{mib << 20, before.rlim_max};
    setrlimit(RLIMIT_AS, &limit);
    Fit going(place, {"--ranks", ranks, "train.steps=6", "run.threads=" + threads});
    setrlimit(RLIMIT_AS, &before);
    const Ended ended = going.wait(40);
    if (ended.code == 0) continue;
    ++rejected;
    EXPECT_EQ(ended.code, 4) << ended.err;
    auto lines = ended.lines();
    // A warning of a run that continued.
    std::erase_if(lines, [](const std::string& line) {
      return line.find("host memory is too small") != line.npos || line.find(": warning: ") != line.npos;
    });
    std::erase_if(lines, [](const std::string& line) { return !line.starts_with("hawser: "); });  // the run's settings
    EXPECT_EQ(lines.size(), 1u) << ended.err;
  }
  return rejected;
}

TEST(Start, WithTooLittleMemoryEndsInALine) {
  if (!AddressLimit::kPossible) GTEST_SKIP() << "needs a build without AddressSanitizer";
  std::vector<rlim_t> limits;
  for (rlim_t mib = 150; mib <= 600; mib += 40) limits.push_back(mib);
  EXPECT_GT(expect_a_line("1", "1", limits) + expect_a_line("1", "2", limits) + expect_a_line("1", "3", limits), 0)
      << "memory was never short";
}

TEST(Start, RanksWithTooLittleMemoryEndInALine) {
  if (!AddressLimit::kPossible) GTEST_SKIP() << "needs a build without AddressSanitizer";
  // Too little for mpirun, for MPI, and for the ranks.
  EXPECT_EQ(expect_a_line("2", "2", {160, 250, 400, 450, 500}), 5) << "memory was not short";
}

}  // namespace
}  // namespace hawser::faults
