// Tests of the launcher without mpirun.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

#include "base/error.h"
#include "launch/launcher_environment.h"
#include "launch/local.h"
#include "launch/mpirun_output.h"
#include "launch/process_session.h"
#include "launch/scratch.h"
#include "launch/stop.h"
#include "launch/stop_page.h"
#include "launch/testing/full_pipe.h"

namespace hawser {
namespace launch_test {

const std::string kRule(74, '-');

// Takes the variables of launchers out of the environment for one test, which mpirun or srun may have started.
class NoLauncher {
 public:
  NoLauncher() {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const std::size_t equals = std::min(text.find('='), text.size());
      for (const char* prefix : {"OMPI_COMM_WORLD_", "PMIX_", "SLURM_", "TORCHELASTIC_"}) {
        if (text.starts_with(prefix))
          variables_[text.substr(0, equals)] = text.substr(std::min(equals + 1, text.size()));
      }
    }
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  ~NoLauncher() {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  NoLauncher(const NoLauncher&) = delete;
  NoLauncher& operator=(const NoLauncher&) = delete;

 private:
  std::map<std::string, std::string> variables_;
};

// Sets environment variables for one test and unsets them afterwards.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::string> variables_;
};

TEST(UnderLauncher, KnowsMpirunAndSlurmSteps) {
  const NoLauncher alone;
  EXPECT_EQ(launched_as().ranks, 1);
  {
    const Environment mpirun({{"OMPI_COMM_WORLD_SIZE", "8"},
                              {"OMPI_COMM_WORLD_RANK", "5"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
    EXPECT_TRUE(under_launcher());
    const LaunchedAs as = launched_as();
    EXPECT_EQ(as.rank, 5);
    EXPECT_EQ(as.ranks, 8);
    EXPECT_EQ(as.local_rank, 1);
    EXPECT_EQ(as.local_ranks, 4);
    const Environment local({{"HAWSER_LAUNCHER", "local"}, {"HAWSER_TERMINAL_COLUMNS", "80"}});
    EXPECT_TRUE(launched_locally());
  }
  {
    const Environment left_over({{"HAWSER_LAUNCHER", "local"}, {"HAWSER_TERMINAL_COLUMNS", "80"}});
    EXPECT_FALSE(launched_locally());
  }
  {
    const Environment batch({{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}});
    EXPECT_FALSE(under_launcher());
  }
  {
    const Environment step({{"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "0"}});
    EXPECT_TRUE(under_launcher());
    EXPECT_EQ(launched_as().rank, 2);
    EXPECT_EQ(launched_as().ranks, 4);
    EXPECT_EQ(launched_as().local_ranks, 4);
    EXPECT_THROW(check_launcher(), UserError) << "no PMIx";
    const Environment pmix({{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.4.0"}});
    EXPECT_NO_THROW(check_launcher());
  }
  {
    const Environment alone({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}});
    EXPECT_NO_THROW(check_launcher());
  }
}

// Each process of torchrun would train alone; only the first one says so.
TEST(UnderLauncher, RejectsTorchrun) {
  const NoLauncher alone;
  const auto error = [](const char* rank, const char* size) {
    const Environment torchrun(
        {{"TORCHELASTIC_RUN_ID", "none"}, {"RANK", rank}, {"WORLD_SIZE", size}, {"LOCAL_WORLD_SIZE", "4"}});
    try {
      check_launcher();
    } catch (const UserError& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(error("0", "8"),
            "torchrun started 8 processes, of which each would train alone; try hawser fit RECIPE --ranks 4, which "
            "starts its own ranks, or mpirun or srun for several hosts");
  EXPECT_EQ(error("1", "8"), "");
  EXPECT_EQ(error("0", "1"), "none");
}

TEST(UnderLauncher, CountsTheRanksOfItsNode) {
  const NoLauncher alone;
  const struct {
    const char *list, *node;
    int ranks;
  } kCases[] = {{"4", "0", 4},   {"2(x3),1", "0", 2}, {"2(x3),1", "2", 2}, {"2(x3),1", "3", 1},
                {"2,3", "1", 3}, {"2,3", "2", 9},     {"x", "0", 9},       {"2(x", "0", 9}};
  for (const auto& [list, node, ranks] : kCases) {
    const Environment step({{"SLURM_PROCID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "9"},
                            {"SLURM_NODEID", node},
                            {"SLURM_STEP_TASKS_PER_NODE", list}});
    EXPECT_EQ(launched_as().local_ranks, ranks) << list << " " << node;
  }
}

TEST(Threads, AreSharedAmongTheRanksOfAMachine) {
  EXPECT_GE(threads_per_rank(1), 1);
  EXPECT_EQ(threads_per_rank(100000), 1);
  EXPECT_EQ(threads_per_rank(1), usable_cores());
}

TEST(Terminal, ComesFromTheLauncher) {
  const Environment rank(
      {{"HAWSER_LAUNCHER", "local"}, {"HAWSER_TERMINAL_COLUMNS", "132"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  EXPECT_TRUE(user_terminal().is_terminal);
  EXPECT_EQ(user_terminal().columns, 132);
  unsetenv("HAWSER_TERMINAL_COLUMNS");
  EXPECT_FALSE(user_terminal().is_terminal);
}

TEST(MpirunOutputFilter, RemovesAndStoresMpirunNotices) {
  MpirunOutputFilter filter;
  std::string shown;
  shown += filter.feed("step 1\nhawser: x\n" + kRule + "\nPrimary job  terminated normally, but 1 process returned\n");
  shown += filter.feed("a non-zero exit code. Per user-direction, the job has been aborted.\n" + kRule + "\n" + kRule);
  shown += filter.feed("\nmpirun noticed that process rank 1 with PID 0 on node vm exited on signal 11 ");
  shown += filter.flush();
  shown += filter.feed("(Segmentation fault).\n" + kRule + "\nhawser: x\nmpirun: Forwarding signal 10 to job\nend");
  shown += filter.finish();
  EXPECT_EQ(shown, "step 1\nhawser: x\nend\n");
  ASSERT_EQ(filter.ends().size(), 1u);
  EXPECT_EQ(filter.ends()[0].kind, RankEnd::Kind::killed);
  EXPECT_EQ(filter.ends()[0].rank, 1);
  EXPECT_EQ(filter.ends()[0].code, 11);
  EXPECT_EQ(filter.ends()[0].host, "vm");
  EXPECT_TRUE(filter.explained());
}

TEST(MpirunOutputFilter, PassesAProgressBarThrough) {
  MpirunOutputFilter filter;
  EXPECT_EQ(filter.feed("\rstep 1 [=  ]"), "");
  EXPECT_EQ(filter.flush(), "\rstep 1 [=  ]");
  EXPECT_EQ(filter.feed("\rstep 2 [== ]"), "");
  EXPECT_EQ(filter.flush(), "\rstep 2 [== ]");
  // A notice after an unfinished bar starts on a new line.
  EXPECT_EQ(filter.feed(kRule + "\nsomething else\nof two lines\n" + kRule + "\nafter\n"), "\nafter\n");
  EXPECT_EQ(filter.notices(), std::vector<std::string>{"something else of two lines"});
}

TEST(MpirunOutputFilter, AMessageAfterABarStartsANewLine) {
  MpirunOutputFilter filter;
  const std::string bar = "\rstep 1 [=  ]\x1b[K";
  EXPECT_EQ(filter.feed(bar + "hawser: rank 1: no\n"), bar + "\nhawser: rank 1: no\n");
  EXPECT_TRUE(filter.explained());
  filter.feed(bar);
  EXPECT_EQ(filter.flush(), bar);
  EXPECT_EQ(filter.feed("hawser: rank 1: no\n"), "") << "already printed";
  EXPECT_EQ(filter.feed(bar + "mpirun: Forwarding signal 10 to job\n"), bar);
  EXPECT_EQ(filter.feed("mpirun: Forwarding sig"), "");
  EXPECT_EQ(filter.flush(), "") << "may still become a dropped message";
  EXPECT_EQ(filter.feed("nal 10 to job\n"), "");
  EXPECT_TRUE(filter.end_line());
  EXPECT_FALSE(filter.end_line());
}

TEST(MpirunOutputFilter, PrintsOneCollectiveTimeout) {
  MpirunOutputFilter filter;
  const std::string line =
      "all_gather on shard:0-3 (8192 bytes) waited 3 s for rank 2; phase: step 1; last done: nothing\n";
  EXPECT_EQ(filter.feed("hawser: rank 1: " + line + "hawser: rank 0: " + line), "hawser: rank 1: " + line);
  EXPECT_EQ(filter.feed("[vm:27247] [[1681,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file "
                        "show_help.c at line 501\n[vm:27253] Read -1, expected 8192, errno = 3\n"),
            "");
}

TEST(MpirunOutputFilter, PrintsOneAllocationFailure) {
  MpirunOutputFilter filter;
  const std::string first = "hawser: out of memory; try fewer ranks\n";
  const std::string warning = "hawser: not enough host memory for a snapshot\n";
  EXPECT_EQ(filter.feed(first + "hawser: cannot create a thread (Resource temporarily unavailable)\n" +
                        "hawser: memory: cannot allocate 1 GiB\n" + warning),
            first + warning);
  EXPECT_TRUE(filter.explained());
}

TEST(MpirunOutputFilter, WaitsForTheEndOfASeparator) {
  MpirunOutputFilter filter;
  EXPECT_EQ(filter.feed(std::string(30, '-')), "");
  EXPECT_EQ(filter.flush(), "");
  EXPECT_EQ(filter.feed(std::string(10, '-') + "\n"), std::string(40, '-') + "\n");
}

TEST(Outcome, MapsMpirunStatusToExitCodes) {
  using Kind = RankEnd::Kind;
  const auto failure = [](int rank, int code) {
    StopPage page;
    page.fail(rank, code);
    page.fail(7, 1);  // the first counts
    return page.failure.load();
  };
  EXPECT_EQ(outcome({}).code, 0);
  EXPECT_EQ(outcome({.status = 139, .ends = {{Kind::killed, 3, 11, "Segmentation fault"}}}).line,
            "rank 3 was killed by signal 11 (Segmentation fault)");
  EXPECT_EQ(outcome({.status = 139, .ends = {{Kind::killed, 3, 11}}, .explained = true}).code, 3);
  EXPECT_EQ(outcome({.status = 2, .failure = failure(0, 2), .explained = true}).line, "");
  EXPECT_EQ(outcome({.status = 4, .failure = failure(0, 4)}).line, "rank 0 exited with code 4");
  EXPECT_EQ(outcome({.status = 1, .failure = failure(1, 4)}).code, 4) << "mpirun's code may be another rank's";
  EXPECT_EQ(outcome({.status = 17}).code, 3);
  EXPECT_EQ(outcome({.status = 17}).line, "a rank exited with code 17");
  EXPECT_EQ(outcome({.status = 137}).code, 3);
  EXPECT_EQ(outcome({.status = 1, .started = false, .notices = {"no slots"}}).line, "mpirun: no slots");
  EXPECT_EQ(outcome({.status = 130, .interruption = Interruption::asked, .failure = failure(0, 130)}).line, "");
  EXPECT_EQ(outcome({.status = 138, .interruption = Interruption::asked, .ends = {{Kind::killed, 0, SIGUSR1}}}).code,
            130);
  EXPECT_EQ(outcome({.status = 139, .interruption = Interruption::asked, .ends = {{Kind::killed, 0, SIGSEGV}}}).code,
            3);
  EXPECT_EQ(
      outcome({.status = 2, .interruption = Interruption::asked, .failure = failure(0, 2), .explained = true}).code, 2);
}

// The launcher and the ranks claim the last message concurrently: exactly one wins.
TEST(StopPage, HasOneLastMessage) {
  for (int turn = 0; turn < 1000; ++turn) {
    StopPage page;
    std::atomic<int> claims{0};
    std::thread ranks([&] { claims += page.claim(StopPage::of_ranks); });
    claims += page.claim(StopPage::of_launcher);
    ranks.join();
    EXPECT_EQ(claims, 1);
    EXPECT_EQ(page.claim(StopPage::of_ranks), page.last_message == StopPage::of_ranks);
  }
}

// Each launcher removes folders that no launcher has locked, also while others create theirs.
TEST(ScratchFolder, IsNotRemovedByOtherLaunchers) {
  std::atomic<int> removed{0};
  std::vector<std::thread> launchers;
  for (int i = 0; i < 4; ++i) {
    launchers.emplace_back([&] {
      for (int turn = 0; turn < 500; ++turn) {
        const ScratchFolder folder;
        if (access((folder.path() + "/lock").c_str(), F_OK) != 0) ++removed;
      }
    });
  }
  for (std::thread& launcher : launchers) launcher.join();
  EXPECT_EQ(removed, 0);
}

TEST(StopSignals, DoNotCutTheLastMessage) {
  EXPECT_EXIT(
      {
        catch_stop_signals();
        raise(SIGINT);
        print_last_message([] {
          raise(SIGINT);
          std::fprintf(stderr, "stopped\n");
        });
        raise(SIGINT);
      },
      ::testing::ExitedWithCode(130), "^hawser: saving and stopping[^\n]*\nstopped\n$");
}

TEST(StopSignals, OfSeveralThreadsAtOnceEndWithOneLine) {
  for (int turn = 0; turn < 200; ++turn) {
    std::array<int, 2> ends{};
    ASSERT_EQ(pipe(ends.data()), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(ends[1], STDERR_FILENO);
      alarm(20);
      catch_stop_signals();
      std::atomic<int> ready{0};
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&] {
          for (++ready; ready < 4;) std::this_thread::yield();
          raise(SIGINT);  // to this thread
        });
      }
      for (std::thread& thread : threads) thread.join();
      _exit(0);
    }
    close(ends[1]);
    std::string lines;
    std::array<char, 512> part{};
    for (ssize_t size; (size = read(ends[0], part.data(), part.size())) > 0;) {
      lines.append(part.data(), static_cast<std::size_t>(size));
    }
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(WEXITSTATUS(status), 130) << status;
    const auto count = [&](const std::string& line) {
      int found = 0;
      for (std::size_t at = lines.find(line); at != std::string::npos; at = lines.find(line, at + 1)) ++found;
      return found;
    };
    ASSERT_EQ(count(kEndedLine), 1) << lines;
    ASSERT_LE(count(kSavingLine), 1) << lines;
  }
}

TEST(StopSignals, EndTheProcessWhileNoProcessReadsStandardError) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  fill(ends[1]);
  EXPECT_EXIT(
      {
        dup2(ends[1], STDERR_FILENO);
        alarm(20);
        catch_stop_signals();
        raise(SIGTERM);
        raise(SIGTERM);
      },
      ::testing::ExitedWithCode(130), "");
  close(ends[0]);
  close(ends[1]);
}

TEST(StopSignals, AreTakenAlsoIfTheParentBlocksThem) {
  const pid_t child = fork();
  if (child == 0) {
    sigset_t signals;
    sigfillset(&signals);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    close(STDERR_FILENO);
    end_when_interrupted();
    raise(SIGTERM);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 130);
}

TEST(StopSignals, TheFirstIsARequest) {
  catch_stop_signals();
  EXPECT_FALSE(stop_requested());
  raise(SIGINT);
  EXPECT_TRUE(stop_requested());
  EXPECT_EXIT(raise(SIGINT), ::testing::ExitedWithCode(130), "");
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  signal(SIGUSR1, SIG_DFL);
}

TEST(Launch, TheStateOfAProcessIsWhatTheKernelSays) {
  const pid_t child = fork();
  if (child == 0) {
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(process_state(child).substr(0, 11), "T (stopped)");
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(process_state(child), "");
}

}  // namespace launch_test
}  // namespace hawser
