// Signals at awkward moments: none is lost, none leaves a process behind, and the messages are true.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/testing/test_paths.h"

#include <chrono>
#include <fstream>
#include <memory>
#include <thread>

#include "harness.h"

namespace hawser::faults {
namespace interrupt_test {

using Words = std::vector<std::string>;

void pause_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

Words endless(const std::string& ranks, const std::string& every = "0") {
  return {"--ranks", ranks, "train.steps=1000000", "checkpoint.every_steps=" + every};
}

// Names, sizes and times of all files of an output.
std::map<std::string, std::pair<std::uintmax_t, fs::file_time_type>> files(const fs::path& out) {
  std::map<std::string, std::pair<std::uintmax_t, fs::file_time_type>> found;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(out, error)) {
    if (entry.is_regular_file()) found[entry.path()] = {entry.file_size(), entry.last_write_time()};
  }
  return found;
}

void expect_nothing_runs(const Fit& run, const Workplace& place) {
  EXPECT_EQ(run.left(), std::vector<pid_t>{});
  const auto before = files(place.out());
  pause_ms(100);
  EXPECT_EQ(files(place.out()), before);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

bool says(const Ended& ended, const std::string& part) {
  return count(ended.err, part) == 1;
}

// The launcher has read that the kernel keeps a process in an uninterruptible state: its disk stands still.
bool disk_stands_still(const Ended& ended) {
  return count(ended.err, "does not exit after SIGKILL") > 0 && count(ended.err, "; its state is D (disk sleep)") > 0;
}

// Write end of a pipe that is full and that no process reads.
class FullPipe {
 public:
  FullPipe() {
    EXPECT_EQ(pipe(ends_), 0);
    fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    const char byte = 'x';
    while (write(ends_[1], &byte, 1) == 1) continue;
    fcntl(ends_[1], F_SETFL, 0);
  }
  ~FullPipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;
  int end() const { return ends_[1]; }

 private:
  int ends_[2] = {};
};

// `2>&1 | less`: the ranks are done and the result is still to be written when the signals come.
TEST(Interrupt, ASignalEndsARunWhoseOutputIsNotRead) {
  const Workplace place;
  const FullPipe out, err;
  const pid_t process = fork();
  if (process == 0) {
    if (chdir(place.folder().c_str()) != 0) _exit(99);
    dup2(out.end(), STDOUT_FILENO);
    dup2(err.end(), STDERR_FILENO);
    execl(testing::kHawser, "hawser", "fit", "recipe.yaml", "--ranks", "2", "--json", static_cast<char*>(nullptr));
    _exit(98);
  }
  ASSERT_TRUE(eventually([&] { return fs::exists(place.out() / "report.html") || newest_step(place.out()) > 0; }));
  pause_ms(2000);
  int status = 0;
  pid_t ended = waitpid(process, &status, WNOHANG);
  EXPECT_EQ(ended, 0) << "it waits for the reader";
  for (int i = 0; i < 3 && ended == 0; ++i) {
    kill(process, SIGTERM);
    const bool gone = eventually([&] { return (ended = waitpid(process, &status, WNOHANG)) != 0; }, 5);
    if (gone) break;
  }
  if (ended == 0) {
    kill(process, SIGKILL);
    waitpid(process, &status, 0);
    FAIL() << "SIGTERM does not end it";
  }
  EXPECT_TRUE((WIFEXITED(status) && WEXITSTATUS(status) == 130) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM))
      << status;
}

TEST(Interrupt, IsHandledAtAnyTime) {
  for (const char* ranks : {"1", "2"}) {
    for (const int ms : {0, 5, 10, 15, 20, 25, 30, 40, 50, 70, 100, 150, 200, 300}) {
      SCOPED_TRACE(std::string(ranks) + " ranks, after " + std::to_string(ms) + " ms");
      const Workplace place;
      Fit going(place, endless(ranks));
      pause_ms(ms);
      kill(going.pid(), SIGINT);
      const Ended ended = going.wait(20);
      // Before main the signal itself ends the process.
      if (ended.code != 1000 + SIGINT) {
        EXPECT_EQ(ended.code, 130) << ended.err;
      }
      if (ended.code == 130) {
        EXPECT_TRUE(says(ended, "saving and stopping") || says(ended, "interrupted")) << ended.err;
      }
      expect_nothing_runs(going, place);
    }
  }
}

// The steps before a long evaluation are saved without waiting for its end.
TEST(Interrupt, EndsAnEvaluation) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    // With several sets, the stop comes during the second one.
    const std::string data =
        ranks[0] == '1' ? "data.validation=long.jsonl" : "data.validation={a: valid.jsonl, z: long.jsonl}";
    const Workplace place;
    std::string line;
    {
      std::ifstream in(place.folder() / "valid.jsonl");
      std::getline(in, line);
    }
    {
      std::ofstream out(place.folder() / "long.jsonl");
      for (int i = 0; i < 20000; ++i) out << line << "\n";
    }
    // A resumed run does not evaluate before its first step.
    const Ended before = run(place, {"--ranks", ranks, "train.steps=2", "optimizer.warmup_steps=0"});
    ASSERT_EQ(before.code, 0) << before.err;
    Fit going(place, Words{"--ranks", ranks, "--resume", "train.steps=40", "train.evaluate_every=4", data,
                           "checkpoint.every_steps=0"});
    ASSERT_TRUE(eventually([&] { return going.err().find("step 3/40") != std::string::npos; })) << going.err();
    pause_ms(400);  // steps take milliseconds, the evaluation some seconds
    const auto began = std::chrono::steady_clock::now();
    kill(going.pid(), SIGTERM);
    const Ended ended = going.wait();
    EXPECT_EQ(ended.code, 130) << ended.err;
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(), patient(30))
        << ended.err;
    EXPECT_EQ(verified_step(place.out()), 4) << ended.err;
    EXPECT_EQ(ended.err.find("step 4: validation loss"), std::string::npos) << "the evaluation was over";
    EXPECT_EQ(metrics(place.out()).size(), 4u);

    // The resumed run makes up for the evaluation, in the metrics and in the checkpoint, which is the best one, also if
    // it does not evaluate between steps itself.
    const char* evaluate = ranks[0] == '1' ? "train.evaluate_every=4" : "train.evaluate_every=0";
    const Ended resumed = run(place, {"--ranks", ranks, "--resume", "train.steps=4", "optimizer.warmup_steps=0",
                                      evaluate, data, "checkpoint.every_steps=0"});
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("step 4: validation loss"), std::string::npos) << resumed.err;
    const auto lines = metrics(place.out());
    ASSERT_EQ(lines.size(), 4u);
    EXPECT_GT(lines.back().validation_loss, 0) << lines.back();
    EXPECT_EQ(verified_step(place.out()), 4);
    EXPECT_TRUE(fs::exists(place.out() / "best"));
    const Ended again = run(place, {"--ranks", ranks, "--resume", "train.steps=4", "optimizer.warmup_steps=0",
                                    "train.evaluate_every=4", data, "checkpoint.every_steps=0"});
    EXPECT_EQ(again.err.find("interrupted"), std::string::npos) << again.err;

    Fit first(place, Words{"--ranks", ranks, "train.steps=40", data, "output=first"});
    ASSERT_TRUE(eventually([&] { return first.err().find("reading weights") != std::string::npos; })) << first.err();
    pause_ms(1000);
    kill(first.pid(), SIGTERM);
    const Ended none = first.wait();
    EXPECT_EQ(none.code, 130) << none.err;
    EXPECT_NE(none.err.find("stopped after step 0; nothing to save"), std::string::npos) << none.err;
  }
}

TEST(Interrupt, ThreeInARowLeaveNothingBehind) {
  for (const char* ranks : {"1", "2"}) {
    for (const int before : {20, 200, 800}) {
      for (const int between : {0, 1, 20}) {
        SCOPED_TRACE(std::string(ranks) + " ranks, " + std::to_string(before) + ", " + std::to_string(between));
        const Workplace place;
        Fit going(place, endless(ranks, "1"));
        pause_ms(before);
        for (int i = 0; i < 3; ++i) {
          kill(going.pid(), SIGINT);
          pause_ms(between);
        }
        const Ended ended = going.wait(20);
        expect_nothing_runs(going, place);
        if (ended.code != 1000 + SIGINT) {
          EXPECT_EQ(ended.code, 130) << ended.err;
        }
        EXPECT_LT(ended.seconds, patient(5));
        // Either it was saved, or a message reports that it is lost.
        if (ended.code == 130) {
          EXPECT_EQ(count(ended.err, "stopped after") + count(ended.err, "are lost") + count(ended.err, "interrupted"),
                    1u)
              << ended.err;
        }
        if (newest_step(place.out()) > 0) verified_step(place.out());
      }
    }
  }
}

TEST(Interrupt, OfACommandThatSavesNothingEndsIt) {
  for (const char* ranks : {"1", "2"}) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      const Workplace place;
      Fit going(place, Fit::Command{.words = {"bench", "step", "--model", "model.json", "--sequence-length", "64",
                                              "--steps", "1000000", "--ranks", ranks}});
      pause_ms(static_cast<int>(1000 * patient(0.7)));
      kill(going.pid(), signal);
      const Ended ended = going.wait(20);
      EXPECT_EQ(ended.code, 130) << ended.err;
      EXPECT_TRUE(ended.err.ends_with("hawser: interrupted\n")) << ended.err;
      EXPECT_EQ(ended.out, "");
      if (disk_stands_still(ended)) continue;
      EXPECT_LT(ended.seconds, patient(3));
      EXPECT_EQ(ended.err, "hawser: interrupted\n");
      expect_nothing_runs(going, place);
    }
  }
}

TEST(Interrupt, AtATerminalReachesTheLauncherAlone) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    Fit going(place, Fit::Command{.words = {"fit", "recipe.yaml", "--ranks", ranks, "--set", "train.steps=1000000"},
                                  .terminal = true});
    ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 3 || !going.going(); })) << going.err();
    going.type("\x03");
    const Ended ended = going.wait(20);
    EXPECT_EQ(ended.code, 130) << ended.err;
    EXPECT_TRUE(says(ended, "\nhawser: saving and stopping; interrupt again to stop at once")) << ended.err;
    EXPECT_TRUE(says(ended, std::string("; `hawser fit recipe.yaml --ranks ") + ranks +
                                " --set train.steps=1000000 --resume` continues from it"))
        << ended.err;
    EXPECT_EQ(verified_step(place.out()), static_cast<std::int64_t>(metrics(place.out()).size()));
    expect_nothing_runs(going, place);
  }
}

TEST(Interrupt, TwiceAtATerminalEndsAtOnceAndReportsWhatIsLost) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    Fit going(place, Fit::Command{.words = {"fit", "recipe.yaml", "--ranks", ranks, "--set", "train.steps=1000000"},
                                  .terminal = true});
    ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 3 || !going.going(); })) << going.err();
    // One of several ranks is stopped, so that there is time for a second signal.
    if (std::string(ranks) == "2") kill(going.rank(1), SIGSTOP);
    going.type("\x03\x03");
    if (std::string(ranks) == "2") {
      pause_ms(100);
      going.type("\x03");  // two signals at once may count as one
    }
    const Ended ended = going.wait(20);
    EXPECT_EQ(ended.code, 130) << ended.err;
    EXPECT_LT(ended.seconds, patient(3));
    EXPECT_EQ(count(ended.err, "stopped after") +
                  count(ended.err, "stopped at once; steps since the last checkpoint are lost"),
              1u)
        << ended.err;
    if (std::string(ranks) == "2") {
      EXPECT_TRUE(says(ended, "stopped at once")) << ended.err;
    }
    EXPECT_EQ(count(ended.err, "***"), 0u) << "a trace of a crash: " << ended.err;
    expect_nothing_runs(going, place);
  }
}

TEST(Interrupt, AfterItIsSavedChangesNothing) {
  const Workplace place;
  Fit going(place, endless("2"));
  ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 3 || !going.going(); })) << going.err();
  kill(going.pid(), SIGINT);
  ASSERT_TRUE(eventually([&] { return going.err().find("continues from it") != std::string::npos; })) << going.err();
  pause_ms(20);
  kill(going.pid(), SIGINT);
  const Ended ended = going.wait(20);
  EXPECT_EQ(ended.code, 130) << ended.err;
  EXPECT_EQ(count(ended.err, "are lost"), 0u) << ended.err;
  verified_step(place.out());
  expect_nothing_runs(going, place);
}

TEST(Interrupt, AStoppedRankDoesNotOutliveTheRun) {
  struct Stopped {
    Workplace place;
    std::unique_ptr<Fit> run;
  };
  std::map<std::string, Stopped> runs;  // by ranks; the first waits for its stopped rank while the second starts
  for (const char* ranks : {"2", "4"}) {
    SCOPED_TRACE(ranks);
    auto& [place, run] = runs[ranks];
    auto words = endless(ranks);
    words.push_back("run.collective_timeout_s=5");  // on a busy machine, a start may wait seconds for a rank
    run = std::make_unique<Fit>(place, words);
    ASSERT_TRUE(eventually([&] { return metrics(place.out()).size() >= 3 || !run->going(); })) << run->err();
    kill(run->rank(1), SIGSTOP);
  }
  for (auto& [ranks, stopped] : runs) {
    SCOPED_TRACE(ranks);
    const Ended ended = stopped.run->wait(30);
    EXPECT_EQ(ended.code, 3) << ended.err;
    expect_nothing_runs(*stopped.run, stopped.place);
  }
}

}  // namespace interrupt_test
}  // namespace hawser::faults
