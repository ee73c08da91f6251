// hawser doctor on this machine, and with resources removed.
#include <map>

#include "base/cat.h"
#include "base/testing/test_paths.h"
#include "cli/testing/binary.h"

namespace hawser {
namespace doctor_test {

namespace fs = std::filesystem;

class Doctor : public testing::Binary {
 protected:
  struct Found {
    int code = 0;
    nlohmann::json all;
    std::string err;

    // The findings of a check: "ok", "problem: VALUE: MEANING; ADVICE".
    std::vector<std::string> of(const std::string& check) const {
      std::vector<std::string> out;
      for (const auto& finding : all.value("findings", nlohmann::json::array())) {
        if (finding["check"] != check) continue;
        const std::string state = finding["state"], advice = finding["advice"];
        EXPECT_EQ(advice.empty(), state == "ok") << finding << ": what is not right has something to do";
        EXPECT_NE(finding["meaning"], "") << finding;
        out.push_back(state + ": " + finding["value"].get<std::string>() + ": " +
                      finding["meaning"].get<std::string>() + "; " + advice);
      }
      return out;
    }
    // Whether the check has exactly one finding, in this state and containing `words`.
    ::testing::AssertionResult is(const std::string& check, const std::string& state,
                                  const std::string& words = "") const {
      const auto found = of(check);
      if (found.size() == 1 && found[0].starts_with(state + ": ") && found[0].find(words) != std::string::npos)
        return ::testing::AssertionSuccess();
      return ::testing::AssertionFailure() << all.dump(1) << "\n" << err;
    }
  };

  Found doctor(const std::string& before, const std::string& arguments = "") {
    const testing::Ran ran = shell(before + " " + testing::kHawser + " doctor --json " + arguments);
    Found found{ran.code, nlohmann::json::parse(ran.out, nullptr, false), ran.err};
    EXPECT_TRUE(found.all.is_object()) << ran.out << ran.err;
    if (!found.all.is_object()) return found;
    int problems = 0;
    for (const auto& finding : found.all["findings"]) problems += finding["state"] == "problem" ? 1 : 0;
    EXPECT_EQ(found.all["problems"], problems);
    EXPECT_EQ(ran.code, problems == 0 ? 0 : 1);
    return found;
  }
  void program(const std::string& file, const std::string& text) {
    write(file, "#!/bin/sh\n" + text);
    fs::permissions(folder_ / file, fs::perms::owner_all);
  }
  // Programs of the test's folder take precedence.
  std::string ours() const { return "PATH=" + folder_.path("bin") + ":$PATH"; }
  std::string mpirun_of_ours() const { return "HAWSER_MPIRUN=" + folder_.path("bin/mpirun.openmpi"); }
};

TEST_F(Doctor, LooksAtThisMachineAndStartsRanks) {
  fs::create_directories(folder_ / "out");
  const Found found = doctor("", "--output out");
  EXPECT_TRUE(found.is("MPI", "ok", "Open MPI"));
  const auto ranks = found.of("ranks");
  ASSERT_EQ(ranks.size(), 1u) << found.err;
  EXPECT_FALSE(ranks[0].starts_with("problem")) << ranks[0] << found.err;
  EXPECT_NE(ranks[0].find("2 ranks all-reduce 4 bytes in "), std::string::npos) << ranks[0];
  for (const char* check : {"build", "CPU", "cores", "memory", "swap", "open files", "locked memory", "/dev/shm",
                            "clock", "network", "Hub", "output folder", "CUDA"}) {
    EXPECT_EQ(found.of(check).size(), 1u) << check;
  }
  EXPECT_TRUE(fs::is_empty(folder_ / "out")) << "nothing is left";
  // Text output: one line per check, the advice below it, and the counts.
  const testing::Ran text = hawser("doctor --ranks 3 --device cpu");
  EXPECT_NE(text.out.find("\nok       MPI "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("3 ranks all-reduce 4 bytes"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("CUDA"), std::string::npos) << text.out;
  const auto lines = testing::lines_of(text.out);
  EXPECT_NE(lines.back().find(" problems, "), std::string::npos) << text.out;
}

TEST_F(Doctor, SeesLimits) {
  EXPECT_TRUE(doctor("ulimit -n 200;").is("open files", "problem", "200"));
  EXPECT_TRUE(doctor("ulimit -n 512;").is("open files", "warning", "ulimit -n 4096"));
#ifndef __SANITIZE_ADDRESS__  // which needs terabytes of addresses
  EXPECT_TRUE(doctor("ulimit -v 60000000;").is("address space", "warning", "57.22 GiB"));
#endif
  EXPECT_TRUE(doctor("").of("address space").empty());
}

TEST_F(Doctor, SeesADiskThatCannotBeWritten) {
  write("file", "");
  EXPECT_TRUE(doctor("", "--output file").is("output folder", "problem", "not a folder"));
  EXPECT_TRUE(doctor("", "--output /proc").is("output folder", "problem", "cannot be written"));
  // For a missing folder, its parent is checked.
  EXPECT_TRUE(doctor("", "--output not/yet").is("output folder", "ok", folder_.path() + ",") ||
              doctor("", "--output not/yet").is("output folder", "warning", folder_.path() + ","));
  EXPECT_FALSE(fs::exists(folder_ / "not"));
}

// In a mount namespace of its own, where allowed.
TEST_F(Doctor, SeesSmallFileSystems) {
  if (shell("unshare -m mount -t tmpfs -o size=8m none .").code != 0) GTEST_SKIP() << "mounts of one's own need root";
  fs::create_directories(folder_ / "small");
  write("in-small",
        cat("mount -t tmpfs -o size=32m none small && ", testing::kHawser, " doctor --json --output small"));
  write("in-shm", cat("mount -t tmpfs -o size=16m none /dev/shm && ", testing::kHawser, " doctor --json"));
  const auto found = [&](const std::string& script) {
    return Found{0, nlohmann::json::parse(shell("unshare -m sh " + script).out, nullptr, false), ""};
  };
  EXPECT_TRUE(found("in-small").is("output folder", "problem", "32.0 MiB free"));
  EXPECT_TRUE(found("in-shm").is("/dev/shm", "problem", "docker run --shm-size=1g"));
}

TEST_F(Doctor, ChecksMpirun) {
  EXPECT_TRUE(doctor("PATH=/nowhere").is("MPI", "problem", "openmpi-bin"));
  program("bin/mpirun.openmpi", "echo 'Another MPI, version 3'\n");
  EXPECT_TRUE(doctor(mpirun_of_ours()).is("MPI", "problem", "Another MPI"));
  EXPECT_TRUE(doctor(ours()).is("MPI", "ok", "Open MPI")) << "the next one in PATH";
  program("bin/mpirun.openmpi", "[ \"$1\" = --version ] && echo 'mpirun (Open MPI) 9.9' || exit 7\n");
  const Found failing = doctor(ours());
  EXPECT_TRUE(failing.is("MPI", "ok", "Open MPI 9.9"));
  EXPECT_TRUE(failing.is("ranks", "problem", "2 started, exit code"));
  // A program that hangs is not waited for.
  program("bin/mpirun.openmpi", "sleep 60\n");
  EXPECT_TRUE(doctor(mpirun_of_ours()).is("MPI", "problem", "which prints no version"));
}

TEST_F(Doctor, ReadsNvidiaSmi) {
  program("bin/nvidia-smi", R"(case "$1" in
  --query-gpu=*) echo '0, NVIDIA H200, 570.86, 12000, 143771, 345, 1980, 500.00, 700.00'
                 echo '1, NVIDIA H200, 570.86, 4, 143771, 345, 1980, 700.00, 700.00' ;;
  --query-compute-apps=*) echo '4242, python, 11900' ;;
esac
)");
  program("bin/mpirun.openmpi", "exit 1\n");  // irrelevant here
  const Found found = doctor(ours());
  const auto first = found.of("GPU 0"), second = found.of("GPU 1");
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_TRUE(first[0].starts_with("warning: NVIDIA H200, 11.72 GiB of 140.40 GiB used, driver 570.86: ")) << first[0];
  EXPECT_TRUE(first[1].starts_with("warning: clock 345 of 1980 MHz, power limit 500.00 of 700.00 W: ")) << first[1];
  EXPECT_NE(first[1].find("nvidia-smi -pl 700"), std::string::npos) << first[1];
  EXPECT_TRUE(second[0].starts_with("ok: ")) << second[0];
  EXPECT_TRUE(second[1].starts_with("ok: ")) << second[1];
  EXPECT_TRUE(found.is("GPU in use", "warning", "process 4242 (python) holds 11.62 GiB"));
}

TEST_F(Doctor, LeavesNothingWhenInterrupted) {
  fs::create_directories(folder_ / "out");
  for (const char* seconds : {"0.15", "0.5", "1.2"}) {
    const testing::Ran ran = shell(std::string("timeout --preserve-status -s INT ") + seconds + " " + testing::kHawser +
                                   " doctor --output out");
    EXPECT_TRUE(ran.code == 130 || ran.code == 0) << seconds << ": " << ran.code << "\n" << ran.err;
    EXPECT_TRUE(fs::is_empty(folder_ / "out"));
  }
}

}  // namespace doctor_test
}  // namespace hawser
