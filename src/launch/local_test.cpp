// Launches testing/main.cpp with mpirun.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "launch/launcher_environment.h"
#include "launch/local.h"
#include "launch/mpirun.h"
#include "launch/testing/full_pipe.h"

namespace hawser {
namespace local_test {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void redirect(int stream, int file) {
  if (file < 0 || dup2(file, stream) < 0) std::abort();
}

// A launcher in its own process, like `hawser fit`, with standard output and error in files.
class Launched {
 public:
  struct Setting {
    bool bare = false;     // without environment variables
    bool crowded = false;  // with another thread that blocks no signal, such as a GPU driver's
    std::chrono::milliseconds start_limit = std::chrono::seconds(120), exit_limit = std::chrono::seconds(120);
    rlimit open_files = {};
    rlim_t file_size = 0;
    int errors = -1;            // standard error, instead of the file
    bool small_memory = false;  // a /dev/shm of 16 KiB; needs root
    rlim_t processes = 0;       // of a user of its own; needs root
  };
  Launched(int ranks, std::vector<std::string> words) : Launched(ranks, std::move(words), Setting()) {}
  Launched(int ranks, std::vector<std::string> words, const Setting& setting) {
    for (std::string& word : words)
      if (word == "PIDS") word = folder.path("pid");
    words.insert(words.begin(), testing::kTestRank);
    process = fork();
    if (process < 0) std::abort();
    if (process == 0) {
      redirect(STDOUT_FILENO, open((folder / "out").c_str(), O_WRONLY | O_CREAT, 0600));
      redirect(STDERR_FILENO,
               setting.errors >= 0 ? setting.errors : open((folder / "err").c_str(), O_WRONLY | O_CREAT, 0600));
      if (setting.bare) clearenv();
      if (setting.open_files.rlim_max > 0) setrlimit(RLIMIT_NOFILE, &setting.open_files);
      if (setting.file_size > 0) {
        const rlimit limit{setting.file_size, setting.file_size};
        setrlimit(RLIMIT_FSIZE, &limit);
      }
      if (setting.small_memory && (unshare(CLONE_NEWNS) != 0 || mount("", "/", "", MS_REC | MS_PRIVATE, "") != 0 ||
                                   mount("", "/dev/shm", "tmpfs", 0, "size=16k") != 0)) {
        _exit(kNotPermitted);
      }
      if (setting.processes > 0) {
        const rlimit limit{setting.processes, setting.processes};
        constexpr uid_t kUser = 54321;
        if (setrlimit(RLIMIT_NPROC, &limit) != 0 || setresuid(kUser, kUser, kUser) != 0) _exit(kNotPermitted);
      }
      if (setting.crowded) {
        std::thread([] {
          for (;;) pause();
        }).detach();
      }
      int code = 99;
      try {
        code = launch_local({.ranks = ranks,
                             .threads = 3,
                             .command = words,
                             .saves = true,
                             .start_limit = setting.start_limit,
                             .exit_limit = setting.exit_limit})
                   .code;
      } catch (const Error& error) {
        if (write(STDERR_FILENO, error.what(), std::strlen(error.what())) < 0) code = 98;
        code = static_cast<int>(error.code());
      }
      _exit(code);
    }
  }
  ~Launched() {
    if (process > 0) {
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
    }
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  static constexpr int kNotPermitted = 77;

  int wait() {
    int status = 0;
    waitpid(process, &status, 0);
    process = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  // The pid of a running rank. Throws if the rank does not start: kill(-1) would signal every process.
  pid_t pid_of(int rank) const {
    const fs::path file = folder / ("pid." + std::to_string(rank));
    for (const auto end = Clock::now() + std::chrono::seconds(20); Clock::now() < end;) {
      const std::string text = read_file(file);
      if (!text.empty() && std::stoi(text) > 1) return std::stoi(text);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    throw std::runtime_error(cat("rank ", rank, " did not start: ", err()));
  }
  std::string out() const { return folder.read("out"); }
  std::string err() const { return folder.read("err"); }

  TemporaryFolder folder;
  pid_t process = -1;
};

// True if the process is gone or a zombie.
bool ended(pid_t pid) {
  std::ifstream status(cat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(status, text)) return true;
  return text.find(") Z ") != std::string::npos || text.find(") X ") != std::string::npos;
}

pid_t parent_of(pid_t pid) {
  std::istringstream stat(read_file(cat("/proc/", pid, "/stat")));
  std::string number, name, state;
  pid_t parent = 0;
  stat >> number >> name >> state >> parent;
  return parent > 1 ? parent : throw std::runtime_error("no parent");
}

pid_t child_of(pid_t parent) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::istringstream stat(read_file(entry.path() / "stat"));
    std::string number, program, state;
    pid_t of = 0;
    if (stat >> number >> program >> state >> of && of == parent) return std::stoi(name);
  }
  throw std::runtime_error("no child");
}

bool end_within(pid_t pid, int seconds) {
  for (const auto end = Clock::now() + std::chrono::seconds(seconds); Clock::now() < end;) {
    if (ended(pid)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return ended(pid);
}

TEST(LaunchLocal, StandardOutputIsRankZerosByteForByte) {
  Launched run(3, {"output"});
  EXPECT_EQ(run.wait(), 0);
  std::string expected;
  for (int i = 0; i < 50000; ++i) expected += cat(i, "\n");
  const std::string out = run.out();
  EXPECT_TRUE(out == expected + "no newline at the end")
      << out.size() << " bytes, ends: " << out.substr(out.size() - std::min<std::size_t>(out.size(), 100));
  const std::string err = run.err();
  for (int rank = 0; rank < 3; ++rank) EXPECT_NE(err.find(cat("rank ", rank, "\r3\n")), std::string::npos) << err;
  EXPECT_EQ(err.size(), 3 * std::string("rank 0\r3\n").size());
}

// With `crowded`, the other thread receives SIGCHLD in two of three runs, and the signal is lost. The launcher must
// detect mpirun's exit anyway.
TEST(LaunchLocal, EndsIfAnotherThreadReceivesItsSignals) {
  for (int turn = 0; turn < 4; ++turn) {
    Launched run(1, {"code", "0"}, {.crowded = true});
    ASSERT_TRUE(end_within(run.process, 30)) << "turn " << turn;
    EXPECT_EQ(run.wait(), 0);
  }
}

TEST(LaunchLocal, ReturnsTheCodeOnWhichRanksAgree) {
  for (const int code : {1, 2, 4, 130}) {
    Launched run(2, {"code", cat(code)});
    EXPECT_EQ(run.wait(), code);
    EXPECT_EQ(run.err(), "hawser: a.yaml: this and that\n");
  }
}

TEST(LaunchLocal, NeedsNoEnvironment) {
  Launched run(2, {"code", "0"}, {.bare = true});
  EXPECT_EQ(run.wait(), 0) << run.err();
}

TEST(LaunchLocal, PassesOnTheCodeOfAnAbort) {
  Launched five(2, {"abort", "5"});
  EXPECT_EQ(five.wait(), 5);
  EXPECT_EQ(five.err(), "hawser: rank 1 exited with code 5\n");
  Launched other(2, {"abort", "42"});
  EXPECT_EQ(other.wait(), 3);
}

TEST(LaunchLocal, ACodeThatNoRankReportsIsAnError) {
  Launched run(2, {"code", "17"});
  EXPECT_EQ(run.wait(), 3);
}

TEST(LaunchLocal, ARankThatDiesEndsTheRunAndIsNamed) {
  const auto begin = Clock::now();
  Launched run(3, {"kill"});
  EXPECT_EQ(run.wait(), 3);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(
      run.err(),
      "hawser: rank 2 was killed by signal 9 (Killed); probably out of memory, unless it was killed on purpose\n");
}

TEST(LaunchLocal, ARankKilledFromOutsideEndsAllOthers) {
  Launched run(3, {"wait", "PIDS"});
  const std::vector<pid_t> pids = {run.pid_of(0), run.pid_of(1), run.pid_of(2)};
  const auto begin = Clock::now();
  kill(pids[1], SIGKILL);
  EXPECT_EQ(run.wait(), 3);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_NE(run.err().find("hawser: rank 1 was killed by signal 9"), std::string::npos) << run.err();
  for (const pid_t pid : pids) EXPECT_TRUE(end_within(pid, 5));
}

TEST(LaunchLocal, ARankThatLeavesIsNamed) {
  Launched run(2, {"leave"});
  EXPECT_EQ(run.wait(), 3);
  EXPECT_EQ(run.err(), "hawser: rank 1 exited before the run ended\n");
}

TEST(LaunchLocal, TheFirstInterruptLetsRanksSave) {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    Launched run(2, {"wait", "PIDS"});
    run.pid_of(0);
    run.pid_of(1);
    kill(run.process, signal);
    EXPECT_EQ(run.wait(), 130);
    EXPECT_EQ(run.err(), "hawser: saving and stopping; interrupt again to stop at once\nsaved\n");
  }
}

// Slurm's --signal=USR1 may come when all is done, in the last moments of the launcher.
TEST(LaunchLocal, ARequestToSaveAfterTheEndChangesNothing) {
  Launched run(2, {"pause", "PIDS"});
  const pid_t mpirun = parent_of(run.pid_of(0));
  run.pid_of(1);
  while (!ended(mpirun)) std::this_thread::sleep_for(std::chrono::microseconds(100));
  for (int i = 0; i < 2000 && kill(run.process, SIGUSR1) == 0 && !ended(run.process); ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_EQ(run.wait(), 0) << run.err();
}

// As `systemctl stop` does it: to the launcher, mpirun and the ranks, in no particular order.
TEST(LaunchLocal, ASignalToAllProcessesLetsRanksSave) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const bool ranks_first : {false, true}) {
      Launched run(2, {signal == SIGINT ? "slow" : "wait", "PIDS"});
      std::vector<pid_t> pids = {run.process, parent_of(run.pid_of(0)), run.pid_of(0), run.pid_of(1)};
      if (ranks_first) std::reverse(pids.begin(), pids.end());
      for (const pid_t pid : pids) kill(pid, signal);
      EXPECT_EQ(run.wait(), 130);
      // The ranks may be done before the launcher has announced it.
      EXPECT_NE(run.err().find("saved\n"), std::string::npos) << run.err();
      EXPECT_EQ(run.err().find("lost"), std::string::npos) << run.err();
    }
  }
}

TEST(LaunchLocal, AnMpirunThatLosesTheCodeIsReported) {
  Launched run(2, {"unnoted"});
  EXPECT_EQ(run.wait(), 3);
  EXPECT_EQ(run.err(),
            "hawser: mpirun reports success, but 2 of 2 ranks did not finish; check which mpirun is first in PATH\n");
}

TEST(LaunchLocal, AStoppedMpirunIsContinued) {
  Launched run(2, {"wait", "PIDS"});
  run.pid_of(0);
  run.pid_of(1);
  kill(child_of(run.process), SIGSTOP);
  kill(run.process, SIGTERM);
  EXPECT_TRUE(end_within(run.process, 10));
  EXPECT_EQ(run.wait(), 130);
  EXPECT_EQ(run.err(), "hawser: saving and stopping; interrupt again to stop at once\nsaved\n");
}

TEST(LaunchLocal, RanksThatDoNotStartEndTheRunAfterATimeLimit) {
  for (const char* what : {"unstarted", "absent"}) {
    Launched run(2, {what}, {.start_limit = std::chrono::milliseconds(1500)});
    const auto begin = Clock::now();
    EXPECT_EQ(run.wait(), 3);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    EXPECT_EQ(run.err(),
              "hawser: 2 of 2 ranks did not start within 1 s; check mpirun and the limits of open files and "
              "processes (ulimit -n, ulimit -u)\n");
  }
}

TEST(LaunchLocal, ARankThatDoesNotExitEndsTheRunAfterATimeLimit) {
  Launched run(3, {"stays"}, {.exit_limit = std::chrono::milliseconds(1500)});
  EXPECT_TRUE(end_within(run.process, 10));
  EXPECT_EQ(run.wait(), 3);
  EXPECT_EQ(run.err(), "hawser: a rank did not exit within 1 s after its work, which is complete; it is killed\n");
}

// Nothing is computed yet, so nothing can be saved; schedulers send a single SIGTERM.
TEST(LaunchLocal, TheFirstSignalBeforeRanksHaveStartedEndsTheRun) {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const bool stopped : {false, true}) {  // mpirun itself
      Launched run(2, {signal == SIGINT ? "unstarted" : "absent"});
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      const pid_t mpirun = child_of(run.process);
      if (stopped) kill(mpirun, SIGSTOP);
      const auto begin = Clock::now();
      kill(run.process, signal);
      EXPECT_EQ(run.wait(), 130);
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
      EXPECT_EQ(run.err(), "hawser: interrupted\n");
      EXPECT_TRUE(end_within(mpirun, 5));
    }
  }
}

// Slurm's --signal=USR1 announces the end of a job, however early: the ranks save as soon as they can.
TEST(LaunchLocal, ARequestToSaveBeforeRanksHaveStartedIsKept) {
  Launched run(2, {"late", "PIDS"});
  run.pid_of(0);
  run.pid_of(1);
  kill(run.process, SIGUSR1);
  for (const auto end = Clock::now() + std::chrono::seconds(2); run.err().empty() && Clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  run.folder.write("pid.go", "");
  ASSERT_TRUE(end_within(run.process, 20));
  EXPECT_EQ(run.wait(), 130);
  EXPECT_EQ(run.err(), "hawser: saving and stopping; interrupt again to stop at once\nsaved\n");
}

TEST(LaunchLocal, TheSecondInterruptEndsRanksThatDoNotStop) {
  Launched run(2, {"stubborn", "PIDS"});
  const std::vector<pid_t> pids = {run.pid_of(0), run.pid_of(1)};
  const auto begin = Clock::now();
  kill(run.process, SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  kill(run.process, SIGINT);
  EXPECT_EQ(run.wait(), 130);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  for (const pid_t pid : pids) EXPECT_TRUE(end_within(pid, 5));
}

TEST(LaunchLocal, SignalsEndTheRunWhileNoProcessReadsStandardError) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  fill(ends[1]);
  Launched run(2, {"stubborn", "PIDS"}, {.errors = ends[1]});
  const std::vector<pid_t> pids = {run.pid_of(0), run.pid_of(1)};
  kill(run.process, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  kill(run.process, SIGTERM);
  EXPECT_TRUE(end_within(run.process, 8));
  EXPECT_EQ(run.wait(), 130);
  for (const pid_t pid : pids) EXPECT_TRUE(end_within(pid, 5));
  close(ends[0]);
  close(ends[1]);
}

// The rank writes more than the launcher stores.
TEST(LaunchLocal, ASlowReaderOfStandardErrorReceivesAll) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  Launched run(1, {"errors"}, {.errors = ends[1]});
  close(ends[1]);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  std::string text;
  std::array<char, 65536> bytes{};
  for (ssize_t size = 0; (size = read(ends[0], bytes.data(), bytes.size())) > 0;) {
    text.append(bytes.data(), static_cast<std::size_t>(size));
  }
  close(ends[0]);
  EXPECT_EQ(run.wait(), 0);
  std::string expected;
  for (int i = 0; i < 400000; ++i) expected += cat(i, "\n");
  EXPECT_TRUE(text == expected) << text.size() << " bytes of " << expected.size();
}

TEST(LaunchLocal, KillingTheLauncherEndsTheRanks) {
  Launched run(2, {"stubborn", "PIDS"});
  const std::vector<pid_t> pids = {run.pid_of(0), run.pid_of(1)};
  kill(run.process, SIGKILL);
  run.wait();
  for (const pid_t pid : pids) EXPECT_TRUE(end_within(pid, 10));
}

TEST(LaunchLocal, KillingMpirunLeavesNoRank) {
  Launched run(3, {"stubborn", "PIDS"});
  const std::vector<pid_t> pids = {run.pid_of(0), run.pid_of(1), run.pid_of(2)};
  kill(pids[1], SIGSTOP);
  kill(parent_of(pids[0]), SIGKILL);
  EXPECT_EQ(run.wait(), 3);
  EXPECT_EQ(run.err(), "hawser: the ranks were killed by signal 9\n");
  for (const pid_t pid : pids) EXPECT_TRUE(ended(pid));
}

TEST(LaunchLocal, LeavesNoSharedMemoryBehind) {
  const auto folders = [] {
    std::set<std::string> all;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
      if (entry.path().filename().string().starts_with("hawser-ranks-")) all.insert(entry.path());
    }
    return all;
  };
  const auto abandoned = [](const std::string& folder) {  // its launcher has ended
    const int lock = open((folder + "/lock").c_str(), O_RDWR | O_CLOEXEC);
    const bool free = lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) == 0;
    close(lock);
    return free;
  };
  const std::set<std::string> earlier = folders();
  Launched killed(2, {"stubborn", "PIDS"});
  killed.pid_of(0);
  kill(killed.process, SIGKILL);
  killed.wait();
  // The folder of `killed`, and maybe of others on this machine that were killed just now.
  std::set<std::string> left = folders();
  std::erase_if(left, [&](const std::string& folder) { return earlier.contains(folder) || !abandoned(folder); });
  Launched next(2, {"code", "0"});
  next.wait();
  for (const std::string& folder : left) EXPECT_FALSE(fs::exists(folder)) << folder;
}

TEST(LaunchLocal, RaisesALowSoftLimitOfOpenFiles) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  ASSERT_GE(limit.rlim_max, 320U);
  Launched run(2, {"code", "0"}, {.open_files = {12, 320}});
  EXPECT_EQ(run.wait(), 0) << run.err();
}

TEST(LaunchLocal, ReportsATooLowHardLimitOfOpenFilesAtOnce) {
  const auto begin = Clock::now();
  Launched run(2, {"code", "0"}, {.open_files = {24, 24}});
  EXPECT_EQ(run.wait(), 2);
  EXPECT_EQ(run.err(),
            "the limit of open files is too low to start 2 ranks (expected at least 40, got 24); try a higher limit "
            "(ulimit -n), or --ranks 1");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(LaunchLocal, ReportsATooLowLimitOfFileSizeAtOnce) {
  Launched run(2, {"code", "0"}, {.file_size = rlim_t{1} << 20});
  EXPECT_EQ(run.wait(), 2);
  EXPECT_EQ(run.err(),
            "the limit of the size of files is too low to start ranks (expected at least 16 MiB, got 1024 KiB); try a "
            "higher limit (ulimit -f), or --ranks 1");
  Launched enough(2, {"code", "0"}, {.file_size = rlim_t{16} << 20});
  EXPECT_EQ(enough.wait(), 0) << enough.err();
}

TEST(LaunchLocal, ReportsTooLittleSharedMemoryAtOnce) {
  Launched run(2, {"code", "0"}, {.small_memory = true});
  const int code = run.wait();
  if (code == Launched::kNotPermitted) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(code, 2);
  EXPECT_EQ(run.err(),
            "/dev/shm: not enough space for the shared memory of ranks (expected at least 9 MiB, got 0 MiB); try "
            "docker run --shm-size=1g, or --ranks 1");
}

// Two processes: the launcher and its thread.
TEST(LaunchLocal, ReportsTheLimitOfProcesses) {
  Launched run(2, {"code", "0"}, {.processes = 2});
  const int code = run.wait();
  if (code == Launched::kNotPermitted) GTEST_SKIP() << "needs root";
  EXPECT_EQ(code, 2);
  EXPECT_EQ(run.err(),
            "cannot start mpirun: Resource temporarily unavailable; try a higher limit of processes (ulimit -u), or "
            "--ranks 1");
}

TEST(LaunchLocal, ReportsWhatToInstallIfMpirunIsMissing) {
  const char* const before = std::getenv("PATH");
  ASSERT_NE(before, nullptr);
  const std::string path = before;
  setenv("PATH", "/nowhere", 1);
  const char* const chosen = std::getenv(kMpirunVariable);
  const std::string mpirun = chosen != nullptr ? chosen : "";
  unsetenv(kMpirunVariable);
  try {
    launch_local({.ranks = 2, .command = {"true"}});
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "mpirun is not installed; it starts the ranks; try apt-get install openmpi-bin, pip install "
                 "'hawser-trainer[mpi]', or --ranks 1");
  }
  setenv("PATH", path.c_str(), 1);
  if (!mpirun.empty()) setenv(kMpirunVariable, mpirun.c_str(), 1);
}

TEST(LaunchLocal, ReportsMpirunsErrorIfNothingStarts) {
  std::string name = (fs::temp_directory_path() / "hawser-none").string();
  const pid_t child = fork();
  if (child == 0) {
    redirect(STDERR_FILENO, open("/dev/null", O_WRONLY));
    _exit(launch_local({.ranks = 2, .command = {name}}).code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 1);
}

}  // namespace local_test
}  // namespace hawser
