// Common to all ways of starting: waiting threads do not spin, and a lack of memory ends in a line.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/testing/address_limit.h"
#include "base/testing/temporary_folder.h"
#include "harness.h"

namespace hawser::faults {
namespace start_test {

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

// An mpirun of another MPI, or a variable that is left over: the run would train on one rank.
TEST(Start, VariablesOfALauncherWithoutItsMpiAreRejected) {
  const Workplace place;
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  Fit fit(place, {"--ranks", "2"});
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("OMPI_COMM_WORLD_RANK");
  const Ended ended = fit.wait();
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.err.find("MPI has another number of ranks than the launcher's variables say (expected 2, got 1)"),
            std::string::npos)
      << ended.err;
}

// The user's OpenMP settings may leave a team one thread: a slower run, of the same numbers.
TEST(Start, FewerThreadsThanAskedChangeNoNumber) {
  const auto losses = [](const char* name, const char* value) {
    const Workplace place;
    // Wide enough for GEMMs of several tiles.
    std::ofstream(place.folder() / "model.json") << R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64,
      "intermediate_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": true})";
    setenv(name, value, 1);
    Fit going(place, {"train.steps=6", "run.threads=2"});
    unsetenv(name);
    EXPECT_EQ(going.wait().code, 0) << going.err();
    std::vector<double> all;
    for (const auto& line : metrics(place.out())) all.push_back(line.loss);
    return all;
  };
  const std::vector<double> expected = losses("OMP_WAIT_POLICY", "passive");
  ASSERT_EQ(expected.size(), 6u);
  for (const auto& [name, value] : {std::pair{"OMP_THREAD_LIMIT", "1"}, std::pair{"OMP_DYNAMIC", "true"},
                                    std::pair{"OMP_MAX_ACTIVE_LEVELS", "0"}}) {
    EXPECT_EQ(losses(name, value), expected) << name;
  }
}

// Losses of micro-batches are summed in float64: the mean of equal ones is theirs.
TEST(Start, TheMeanOfManyLossesIsExact) {
  const Workplace place;
  Fit fit(place, {"train.steps=6"});
  ASSERT_EQ(fit.wait().code, 0) << fit.err();
  const auto loss_of = [&](int documents) {
    std::ofstream out(place.folder() / "many.jsonl");
    for (int i = 0; i < documents; ++i)
      out << R"({"input_ids": [7, 30]})"
          << "\n";
    out.close();
    Fit going(place, Fit::Command{.words = {"eval", "--model", "out", "--data", "many.jsonl", "--json"}});
    const Ended ended = going.wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
    return nlohmann::json::parse(ended.out)["loss"].get<double>();
  };
  const double one = loss_of(1);
  EXPECT_NEAR(loss_of(8000), one, 1e-9 * one);
}

// Slurm's gang scheduling, a paused container, Ctrl-Z: no rank is missing.
TEST(Start, ARunThatWasSuspendedAsAWholeContinues) {
  const Workplace place;
  Fit going(place, {"--ranks", "2", "train.steps=100000000", "run.collective_timeout_s=3"});
  ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() > 20 || !going.going(); })) << going.err();
  const std::vector<pid_t> all = going.all();
  for (const int signal : {SIGSTOP, SIGCONT}) {
    for (const pid_t pid : all) kill(pid, signal);
    if (signal == SIGSTOP) std::this_thread::sleep_for(std::chrono::seconds(6));
  }
  const std::size_t before = metrics(place.out()).size();
  EXPECT_TRUE(eventually([&] { return metrics(place.out()).size() > before + 20 || !going.going(); })) << going.err();
  EXPECT_TRUE(going.going()) << going.err();
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

}  // namespace start_test
}  // namespace hawser::faults
